"""From sources to a corpus: read, drop duplicates, hold out, train a tokenizer, pack.

The documents pass three times: once from the sources to a compressed file aside, then from there
to the tokenizer's trainer and to the rows, so memory does not hold the text. The same sources and
the same configuration give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

import crammed
from crammed.config import DataConfig, TokenizerConfig
from crammed.data.corpus import Corpus, RowWriter
from crammed.data.sources import Source, open_sources, open_text
from crammed.data.tokenizer import SEP, SPECIALS, to_json, train_tokenizer
from crammed.errors import InputError
from crammed.evaluate.heldout import heldout_rows
from crammed.files import new_folder, sha256, write_json
from crammed.progress import Progress

CHARACTERS_A_TOKEN = 5.0
"""More than any English tokenizer packs into a token: makes the held-out part large enough."""
LARGEST_HELDOUT = 0.05
"""The held-out part grows no larger than this share of the characters."""
_BATCH = 1000


def prepare(data: DataConfig, tokenizer: TokenizerConfig, out: Path, progress: Progress) -> Corpus:
    """Make the corpus `out` and open it.

    Raises:
        InputError: unreadable or too little data, or `out` holds something already.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists already: choose another --out")
    sources = open_sources(data.sources, data.documents, data.text_field)
    with new_folder(out) as folder:
        _prepare(sources, data, tokenizer, folder, progress)
    return Corpus(out)


def _prepare(
    sources: list[Source],
    data: DataConfig,
    tokenizer_config: TokenizerConfig,
    folder: Path,
    progress: Progress,
) -> None:
    gathered = folder / "gathered.jsonl.zst"
    kept = _gather(sources, data, gathered, progress)
    cut = _heldout_cut(kept, data)
    heldout = folder / "heldout.jsonl.gz"
    _write_heldout(gathered, cut, heldout)

    def training() -> Iterator[str]:
        return (text for text, rank in _read_back(gathered) if rank >= cut)

    with progress.task("training the tokenizer"):
        tokenizer = train_tokenizer(training, tokenizer_config)
    (folder / "tokenizer.json").write_text(to_json(tokenizer), "utf-8")

    vocab_size = tokenizer.get_vocab_size()
    writer = RowWriter(folder, data.row_length, vocab_size)
    training_characters = int(kept.characters[kept.ranks >= cut].sum())
    counts, dense = _pack(
        progress.track("tokenizing", training(), training_characters, len, "characters"),
        tokenizer,
        data.max_tokens_per_character,
        writer,
    )
    left_out = writer.close()
    gathered.unlink()
    if writer.rows == 0:
        raise InputError(
            f"too little text: {writer.tokens} tokens make no row of {data.row_length}"
        )
    rows = heldout_rows(tokenizer, heldout, data.heldout_rows, data.row_length)
    if not len(rows.ids):
        raise InputError(f"too little text: what is held out makes no row of {data.row_length}")
    manifest = {
        "schema": 1,
        "crammed": crammed.__version__,
        "data": data.model_dump(mode="json", exclude={"sources"}),
        "tokenizer": tokenizer_config.model_dump(mode="json"),
        "sources": kept.sources,
        "steps": [*kept.steps, {"step": "tokens per character", **dense}],
        "documents": int(np.count_nonzero(kept.ranks >= cut)) - dense["dropped"],
        "characters": training_characters - dense["dropped_characters"],
        "tokens": writer.tokens,
        "rows": writer.rows,
        "row_length": data.row_length,
        "tokens_left_out": left_out,
        "vocab_size": vocab_size,
        "specials": list(SPECIALS),
        "heldout": {
            "documents": int(np.count_nonzero(kept.ranks < cut)),
            "characters": int(kept.characters[kept.ranks < cut].sum()),
            "rows": len(rows.ids),
            "tokens_per_character": rows.tokens_per_character,
            "unigram_cross_entropy": _unigram_cross_entropy(counts, rows.ids),
        },
        "files": {
            file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)}
            for file in sorted(folder.iterdir())
        },
    }
    write_json(folder / "manifest.json", manifest)


class _Kept:
    """What the first pass found: for each kept document its rank by hash and its length."""

    def __init__(self) -> None:
        self.ranks: NDArray[np.float64] = np.empty(0)
        self.characters: NDArray[np.int64] = np.empty(0, np.int64)
        self.sources: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []


