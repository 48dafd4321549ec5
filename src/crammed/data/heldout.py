"""Cuts held-out text into fixed rows, following the protocol for held-out loss.

The model's own tokenizer encodes documents in pieces of 20,000 characters, [SEP] follows each
document, and the rows, which have no padding, are shuffled in a fixed order.
`crammed.model.heldout` then replaces exactly round(rate x length) tokens of each row with [MASK],
at rates of 15 % and 25 %.
Loss is in nats per masked token; bits per character compare models with different tokenizers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import InputError
from crammed.formats.lines import File
from crammed.formats.records import json_records, without_surrogates

_PIECE = 20_000  # characters
_SAMPLED_DOCUMENTS = 100


@dataclass(frozen=True)
class HeldoutRows:
    """Rows to evaluate on.

    Attributes:
        ids: [R, S] token ids.
        tokens_per_character: over the whole held-out text.
    """

    ids: NDArray[np.int64]
    tokens_per_character: float


def heldout_texts(file: Path) -> Iterator[str]:
    """The documents of a JSON-lines file with a field ``text``, compressed or not.

    Raises:
        InputError: the file is unreadable or not of that form.
    """
    for place, record in json_records(File(file, str(file))):
        text = record.get("text")
        if not isinstance(text, str):
            raise InputError(f"{place}: the field 'text' is missing or does not hold text")
        yield without_surrogates(text)


def text_bytes(characters: int, file: Path) -> float:
    """About how many bytes of UTF-8 a text takes, estimated from the documents held out of it.

    Args:
        characters: length of the text.

    Raises:
        InputError: the file is unreadable or not of that form.
    """
    sampled = "".join(islice(heldout_texts(file), _SAMPLED_DOCUMENTS))
    return characters * len(sampled.encode()) / max(1, len(sampled))


def heldout_rows(tokenizer: Tokenizer, file: Path, most_rows: int, length: int) -> HeldoutRows:
    """Cut the documents of a file into rows of a tokenizer's ids; see `cut_rows`.

    Raises:
        InputError: as for `cut_rows`, or the tokenizer lacks special tokens.
    """

    def ids_of(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return cut_rows(ids_of, Specials.of(tokenizer).sep, file, most_rows, length)


def cut_rows(
    ids_of: Callable[[str], Sequence[int]], sep: int, file: Path, most_rows: int, length: int
) -> HeldoutRows:
    """Cut the documents of a file into rows.

    Args:
        ids_of: token ids of a text, without special tokens.
        sep: id of [SEP].
        file: JSON lines with a field ``text``, compressed or not.
        most_rows: largest number of rows to draw.
        length: tokens in a row, S.

    Raises:
        InputError: the file is unreadable, not of that form, or shorter than one row.
    """
    ids = array("i")
    characters = 0
    for text in heldout_texts(file):
        for start in range(0, len(text), _PIECE):
            ids.extend(ids_of(text[start : start + _PIECE]))
        characters += len(text)
        ids.append(sep)
    if len(ids) < length:
        raise InputError(f"{file} is shorter than one row of {length} tokens: use more text")
    rows = np.array(ids[: len(ids) // length * length], np.int64).reshape(-1, length)
    order = np.random.default_rng(0).permutation(len(rows))[:most_rows]
    return HeldoutRows(rows[order], len(ids) / max(1, characters))
