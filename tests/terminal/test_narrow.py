"""What verbs print fits a terminal of 60 columns, and no word of it is cut."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from contextlib import redirect_stdout

import pytest

from crammed.cli import corpora, machine, planning, studies, training
from crammed.cli.models import _score_parts
from crammed.cli.output import print_result
from crammed.data.corpus import Corpus
from crammed.evaluation.decision import WAYS
from crammed.evaluation.scores.table import comparison_tables
from crammed.terminal.progress import Progress
from crammed.terminal.table import add_column, new_table, show
from support.scores import BLIMP, GLUE, HELDOUT, PAPERS

PATH = "/a/folder/whose/name/is/so/long/that/no/narrow/terminal/holds/it/in/one/line"


class Terminal(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[60, 200])
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def _evaluation() -> None:
    suites = {"glue": GLUE, "blimp": BLIMP, "heldout": HELDOUT}
    values = {"suites": suites, "protocol": PAPERS, "max_length": 128, "folder": PATH}
    show(_score_parts(values))


def _comparison() -> None:
    both = {"a": 80.0, "b": 79.0, "difference": 1.0, "interval": [0.0, 2.0], "p": 0.02}
    refused = {"name": "rte", "why": "B was not scored on it with the same rows and metric"}
    show(comparison_tables(PATH, "runs/b", [{"name": "mean", **both, "metric": "mean"}, refused]))


def _decision() -> None:
    ways = {way: {"score": 60.0, "interval": [55.0, 65.0]} for way in WAYS}
    show(
        [training._ways_table({"reviews": {"metric": "accuracy", "ways": ways, "level": [*WAYS]}})]
    )


SHOWN: dict[str, Callable[[Corpus], None]] = {
    "evaluate": lambda _: _evaluation(),
    "compare": lambda _: _comparison(),
    "decide": lambda _: _decision(),
    "recipes": lambda _: machine.recipes(),
    "study": lambda _: studies.study(),
    "data show": lambda corpus: corpora.data_show(corpus.path),
    "plan": lambda corpus: planning.plan(corpus=corpus.path, budget=None, device="H100"),
    "runs": lambda corpus: machine.runs(corpus.path.parent),
}


@pytest.mark.parametrize("verb", SHOWN)
def test_lines_fit_the_terminal(verb: str, terminal: Terminal, corpus: Corpus) -> None:
    edge = int(os.environ["COLUMNS"])
    with redirect_stdout(terminal):
        SHOWN[verb](corpus)
    shown = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    lines = [line.rstrip() for line in shown.splitlines()]
    assert [x for x in lines if len(x) > edge and "/" not in x] == []
    assert max(map(len, lines)) > 30
    if verb in ("evaluate", "compare"):
        assert PATH in shown
        assert "rte" in shown


def test_a_file_gets_long_lines_whole(capsys: pytest.CaptureFixture[str]) -> None:
    machine.recipes()
    assert max(map(len, capsys.readouterr().out.splitlines())) > 90


def test_commands_stay_in_one_piece(terminal: Terminal) -> None:
    command = f"crammed pretrain {'optim.lr=1e-3 ' * 20}"
    with redirect_stdout(terminal):
        print_result({}, False, [("next", command), ("note", "words " * 80)])
    first, *others = terminal.getvalue().splitlines()
    assert first == f"next  {command}"
    assert all(line.startswith(("note  words", "      words")) for line in others)
    assert len(others) > 2


def test_lines_about_progress_break_between_words(terminal: Terminal) -> None:
    Progress(terminal).line(f"note  {'several words ' * 30} {PATH}")
    words = {word for line in terminal.getvalue().splitlines() for word in line.split()}
    assert words == {"note", "several", "words", PATH}


def test_brackets_in_names_are_no_markup(terminal: Terminal) -> None:
    table = new_table("A: bert[v2]")
    add_column(table, "[name]")
    table.add_row("mean [/all]")
    for stream in (io.StringIO(), terminal):
        show([table], stream)
        shown = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())
        assert [line.strip() for line in shown.splitlines()][::3] == ["A: bert[v2]", "mean [/all]"]
        assert "[name]" in shown
