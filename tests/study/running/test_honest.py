"""A study says at once what cannot be trained and what failed, and does nothing twice."""

from __future__ import annotations

import io
import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.cli import studies
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.writing import write_json
from crammed.machine.device import Device
from crammed.planning.speed import Measured
from crammed.report.study import write_study_page
from crammed.study.result import Arm, Run, StudyResult
from crammed.study.running import board, checks, folder, runner
from crammed.study.running.board import Board
from crammed.study.running.folder import Left, config_of
from crammed.study.running.judges import Judge
from crammed.study.running.places import Ended
from crammed.study.running.runner import run_study
from crammed.study.running.timing import Finished
from crammed.study.spec.arms import load_study
from crammed.study.spec.corpora import Corpora
from crammed.terminal.progress import SILENT, Progress
from support.command import PATIENCE
from support.study import SUMMARY, run_of, write_study
from support.text import MODEL, FakeClock

BUDGET = Budget.parse("6updates")
SLOW: dict[str, list[str]] = {"plain": [], "slow": ["optim.lr=1e-4"]}
JUDGES = (Judge("blimp", Path("pairs.jsonl")),)


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
    study = load_study(write_study(tmp_path, {"plain": [], "x": [own]}), corpus, parsed)
    with pytest.raises(InputError, match=message):
        run_study(study, corpus, parsed, 1, tmp_path / "out", 1, SILENT)
    assert not (tmp_path / "out").exists()


class Place:
    """Ends each run as it is told to, and notes which it has trained."""

    slots = 2

    def __init__(self, ends: Callable[[str], Ended]) -> None:
        self._ends = ends
        self.trained: list[str] = []

    def run(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
        run = Path(words[words.index("--out") + 1])
        self.trained.append(run.name)
        ended = self._ends(run.name)
        if not ended.code:
            write_json(run / "summary.json", SUMMARY)
        return ended

    def stop(self) -> None:
        """Nothing runs."""


def use(monkeypatch: pytest.MonkeyPatch, ends: Callable[[str], Ended] | None = None) -> Place:
    place = Place(ends or (lambda _: Ended(0, "", "")))
    monkeypatch.setattr(runner, "opened", lambda *_, **__: nullcontext(place))
    return place


def ran(
    tmp_path: Path, corpus: Corpus, arms: Any = SLOW, seeds: int = 1, progress: Progress = SILENT
) -> StudyResult:
    study = load_study(write_study(tmp_path, arms), corpus, BUDGET)
    return run_study(study, corpus, BUDGET, seeds, tmp_path / "out", 1, progress)


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
    study = load_study(write_study(tmp_path, arms), corpus, BUDGET)
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
    name, out = write_study(tmp_path, SLOW, ["crammed", *open_]), tmp_path / "out"
    small = ["model.head_dim=16", "model.max_length=32", "finetune.max_length=32", "batch.rows=8"]
    measured: list[str] = []

    def measure(config: RunConfig, device: Device) -> Measured:
        measured.append(config.recipe)
        return Measured(1e9, False)

    use(monkeypatch)
    for module in ("planning.settling", "study.running.seconds"):
        monkeypatch.setattr(f"crammed.{module}.training_speed", measure)

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
        (folder, "settle"),
    ):
        monkeypatch.setattr(owner, work, lambda *_, **__: pytest.fail("there is nothing to do"))
    page = "crammed.report.study.write_study_page"
    monkeypatch.setattr(page, lambda *_: pytest.fail("wrote the page"))
    monkeypatch.setattr(Corpus, "damaged", lambda _: pytest.fail("read the corpus"))
    assert call() == first
    assert {f: f.stat().st_mtime_ns for f in out.rglob("*") if f.name != ".lock"} == before


def test_a_study_that_goes_on_with_other_commits_names_all_of_them(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch)
    for seeds, commit in ((1, "a"), (1, "none"), (2, "a"), (3, "b"), (4, "b"), (5, None)):
        began = {"cores": 2, "commit": commit, "started": f"with {seeds}"}
        monkeypatch.setattr(runner, "environment", lambda began=began: began)
        found = ran(tmp_path, corpus, seeds=seeds).environment
        assert found is not None
        assert (found.started, found.later) == ("with 1", ["b"] if seeds > 2 else [])
        assert found.commits == ("a, later b" if seeds > 2 else "a")
    text = write_study_page(tmp_path / "out", tmp_path / "page.html").read_text("utf-8")
    assert "2 cores, commit a, later b, started with 1." in text


