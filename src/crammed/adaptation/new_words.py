"""Words that a model's tokenizer gets as tokens of their own, and the embeddings they begin with.

A new token begins at the mean of the others, so that it takes probability from none of them in
particular, with little noise of their covariance, so that no two are the same (Hewitt 2021).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from torch import Tensor

from crammed.config import DataConfig
from crammed.data.preparing.read.source import open_sources
from crammed.errors import InputError
from crammed.files.regular import read_text
from crammed.formats.lines import Faults
from crammed.sentences import marks

NOISE = 1e-5
"""Covariance of new embeddings as a share of that of the others, as in Hewitt 2021."""
MOST_WORDS = 100_000
MOST_CHARACTERS = 100_000_000
"""No further document is counted after this many characters."""
_TOGETHER = 256
"""Embeddings that are drawn at a time."""


def words_to_add(asked: str, tokenizer: Any, data: DataConfig) -> tuple[str, ...]:
    """The words that ``--new-words`` asks for, that the tokenizer splits, and that are no piece.

    A piece within words has an embedding, which a word of the same letters would replace.

    Args:
        asked: a file with a word in each line, or a number: the most frequent ones of the text.
        tokenizer: of transformers.

    Raises:
        InputError: there is none, or a line of the file is not one word.
    """
    most = int(asked[:9]) if asked.isdecimal() else None  # int() fails beyond 4,300 digits
    if most is not None and not 0 < most <= MOST_WORDS:
        raise InputError(f"--new-words {asked}: choose 1 to {MOST_WORDS:,}, or name a file")
    candidates = _in_file(Path(asked)) if most is None else _in_text(data, tokenizer)
    pieces = tokenizer.get_vocab()
    words: dict[str, None] = {}
    for word in candidates:
        if len(words) == (most or MOST_WORDS):
            break
        normal = _normal(tokenizer, word)
        if normal not in pieces and _is_split(tokenizer, word):
            words[normal] = None
    if not words:
        raise InputError(
            f"--new-words {asked}: it has no word that the tokenizer splits: leave it out"
        )
    return tuple(words)


def add_words(tokenizer: Any, words: Sequence[str]) -> None:
    """Add words to a tokenizer of transformers, for where they stand by themselves.

    Where tokens hold the space before them, so do these.
    """
    spaced = type(tokenizer.backend_tokenizer.model).__name__ != "WordPiece"
    tokenizer.add_tokens(
        [AddedToken(w, single_word=True, lstrip=spaced, normalized=True) for w in words]
    )


def embed_words(model: Any, tokenizer: Any, words: Sequence[str], seed: int) -> None:
    """Give added words embeddings, and the columns and biases that predict them.

    Args:
        model: a masked language model of transformers, on the CPU.
    """
    vocabulary = tokenizer.get_vocab()
    new = torch.tensor([vocabulary[word] for word in words])
    old = torch.tensor(sorted({*vocabulary.values()} - {*new.tolist()}))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for table in _tables(model, 1 + max(vocabulary.values())):
            known = table[old]
            mean = known.mean(0)
            apart = (known - mean) * (NOISE / len(old)) ** 0.5
            for some in new.split(_TOGETHER):
                noise = torch.randn(len(some), len(old), generator=draw) @ apart
                table[some] = mean + (noise if table.ndim > 1 else 0.0)


def _tables(model: Any, rows: int) -> list[Tensor]:
    """The embeddings, and what predicts tokens, each with `rows` rows or more."""
    before = {name: len(p) for name, p in model.named_parameters() if p.ndim}
    with torch.random.fork_rng(devices=[]):  # rows that are drawn here are replaced afterwards
        if rows > model.get_input_embeddings().num_embeddings:
            model.resize_token_embeddings(rows, mean_resizing=False)
    named = dict(model.named_parameters())
    found = [named[n] for n, count in before.items() if n in named and len(named[n]) != count]
    found.append(model.get_input_embeddings().weight)
    if (output := model.get_output_embeddings()) is not None:  # which may share them
        found += [output.weight] if output.bias is None else [output.weight, output.bias]
    return list({id(table): table for table in found}.values())


def _is_split(tokenizer: Any, word: str) -> bool:
    """Whether a word is several tokens, or unknown."""
    ids = tokenizer.backend_tokenizer.encode(f" {word}", add_special_tokens=False).ids
    return len(ids) > 1 or tokenizer.unk_token_id in ids


def _normal(tokenizer: Any, word: str) -> str:
    """A word as the tokenizer sees it, such as in lower case, without spaces around ideographs."""
    if (normalizer := tokenizer.backend_tokenizer.normalizer) is None:
        return word
    return "".join(normalizer.normalize_str(word).split()).strip("\u2581") or word


def _in_file(file: Path) -> Iterator[str]:
    try:
        lines = read_text(file).removeprefix("\ufeff").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--new-words {file}: not a text file, nor a number: name a file with one word per line"
        ) from error
    for number, line in enumerate(lines, 1):
        if len(line.split()) > 1:
            raise InputError(
                f"{file}, line {number}: {line.strip()!r} is more than one word: write one per line"
            )
        if word := line.strip():
            yield word


def _documents(data: DataConfig) -> Iterator[str]:
    """The first documents, of each source as many as are read of it."""
    faults, left = Faults(data.unreadable == "skip"), MOST_CHARACTERS
    for source in open_sources(data):
        own = min(left, source.max_characters or left)
        for text in (t for part in source.parts for t in part.documents(faults)):
            yield text
            left, own = left - len(text), own - len(text)
            if own <= 0:
                break
        if left <= 0:
            return


def _in_text(data: DataConfig, tokenizer: Any) -> Iterator[str]:
    """Words of letters and their marks, the most frequent first."""
    words = re.compile(rf"[^\W\d_](?:[^\W\d_]+|[{marks()}]+)+")
    typed: Counter[str] = Counter()
    for text in _documents(data):
        typed.update(words.findall(text))
    counts: Counter[str] = Counter()
    for word, count in typed.items():
        counts[_normal(tokenizer, word)] += count
    yield from sorted(counts, key=lambda word: (-counts[word], word))
