"""Finds the files of a Hugging Face model, and reports in one line what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crammed.errors import InputError
from crammed.extras import import_extra
from crammed.files.folders import inside
from crammed.terminal.quiet import quiet_transformers

_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "*.model")
_MOST_LAYERS, _MOST = 10_000, 2**31
_REST = (
    "config.json",
    "*.index.json",
    *_TOKENIZER,
    "special_tokens_map.json",
    "added_tokens.json",
    "*.py",
)


def find(spec: str) -> tuple[str, Path]:
    """Name and folder of a model; a hub model is downloaded unless it is cached.

    Raises:
        InputError: there is no such folder and no such model on the hub, or transformers is not
            installed.
    """
    import_extra("transformers", "hf", "a Hugging Face model")
    path = Path(spec).expanduser()
    if path.is_dir():
        return path.resolve().name, path
    from huggingface_hub import snapshot_download

    try:
        with quiet_transformers():
            folder = Path(snapshot_download(spec, allow_patterns=[_WEIGHTS[0], *_REST]))
            if not _weights(folder):
                folder = Path(snapshot_download(spec, allow_patterns=[*_WEIGHTS, *_REST]))
    except Exception as error:  # from the network, the hub or the cache
        raise InputError(
            f"no such model: {spec} is not a folder, and the Hugging Face hub did not provide it "
            f"({_first_line(error)})"
        ) from error
    return spec, folder


def check_tokenizer_files(folder: Path) -> None:
    """Check that there is a tokenizer, since transformers may blame a missing library instead.

    Raises:
        InputError: the folder holds no file of a tokenizer.
    """
    if not any(file for pattern in _TOKENIZER for file in folder.glob(pattern)):
        raise InputError(f"{folder} holds no tokenizer (such as tokenizer.json)")


def model_files(folder: Path) -> list[Path]:
    """The files that determine what the model computes.

    Raises:
        InputError: there are no weights, config.json does not name the model type or asks for
            impossible sizes, or an index of weights is damaged or points outside the folder.
    """
    weights = _weights(folder)
    if not weights:
        raise InputError(f"{folder} holds no weights (model.safetensors or pytorch_model.bin)")
    try:
        values = json.loads((folder / "config.json").read_text("utf-8"))
        kind = values.get("model_type")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{folder / 'config.json'} is not a JSON object") from error
    if kind is None:
        ours = f": type the run directory, {folder.parent}" if "row_length" in values else ""
        raise InputError(f"{folder / 'config.json'} has no model_type{ours}")
    for key, value in values.items():
        if isinstance(value, int) and value > (_MOST_LAYERS if "layers" in key else _MOST):
            raise InputError(f"{folder / 'config.json'}: no model has so large a {key}")
    _check_indices(folder)
    return [*weights, *{file for pattern in _REST for file in folder.glob(pattern)}]


def is_weights(file: Path) -> bool:
    """Whether a file of a model holds weights, or says which file holds which."""
    return any(file.match(pattern) for pattern in (*_WEIGHTS, "*.index.json"))


def _check_indices(folder: Path) -> None:
    """Refuse an index of weights that points outside the folder: transformers would follow it."""
    for index in folder.glob("*.index.json"):
        try:
            names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{index} is not a list of weights") from error
        for name in names:
            inside(folder, name, str(index))


def _weights(folder: Path) -> list[Path]:
    """The weight files that transformers would load: safetensors if there are any."""
    for pattern in _WEIGHTS:
        if found := list(folder.glob(pattern)):
            return found
    return []


@contextmanager
def loading(name: str, part: str) -> Iterator[None]:
    """Silence transformers while it loads a part, and turn its exceptions into `InputError`."""
    try:
        with quiet_transformers():
            yield
    except InputError:
        raise
    except ImportError as error:
        raise InputError(
            f"the {part} of {name} needs a package that cannot be imported: {_first_line(error)}"
        ) from error
    except Exception as error:  # loading may raise anything
        if "trust_remote_code" in str(error):
            raise InputError(
                f"{name} comes with its own Python code: read it, then add --trust-remote-code "
                "to run it"
            ) from error
        raise InputError(f"the {part} of {name} cannot be loaded: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    words = next(iter(str(error).strip().splitlines()), "")
    return words[:300] or type(error).__name__
