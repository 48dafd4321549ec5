"""Lanes: threads that compute on one core each.

An operation that PyTorch divides among several threads ends when the last of them does, and the
others spin until then. If another process holds one of the cores, every operation waits for a
thread that is not running: a small model, whose operations take a tenth of a millisecond each, then
trains at a thirtieth of its speed. Lanes share out whole passes instead, meet a few times per
update, and sleep while they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")


@contextmanager
def compute_threads(count: int | None) -> Iterator[None]:
    """Compute with this many threads inside the context; None changes nothing."""
    before = torch.get_num_threads()
    if count in (None, before):
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Lanes:
    """The calling thread and `count` - 1 others, with one compute thread each.

    With a count of 1 there are no other threads, and the calling thread keeps its compute threads.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._others: ThreadPoolExecutor | None = None
        if count > 1:
            begin = torch.set_num_threads  # of the new thread alone
            self._others = ThreadPoolExecutor(count - 1, "lane", begin, (1,))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the calling thread a lane, with one compute thread, until the end of the context."""
        with compute_threads(1 if self.count > 1 else None):
            yield

    def map(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[Result]:
        """Results in the order of the jobs, of which as many run at a time as there are lanes.

        No job is left running when this ends or raises.
        """
        if self._others is None:
            yield from map(function, jobs)
            return
        for first in range(0, len(jobs), self.count):
            own, *rest = jobs[first : first + self.count]
            given = [self._others.submit(function, job) for job in rest]
            try:
                with self.entered():
                    result = function(own)
            finally:
                wait(given)
            yield result
            yield from (each.result() for each in given)
