"""Whether other work holds up this process, by what the system would count."""

from __future__ import annotations

from pathlib import Path

import pytest

from crammed.machine import waiting
from crammed.machine.waiting import Neighbours, core_waits, is_busy


def counted(tasks: Path, **waits: object) -> dict[str, float]:
    for name, nanoseconds in waits.items():
        (tasks / name).mkdir(exist_ok=True)
        (tasks / name / "schedstat").write_text(f"812345 {nanoseconds} 17\n")
    return core_waits(tasks)


@pytest.mark.parametrize(
    ("one", "other", "busy"), [(0.0, 0.0, False), (0.15, 0.15, False), (0.0, 0.33, True)]
)
def test_a_machine_is_busy_if_one_thread_waits(
    tmp_path: Path, one: float, other: float, busy: bool
) -> None:
    before = counted(tmp_path, a=7_000_000_000, b=0)
    assert before == {"a": 7.0, "b": 0.0}
    after = counted(tmp_path, a=round(7e9 + 2e9 * one), b=round(2e9 * other))
    assert is_busy(before, after, 2.0) == busy


def test_threads_come_and_go(tmp_path: Path) -> None:
    before = counted(tmp_path, a=0, b=9_000_000_000)
    (tmp_path / "b" / "schedstat").unlink()
    (tmp_path / "b").rmdir()
    assert not is_busy(before, counted(tmp_path, c=100_000_000), 1.0)
    assert is_busy(before, counted(tmp_path, c=900_000_000), 1.0)


def test_where_nothing_is_counted_nothing_is_busy(tmp_path: Path) -> None:
    assert core_waits(tmp_path / "none") == {}
    assert counted(tmp_path, a="damaged") == {}
    assert not is_busy({}, {}, 1.0)


def test_neighbours_are_noticed_by_the_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(waiting, "TASKS", tmp_path)
    counted(tmp_path, a=0)
    neighbours = Neighbours()
    counted(tmp_path, a=59_000_000_000)
    now += 59.0
    assert neighbours.share() is None  # too early to say
    counted(tmp_path, a=30_000_000_000)
    now += 1.0
    assert neighbours.share() == pytest.approx(0.5)
    counted(tmp_path, a=36_000_000_000)
    now += 60.0
    assert neighbours.share() is None  # a tenth of this minute
