"""Progress for users: live bars on a terminal, an occasional plain line elsewhere.

A terminal that cannot move its cursor (``TERM=dumb``) gets lines, as a file and a notebook do.

Everything goes to standard error, so that standard output contains only results. When nobody can
read it any more, because a pipe was closed or a terminal is gone, the process stops as if the
terminal had hung up.
"""

from __future__ import annotations

import errno
import math
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from crammed.budget import Clock, format_seconds
from crammed.quantity import counted
from crammed.terminal.quiet import one_line, silence
from crammed.terminal.wrapping import hanging

T = TypeVar("T")

SECONDS_BETWEEN_LINES = 10.0
MOST_SECONDS_BETWEEN_LINES = 60.0
"""Plain lines come at intervals that double, from the former up to this one."""
SECONDS_BEFORE_ESTIMATE = 15.0
"""The first seconds start processes and compile, so their rate says nothing about the time left."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # rich would end the process; this runs while the error is being handled


def _console(stream: TextIO) -> _Console:
    """A console on a stream; in a notebook, rich would show each line as a block beside it."""
    console = _Console(file=stream, highlight=False)
    if console.is_jupyter:
        return _Console(file=stream, highlight=False, force_jupyter=False, force_terminal=False)
    return console


class _Time(ProgressColumn):
    """The time left, or the time elapsed if the former is unknown."""

    def render(self, task: Task) -> Text:
        left = task.fields["left"]
        if left is None and task.total is not None:
            left = task.time_remaining
        if left is None or math.isinf(left):
            return Text(f"{format_seconds(int(task.elapsed or 0.0))} so far")
        return Text(f"{format_seconds(max(0, round(left)))} left")


class ProgressTask:
    """One piece of work, with its own bar or lines."""

    def __init__(self, progress: Progress, label: str, total: float | None) -> None:
        self._progress = progress
        self._label = label
        self._total = total
        self._began = self._shown = progress.clock()
        self._pause = SECONDS_BETWEEN_LINES
        self._detail = ""
        self._first: tuple[float, float] | None = None
        self._bar: TaskID | None = None
        if progress.bars is not None:
            self._bar = progress.bars.add_task(one_line(label), total=total, detail="", left=None)

    def update(self, done: float, detail: str = "", left: float | None = None) -> None:
        """Show how much is done.

        Args:
            done: how much of the total.
            detail: a few words.
            left: seconds until all is done; infinity if unknown. None has them follow from the
                rate so far.
        """
        self._detail = detail
        if self._first is None:  # resumed work does not start at zero
            self._first = self._progress.clock(), done
        bars = self._progress.bars
        if bars is not None and self._bar is not None:
            with self._progress.writing():
                bars.update(self._bar, completed=done, detail=one_line(detail), left=left)
            return
        now = self._progress.clock()
        if now - self._shown >= self._pause:
            self._shown = now
            self._pause = min(2 * self._pause, MOST_SECONDS_BETWEEN_LINES)
            self._progress.line(f"{self._label}  {self._share(done, now, left)}{detail}")

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self._progress.line(text)

    def _share(self, done: float, now: float, left: float | None) -> str:
        if not self._total or self._first is None:
            return ""
        if left is None:
            took, more = now - self._first[0], done - self._first[1]
            if more <= 0.0:
                return ""
            if took >= SECONDS_BEFORE_ESTIMATE:
                left = took * (self._total - done) / more
        share = f"{100 * done / self._total:.0f} %  "
        if left is None or math.isinf(left):
            return share
        return f"{share}{format_seconds(max(0, round(left)))} left  "

    def close(self, outcome: str = "") -> None:
        """End with a line that stays: `outcome`, or else the last detail."""
        detail = outcome or self._detail
        took = format_seconds(self._progress.clock() - self._began)
        bars = self._progress.bars
        if bars is not None and self._bar is not None:
            with self._progress.writing():
                bars.remove_task(self._bar)
        self._progress.line(f"{self._label}  {detail + '  ' if detail else ''}({took})")


class Progress:
    """Where long-running work reports its progress.

    Args:
        stream: where to write; None writes nothing.
    """

    def __init__(self, stream: TextIO | None = sys.stderr, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self._stream = stream
        self._console = _console(stream) if stream is not None else None
        self.bars: Bars | None = None

    def __enter__(self) -> Progress:
        console = self._console
        if console is not None and console.is_terminal and not console.is_dumb_terminal:
            self.bars = Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                TaskProgressColumn("{task.percentage:>3.0f} %"),
                _Time(),
                TextColumn("{task.fields[detail]}", style="dim", markup=False),
                console=console,
                get_time=self.clock,
                transient=True,
            )
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars is not None:
            with self.writing():
                self.bars.stop()
            self.bars = None

    def line(self, text: str) -> None:
        """Write one line that stays."""
        if self._console is not None:
            with self.writing():
                edge = self._console.width if self._console.is_terminal else None
                said = hanging("", one_line(text), edge)
                self._console.print(said, markup=False, soft_wrap=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Survive write errors; if the reader is gone, raise SIGHUP where it is handled."""
        try:
            yield
        except OSError as error:
            assert self._stream is not None
            silence(self._stream)
            gone = error.errno in (errno.EPIPE, errno.EIO)
            if gone and callable(signal.getsignal(signal.SIGHUP)):
                signal.raise_signal(signal.SIGHUP)

    @contextmanager
    def task(self, label: str, total: float | None = None) -> Iterator[ProgressTask]:
        """Start work that reports through `ProgressTask.update` and ends with a line."""
        task = ProgressTask(self, label, total)
        try:
            yield task
        except BaseException:
            task.close("stopped")
            raise
        task.close()

    def track(
        self, label: str, items: Iterable[T], total: float | None = None, *, unit: str
    ) -> Iterator[T]:
        """Yield the items, showing how many are done so far."""
        with self.task(label, total) as task:
            for done, item in enumerate(items, 1):
                yield item
                task.update(done, counted(done, unit))


SILENT = Progress(None)
