"""A study says at once what cannot be trained and what failed, and does nothing twice."""

from __future__ import annotations

import io
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.cli import studies
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.writing import read_json, write_json
from crammed.study import board, checks, folder, runner
from crammed.study.arms import load_study
from crammed.study.board import Board
from crammed.study.folder import Left
from crammed.study.judges import Judge
from crammed.study.places import Ended
from crammed.study.result import Arm, Run
from crammed.study.runner import run_study
from crammed.study.timing import Finished
from crammed.terminal.progress import SILENT, Progress
from support.command import PATIENCE
from support.study import SUMMARY, run_of
from support.text import MODEL, FakeClock

BUDGET = Budget.parse("6updates")
JUDGES = (Judge("blimp", Path("pairs.jsonl")),)


def write(tmp_path: Path, arms: Any, base: Sequence[str] = MODEL) -> str:
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps({"base": ["crammed", *base], "baseline": "plain", "arms": arms}))
    return str(file)


@pytest.mark.parametrize(
    ("own", "budget", "message"),
    [
        ("batch.rows=65536", "6updates", "arm x: the corpus has .* fewer than one batch of 65,536"),
        ("order.by=sentence-length", "6updates", "arm x: .* has no order sentence-length"),
        ("model.width=131072", "6updates", "arm x: a model of .* parameters needs"),
        ("compute.device=mps", "6updates", "arm x: compute.device=mps: this machine has none"),
        ("batch.rows=64", "1000tok", "arm x: a budget of 1,000 tokens ends before one update"),
    ],
)
def test_an_arm_that_cannot_be_trained_is_refused_before_anything_starts(
    tmp_path: Path, corpus: Corpus, own: str, budget: str, message: str
) -> None:
    parsed = Budget.parse(budget)
    study = load_study(write(tmp_path, {"plain": [], "x": [own]}), corpus, parsed)
    with pytest.raises(InputError, match=message):
        run_study(study, corpus, parsed, 1, tmp_path / "out", 1, SILENT)
    assert not (tmp_path / "out").exists()


class Place:
    """Ends each run as it is told to."""

    slots = 2

    def __init__(self, ends: Any) -> None:
        self._ends = ends

    def run(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
        run = Path(words[words.index("--out") + 1])
        ended: Ended = self._ends(run.name)
        if not ended.code:
            write_json(run / "summary.json", SUMMARY)
        return ended

    def stop(self) -> None:
        """Nothing runs."""


def use(monkeypatch: pytest.MonkeyPatch, ends: Any) -> None:
    @contextmanager
    def opened(*_: Any, **__: Any) -> Iterator[Place]:
        yield Place(ends)

    monkeypatch.setattr(runner, "opened", opened)
    monkeypatch.setattr(folder, "read_summary", lambda run: read_json(run / "summary.json"))


def test_a_failure_is_said_while_the_others_train(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()

    def ends(run: str) -> Ended:
        if run == "muon-0":
            return Ended(2, "", "a line\nerror: no memory\n")
        until = time.monotonic() + PATIENCE
        while "muon, seed 0  failed: no memory" not in said.getvalue():
            assert time.monotonic() < until, said.getvalue()
            time.sleep(0.01)
        return Ended(0, "", "")

    use(monkeypatch, ends)
    arms = {"muon": ["optim.weight_decay=0.5"], "plain": []}
    study = load_study(write(tmp_path, arms), corpus, BUDGET)
    result = run_study(study, corpus, BUDGET, 1, tmp_path / "out", 2, Progress(said))
    lines = said.getvalue().splitlines()
    assert "muon, seed 0  failed: no memory  (0 of 1 run, 1 failed)" in lines
    assert "plain, seed 0  held-out loss 4.000  (1 of 1 run)" in lines
    assert lines[-1].startswith("study  1 finished; 1 failed")
    assert result.arms["muon"].runs["0"] == Run(failed="no memory")


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (Ended(-9, "", ""), "signal 9 ended it, perhaps because memory ran out"),
        (Ended(1, "", "Traceback\nZeroDivisionError: 0\n"), "it crashed: ZeroDivisionError: 0"),
        (Ended(1, "", ""), "it crashed: exit code 1"),
    ],
)
def test_a_crash_has_a_reason(ended: Ended, reason: str) -> None:
    assert runner._fault(ended) == reason


