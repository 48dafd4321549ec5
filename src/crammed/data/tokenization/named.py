"""The tokenizer that `tokenizer.file` names: a file, a folder, or one of the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import Tokenizer

from crammed.config import TokenizerConfig
from crammed.data.tokenization.tokenizer import load_tokenizer, vocabulary_size
from crammed.errors import InputError, first_line
from crammed.extras import import_extra
from crammed.files.folders import expanded

HUB = "hub:"
_FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
_OWNER_AND_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def named_tokenizer(name: str) -> Tokenizer:
    """The tokenizer that a name stands for, with what training needs added.

    Args:
        name: a tokenizer.json, a folder with one, ``hub:NAME``, ``hub:OWNER/NAME``, or
            ``OWNER/NAME`` where no file or folder has that path.

    Raises:
        InputError: there is none, it is unsuitable, or the hub cannot be reached.
    """
    path = expanded(name)
    if name.startswith(HUB):
        path = _from_hub(name.removeprefix(HUB))
    elif not path.exists() and _OWNER_AND_NAME.fullmatch(name):
        try:
            path = _from_hub(name)
        except InputError as error:
            raise error.within(f"no file or folder {name}") from error
    return load_tokenizer(path)


def given_vocabulary(config: TokenizerConfig) -> int | None:
    """The size of the vocabulary that `tokenizer.file` brings; None if one is to be trained.

    Raises:
        InputError: as for `named_tokenizer`.
    """
    return None if config.file is None else vocabulary_size(named_tokenizer(config.file))


def _from_hub(name: str) -> Path:
    """The folder of the hub's cache with the files of a tokenizer, fetched if it has changed."""
    library = import_extra("huggingface_hub", "hf", f"tokenizer.file={HUB}{name}")
    library.utils.disable_progress_bars()  # a tokenizer is small
    try:
        folder = Path(library.snapshot_download(name, allow_patterns=_FILES))
    except (OSError, ValueError) as error:  # not found, not allowed, not reached, not a name
        raise InputError(
            f"cannot fetch the tokenizer {HUB}{name}: {first_line(error)}; tokenizer.file also "
            "takes a tokenizer.json or a folder with one"
        ) from error
    if not (folder / "tokenizer.json").is_file():
        raise InputError(
            f"{HUB}{name} has no tokenizer.json: load it with transformers' AutoTokenizer, save it "
            "with save_pretrained, and name that folder"
        )
    return folder
