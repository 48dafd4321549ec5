"""The special tokens of a tokenizer, trained here or elsewhere; loading and saving tokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, models, processors

from crammed.errors import InputError
from crammed.files.regular import read_text

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens of every tokenizer trained here; their ids are their positions in this list."""
PAD, UNK, CLS, SEP, MASK = range(len(SPECIALS))
MOST_IDS = 1 << 24  # more than any vocabulary has
NOT_ASCII = r"[^\x00-\x7F]"  # regular expression

_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
"""Names by which a special token's role is known: a tokenizer.json does not state it."""

_SETTINGS = {
    "pad": ("pad_token",),
    "unk": ("unk_token",),
    "cls": ("cls_token", "bos_token"),
    "sep": ("sep_token", "eos_token"),
    "mask": ("mask_token",),
}
"""Keys that name each special token in the files beside a tokenizer.json."""


@dataclass(frozen=True)
class Specials:
    """Ids of the special tokens."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Specials:
        """The ids in a tokenizer.

        Raises:
            InputError: the tokenizer lacks one.
        """
        vocabulary = tokenizer.get_vocab()
        names = {role: _usual_name(role, vocabulary) for role in _NAMES}
        if missing := [role for role, name in names.items() if name is None]:
            listed = ", ".join(f"{role} ({' or '.join(_NAMES[role])})" for role in missing)
            raise InputError(f"the tokenizer lacks special tokens: {listed}")
        return cls(**{role: vocabulary[name] for role, name in names.items() if name})

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids: pad, unk, cls, sep, mask."""
        return astuple(self)

    def names(self, tokenizer: Tokenizer) -> dict[str, str]:
        """Their names in the tokenizer, as in ``{"pad": "[PAD]", ...}``."""
        return {f.name: str(tokenizer.id_to_token(getattr(self, f.name))) for f in fields(self)}


