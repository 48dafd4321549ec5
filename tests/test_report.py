from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from conftest import documents, tiny, write_jsonl
from corpora import numbered_files, write_corpus
from crammed.data.statistics import Statistics
from crammed.errors import InputError
from crammed.pipeline import run_everything
from crammed.progress import SILENT
from crammed.report.html import write_report
from crammed.report.quantity import quantity
from crammed.rundir import RunDir
from test_evaluate import write_task


class _Balanced(HTMLParser):
    """Fails on a tag that is closed out of order."""

    VOID = ("meta", "br", "path", "use", "link")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    text = write_jsonl(folder / "text.jsonl", documents(600))
    glue = write_task(folder / "glue", "rte", rows=40)
    config = tiny(
        "crammed-2022",
        "finetune.seeds=2",
        "train.log_seconds=0.01",
        "train.heldout_every=0.3",
        budget={"limit": "12updates"},
        data={"sources": [str(text)]},
        finetune={"tasks": ["rte"]},
    )
    run_everything(config, folder / "run", None, glue, SILENT)
    return folder / "run"


def test_the_report_is_whole_and_stands_alone(run: Path) -> None:
    page = (run / "report.html").read_text()
    checker = _Balanced()
    checker.feed(page)
    assert not checker.open
    assert page.count("<svg") == 8
    assert not re.findall(r'(?:src|href)="(?!#)', page)  # nothing is fetched
    assert "Undefined" not in page
    for words in (
        "Loss against budget",
        "Where the time went",
        "RoBERTa-base",
        "Filling gaps",
        "partial",
    ):
        assert words in page
    assert "recipe: crammed-2022" in page


def test_several_runs_side_by_side(run: Path, tmp_path: Path) -> None:
    page = write_report([run, run], tmp_path / "both.html").read_text()
    assert page.count("<svg") == 17
    assert "2 runs" in page


@pytest.fixture
def moved(run: Path, tmp_path: Path) -> Path:
    """The run without its corpus."""
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "corpus")
    return tmp_path / "run"


def test_what_a_corpus_holds(moved: Path, tmp_path: Path) -> None:
    lengths = np.array([1, 900, 1500])
    statistics = Statistics.of("tales", 4 * lengths, lengths, np.array([5, 6]), 17)
    write_corpus(
        moved / "corpus",
        numbered_files([3, 4]),
        statistics=statistics.summary(unknown=1),
        steps=[
            {"step": "gopher", "kept": 30, "dropped": 10, "characters": 2500},
            {"step": "exact duplicates", "kept": 30, "dropped": 0, "characters": 0},
            {"step": "repeated passages", "kept": 30, "dropped": 0, "characters": 70},
        ],
        dropped=[{"step": "gopher", "source": "tales", "text": "<b>Buy</b>\n now"}],
        skipped=[{"part": "b.txt.gz", "why": "cannot be read to its end"}],
        orders={"rare-first": range(7)},
    )
    page = write_report([moved], tmp_path / "report.html").read_text()
    checker = _Balanced()
    checker.feed(page)
    assert not checker.open
    for words in (
        "tales: 4 documents, 90 characters (100.0 %)",
        "10 documents (25.0 %), 2.5 k characters",
        ">70 characters",
        "b.txt.gz: cannot be read to its end",
        "&lt;b&gt;Buy&lt;/b&gt; now",
        "random, rare-first",
        "[PAD] [PAD] [PAD] [PAD]",
        ">256<",
    ):
        assert words in page
    assert "exact duplicates" not in page


def test_a_corpus_of_an_older_version(moved: Path, tmp_path: Path) -> None:
    steps = [{"step": "exact duplicates", "kept": 10, "dropped": 10}]
    write_corpus(moved / "corpus", numbered_files([3]), steps=steps)
    page = write_report([moved], tmp_path / "report.html").read_text()
    assert "10 documents (50.0 %)" in page
    assert "Documents packed" not in page


def test_a_run_without_its_corpus(moved: Path, tmp_path: Path) -> None:
    page = write_report([moved], tmp_path / "report.html").read_text()
    assert "What the corpus holds" not in page
    assert page.count("<svg") == 6


def test_an_unfinished_run_has_no_report(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", tiny()):
        pass
    with pytest.raises(InputError, match="no finished run"):
        write_report([tmp_path / "run"], tmp_path / "report.html")
    with pytest.raises(InputError, match="no run"):
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567.0, "1.23 M"), (999.0, "999"), (0.25, "0.25"), (3e18, "3 E"), (None, "unknown")],
)
def test_quantity(value: float | None, text: str) -> None:
    assert quantity(value) == text
