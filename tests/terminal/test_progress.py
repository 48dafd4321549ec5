"""What long work reports, on a terminal and elsewhere."""

from __future__ import annotations

import builtins
import io
import math
import os
import re
import signal

import pytest
from rich.console import Console

from crammed.terminal.progress import Progress


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


def test_the_first_seconds_give_no_estimate() -> None:
    assert _lines([(0, 0.0), (10, 0.001)], 1.0)[0] == "work  0 %  detail"


def test_who_knows_better_gives_the_time_left() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress(stream, clock) as progress, progress.task("work", 4.0) as task:
        task.update(1.0, left=300.0)
        clock.now = 10.0
        task.update(1.0, left=290.0)
        clock.now = 30.0
        task.update(1.0, left=math.inf)  # the rate would be none, either
    assert stream.getvalue().splitlines()[:2] == ["work  25 %  4m 50s left  ", "work  25 %  "]
    with Progress(Terminal(), clock) as progress, progress.task("work", 4.0) as task:
        task.update(1.0, left=290.0)
        assert progress.bars is not None
        with (console := Console(file=io.StringIO(), width=100)).capture() as shown:
            console.print(progress.bars.get_renderable())
    assert "25 % 4m 50s left" in shown.get()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("total", "said"), [(1.0, "work 75 % 25s left detail"), (None, "work 1m 15s so far detail")]
)
def test_a_bar_says_how_long_it_will_take(total: float | None, said: str) -> None:
    clock = Clock()
    with Progress(Terminal(), clock) as progress, progress.task("work", total) as task:
        for done in (0.25, 0.5, 0.75):
            clock.now += 25.0
            task.update(done, "detail")
        assert progress.bars is not None
        with (console := Console(file=io.StringIO(), width=100)).capture() as shown:
            console.print(progress.bars.get_renderable())
    assert re.sub(r"[━╸╺]", "", shown.get()).split() == said.split()


@pytest.mark.parametrize("total", [None, 1.0])
def test_lines_come_at_growing_intervals_up_to_a_minute(total: float | None) -> None:
    after = [10, 10 + 20, 30 + 40, 70 + 60, 130 + 60, 190 + 60]
    lines = _lines([(second, second / 1000) for second in range(251)], total)
    assert len(lines) == len(after) + 1
    if total is not None:
        shares = [round(float(line.split()[1])) for line in lines[:-1]]
        assert shares == [round(second / 10) for second in after]


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    clock, stream = Clock(), Terminal()
    with Progress(stream, clock) as progress, progress.task("work", 1.0) as task:
        for clock.now, done in ((0.0, 0.0), (20.0, 0.25)):
            task.update(done, "detail")
    assert stream.getvalue().splitlines()[0] == "work  25 %  1m left  detail"


def test_a_notebook_gets_lines_on_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rich would show each line as a block, and bars move a cursor that is not there."""
    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = Terminal()
    assert Console(file=stream).is_jupyter
    with Progress(stream) as progress, progress.task("work", 1.0) as task:
        task.update(0.5, "detail")
    assert stream.getvalue() == "work  detail  (0.0s)\n"


@pytest.mark.parametrize("ignored", [False, True])
def test_when_nobody_reads_the_process_is_hung_up(ignored: bool) -> None:
    noted: list[int] = []

    def note(number: int, _: object) -> None:
        noted.append(number)

    old = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else note)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with open(writing, "w") as pipe, Progress(pipe) as progress, progress.task("work"):
            progress.line("one")
            progress.line("two")  # nobody hangs up twice
    finally:
        signal.signal(signal.SIGHUP, old)
    assert noted == ([] if ignored else [signal.SIGHUP])


def test_a_full_disk_takes_progress_but_not_the_work() -> None:
    with open("/dev/full", "w", buffering=1) as full, Progress(full) as progress:
        assert list(progress.track("work", range(3), unit="row")) == [0, 1, 2]


def test_names_do_not_act_on_the_terminal() -> None:
    name = "[/x]\x1b]0;title\x07\x9b31m\u202e\udc80[red]"
    stream, shown = Terminal(), "[/x]␛]0;title␇�31m��[red]"
    with Progress(stream) as progress, progress.task(f"[/work]{name}", 2) as task:
        task.update(1, name)
        assert progress.bars is not None
        progress.bars.refresh()
        progress.line(name)
    text = stream.getvalue()
    assert f"[/work]{shown}  {shown}  (" in text
    assert text.count(shown) >= 5  # around the bar, as a line, and in the line of the task
    assert not any(sign in text for sign in ("\x1b]", "\x07", "\x9b", "\u202e", "\udc80"))