def test_a_run_that_finished_as_its_study_was_killed_counts(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, first = use(monkeypatch), ran(tmp_path, corpus)
    kept = json.loads((tmp_path / "out" / "study.json").read_text())
    del kept["arms"]["slow"]["runs"]["0"]
    write_json(tmp_path / "out" / "study.json", kept)
    study = load_study(str(tmp_path / "s.yaml"), corpus, BUDGET)
    own = config_of(study, "slow", Corpora(corpus), BUDGET)
    write_json(tmp_path / "out" / "slow-0" / "config.json", own.model_dump(mode="json"))
    again = ran(tmp_path, corpus)
    slow = first.arms["slow"].runs  # whose end nobody saw
    assert again.arms["slow"].runs == {"0": slow["0"].without("whole_seconds")}
    assert again.arms["plain"] == first.arms["plain"]
    assert sorted(place.trained) == ["plain-0", "slow-0"]  # each once, in either order


def test_a_run_whose_end_was_cut_short_is_ended_when_its_study_goes_on(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill may come between a run's result and the removal of its checkpoints."""

    def ends(run: str) -> Ended:
        shutil.rmtree(tmp_path / "out" / run / "checkpoints", ignore_errors=True)
        return Ended(0, "", "")

    place, first = use(monkeypatch, ends), ran(tmp_path, corpus)
    (tmp_path / "out" / "slow-0" / "checkpoints").mkdir()
    place.trained.clear()
    again = ran(tmp_path, corpus)
    assert place.trained == ["slow-0"]
    assert not (tmp_path / "out" / "slow-0" / "checkpoints").exists()
    assert again.arms["plain"] == first.arms["plain"]


def test_the_progress_line_tells_how_far_each_run_is(tmp_path: Path) -> None:
    clock = FakeClock()
    shown = Board(3, clock, Counter({"plain": 1, "muon": 0, "late": 0}), Counter({"muon": 1}))
    runs = [Left(arm, 1, tmp_path / arm) for arm in ("plain", "muon", "late")]

    def log(arm: str, *shares: float) -> None:
        lines = [json.dumps({"update": 1, "u": share}) for share in shares]
        (tmp_path / arm).mkdir(exist_ok=True)
        (tmp_path / arm / "metrics.jsonl").write_text("\n".join([*lines, '{"update": 2, "u": 0.']))

    log("plain", 0.1)
    log("muon", *[0.01] * 1000, 0.2)
    done, words, left = shown.look(runs)
    assert done == pytest.approx(2.3)
    assert left == math.inf
    assert words == "1 finished; 1 failed; plain seed 1: 10 %; muon seed 1: 20 %"
    log("plain", 0.1, 0.4)
    done, words, left = shown.look(runs)
    assert done == pytest.approx(2.6)
    assert left == math.inf
    assert "plain seed 1: 40 %; muon seed 1: 20 %" in words
    clock.now += 120.0
    shown.ended(runs[0], failed=False)
    assert shown.look(runs[1:])[2] == pytest.approx(120.0 * (9 - 3.2) / 2)
    assert shown.of_arm("plain") == "2 of 3 runs"
    assert board.share_done(tmp_path / "late") is None


def test_the_progress_line_counts_judging(tmp_path: Path) -> None:
    run = Left("plain", 0, tmp_path, None, JUDGES)
    done = run_of(seconds=50.0, whole_seconds=60.0, judging_seconds={"blimp": 30.0})
    arms, clock = {"plain": Arm(words=[], runs={"1": done})}, FakeClock()
    shown = Board.of(arms, 2, [run], Finished.of(arms), clock)
    (tmp_path / "metrics.jsonl").write_text('{"u": 0.5}\n')
    assert shown.look([run]) == (1.25, "1 finished; plain seed 0: 50 %", 0.75 * 90.0)
    (tmp_path / "final").mkdir()
    said = "1 finished; plain seed 0: held-out loss and export"
    assert shown.look([run]) == (1.5, said, 45.0)
    write_json(tmp_path / "summary.json", SUMMARY)
    assert shown.look([run]) == (1.5, "1 finished; plain seed 0: judging", 45.0)
    assert shown.look([replace(run, judges=())])[0] == 2.0


def test_arms_of_another_call_are_not_counted(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch)
    arms = {"plain": [], "muon": ["optim.weight_decay=0.5"]}
    ran(tmp_path, corpus, {**arms, "slow": ["optim.lr=1e-4"]}, 2)
    boards: list[Board] = []
    make = Board.of

    def board(*given: Any) -> Board:
        boards.append(make(*given))
        return boards[-1]

    monkeypatch.setattr(Board, "of", board)
    said = io.StringIO()
    ran(tmp_path, corpus, arms, 3, Progress(said))
    assert boards[0].finished == {"plain": 3, "muon": 3}
    assert "study  6 finished" in said.getvalue()
