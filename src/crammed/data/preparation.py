"""From sources to a corpus: read, clean, choose, train a tokenizer, pack, order.

Text moves in shards of some 16 MB; `crammed.data.shards` has what a worker does to one of them.
This is the driver: what needs all shards together. The same sources and the same configuration
give the same bytes, whoever did the work and however often it was killed.

Everything is made in a folder beside the corpus and appears in its place when it is complete.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.config import ComputeConfig, DataConfig, TokenizerConfig
from crammed.data import order, shards
from crammed.data.cleaning import near, substring
from crammed.data.cleaning.steps import settings_of
from crammed.data.corpus import Corpus, rows_file_number, token_dtype, write_rows
from crammed.data.engine import Engine, give_memory_back, open_engine
from crammed.data.ingest import Text, read_and_clean
from crammed.data.manifest import SCHEMA, write_gzip, write_manifest
from crammed.data.selection import choose
from crammed.data.shards import Packed, PackJob, Selection, SplitJob
from crammed.data.sources import Source, open_sources, passed_over
from crammed.data.statistics import Statistics
from crammed.data.tokenization.tokenizer import (
    MOST_LETTERS_LOST,
    letters_lost,
    load_tokenizer,
    to_json,
    vocabulary_size,
)
from crammed.data.tokenization.training import (
    train_from_texts,
    train_from_words,
    unigram_library,
)
from crammed.data.tokenization.words import WordEncoder
from crammed.errors import InputError
from crammed.files import disk_faults, json_hash, publish, write_array, write_text
from crammed.progress import Progress

Job = TypeVar("Job")
Result = TypeVar("Result")

MOST_CHUNKS = 8_000_000
"""Distinct chunks of text to count for the tokenizer; beyond, the rarest are forgotten."""


def prepare(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    out: Path,
    progress: Progress,
    compute: ComputeConfig | None = None,
    work: Path | None = None,
) -> Corpus:
    """Make the corpus `out` and open it.

    Args:
        compute: who does the work; changes no byte.
        work: where intermediate results go, to be kept: text that is prepared again, with
            more beside it, is not read again. None puts them beside `out` until it is done.

    Raises:
        InputError: unreadable or too little data, `out` holds something already, or another
            process prepares it.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists already: choose another --out")
    _require_extras(data, tokenizer)
    sources = open_sources(data)
    if others := passed_over(data):
        listed = ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common(5))
        progress.line(f"sources  passes over files of other formats: {listed}")
    with _work_folder(work, out) as folder, open_engine(compute or ComputeConfig()) as engine:
        _Preparation(data, tokenizer, folder, engine, progress).run(sources, out)
    return Corpus(out)


def _require_extras(data: DataConfig, tokenizer: TokenizerConfig) -> None:
    """Miss a library now rather than hours later."""
    if data.clean.near is not None:
        near.minhash_library()
    if data.clean.substring is not None:
        substring.suffix_sorting_library()
    if tokenizer.kind == "unigram" and tokenizer.file is None:
        unigram_library()


@contextmanager
def _work_folder(given: Path | None, out: Path) -> Iterator[Path]:
    """A locked folder; it stays if it was given, or if a crash or an interrupt ended the work.

    Then the same call goes on from there. Wrong input and a full disk leave nothing.
    """
    folder = given or out.with_name(f".{out.name}.preparing")
    with disk_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"another process is preparing {out}: wait for it") from error
        try:
            with disk_faults(out):
                yield folder
        except InputError:
            if given is None:
                shutil.rmtree(folder)
            raise
        if given is None:
            shutil.rmtree(folder)


