"""What log points say of the updates since the one before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from crammed.budget import Ledger, Work
from crammed.machine.device import Device
from crammed.machine.waiting import Neighbours
from crammed.runs.directory import RunDir
from crammed.runs.logs import read_metrics
from crammed.terminal.progress import SILENT, Progress
from crammed.training.recorder import Recorder
from crammed.training.session import Session
from crammed.training.update.planned import Update
from support.steps import step_with
from support.text import tiny
from support.training import events

COST = Work(1, 1, 32, 1.0)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    with RunDir.open(tmp_path / "run", tiny()) as opened:
        yield opened


def logged(run: RunDir, device: Device, *points: list[float]) -> list[float]:
    """The losses of log points, the last of them at the end, after updates of these losses."""
    session = Session.untimed(run, step_with(device)[0], Ledger(("step",)))
    work = Work()
    with SILENT.task("") as task:
        recorder = Recorder(session, task)
        for number, losses in enumerate(points, 1):
            for loss in losses:
                update = Update(work.updates, work.rows, 1, 1.0, 0.25, COST)
                recorder.add(update, torch.tensor(loss), torch.tensor(1.0))
                work += COST
            recorder.log(work, 0.5, ended=number == len(points))
    return [record["loss"] for record in read_metrics(run.path)]


@pytest.mark.parametrize(
    ("points", "last"),
    [
        (([4.0] * 190, [2.0] * 9, [8.0]), (9 * 2.0 + 8.0) / 10),  # over a share of all updates
        (([9.0] * 1900, [3.0] * 60, [5.0] * 40), 0.6 * 3.0 + 0.4 * 5.0),  # over no more than `LAST`
        (([9.0] * 100, [3.0, 5.0] * 80), 4.0),  # over all since the point before
    ],
)
def test_the_last_loss_is_a_mean_over_enough_updates(
    run: RunDir, cpu: Device, points: tuple[list[float], ...], last: float
) -> None:
    found = logged(run, cpu, *points)
    assert found == [*(sum(losses) / len(losses) for losses in points[:-1]), last]


def test_other_work_is_said_and_recorded_once(
    run: RunDir, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter([None, 0.4, 0.9])
    monkeypatch.setattr(Neighbours, "share", lambda _: next(shares))
    lines: list[str] = []
    monkeypatch.setattr(Progress, "line", lambda _, words: lines.append(words))
    logged(run, cpu, [4.0], [3.0], [2.0])
    (event,) = events(run.path, "busy")
    assert (event["update"], event["share"]) == (2, 0.4)
    assert sum("waits for cores 40 % of the time" in words for words in lines) == 1
    assert sum(words.startswith("machine  is busy") for words in lines) == 1