def test_a_call_with_nothing_to_do_does_nothing(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Not even look at the device, measure it, or read the corpus."""
    open_ = [word for word in MODEL if not word.startswith(("model.", "optim.lr"))]
    name, out = write(tmp_path, {"plain": [], "slow": ["optim.lr=1e-4"]}, open_), tmp_path / "out"
    small = ["model.head_dim=16", "model.max_length=32", "finetune.max_length=32", "batch.rows=8"]
    measured: list[str] = []

    def measure(config: RunConfig) -> float:
        measured.append(config.recipe)
        return 1e9

    use(monkeypatch, lambda _: Ended(0, "", ""))
    monkeypatch.setattr(folder, "measuring", lambda *_: measure)

    def call() -> dict[str, Any]:
        studies.study(name, small, corpus.path, Budget.parse("10m"), 2, out, 2, True)
        printed: dict[str, Any] = json.loads(capsys.readouterr().out)
        return printed

    first = call()
    assert measured
    assert sum(len(each["runs"]) for each in first["arms"].values()) == 4
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*") if file.name != ".lock"}
    for owner, work in (
        (runner, "opened"),
        (runner, "environment"),
        (runner, "_train"),
        (folder, "read_summary"),
        (checks, "device_of"),
        (folder, "device_of"),
        (folder, "measuring"),
    ):
        monkeypatch.setattr(owner, work, lambda *_, **__: pytest.fail("there is nothing to do"))
    page = "crammed.report.study.write_study_page"
    monkeypatch.setattr(page, lambda *_: pytest.fail("wrote the page"))
    monkeypatch.setattr(Corpus, "damaged", lambda _: pytest.fail("read the corpus"))
    assert call() == first
    assert {f: f.stat().st_mtime_ns for f in out.rglob("*") if f.name != ".lock"} == before


def test_a_run_that_finished_as_its_study_was_killed_counts(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def ends(run: str) -> Ended:
        trained.append(run)
        return Ended(0, "", "")

    use(monkeypatch, ends)
    study = load_study(write(tmp_path, {"plain": [], "slow": ["optim.lr=1e-4"]}), corpus, BUDGET)
    first = run_study(study, corpus, BUDGET, 1, tmp_path / "out", 1, SILENT)
    kept = json.loads((tmp_path / "out" / "study.json").read_text())
    del kept["arms"]["slow"]["runs"]["0"]
    write_json(tmp_path / "out" / "study.json", kept)
    again = run_study(study, corpus, BUDGET, 1, tmp_path / "out", 1, SILENT)
    slow = first.arms["slow"].runs  # whose end nobody saw
    assert again.arms["slow"].runs == {"0": slow["0"].without("whole_seconds")}
    assert again.arms["plain"] == first.arms["plain"]
    assert sorted(trained) == ["plain-0", "slow-0"]  # each once, in either order


def test_the_progress_line_tells_how_far_each_run_is(tmp_path: Path) -> None:
    clock = FakeClock()
    shown = Board(3, clock, Counter({"plain": 1, "muon": 0}), Counter({"muon": 1}))
    runs = [Left(arm, 1, tmp_path / arm) for arm in ("plain", "muon", "late")]

    def log(arm: str, *shares: float) -> None:
        lines = [json.dumps({"update": 1, "u": share}) for share in shares]
        (tmp_path / arm).mkdir(exist_ok=True)
        (tmp_path / arm / "metrics.jsonl").write_text("\n".join([*lines, '{"update": 2, "u": 0.']))

    log("plain", 0.1)
    log("muon", *[0.01] * 1000, 0.2)
    done, words, left = shown.look(runs)
    assert left == math.inf
    assert done == pytest.approx(2.3)
    assert words == "1 finished; 1 failed; plain seed 1: 10 %; muon seed 1: 20 %"
    clock.now += 60.0
    log("plain", 0.1, 0.4)
    done, words, left = shown.look(runs)
    assert left == pytest.approx(140.0)  # "late" takes 200 seconds, too, and has had 60
    assert done == pytest.approx(2.6)
    assert "plain seed 1: 40 %, 2m left; muon seed 1: 20 %" in words
    shown.ended(runs[0], failed=False)
    assert shown.of_arm("plain") == "2 of 3 runs"
    assert board.share_done(tmp_path / "late") is None


def test_the_progress_line_counts_judging(tmp_path: Path) -> None:
    """A run that takes three minutes, and a minute with its judges."""
    clock = FakeClock()
    shown = Board(4, clock, Counter({"plain": 0}))
    first, second, third = (Left("plain", n, tmp_path / f"{n}", None, JUDGES) for n in range(3))

    def log(run: Left, share: float) -> None:
        run.folder.mkdir(exist_ok=True)
        (run.folder / "metrics.jsonl").write_text(json.dumps({"u": share}) + "\n")

    def look(run: Left, seconds: float) -> tuple[float, str]:
        clock.now += seconds
        done, words, _ = shown.look([run])
        return round(done, 6), words.partition("; ")[2].removeprefix(f"plain seed {run.seed}: ")

    log(first, 0.0)
    look(first, 0.0)
    log(first, 0.99)
    assert look(first, 178.2) == (0.495, "99 %, 2s until it is judged")
    (first.folder / "final").mkdir()
    assert look(first, 0.0) == (0.5, "held-out loss and export")
    write_json(first.folder / "summary.json", SUMMARY)
    assert look(first, 1.8) == (0.5, "judging, 0s so far")
    assert look(first, 50.0) == (0.5, "judging, 50s so far")
    clock.now += 10.0
    shown.ended(first, failed=False)

    log(second, 0.0)
    look(second, 0.0)
    log(second, 0.5)
    assert look(second, 90.0) == (1.375, "50 %, 2m 30s left")
    write_json(second.folder / "summary.json", SUMMARY)
    assert look(second, 90.0) == (1.75, "judging, 1m left")
    assert look(second, 30.0) == (1.875, "judging, 30s left")
    assert look(second, 90.0) == (2.0, "judging, 2m so far")
    shown.ended(second, failed=True)

    log(third, 1.0)
    write_json(third.folder / "summary.json", SUMMARY)
    trained = replace(third, before=run_of())  # only a judge was added
    assert look(trained, 0.0) == (2.0, "1 failed; plain seed 2: judging, 1m left")
    assert look(trained, 15.0)[0] == 2.25
    assert look(replace(third, judges=()), 0.0)[0] == 3.0


def test_a_study_that_goes_on_knows_at_once_how_long_it_will_take(tmp_path: Path) -> None:
    """Two arms of one and three minutes, and half a minute of judging, two runs at a time."""
    clock = FakeClock()
    arms = {}
    for arm, took in (("plain", 60.0), ("wide", 180.0)):
        done = run_of(seconds=took - 10.0, whole_seconds=took, judging_seconds={"blimp": 30.0})
        arms[arm] = Arm(words=[], runs={"0": done})
    runs = [Left(arm, n, tmp_path / f"{arm}-{n}", None, JUDGES) for n in (1, 2) for arm in arms]

    def begun(*left: Left) -> Board:
        return Board.of(arms, 3, left, Finished.of(arms), Progress(None, clock=clock))

    other = replace(runs[0], judges=(*JUDGES, Judge("glue", tmp_path)))
    assert begun(other).judged == math.inf
    shown = begun(*runs)
    assert shown.look(runs[:2]) == (2.0, "2 finished", (4 * 30 + 2 * 60 + 2 * 180) / 2)
    clock.now += 20.0  # nothing shows yet how fast the runs are
    assert shown.look(runs[:2])[2] == 300.0 - 20.0
    for run, shares in ((runs[0], (0.0, 0.5)), (runs[1], (0.0,))):
        run.folder.mkdir()
        for share in shares:
            (run.folder / "metrics.jsonl").write_text(json.dumps({"u": share}) + "\n")
            assert shown.look(runs[:2])[2] < math.inf
            clock.now += 50.0
    clock.now -= 50.0
    (runs[0].folder / "metrics.jsonl").write_text(json.dumps({"u": 1.0}) + "\n")
    # The first run has taken 120 seconds before its judges, not 60; others will take twice, too.
    each = [30.0, 2 * 180.0 + 30.0 - 120.0, 120.0 + 30.0, 2 * 180.0 + 30.0]
    assert shown.look(runs[:2])[2] == pytest.approx(sum(each) / 2)
    shown.ended(runs[0], failed=False)
    (runs[1].folder / "metrics.jsonl").write_text('{"u": 0.75}\n')
    resumed = begun(runs[1], runs[3])
    assert resumed.look([runs[1]])[2] == 2 * 180.0 + 2 * 30.0
    clock.now += 20.0
    (runs[1].folder / "metrics.jsonl").write_text('{"u": 0.8}\n')
    # A twentieth took 20 seconds, so the whole run would have taken 400.
    assert resumed.look([runs[1]])[2] == pytest.approx(80.0 + 400.0 + 2 * 30.0)
    trained = [replace(runs[2], before=run_of())]  # of which only the judge is left
    alone = begun(*trained)
    assert alone.look(trained)[2] == 30.0


def test_arms_of_another_call_are_not_counted(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, lambda _: Ended(0, "", ""))
    decay, rate = ["optim.weight_decay=0.5"], ["optim.lr=1e-4"]
    arms: dict[str, list[str]] = {"plain": [], "muon": decay, "slow": rate}
    study = load_study(write(tmp_path, arms), corpus, BUDGET)
    run_study(study, corpus, BUDGET, 2, tmp_path / "out", 1, SILENT)
    boards: list[Board] = []
    make = Board.of

    def board(*given: Any) -> Board:
        boards.append(make(*given))
        return boards[-1]

    monkeypatch.setattr(Board, "of", board)
    del arms["slow"]
    fewer = load_study(write(tmp_path, arms), corpus, BUDGET)
    said = io.StringIO()
    run_study(fewer, corpus, BUDGET, 3, tmp_path / "out", 1, Progress(said))
    assert boards[0].finished == {"plain": 3, "muon": 3}
    assert boards[0].before.keys() == {"plain", "muon", "slow"}
    assert "study  6 finished" in said.getvalue()
