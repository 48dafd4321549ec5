"""Prepares a corpus from sources: read, clean, select, train a tokenizer, pack, order.

Text moves in shards of about 16 MB (`shards`); workers run the stages on each of them, and add up
what concerns them all. The driver, this module, hands out the jobs. The same sources and the same
configuration give the same bytes, whoever does the work and however often it is killed.

Everything is made in another folder, and the corpus appears in its place once it is complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer

from crammed.config import ComputeConfig, DataConfig, SourceConfig, TokenizerConfig
from crammed.data import shards as shard_files
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_texts
from crammed.data.preparing.cleaning.steps import for_workers
from crammed.data.preparing.extras import require_extras
from crammed.data.preparing.manifest import SCHEMA, StageResults, settings_json, write_manifest
from crammed.data.preparing.pack import order
from crammed.data.preparing.pack.packing_job import (
    Packed,
    PackJob,
    much_dropped,
    pack_shards,
    pack_tails,
    packing_groups,
    statistics_of,
)
from crammed.data.preparing.read.cleaned import CleanedText
from crammed.data.preparing.read.fetching import fetched
from crammed.data.preparing.read.ingest import read_and_clean
from crammed.data.preparing.read.room import made_folders
from crammed.data.preparing.read.source import (
    Source,
    check_here,
    describe_reading,
    open_sources,
)
from crammed.data.preparing.select.counting_job import all_counts
from crammed.data.preparing.select.duplicates import marked_digests, write_known, write_listing
from crammed.data.preparing.select.given_heldout import GivenHeldout
from crammed.data.preparing.select.heldout_copies import without_copies, write_heldout_runs
from crammed.data.preparing.select.mixing import expected_growth, mix_sources
from crammed.data.preparing.select.selection import Selection, expected_tokens, select_documents
from crammed.data.preparing.select.selection_job import (
    SelectedShard,
    SelectJob,
    characters_left,
    documents_to_pack,
    select_shard,
)
from crammed.data.preparing.workfolder import is_whole, refusals_of, remove_left_overs, work_folder
from crammed.data.shards import read_done, write_done
from crammed.data.statistics import Statistics
from crammed.data.tokenization.encoding import CorpusTokenizer
from crammed.data.tokenization.losses import remarks, sample_of
from crammed.data.tokenization.named import named_tokenizer
from crammed.data.tokenization.tokenizer import to_json
from crammed.data.tokenization.training import train_from_texts, train_from_words
from crammed.errors import InputError
from crammed.files.folders import check_vacant, publish, sync_all
from crammed.files.hashes import json_hash, sha256
from crammed.files.writing import write_gzip, write_text
from crammed.machine.engine import Engine, Item, Result, open_engine, release_memory
from crammed.quantity import progress_rate
from crammed.terminal.progress import Progress


def prepare(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    out: Path,
    progress: Progress,
    compute: ComputeConfig | None = None,
    work: Path | None = None,
    choose: Callable[[float], TokenizerConfig] | None = None,
    heldout: Corpus | Sequence[str] | None = None,
    extends: Corpus | None = None,
) -> Corpus:
    """Make the corpus `out` and open it.

    Args:
        compute: how many workers to use, and where; it does not change a byte of the corpus.
        work: folder in which to keep intermediate results, so that a later preparation of the same
            text, alone or with more, need not read it again. With None they are kept beside `out`
            and removed at the end.
        choose: returns tokenizer settings to use instead of `tokenizer`; called once the text is
            cleaned, with the approximate number of tokens there will be to train on.
        heldout: what to hold out and not train on: the held-out documents of a corpus, or all
            documents of some files or other sources; None chooses documents from the text.
        extends: a corpus whose documents are not repeated; its held-out documents are held out.

    Raises:
        InputError: there is too little data or some is unreadable, `out` exists already, or
            another process is preparing it.
    """
    if (out / "manifest.json").exists():
        remove_left_overs(out)
    check_vacant(out, "--out")
    require_extras(data, tokenizer)
    data = data.model_copy(update={"clean": for_workers(data.clean)})
    elsewhere = any(source.is_remote for source in data.sources)
    if elsewhere:
        named: Sequence[str] = () if isinstance(heldout, Corpus) else heldout or ()
        check_here(data, *(SourceConfig(path=path) for path in named))
    sources = [] if elsewhere else open_sources(data)
    with work_folder(work, out) as folder, open_engine(compute or ComputeConfig()) as engine:
        if elsewhere:
            data = fetched(data, folder, progress)
            sources = open_sources(data)
        for line in describe_reading(sources, data):
            progress.line(f"sources  {line}")
        held = extends or heldout
        given = GivenHeldout.given(held, data, folder, progress) if held else None
        supplied, chunked = None, tokenizer.by_chunk
        if tokenizer.file is not None:
            supplied = named_tokenizer(tokenizer.file)
            chunked = CorpusTokenizer(supplied).takes_chunks
        preparation = _Preparation(
            data, tokenizer, supplied, chunked, folder, engine, progress, given, extends
        )
        preparation.run(sources, out, choose)
    return Corpus(out)


@dataclass(frozen=True)
class _SelectedShards(Sequence[SelectedShard]):
    """All shards, each put together when it is asked for: there may be many."""

    text: CleanedText
    selection: Selection
    made: Path

    def __len__(self) -> int:
        return len(self.text.shards)

    def __getitem__(self, number: int) -> SelectedShard:  # type: ignore[override]
        shard, chosen = self.text.shards[number], self.selection.of_shard(number)
        return SelectedShard(shard.slices, self.out(number), shard.source.name, chosen)

    def out(self, number: int) -> Path:
        """The path of the files made from a shard."""
        return self.made / f"{number:05d}"


@dataclass(frozen=True)
class _Preparation:
    """Runs the stages in order.

    Attributes:
        supplied: the tokenizer, if none is to be trained.
        chunked: whether documents are cut into chunks for the tokenizer.
    """

    data: DataConfig
    tokenizer_config: TokenizerConfig
    supplied: Tokenizer | None
    chunked: bool
    folder: Path
    engine: Engine
    progress: Progress
    given: GivenHeldout | None
    extends: Corpus | None

    def run(
        self,
        sources: Sequence[Source],
        out: Path,
        choose: Callable[[float], TokenizerConfig] | None,
    ) -> None:
        """Make the corpus and publish it at `out`."""
        text = read_and_clean(sources, self.data, self.folder, self.engine, self.progress, out)
        with refusals_of(text):
            text.require_documents()
            selection = select_documents(
                text, self.data, self.engine, self.folder, self.given, self.extends
            )
            chosen = self
            if choose is not None and selection.packed_characters:  # else `_make` refuses the text
                tokens = expected_tokens(text.shards, selection)
                tokens *= expected_growth(text, selection, self.data.mix)
                chosen = replace(self, tokenizer_config=choose(tokens))
            chosen._make(text, selection, out)

    def _make(self, text: CleanedText, selection: Selection, out: Path) -> None:
        """Make the corpus from cleaned text."""
        made = self._made_folder(text)
        corpus, publishing = made / "corpus", made / "publishing"
        if publishing.exists():  # a call was killed there and may have moved files away
            if is_whole(corpus):
                publish(corpus, out)
                shutil.rmtree(made)
                return
            shutil.rmtree(made)
        corpus.mkdir(parents=True, exist_ok=True)
        shards = _SelectedShards(text, selection, made)
        if self.data.heldout_copies == "keep":
            characters = self._select(shards)
        else:
            runs = made / "heldout-runs.npy"
            if self.given is not None:
                self.given.write_runs(runs)
            else:
                write_heldout_runs(runs, shards, self.engine)
            self._select(shards, runs)
            selection = without_copies(selection, shards, runs, self.engine)
            shards = _SelectedShards(text, selection, made)
            characters = [characters_left(shard) for shard in shards]
            if not sum(characters):
                why = "out: add text, or set data.heldout_copies=keep"
                if self.extends is not None:
                    why = "out, or is in the corpus to extend: add other text"
                raise InputError(
                    "the data holds no text to train on: every document repeats one that is held "
                    + why
                )
        mixed = mix_sources(text, selection, characters, self.data.mix, self.engine)
        for line in mixed.description:
            self.progress.line(f"mix  {line}")
        shards = _SelectedShards(text, mixed.selection, made)
        self._write_heldout(corpus, shards, mixed.selection)
        tokenizer = self._tokenizer(
            corpus, shards, sum(characters), mixed.selection.heldout_characters
        )
        packed, left_out, statistics = self._pack(corpus, shards, characters, mixed.repeats)
        self._store_orders(corpus, tokenizer, statistics)
        results = StageResults(text, mixed, tokenizer, packed, statistics, left_out, self.given)
        if self.data.clean.exact:
            listing, in_rows = write_listing(made, text.blocks), mixed.selection.repeats > 0
            write_known(corpus, marked_digests(self.engine, listing, in_rows, made))
        write_manifest(corpus, self.data, self.tokenizer_config, results)
        sync_all(corpus.iterdir())
        write_text(publishing, "")
        publish(corpus, out)
        shutil.rmtree(made)

    def _made_folder(self, text: CleanedText) -> Path:
        """Where this corpus is made.

        Removes what earlier calls began in other ways: `check_room` counts on its room.
        """
        identity = json_hash(
            [
                SCHEMA,
                [(source.name, source.weight, source.share) for source in text.sources],
                [(block.source, block.documents, block.content) for block in text.blocks],
                shard_files.SHARD_CHARACTERS,
                [shard.documents for shard in text.shards],
                settings_json(self.data, self.tokenizer_config),
                None if self.supplied is None else to_json(self.supplied),
                None if self.given is None else self.given.sha256,
                None if self.extends is None else self.extends.sha256,
            ]
        )
        made = self.folder / f"made-{identity}"
        for other in made_folders(self.folder):
            if other != made:
                shutil.rmtree(other)
        return made

    def _on_all(
        self,
        label: str,
        function: Callable[[Item], Result],
        jobs: Iterable[Item],
        sizes: Sequence[int],
        unit: str = "characters",
    ) -> Iterator[Result]:
        """Apply a stage to all shards, and show progress by the sum of their sizes."""
        with self.progress.task(label, float(sum(sizes))) as task:
            began, done = self.progress.clock(), 0
            for size, result in zip(sizes, self.engine.map(function, jobs), strict=True):
                yield result
                done += size
                task.update(done, progress_rate(done, unit, self.progress.clock() - began))

    def _select(self, shards: _SelectedShards, heldout_runs: Path | None = None) -> list[int]:
        """Select from all shards; returns the number of characters to pack from each."""
        several = len({shard.source.name for shard in shards.text.shards}) > 1
        jobs = (SelectJob(shard, self.chunked, heldout_runs, several) for shard in shards)
        sizes = [each.characters for each in shards.text.shards]
        characters = list(self._on_all("selecting", select_shard, jobs, sizes))
        if not sum(characters):
            here = "" if self.extends is None else ", or is in the corpus to extend"
            raise InputError(
                f"the data holds no text to train on: every document was dropped{here}: add other "
                "text"
            )
        return characters

    def _write_heldout(
        self, corpus: Path, shards: Sequence[SelectedShard], selection: Selection
    ) -> None:
        if self.extends is None:  # else they are a share of all its text, and not of this
            self.progress.line(f"held out  {selection.describe_heldout()}")
        file = corpus / "heldout.jsonl.gz"
        if self.given is not None:
            shutil.copyfile(self.given.file, file)
        else:
            own = (shard_files.shard_file(each.out, "heldout.jsonl") for each in shards)
            write_gzip(file, (lines.read_bytes() for lines in own))

    def _tokenizer(
        self, corpus: Path, shards: Sequence[SelectedShard], characters: int, held: int
    ) -> Tokenizer:
        """Train the tokenizer unless it is supplied or already trained; say what it loses."""
        file, mark = corpus / "tokenizer.json", corpus.with_name("tokenizer.done.json")
        done = read_done(mark)
        if done is None or not file.exists() or sha256(file) != done["sha256"]:
            write_text(file, to_json(self.supplied or self._train(shards, characters)))
            write_done(mark, {"sha256": sha256(file)})
            release_memory()
        tokenizer = Tokenizer.from_file(str(file))
        some = sample_of(heldout_texts(corpus / "heldout.jsonl.gz"), held)
        for remark in remarks(tokenizer, some, self.tokenizer_config):
            self.progress.line(f"tokenizer  {remark}")
        return tokenizer

    def _train(self, shards: Sequence[SelectedShard], characters: int) -> Tokenizer:
        with self.progress.task("training the tokenizer"):
            if self.chunked:
                counts = all_counts(self.engine, shards, shards[0].out.parent)
                return train_from_words(counts, self.tokenizer_config)
            texts = chain.from_iterable(map(documents_to_pack, shards))
            return train_from_texts(texts, characters, self.tokenizer_config)

    def _pack(
        self, corpus: Path, shards: _SelectedShards, characters: Sequence[int], repeated: bool
    ) -> tuple[list[Packed], int, Statistics]:
        """The results of packing all shards, the number of tokens left over, and statistics."""
        groups = packing_groups(characters, repeated)
        jobs = (
            PackJob(
                parts=tuple(shards[number] for number in numbers),
                rows=corpus / f"rows-{place:05d}.bin",
                chunked=self.chunked,
                tokenizer=corpus / "tokenizer.json",
                row_length=self.data.row_length,
                cls=self.data.cls,
                sep=self.data.sep,
                most_tokens_per_character=self.data.clean.max_tokens_per_character,
            )
            for place, numbers in enumerate(groups)
        )
        sizes = [sum(characters[number] for number in numbers) for numbers in groups]
        packed: list[Packed] = []
        statistics: Statistics | None = None
        results = self._on_all("tokenizing", pack_shards, jobs, sizes)
        for numbers, result in zip(groups, results, strict=True):
            own = statistics_of(shards.out(numbers[0]), result)
            statistics = own if statistics is None else Statistics.merge((statistics, own))
            packed.append(replace(result, statistics={}))
        assert statistics is not None
        outs = (shards.out(numbers[0]) for numbers in groups)
        size = len(statistics.token_counts)
        left_out = pack_tails(corpus, outs, packed, self.data.row_length, size)
        if (remark := much_dropped(packed)) is not None:
            self.progress.line(f"packing  {remark}")
        return packed, left_out, statistics

    def _store_orders(self, corpus: Path, tokenizer: Tokenizer, statistics: Statistics) -> None:
        def score(jobs: Sequence[order.ScoreJob]) -> Iterator[order.Scores]:
            sizes = [job.file.stat().st_size for job in jobs]
            return self._on_all("ordering", order.score_file, jobs, sizes, "bytes")

        names, length = self.data.orders, self.data.row_length
        order.store(corpus, names, length, tokenizer, statistics.token_counts, score)