def begins_word(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Whether each token begins a word, [V].

    WordPiece marks the tokens that go on a word; others mark those that come after a space.

    Raises:
        InputError: neither is the case.
    """
    begins = np.ones(vocabulary_size(tokenizer), dtype=bool)
    vocabulary = tokenizer.get_vocab()
    if isinstance(tokenizer.model, models.WordPiece):
        prefix = tokenizer.model.continuing_subword_prefix
        begins[[number for token, number in vocabulary.items() if token.startswith(prefix)]] = False
        return begins
    spaced = [token for token in vocabulary if token.startswith(("\u2581", "\u0120"))]
    if not spaced:
        raise InputError(
            "the tokenizer does not show where words begin: leave masking.unit out, or train "
            "another tokenizer"
        )
    added = tokenizer.get_added_tokens_decoder().items()
    whole = [number for number, token in added if token.single_word]
    begins[:] = False
    begins[[*(vocabulary[token] for token in spaced), *Specials.of(tokenizer).ids, *whole]] = True
    return begins


def _usual_name(role: str, vocabulary: dict[str, int]) -> str | None:
    return next((name for name in _NAMES[role] if name in vocabulary), None)


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Rows that an embedding needs for all ids; some tokenizers skip ids."""
    return 1 + max(tokenizer.get_vocab().values())


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer.json, or that of a Hugging Face folder, and add what training needs.

    Special tokens with unusual names, whose roles only special_tokens_map.json or
    tokenizer_config.json state, get BERT's names and keep their ids. A tokenizer that does not
    frame sentences in special tokens is made to frame them in [CLS] and [SEP].

    Raises:
        InputError: there is no tokenizer, it is damaged, or it lacks a padding, unknown, first,
            separator or mask token.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    with library_faults(file):
        try:
            text = read_text(file)
        except OSError as error:
            raise InputError(
                f"no tokenizer at {path}: name a tokenizer.json, or a folder that holds one"
            ) from error
        return _completed(json.loads(text), file)


def read_tokenizer(file: Path, size: int) -> Tokenizer:
    """The tokenizer of a corpus or a model, as we saved it.

    Args:
        size: rows of the embedding; every id must be below.

    Raises:
        InputError: it is missing, damaged, or has ids that are too large.
    """
    with library_faults(file):
        text = read_text(file)
        check_ids(json.loads(text), file)
        tokenizer = Tokenizer.from_str(text)
        check_frame(tokenizer, size, str(file))
    return tokenizer


def check_frame(tokenizer: Tokenizer, size: int, shown: str) -> None:
    """Refuse a tokenizer that frames sentences in ids that the model has no embeddings for.

    Raises:
        InputError: it does.
    """
    framed = tokenizer.encode("Any text, \u2603.", "Another.")  # fails if the file lacks something
    if max(framed.ids, default=0) >= size:
        raise InputError(
            f"{shown} frames sentences in the id {max(framed.ids):,}, but there are only {size:,}"
        )


@contextmanager
def library_faults(file: Path) -> Iterator[None]:
    """Turn the library's errors about a damaged tokenizer.json into an `InputError`."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except BaseException as error:  # nothing more precise is raised; Rust code panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(
            f"{file} is not a tokenizer.json of the tokenizers library, or damaged"
        ) from error


def _completed(values: Any, file: Path) -> Tokenizer:
    check_ids(values, file)
    vocabulary = Tokenizer.from_str(json.dumps(values)).get_vocab()
    for role, token in _names_beside(file).items():
        if token in vocabulary and token != (usual := _usual_name(role, vocabulary)):
            values = _swapped(values, token, usual or _NAMES[role][0])
    tokenizer = Tokenizer.from_str(json.dumps(values))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        specials = Specials.of(tokenizer)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    names = specials.names(tokenizer)
    known = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
    tokenizer.add_special_tokens([name for name in names.values() if name not in known])
    if tokenizer.num_special_tokens_to_add(is_pair=False) == 0:
        tokenizer.post_processor = _framed(names["cls"], specials.cls, names["sep"], specials.sep)
    check_frame(tokenizer, vocabulary_size(tokenizer), str(file))
    return tokenizer


def check_ids(values: Any, file: Path) -> None:
    """Refuse ids beyond any vocabulary: the library would count up to them.

    Raises:
        InputError: there is one.
    """
    vocabulary = values["model"]["vocab"]
    ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else [len(vocabulary)]
    ids += [token["id"] for token in values["added_tokens"] or ()]
    if max(ids) >= MOST_IDS:
        raise InputError(
            f"{file} has a token with the id {max(ids):,}; ids must be below {MOST_IDS:,}"
        )


def _names_beside(file: Path) -> dict[str, str]:
    named: dict[str, Any] = {}
    for other in ("tokenizer_config.json", "special_tokens_map.json"):
        if (file.parent / other).is_file():
            try:
                named |= json.loads(read_text(file.parent / other))
            except (OSError, ValueError, TypeError) as error:
                raise InputError(f"{file.parent / other} is not a JSON object") from error
    tokens: dict[str, str] = {}
    for role, keys in _SETTINGS.items():
        token = next((named[key] for key in keys if named.get(key)), None)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            tokens[role] = token
        elif token is not None:
            raise InputError(f"the files beside {file} name no text as the {role} token")
    return tokens


def _swapped(values: Any, one: str, other: str) -> Any:
    """A JSON value with two strings exchanged, in keys and values."""
    new = {one: other, other: one}
    if isinstance(values, dict):
        return {new.get(key, key): _swapped(value, one, other) for key, value in values.items()}
    if isinstance(values, list):
        return [_swapped(value, one, other) for value in values]
    return new.get(values, values) if isinstance(values, str) else values


def finish(tokenizer: Tokenizer, *, spaces: bool = False) -> Tokenizer:
    """Register `SPECIALS`, and frame text in [CLS] and [SEP] if special tokens are asked for.

    Args:
        spaces: tokens begin with the space before them, so that [MASK] must take it as well.
    """
    gap = AddedToken(SPECIALS[MASK], special=True, normalized=False, lstrip=spaces)
    tokenizer.add_special_tokens([*SPECIALS[:MASK], gap])
    tokenizer.post_processor = _framed(SPECIALS[CLS], CLS, SPECIALS[SEP], SEP)
    return tokenizer


def _framed(cls: str, cls_id: int, sep: str, sep_id: int) -> Any:
    return processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, cls_id), (sep, sep_id)],
    )


def to_json(tokenizer: Tokenizer) -> str:
    """The content of tokenizer.json, with the vocabulary in order of ids."""
    values = json.loads(tokenizer.to_str())
    vocabulary = values["model"]["vocab"]
    if isinstance(vocabulary, dict):
        values["model"]["vocab"] = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    return json.dumps(values, ensure_ascii=False, indent=1)