def _gather(sources: Iterable[Source], data: DataConfig, path: Path, progress: Progress) -> _Kept:
    """Read every source once and write its documents aside, without empty and repeated ones."""
    kept, seen = _Kept(), set[bytes]()
    ranks: list[float] = []
    lengths: list[int] = []
    empty = repeated = 0
    with pa.output_stream(str(path), compression="zstd") as stream:
        for source in sources:
            before = len(ranks), sum(lengths)
            for raw in progress.track(
                f"reading {source.name}", source.documents(), unit="documents"
            ):
                text = _clean(raw)
                if not text:
                    empty += 1
                    continue
                digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
                if data.deduplicate:
                    if digest in seen:
                        repeated += 1
                        continue
                    seen.add(digest)
                rank = int.from_bytes(digest[:8], "big") / 2**64
                stream.write(json.dumps([rank, text]).encode() + b"\n")
                ranks.append(rank)
                lengths.append(len(text))
            documents, characters = len(ranks) - before[0], sum(lengths) - before[1]
            kept.sources.append(
                {
                    "name": source.name,
                    "documents": documents,
                    "characters": characters,
                    **source.fingerprint(),
                }
            )
    if not ranks:
        raise InputError("the data holds no text: every document is empty")
    kept.ranks, kept.characters = np.asarray(ranks), np.asarray(lengths, np.int64)
    total = len(ranks) + empty + repeated
    kept.steps = [
        {"step": "empty", "kept": total - empty, "dropped": empty},
        {"step": "exact duplicates", "kept": len(ranks), "dropped": repeated},
    ]
    return kept


def _clean(text: str) -> str:
    """Strip white space; replace what UTF-8 cannot hold (halves of surrogate pairs)."""
    return text.strip().encode("utf-8", "replace").decode()


def _read_back(path: Path) -> Iterator[tuple[str, float]]:
    with open_text(path) as lines:
        for line in lines:
            rank, text = json.loads(line)
            yield text, rank


def _heldout_cut(kept: _Kept, data: DataConfig) -> float:
    """Documents whose rank is below this are held out.

    Documents are taken in the order of their hash until the fraction is reached, and the number
    of rows if that needs no more than 5 % of the characters; one document at least.
    """
    total = int(kept.characters.sum())
    wanted = data.heldout_rows * data.row_length * CHARACTERS_A_TOKEN
    target = max(data.heldout_fraction * total, min(wanted, LARGEST_HELDOUT * total))
    order = np.argsort(kept.ranks, kind="stable")
    taken = np.cumsum(kept.characters[order])
    last = int(np.searchsorted(taken, target))
    cut = math.nextafter(kept.ranks[order[min(last, len(order) - 1)]], 1.0)
    if not np.any(kept.ranks >= cut):
        raise InputError(
            f"{len(kept.ranks)} document(s) are too few to train on some and hold out others; if "
            "a .txt file is meant to hold many, set data.documents=line"
        )
    return cut


def _write_heldout(gathered: Path, cut: float, path: Path) -> None:
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        for text, rank in _read_back(gathered):
            if rank < cut:
                file.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")


def _pack(
    documents: Iterator[str],
    tokenizer: Tokenizer,
    most_tokens_per_character: float | None,
    writer: RowWriter,
) -> tuple[NDArray[np.int64], dict[str, int]]:
    """Tokenize and write; return how often each token occurs, and what the filter did."""
    counts = np.zeros(tokenizer.get_vocab_size(), np.int64)
    dense = {"kept": 0, "dropped": 0, "dropped_characters": 0}
    while batch := list(islice(documents, _BATCH)):
        for text, encoding in zip(
            batch, tokenizer.encode_batch_fast(batch, add_special_tokens=False), strict=True
        ):
            ids = encoding.ids
            if most_tokens_per_character and len(ids) >= most_tokens_per_character * len(text):
                dense["dropped"] += 1
                dense["dropped_characters"] += len(text)
                continue
            dense["kept"] += 1
            ids.append(SEP)
            writer.add(ids)
            counts += np.bincount(ids, minlength=len(counts))
    return counts, dense


def _unigram_cross_entropy(counts: NDArray[np.int64], rows: NDArray[np.int64]) -> float:
    """Nats per held-out token under the training text's token frequencies, add-one smoothed."""
    probabilities = (counts + 1) / (counts.sum() + len(counts))
    return float(-np.log(probabilities[rows]).mean())
