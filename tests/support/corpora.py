"""Corpora made by hand, with a small tokenizer for them, and such as are prepared from text."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from crammed.data.corpus import Corpus, order_dtype, token_dtype
from crammed.data.preparing import driver
from crammed.data.preparing.driver import prepare
from crammed.files.hashes import sha256
from crammed.terminal.progress import SILENT, Progress
from support.text import tiny, write_rows

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "a", "fox", "sailor", "counts", "lanterns", "un", "##ing", "##s", ".", ",", "!")
VOCABULARY = {token: number for number, token in enumerate((*SPECIALS, *WORDS))}


def small_tokenizer() -> Tokenizer:
    """WordPiece with `VOCABULARY`."""
    tokenizer = Tokenizer(models.WordPiece(vocab=dict(VOCABULARY), unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def write_corpus(
    folder: Path,
    files: Sequence[NDArray[Any]],
    *,
    vocab_size: int = len(VOCABULARY),
    orders: Mapping[str, Sequence[int]] | None = None,
    dropped: Sequence[Mapping[str, str]] = (),
    **manifest: Any,
) -> Corpus:
    """A corpus of these files of rows, each [any number, S]."""
    folder.mkdir(parents=True)
    rows = sum(map(len, files))
    for number, each in enumerate(files):
        each.astype(token_dtype(vocab_size)).tofile(folder / f"rows-{number:05d}.bin")
    for name, order in (orders or {}).items():
        np.array(order, order_dtype(rows)).tofile(folder / f"order-{name}.bin")
    (folder / "tokenizer.json").write_text(small_tokenizer().to_str(), "utf-8")
    if dropped:
        write_rows(folder / "dropped.jsonl.gz", dropped)
    values = {
        "sources": [{"name": "tales", "documents": 4, "characters": 90}],
        "steps": [],
        "documents": 4,
        "characters": 90,
        "tokens": rows * files[0].shape[1],
        "rows": rows,
        "row_length": files[0].shape[1],
        "vocab_size": vocab_size,
        "heldout": {"documents": 1, "unigram_cross_entropy": 2.5},
        "files": {
            file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)}
            for file in sorted(folder.iterdir())
        },
        **manifest,
    }
    (folder / "manifest.json").write_text(json.dumps(values), "utf-8")
    return Corpus(folder)


def numbered_files(sizes: Sequence[int], row_length: int = 4) -> list[NDArray[np.int64]]:
    """Files of rows whose first token is the row's number."""
    rows = np.repeat(np.arange(sum(sizes))[:, None], row_length, axis=1)
    return np.split(rows, np.cumsum(sizes)[:-1])


def tokens_of(corpus: Corpus) -> list[int]:
    """All tokens of a corpus, one row after the other."""
    tokens: list[int] = corpus.read(np.arange(corpus.rows)).flatten().tolist()
    return tokens


def prepared(
    out: Path, sources: Any, *overrides: str, progress: Progress = SILENT, **options: Any
) -> Corpus:
    """The corpus that the tiny configuration makes of a path, or of a list of sources."""
    listed = sources if isinstance(sources, list) else [sources]
    named = [str(each) if isinstance(each, Path) else each for each in listed]
    config = tiny("crammed", *overrides, data={"sources": named})
    return prepare(config.data, config.tokenizer, out, progress, config.compute, **options)


def prepared_and_told(
    out: Path, sources: Any, *overrides: str, **options: Any
) -> tuple[Corpus, str]:
    """As `prepared`, and what was said meanwhile."""
    said = io.StringIO()
    with Progress(said) as progress:
        return prepared(out, sources, *overrides, progress=progress, **options), said.getvalue()


@contextmanager
def stopping(function: str, *, after: bool = False) -> Iterator[None]:
    """Let a preparation stop where its driver would call a function, or has called it."""
    real = getattr(driver, function)

    def stop(*given: Any) -> None:
        if after:
            real(*given)
        raise KeyboardInterrupt

    with mock.patch.object(driver, function, stop), pytest.raises(KeyboardInterrupt):
        yield


def step_of(corpus: Corpus, name: str) -> dict[str, Any]:
    """What a manifest says of a step."""
    (step,) = (each for each in corpus.manifest["steps"] if each["step"] == name)
    return dict(step)
