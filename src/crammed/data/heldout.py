"""Cuts held-out text into fixed rows, following the protocol for held-out loss.

The model's own tokenizer encodes documents in pieces of 20,000 characters, [SEP] follows each
document, and the rows, which have no padding, are shuffled in a fixed order.
`crammed.model.heldout` then replaces exactly round(rate x length) tokens of each row with [MASK],
at rates of 15 % and 25 %. A file that cannot be read, or whose lines are not JSON with a field
``text``, is an `InputError`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.data.corpus import Corpus
from crammed.data.tokenization.encoding import text_only
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import InputError
from crammed.formats.lines import File
from crammed.formats.records import json_records, without_surrogates

_PIECE = 20_000  # characters
_SAMPLED_DOCUMENTS = 100
MOST_SOURCES = 100
"""More different values of the field ``source`` than this are not sources, but addresses."""
NO_SOURCE = "no source"
"""Name for documents without a source, in a file where others have one."""


@dataclass(frozen=True)
class HeldoutSources:
    """The sources that held-out documents are from.

    Attributes:
        names: of N sources, in the order in which they occur.
        of_tokens: [R, S] number of the source of each token.
        tokens_per_character: [N] over the whole held-out text of each source.
    """

    names: tuple[str, ...]
    of_tokens: NDArray[np.int64]
    tokens_per_character: tuple[float, ...]


@dataclass(frozen=True)
class HeldoutRows:
    """Rows to evaluate on.

    Attributes:
        ids: [R, S] token ids.
        tokens_per_character: over the whole held-out text.
        sources: None unless the documents are from several sources.
    """

    ids: NDArray[np.int64]
    tokens_per_character: float
    sources: HeldoutSources | None = None


def heldout_texts(file: Path) -> Iterator[str]:
    """The documents of a JSON-lines file with a field ``text``, compressed or not.

    Raises:
        InputError: the file is unreadable or not of that form.
    """
    return (text for text, _ in heldout_documents(file))


def heldout_documents(file: Path) -> Iterator[tuple[str, str | None]]:
    """As `heldout_texts`, each with the name in its field ``source``, if it has one.

    Raises:
        InputError: the file is unreadable or not of that form.
    """
    for place, record in json_records(File(file, str(file))):
        text, source = record.get("text"), record.get("source")
        if not isinstance(text, str):
            raise InputError(f"{place}: the field 'text' is missing or does not hold text")
        yield without_surrogates(text), source if isinstance(source, str) else None


def text_bytes(characters: int, file: Path) -> float:
    """About how many bytes of UTF-8 a text takes, estimated from the documents held out of it.

    Args:
        characters: length of the text.

    Raises:
        InputError: the file is unreadable or not of that form.
    """
    sampled = "".join(islice(heldout_texts(file), _SAMPLED_DOCUMENTS))
    return characters * len(sampled.encode()) / max(1, len(sampled))


def heldout_rows(
    tokenizer: Tokenizer,
    file: Path,
    most_rows: int,
    length: int,
    *,
    framed: bool = True,
    too_short: str | None = None,
) -> HeldoutRows:
    """Cut the documents of a file into rows of a tokenizer's ids; see `cut_rows`.

    Args:
        framed: whether [SEP] ends each document, as in the rows that the model is trained on.
        too_short: as in `cut_rows`.

    Raises:
        InputError: as for `cut_rows`, or the tokenizer lacks special tokens.
    """
    sep = Specials.of(tokenizer).sep if framed else None
    encode = text_only(tokenizer).encode_batch_fast

    def ids_of(text: str) -> Sequence[int]:
        return encode([text], add_special_tokens=False)[0].ids

    return cut_rows(ids_of, sep, file, most_rows, length, too_short)


def rows_of_corpus(corpus: Corpus, most_rows: int) -> HeldoutRows:
    """The rows of a corpus's held-out documents, ended by [SEP] as its training documents are.

    Raises:
        InputError: as for `heldout_rows`.
    """
    framed = corpus.manifest.get("data", {}).get("sep", True)  # older corpora do not say
    return heldout_rows(
        corpus.tokenizer, corpus.heldout, most_rows, corpus.row_length, framed=framed
    )


def cut_rows(
    ids_of: Callable[[str], Sequence[int]],
    sep: int | None,
    file: Path,
    most_rows: int,
    length: int,
    too_short: str | None = None,
) -> HeldoutRows:
    """Cut the documents of a file into rows; takes 4 bytes of memory for each token of the file.

    Args:
        ids_of: token ids of a text, without special tokens.
        sep: id of [SEP]; None if nothing ends a document.
        file: JSON lines with a field ``text``, compressed or not.
        most_rows: largest number of rows to draw.
        length: tokens in a row, S.
        too_short: what to say, in place of its path, of a file without a whole row.

    Raises:
        InputError: the file is unreadable, not of that form, or shorter than one row.
    """
    ids, ends, sources = array("i"), array("q"), list[str]()
    characters = Counter[str]()
    for text, source in heldout_documents(file):
        for start in range(0, len(text), _PIECE):
            ids.extend(ids_of(text[start : start + _PIECE]))
        if sep is not None:
            ids.append(sep)
        ends.append(len(ids))
        sources.append(source or NO_SOURCE)
        characters[sources[-1]] += len(text)
    if len(ids) < length:
        raise InputError(
            too_short or f"{file} is shorter than one row of {length} tokens: add text"
        )
    rows = np.frombuffer(ids, np.intc)[: len(ids) // length * length].reshape(-1, length)
    order = np.random.default_rng(0).permutation(len(rows))[:most_rows]
    drawn = rows[order].astype(np.int64)
    per_character = len(ids) / max(1, characters.total())
    if not 1 < len(characters) <= MOST_SOURCES:
        return HeldoutRows(drawn, per_character)
    numbers = {name: number for number, name in enumerate(characters)}
    of_documents = np.array([numbers[name] for name in sources])
    tokens = np.bincount(of_documents, np.diff(ends, prepend=0), len(numbers)).tolist()
    sizes = characters.values()
    places = order[:, None] * length + np.arange(length)
    documents = np.searchsorted(np.frombuffer(ends, np.int64), places, side="right")
    found = HeldoutSources(
        names=tuple(characters),
        of_tokens=of_documents[documents],
        tokens_per_character=tuple(n / max(1, c) for n, c in zip(tokens, sizes, strict=True)),
    )
    return HeldoutRows(drawn, per_character, found)
