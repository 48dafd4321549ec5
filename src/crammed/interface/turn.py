"""The turns that the calls of several threads take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

_WORKING = RLock()


@contextmanager
def own_turn() -> Iterator[None]:
    """Let other threads wait: random states and threads of PyTorch are of the process.

    As a decorator, this gives each call of a function its turn.
    """
    with _WORKING:
        yield
