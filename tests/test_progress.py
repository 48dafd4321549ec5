"""What long work reports when there is no terminal."""

from __future__ import annotations

import io

import pytest

from crammed.progress import Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _lines(updates: list[tuple[float, float]], total: float | None) -> list[str]:
    """Lines after updates of (time, done)."""
    clock, stream = Clock(), io.StringIO()
    with Progress(stream, clock) as progress, progress.task("work", total) as task:
        for clock.now, done in updates:
            task.update(done, "detail")
    return stream.getvalue().splitlines()


def test_time_left_follows_the_rate_so_far() -> None:
    assert _lines([(0, 0.0), (20, 0.25)], 1.0)[0] == "work  25 %  1m left  detail"


def test_time_left_counts_from_where_work_resumed() -> None:
    assert _lines([(0, 0.5), (20, 0.75)], 1.0)[0] == "work  75 %  20s left  detail"


@pytest.mark.parametrize("total", [None, 1.0])
def test_lines_come_ten_seconds_apart(total: float | None) -> None:
    assert len(_lines([(second, second / 100) for second in range(31)], total)) == 3 + 1
