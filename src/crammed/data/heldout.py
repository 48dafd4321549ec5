"""Held-out text as fixed rows, by the protocol of held-out loss (`crammed.model.heldout`).

Documents in pieces of 20,000 characters through the model's own tokenizer, [SEP]
after each document, rows without padding in a fixed shuffled order, and exactly round(rate x
length) positions a row behind [MASK], at 15 % and 25 %. Loss is in nats per masked token; bits
per character compare models with different tokenizers.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import InputError
from crammed.formats.lines import open_text

_PIECE = 20_000


@dataclass(frozen=True)
class HeldoutRows:
    """Rows [R, S] to evaluate on, and how finely their text was cut."""

    ids: NDArray[np.int64]
    tokens_per_character: float


def heldout_rows(tokenizer: Tokenizer, file: Path, most_rows: int, length: int) -> HeldoutRows:
    """Read a json-lines file with a field ``text`` and cut its rows.

    Raises:
        InputError: the file is unreadable, is not of that form, is shorter than one row, or the
            tokenizer lacks special tokens.
    """

    def ids_of(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return cut_rows(ids_of, Specials.of(tokenizer).sep, file, most_rows, length)


def cut_rows(
    ids_of: Callable[[str], Sequence[int]], sep: int, file: Path, most_rows: int, length: int
) -> HeldoutRows:
    ids = array("i")
    characters = 0
    with open_text(file) as lines:
        for number, line in enumerate(lines, 1):
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{file}, line {number}: not a JSON object with text") from error
            if not isinstance(text, str):
                raise InputError(f"{file}, line {number}: text is no text")
            for start in range(0, len(text), _PIECE):
                ids.extend(ids_of(text[start : start + _PIECE]))
            characters += len(text)
            ids.append(sep)
    if len(ids) < length:
        raise InputError(f"{file} is shorter than one row of {length} tokens")
    rows = np.array(ids[: len(ids) // length * length], np.int64).reshape(-1, length)
    order = np.random.default_rng(0).permutation(len(rows))[:most_rows]
    return HeldoutRows(rows[order], len(ids) / max(1, characters))
