"""A preparation that ends in any of its stages goes on, and makes the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crammed.data import shards
from crammed.data.corpus import Corpus
from crammed.data.preparing.extension import extend
from crammed.formats import hub
from crammed.formats.hub import SHORT_NAMES, HubDataset
from crammed.machine import engine
from crammed.terminal.progress import SILENT
from support.corpora import prepared, step_of, stopping
from support.text import documents, tiny, write_jsonl

STEPS_OF_THE_DRIVER = (
    *("write_heldout_runs", "without_copies", "mix_sources", "write_gzip", "train_from_words"),
    *("pack_tails", "write_known", "write_manifest", "publish"),
)


MENU = "Home, News, Sport, Weather, Contact"


class Ended(BaseException):
    """Ends the process, as far as a test can."""


class Stages:
    """The stages that this process has worked on, and where it ends.

    Attributes:
        done: the jobs finished in each stage, by the name of its function.
        last: the stage, and the number of its job after which the process ends.
    """

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.last: tuple[str, int] | None = None

    def map(self, _: object, function: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
        for job in jobs:
            result = function(job)
            self.done[function.__name__] += 1
            if self.last == (function.__name__, self.done[function.__name__]):
                raise Ended
            yield result


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Corpus]:
    """Prepares several shards in all stages."""
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 20_000)
    pairs = zip(documents(100), documents(100, seed=7), strict=True)
    longer = [" ".join(pair) for pair in pairs]  # which repeat documents, some of them held out
    texts = [[f"{MENU}\n{text}" for text in documents(200, seed=seed)] for seed in (0, 1)]
    texts[1] += longer
    first = write_jsonl(tmp_path / "first.jsonl", texts[0])
    second = tmp_path / "second.parquet"
    pq.write_table(pa.table({"text": texts[1]}), second, row_group_size=30)
    near = ["data.clean.near=0.8"] if find_spec("rensa") else []
    sources = [str(first), {"path": str(second), "weight": 1.5}]
    words = [
        "compute.workers=1",
        "data.orders=[common-first]",
        *near,
        "data.clean.repeated.unit=line",
    ]

    def made(name: str) -> Corpus:
        return prepared(tmp_path / name, sources, *words)

    return made


def test_it_ends_in_every_stage_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Corpus]
) -> None:
    stages = Stages()
    monkeypatch.setattr(engine.Engine, "map", lambda *given: stages.map(*given))
    whole = make("whole")
    assert step_of(whole, "copies of held-out text")["dropped"] > 0
    assert len(stages.done) >= 10
    assert min(stages.done[each] for each in ("read", "select_shard", "pack_shards")) > 2
    for stage, jobs in stages.done.items():
        stages = Stages()
        stages.last = (stage, min(jobs, 2))
        with pytest.raises(Ended):
            make("out")
        assert not (tmp_path / "out").exists()
    stages = Stages()
    assert make("out").sha256 == whole.sha256
    assert not (tmp_path / ".out.preparing").exists()


def test_it_ends_before_every_step_of_the_driver_in_turn(
    tmp_path: Path, make: Callable[[str], Corpus]
) -> None:
    whole = make("whole")
    for name in STEPS_OF_THE_DRIVER:
        with stopping(name):
            make("out")
        assert not (tmp_path / "out").exists()
    assert make("out").sha256 == whole.sha256
    assert not (tmp_path / ".out.preparing").exists()


def test_where_shards_are_cut_may_change_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """White space that cleaning removes counts there."""
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 20_000)
    folder, texts = tmp_path / "texts", documents(60)
    write_jsonl(folder / "a.jsonl", [*texts[:-1], texts[-1] + 1_500 * " "])
    write_jsonl(folder / "b.jsonl", documents(60, seed=1))
    with stopping("without_copies"):
        prepared(tmp_path / "out", folder, "compute.workers=1")
    write_jsonl(folder / "a.jsonl", texts)
    fresh = prepared(tmp_path / "fresh", folder, "compute.workers=1")
    assert prepared(tmp_path / "out", folder, "compute.workers=1").sha256 == fresh.sha256


@pytest.mark.long
def test_ray_reads_the_hub_and_extends_a_corpus_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("ray", "datasets"):
        pytest.importorskip(library)
    monkeypatch.setattr(hub, "SHORT_NAMES", dict(SHORT_NAMES))
    for name in ("base", "more"):
        folder = tmp_path / "hub" / name / "data"
        folder.mkdir(parents=True)
        for number in range(3):
            file = folder / f"train-{number:05d}-of-00003.parquet"
            texts = documents(200, seed=number + 10 * (name == "more"))
            pq.write_table(pa.table({"text": texts}), file)
        hub.SHORT_NAMES[name] = HubDataset(str(tmp_path / "hub" / name))
    found = []
    for kind in ("ray", "processes"):
        word = f"compute.engine={kind}"
        base = prepared(tmp_path / f"{kind}-base", "hub:base", word)
        more = tiny("crammed", word, data={"sources": ["hub:more"]})
        larger = extend(base, more.data, tmp_path / f"{kind}-larger", SILENT, more.compute)
        assert larger.rows > base.rows
        found.append((base.sha256, larger.sha256))
    assert found[0] == found[1]
