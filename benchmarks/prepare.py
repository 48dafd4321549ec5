"""How fast text becomes a corpus, and how much memory that takes.

    python benchmarks/prepare.py DATA --small FILE [--identity] [--out RESULT.json]

The pipeline is fixed: read, normalize Unicode, remove exact duplicates, train WordPiece with 32,768
pieces, tokenize, pack, store one order, hash; a second run is given the tokenizer of the first.
Near-duplicates and quality rules are timed separately. For comparison the `tokenizers` library
encodes part of the same text; with --identity it encodes all of it, and every id is compared.

Rates are MB of UTF-8 text (before cleaning) per second. Each run is a process of its own. Memory is
the largest sum of the processes' proportional set sizes, sampled five times a second; this works
only on Linux.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from tokenizers import Tokenizer

from crammed.config import ComputeConfig, RunConfig
from crammed.data.preparing.driver import prepare
from crammed.data.preparing.read.part import Part
from crammed.data.preparing.read.reading_job import cut_by_characters
from crammed.data.preparing.read.source import open_sources
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.data.tokenization.encoding import CorpusTokenizer
from crammed.machine.engine import open_engine
from crammed.terminal.progress import Progress
from encoders import differing
from resources import alone, disk, memory, written

PLAIN_CHARACTERS = 20_000_000
GIVEN = {
    "all, tokenizer given": (),
    "and near-duplicates": ("data.clean.near=0.8",),
    "and Gopher's rules": ("data.clean.gopher=true",),
    "and C4's rules": ("data.clean.c4=true",),
}
"""Runs with a given tokenizer, and their overrides."""
MEGA = 1e6


def config_of(data: Path, *overrides: str) -> RunConfig:
    """The configuration of a run on this text."""
    from crammed.rules.recipe import load_config  # imports PyTorch, which the workers do without

    words = ["data.orders=[sentence-length]", *overrides]
    return load_config("crammed", words, {"data": {"sources": [str(data)]}})


def parts_of(data: Path) -> list[Part]:
    return [part for source in open_sources(config_of(data).data) for part in source.parts]


def bytes_of(data: Path) -> int:
    """The size of all text in UTF-8, before cleaning."""
    return sum(len(text.encode()) for part in parts_of(data) for text in part.documents())


def _timed(label: str, size: int, data: Path, out: Path, *overrides: str) -> dict[str, Any]:
    """Prepare a corpus, and measure time and memory."""
    config = config_of(data, *overrides)
    with memory() as resident, disk(out.parent) as files, Progress() as progress:
        before = written(out.parent)
        began = time.perf_counter()
        corpus = prepare(config.data, config.tokenizer, out, progress, config.compute)
        seconds = time.perf_counter() - began
    result = {
        "what": label,
        "overrides": [word for word in overrides if not word.startswith("tokenizer.file")],
        "megabytes": size / MEGA,
        "seconds": seconds,
        "megabytes_per_second": size / MEGA / seconds,
        "peak_memory_megabytes": resident.peak / MEGA,
        "peak_disk_per_byte": (files.peak - before) / size,
        "corpus_per_byte": written(out) / size,
        "tokens": corpus.manifest["tokens"],
        "rows": corpus.rows,
        "corpus": corpus.sha256,
        "steps": corpus.manifest["steps"],
    }
    print(json.dumps({k: v for k, v in result.items() if k != "steps"}))
    return result


def _plain(tokenizer: Tokenizer, data: Path) -> dict[str, Any]:
    """The rate of the library with its own threads, on the first documents of every part."""
    parts = parts_of(data)
    share = PLAIN_CHARACTERS // len(parts)
    texts = [t for part in parts for t in next(cut_by_characters(part.documents(), share))]
    size = sum(len(text.encode()) for text in texts)
    seconds = _seconds(
        lambda: [
            tokenizer.encode_batch_fast(texts[at : at + 1000], add_special_tokens=False)
            for at in range(0, len(texts), 1000)
        ]
    )
    ours = _seconds(lambda: CorpusTokenizer(tokenizer).encode_chunks(cut_into_chunks(texts)))
    result = {
        "what": "the tokenizers library, and words first on one core",
        "megabytes": size / MEGA,
        "library_megabytes_per_second": size / MEGA / seconds,
        "words_first_megabytes_per_second": size / MEGA / ours,
    }
    print(json.dumps(result))
    return result


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _identity(tokenizer: Tokenizer, data: Path) -> dict[str, Any]:
    """Compare the token ids of every document with the library's."""

    def jobs() -> Iterator[tuple[str, list[str]]]:
        for part in parts_of(data):
            documents = part.documents()
            while texts := list(islice(documents, 200)):
                yield tokenizer.to_str(), texts

    with open_engine(ComputeConfig()) as engine:
        counts = np.array(list(engine.map(differing, jobs()))).sum(axis=0)
    result = {"what": "identity", "documents": int(counts[0]), "differing": int(counts[1])}
    print(json.dumps(result))
    return result


def main(
    data: Path,
    small: Annotated[Path, typer.Option(help="A small file of DATA, to compare memory.")],
    identity: Annotated[
        bool, typer.Option(help="Compare all token ids with the library's.")
    ] = False,
    out: Path | None = None,
) -> None:
    size, small_size = bytes_of(data), bytes_of(small)
    with TemporaryDirectory(prefix="crammed-benchmark-") as scratch:
        folder = Path(scratch)
        runs = [
            alone(_timed, "small, tokenizer trained", small_size, small, folder / "small"),
            alone(_timed, "all, tokenizer trained", size, data, folder / "trained"),
        ]
        given = f"tokenizer.file={folder / 'trained' / 'tokenizer.json'}"
        tokenizer = Tokenizer.from_file(str(folder / "trained" / "tokenizer.json"))
        runs += [
            alone(_timed, what, size, data, folder / f"given-{number}", given, *more)
            for number, (what, more) in enumerate(GIVEN.items())
        ]
        runs.append(_plain(tokenizer, data))
        if identity:
            runs.append(_identity(tokenizer, data))
    from common import report

    names = [source.name for source in open_sources(config_of(data).data)]
    report("prepare", out, data=names, runs=runs)


if __name__ == "__main__":  # and not in workers
    from common import run

    run(main)
