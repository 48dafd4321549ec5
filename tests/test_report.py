from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from conftest import documents, tiny, write_jsonl
from crammed.errors import InputError
from crammed.pipeline import run_everything
from crammed.progress import SILENT
from crammed.report.html import quantity, write_report
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
    assert page.count("<svg") == 6
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
    assert page.count("<svg") == 13
    assert "2 runs" in page


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
