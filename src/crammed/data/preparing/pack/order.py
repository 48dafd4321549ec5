"""Orders of the rows, most of them those of Geiping and Goldstein 2022, section 4.4.

A row's score is a sum of integers, one for each token; the lowest score comes first:

sentence-length  most "." tokens first, and so the shortest sentences
fragments        most [SEP] tokens first, and so the shortest documents
long-documents   fewest [SEP] tokens first, and so the longest documents
common-first     highest mean log2 probability of the tokens first, by add-one smoothed counts
rare-first       lowest mean log2 probability first
word-length      shortest decoded text first

Integer sums are the same on every machine; log2 probabilities are rounded to multiples of 2**-12,
or more coarsely for rows of more than 16,384 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.config import Ordering
from crammed.data.corpus import Tokens, order_dtype, rows_file_number, token_dtype
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import InputError
from crammed.files.writing import write_array
from crammed.keys import key

_STEPS_A_BIT = 1 << 12
"""Fine enough for ties to be rare."""
_STEPS_OF_A_ROW = 1 << 26
"""Steps a bit times tokens in a row, at most: a row whose tokens have 31 bits fits into 32 bits."""


def token_values(
    name: Ordering, tokenizer: Tokenizer, counts: NDArray[np.int64], row_length: int
) -> NDArray[np.int32]:
    """The value that each token adds to the score of its row, [V].

    Args:
        counts: [V] occurrences of each token in the corpus.
        row_length: tokens in a row, whose values must add up to less than 2**31.

    Raises:
        InputError: the tokenizer has no token for the full stop.
    """
    if name in ("fragments", "long-documents"):
        sep = np.arange(len(counts)) == Specials.of(tokenizer).sep
        return np.where(sep, -1 if name == "fragments" else 1, 0).astype(np.int32)
    if name == "sentence-length":
        stops = np.array([surface.strip() == "." for surface in _surfaces(tokenizer, len(counts))])
        if not stops.any():
            raise InputError("no order sentence-length: the tokenizer has no token for '.'")
        return -stops.astype(np.int32)
    if name == "word-length":
        return np.array([len(surface) for surface in _surfaces(tokenizer, len(counts))], np.int32)
    bits = np.log2((counts.sum() + len(counts)) / (counts + 1))
    steps = min(_STEPS_A_BIT, _STEPS_OF_A_ROW // row_length)
    rarity: NDArray[np.int32] = np.rint(steps * bits).astype(np.int32)
    return rarity if name == "common-first" else -rarity


def _surfaces(tokenizer: Tokenizer, vocab_size: int) -> list[str]:
    """The text that each token adds when it is not the first, including any space before it.

    Exact if the decoder handles tokens one at a time, as WordPiece's does; if byte-level BPE splits
    a character, each of its bytes counts as one character.
    """
    first = Specials.of(tokenizer).sep
    pairs = [[first, token] for token in range(vocab_size)]
    before = tokenizer.decode([first], skip_special_tokens=False)
    decoded = tokenizer.decode_batch(pairs, skip_special_tokens=False)
    return [text.removeprefix(before) for text in decoded]


Scores = dict[Ordering, NDArray[np.int32]]
"""The score of each row, [R], by name of the order."""


@dataclass(frozen=True, slots=True)
class ScoreJob:
    """A file of rows to score.

    Attributes:
        values: `token_values` [V] by name of the order, for at least one.
    """

    file: Path
    row_length: int
    values: Mapping[Ordering, NDArray[np.int32]]


def score_file(job: ScoreJob) -> Scores:
    """The scores [R] of the file's rows, by name of the order."""
    vocab_size = len(next(iter(job.values.values())))
    rows = np.fromfile(job.file, token_dtype(vocab_size)).reshape(-1, job.row_length)
    return {name: score_rows(rows, values) for name, values in job.values.items()}


def score_rows(rows: Tokens, values: NDArray[np.int32]) -> NDArray[np.int32]:
    """The score of each row, [R]; takes 4 bytes of memory for each token.

    Args:
        rows: [R, S] token ids.
        values: [V] values from `token_values`.
    """
    scores: NDArray[np.int32] = values[rows].sum(axis=1, dtype=np.int32)
    return scores


def store(
    folder: Path,
    names: Sequence[Ordering],
    row_length: int,
    tokenizer: Tokenizer,
    counts: NDArray[np.int64],
    score: Callable[[Sequence[ScoreJob]], Iterable[Scores]],
) -> None:
    """Write orders of the rows whose files are in a folder.

    Args:
        names: of the orders; may be none, and may repeat themselves.
        counts: [V] occurrences of each token.
        score: applies `score_file` to every job.
    """
    if not names:
        return
    names = tuple(dict.fromkeys(names))
    files = sorted(folder.glob("rows-*.bin"), key=lambda file: rows_file_number(file.name))
    values = {name: token_values(name, tokenizer, counts, row_length) for name in names}
    scores = {name: bytearray() for name in names}  # not an array for each file, of which
    for each in score([ScoreJob(file, row_length, values) for file in files]):  # many are small
        for name in names:
            scores[name] += each[name].data
    for name in names:
        places = permutation(np.frombuffer(scores[name], np.int32), name)
        write_array(folder / f"order-{name}.bin", places)


def permutation(scores: NDArray[np.int32], name: Ordering) -> Tokens:
    """The row at each place, [R]: lowest score first, ties in random order.

    The order of ties depends on `name` and the number of rows. Takes 20 bytes of memory for each
    row, besides the scores.
    """
    shuffled = np.arange(len(scores), dtype=order_dtype(len(scores)))
    np.random.Generator(np.random.PCG64(key(0, f"order-{name}"))).shuffle(shuffled)
    order: NDArray[np.unsignedinteger[Any]] = shuffled[np.argsort(scores[shuffled], kind="stable")]
    return order