class _Preparation:
    """The stages, in order."""

    def __init__(
        self,
        data: DataConfig,
        tokenizer: TokenizerConfig,
        folder: Path,
        engine: Engine,
        progress: Progress,
    ) -> None:
        self._data = data
        self._tokenizer_config = tokenizer
        self._folder = folder
        self._engine = engine
        self._progress = progress

    def run(self, sources: Sequence[Source], out: Path) -> None:
        """Make the corpus and let it appear at `out`."""
        brought = self._brought_tokenizer()
        words_first = self._tokenizer_config.kind == "wordpiece"
        if brought is not None:
            words_first = WordEncoder(brought).words_first

        text = read_and_clean(sources, self._data, self._folder, self._engine, self._progress)
        paths = [shard.path for shard in text.shards]
        sources_of = [shard.source for shard in text.shards]
        choice = choose(
            paths,
            [source.name for source in sources_of],
            [source.weight for source in sources_of],
            self._data,
        )

        made = self._folder / f"made-{self._identity(text, brought)}"
        corpus = made / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        outs = [made / f"{number:05d}" for number in range(len(paths))]
        jobs = list(zip(paths, outs, choice.selections, strict=True))
        split = self._work(
            "selecting",
            shards.split_shard,
            [SplitJob(path, to, selection, words_first) for path, to, selection in jobs],
            [shard.counts.characters for shard in text.shards],
        )
        characters = [each.characters for each in split]
        if not sum(characters):
            raise InputError("the data holds no text to train on: every document was dropped")
        write_gzip(corpus / "heldout.jsonl.gz", map(shards.heldout_lines, outs))

        tokenizer_file = corpus / "tokenizer.json"
        if not tokenizer_file.exists():
            tokenizer = brought or self._train(paths, outs, choice.selections, words_first)
            write_text(tokenizer_file, to_json(tokenizer))
            give_memory_back()
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        lost = letters_lost(tokenizer, _beginning(corpus / "heldout.jsonl.gz"))
        if lost > MOST_LETTERS_LOST:
            self._progress.line(
                f"tokenizer  drops or replaces {100 * lost:.0f} % of the letters of this text; "
                "tokenizer.strip_accents=false tokenizer.ascii_only=false keep them"
            )

        packed = self._work(
            "tokenizing",
            shards.pack,
            [
                PackJob(
                    shard=path,
                    out=to,
                    rows=corpus / f"rows-{number:05d}.bin",
                    source=sources_of[number].name,
                    selection=selection,
                    words_first=words_first,
                    tokenizer=tokenizer_file,
                    row_length=self._data.row_length,
                    cls=self._data.cls,
                    most_tokens_per_character=self._data.clean.max_tokens_per_character,
                )
                for number, (path, to, selection) in enumerate(jobs)
            ],
            characters,
        )
        left_out = self._finish_rows(corpus, outs, packed, vocabulary_size(tokenizer))
        statistics = Statistics.merge([Statistics.from_json(each.statistics) for each in packed])
        self._store_orders(corpus, tokenizer, statistics)
        write_manifest(
            corpus,
            self._data,
            self._tokenizer_config,
            text,
            choice,
            packed,
            statistics,
            tokenizer,
            left_out,
        )
        publish(corpus, out)
        shutil.rmtree(made)

    def _identity(self, text: Text, brought: Tokenizer | None) -> str:
        """What decides the corpus: cleaned shards, settings, the tokenizer brought along."""
        return json_hash(
            [
                SCHEMA,
                [
                    (str(each.path.relative_to(self._folder)), each.source.weight)
                    for each in text.shards
                ],
                self._data.model_dump(mode="json", exclude={"sources", "unreadable", "clean"}),
                settings_of(self._data.clean),
                self._tokenizer_config.model_dump(mode="json", exclude={"file"}),
                None if brought is None else to_json(brought),
            ]
        )

    def _work(
        self,
        label: str,
        function: Callable[[Job], Result],
        jobs: Sequence[Job],
        sizes: Sequence[int],
        unit: str = "characters",
    ) -> list[Result]:
        """Apply a stage to all shards, with progress in their sizes."""
        results: list[Result] = []
        with self._progress.task(label, float(sum(sizes))) as task:
            began, done = self._progress.clock(), 0
            for size, result in zip(sizes, self._engine.map(function, jobs), strict=True):
                results.append(result)
                done += size
                rate = done / 1e6 / max(1e-9, self._progress.clock() - began)
                task.update(done, f"{done:,} {unit}, {rate:.1f} M a second")
        return results

    def _brought_tokenizer(self) -> Tokenizer | None:
        file = self._tokenizer_config.file
        return None if file is None else load_tokenizer(Path(file))

    def _train(
        self,
        paths: Sequence[Path],
        outs: Sequence[Path],
        selections: Sequence[Selection],
        words_first: bool,
    ) -> Tokenizer:
        def documents() -> Iterator[str]:
            for path, selection in zip(paths, selections, strict=True):
                yield from shards.selected(path, selection)

        with self._progress.task("training the tokenizer"):
            if words_first:
                return train_from_words(merged_counts(outs), self._tokenizer_config)
            return train_from_texts(documents, self._tokenizer_config)

    def _finish_rows(
        self, corpus: Path, outs: Sequence[Path], packed: Sequence[Packed], vocab_size: int
    ) -> int:
        """Make rows of the shards' tails; write where documents begin; return what is left out.

        A tail's stretch of a document counts as a beginning, too: what stands before it in the
        rows is another document.
        """
        length = self._data.row_length
        starts: list[NDArray[np.int64]] = []
        tails: list[NDArray[np.uint32]] = []
        tail_starts: list[NDArray[np.int64]] = []
        place = tail_place = 0
        for to, each in zip(outs, packed, strict=True):
            tail, begins = shards.tail_and_starts(to)
            whole = each.rows * length
            starts.append(place + begins[begins < whole])
            place += whole
            if len(tail):
                later = begins[begins > whole]
                tail_starts.append(tail_place + np.concatenate([[0], later - whole]))
                tails.append(tail)
                tail_place += len(tail)
        if place + tail_place < length:
            raise InputError(f"too little text: {tail_place} tokens make no row of {length}")
        rest = tail_place % length
        if tails:
            rows = corpus / f"rows-{len(outs):05d}.bin"
            write_rows(rows, np.concatenate(tails), length, token_dtype(vocab_size))
        starts += [place + begins[begins < tail_place - rest] for begins in tail_starts]
        write_array(corpus / "documents.bin", np.concatenate(starts).astype("<u8"))
        return rest

    def _store_orders(self, corpus: Path, tokenizer: Tokenizer, statistics: Statistics) -> None:
        if not (names := self._data.orders):
            return
        files = sorted(corpus.glob("rows-*.bin"), key=lambda file: rows_file_number(file.name))
        values = {
            name: order.token_values(name, tokenizer, statistics.token_counts) for name in names
        }
        scores = self._work(
            "ordering",
            order.score_file,
            [order.ScoreJob(file, self._data.row_length, values) for file in files],
            [file.stat().st_size for file in files],
            "bytes",
        )
        for name in names:
            places = order.permutation([each[name] for each in scores], name)
            write_array(corpus / f"order-{name}.bin", places)


def _beginning(heldout: Path) -> str:
    """Some text of the held-out documents."""
    with gzip.open(heldout, "rt", encoding="utf-8") as lines:
        return " ".join(json.loads(line)["text"] for line in islice(lines, 1000))[:200_000]


def merged_counts(outs: Sequence[Path]) -> Iterator[tuple[str, int]]:
    """Each chunk of text in the split shards, and how often it occurs."""
    waiting: list[pa.Table] = []
    for to in outs:
        waiting.append(shards.word_counts(to))
        if sum(table.num_rows for table in waiting) > MOST_CHUNKS:
            waiting = [_together(waiting)]
    merged = _together(waiting)
    waiting.clear()
    for batch in merged.to_batches(max_chunksize=10_000):
        yield from zip(batch["chunk"].to_pylist(), batch["count"].to_pylist(), strict=True)


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    """Counts added up; of too many chunks, the rarest are forgotten."""
    groups = pa.concat_tables(tables).group_by("chunk", use_threads=False)
    merged = groups.aggregate([("count", "sum")]).rename_columns({"count_sum": "count"})
    least = 2
    while merged.num_rows > MOST_CHUNKS // 2:
        merged = merged.filter(pc.greater_equal(merged["count"], least))
        least += 1
    return merged
