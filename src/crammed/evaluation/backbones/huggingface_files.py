"""Finds the files of a Hugging Face model, and reports in one line what is wrong with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crammed.data.tokenization.tokenizer import MOST_IDS, check_ids
from crammed.errors import InputError
from crammed.extras import import_extra
from crammed.files.faults import AGAIN
from crammed.files.folders import inside
from crammed.files.regular import ordinary, read_text
from crammed.files.writing import read_json, write_json
from crammed.terminal.quiet import quiet_transformers

TUNED = ("task.json", "embedding.json")
"""One of these is in every folder of `crammed finetune` and `crammed embed`."""
PAIR_LAYER = "pairs.safetensors"
"""Of a fine-tuned model that reads two texts apart, the layer that compares them."""
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "*.model")
_MOST_LAYERS, _MOST_LABELS, _MOST = 10_000, 100_000, 2**31
_OF_PYTORCH = ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")
"""Implementations that are not downloaded."""
_REST = (
    "config.json",
    "*.index.json",
    *_TOKENIZER,
    "special_tokens_map.json",
    "added_tokens.json",
    "*.py",
)
_OWN_CODE = "comes with its own Python code"
_OF_VECTORS = ("modules.json", "sentence_bert_config.json", "*_Pooling/config.json")
"""What sentence-transformers adds; it changes nothing of the encoder."""


def find(spec: str) -> tuple[str, Path]:
    """Name and folder of a model; a hub model is downloaded unless it is cached.

    Raises:
        InputError: there is no such folder and no such model on the hub, or transformers is not
            installed.
    """
    import_extra("transformers", "hf", "a Hugging Face model")
    path = Path(spec)
    if path.is_dir():
        return path.resolve().name, path
    from huggingface_hub import snapshot_download

    others = (*_REST, *_OF_VECTORS, *TUNED, PAIR_LAYER)
    try:
        with quiet_transformers():
            folder = Path(snapshot_download(spec, allow_patterns=[_WEIGHTS[0], *others]))
            if not _weights(folder):
                folder = Path(snapshot_download(spec, allow_patterns=[*_WEIGHTS, *others]))
    except Exception as error:  # from the network, the hub or the cache
        raise InputError(
            f"no such model: {spec} is not a folder, and the Hugging Face hub did not provide it "
            f"({_first_line(error)})"
        ) from error
    return spec, folder


@contextmanager
def loading_tokenizer(name: str, folder: Path) -> Iterator[None]:
    """As `loading`; if there is no tokenizer, transformers may blame a missing library instead.

    Raises:
        InputError: the folder holds no file of a tokenizer.
    """
    none = InputError(f"{folder} holds no tokenizer (such as tokenizer.json)")
    if not (there := {file.name for file in _among(folder, _TOKENIZER)}):
        raise none
    try:
        with loading(name, "tokenizer"):
            yield
    except InputError as error:
        if there == {"tokenizer_config.json"} and _OWN_CODE not in str(error):
            raise none from error
        raise


def model_files(folder: Path) -> list[Path]:
    """The files that determine what the model computes.

    Raises:
        InputError: there are no weights, config.json does not name the model type, asks for
            impossible sizes or for code, or stands for another file, there is an adapter, or an
            index of weights is damaged or points outside the folder.
    """
    for file in folder.iterdir():  # transformers reads more of them than are listed here
        if not file.is_dir():
            ordinary(file)
        if not file.exists():
            raise InputError(f"{file} is a link to a missing file: copy the model with cp -rL")
    if (folder / "adapter_config.json").exists():  # it names another model to load
        raise InputError(f"{folder} holds an adapter: merge it into its model, and name the result")
    weights = _weights(folder)
    if not weights:
        raise InputError(f"{folder} holds no weights (model.safetensors or pytorch_model.bin)")
    config = folder / "config.json"
    try:
        values = json.loads(read_text(config))
        kind = values.get("model_type")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{config} is not a JSON object") from error
    if kind is None:
        ours = f": type the run directory, {folder.parent}" if "row_length" in values else ""
        raise InputError(f"{config} has no model_type{ours}")
    for key, value in _settings(values):
        if isinstance(value, int) and value > _most(key):
            raise InputError(f"{config}: no model has so large a {key}")
        if "implementation" in key and isinstance(value, str) and value not in _OF_PYTORCH:
            raise InputError(
                f"{config} asks for the code {value!r} as its {key}: remove that key, and "
                "PyTorch's own is used"
            )
        if key == "quantization_config" and value is not None:
            raise InputError(
                f"{config} asks for the code of a quantization ({key}): evaluate a version of the "
                "model without it"
            )
        if key == "configuration_files":
            raise InputError(
                f"{config} has another file read in its place ({key}): remove that key, or copy "
                "that file to config.json"
            )
    _check_indices(folder)
    _check_ids(folder)
    return [*weights, *_among(folder, _REST)]


def _among(folder: Path, patterns: Sequence[str]) -> set[Path]:
    return {file for each in patterns for file in folder.glob(each) if file.is_file()}


def _settings(values: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The keys and values of a configuration and of the parts inside it.

    An implementation that is named for each part of a model comes with the key of the whole.
    """
    if isinstance(values, dict):
        for name, value in values.items():
            if isinstance(value, dict):
                yield str(name), value
            yield from _settings(value, key if "implementation" in key else str(name))
    elif isinstance(values, list):
        for value in values:
            yield from _settings(value, key)
    else:
        yield key, values


def _most(key: str) -> int:
    if "layers" in key:
        return _MOST_LAYERS
    return {"num_labels": _MOST_LABELS, "vocab_size": MOST_IDS}.get(key, _MOST)


def _check_ids(folder: Path) -> None:
    """Refuse ids beyond any vocabulary: libraries count up to them."""
    for name in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "vocab.json"):
        file = folder / name
        if not file.exists():
            continue
        try:
            values = json.loads(read_text(file))
            if name == "tokenizer.json":
                check_ids(values, file)
                continue
            listed = values.values()
            if name == "tokenizer_config.json":
                listed = map(int, values.get("added_tokens_decoder") or ())
            most = max((each for each in listed if isinstance(each, int)), default=0)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{file} is damaged, or is not a tokenizer's") from error
        if most >= MOST_IDS:
            raise InputError(
                f"{file} has a token with the id {most:,}; ids must be below {MOST_IDS:,}"
            )


def is_weights(file: Path) -> bool:
    """Whether a file of a model holds weights, or says which file holds which."""
    return any(file.match(pattern) for pattern in (*_WEIGHTS, "*.index.json"))


def copy_all_but_weights(source: Path, folder: Path, length: int) -> None:
    """Copy the files of a model, except those that `is_weights`, into another folder.

    Args:
        length: tokens at which its tokenizer is to truncate texts.
    """
    for file in model_files(source):
        if not is_weights(file):
            shutil.copyfile(file, folder / file.name)
    truncate_at(length, folder)


def is_tuned(folder: Path) -> bool:
    """Whether a folder is of `crammed finetune` or `crammed embed`.

    Its tokenizer has the limit of that training, not that of the encoder.
    """
    return any((folder / name).exists() for name in TUNED)


def truncate_at(length: int, folder: Path) -> None:
    """Write at how many tokens the tokenizer in a folder truncates texts."""
    settings = folder / "tokenizer_config.json"
    known = json.loads(read_text(settings)) if settings.exists() else {}
    write_json(settings, {**known, "model_max_length": length})


def single_precision(source: Path) -> dict[str, Any]:
    """The configuration in a folder, for weights in float32, whatever the folder's own are in.

    transformers 5 would round the weights to the format that it names.
    """
    config = read_json(source / "config.json") or {}
    return {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype")}


def _check_indices(folder: Path) -> None:
    """Refuse an index of weights that points outside the folder: transformers would follow it."""
    for index in folder.glob("*.index.json"):
        try:
            names = set(json.loads(read_text(index))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{index} is not a list of weights") from error
        for name in names:
            inside(folder, name, str(index))


def _weights(folder: Path) -> list[Path]:
    """The weight files that transformers would load: safetensors if there are any."""
    for pattern in _WEIGHTS:
        if found := _among(folder, [pattern]):
            return [*found]
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
    except BaseException as error:  # loading may raise anything, and Rust code panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if "trust_remote_code" in str(error):
            raise InputError(
                f"{name} {_OWN_CODE}: read it, then add --trust-remote-code "
                "to run it, which adapt and decide never do"
            ) from error
        said = _first_line(error)
        # What transformers does not know is whole.
        mend = "" if "recogni" in said.lower() else f"; {AGAIN}"
        raise InputError(f"the {part} of {name} cannot be loaded: {said}{mend}") from error


def _first_line(error: BaseException) -> str:
    if "Weights only load failed" in str(error):  # and PyTorch's advice is to run what is in there
        return "pytorch_model.bin is damaged, or holds code, as model.safetensors never does"
    lines = str(error).strip().splitlines()
    said = " ".join(lines[: 2 if lines and lines[0].rstrip().endswith(":") else 1])
    return said[:300] or type(error).__name__
