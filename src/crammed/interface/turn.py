"""The turns that the calls of several threads take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

_WORKING = RLock()


@contextmanager
def own_turn() -> Iterator[None]:
    """Let other threads wait, and leave the random numbers of the program as they were.

    Random states and threads of PyTorch are of the process. As a decorator, this gives each call
    of a function its turn.
    """
    with _WORKING:
        # To begin with CUDA takes seconds and memory: where the program has not, it still begins
        # with the program's seed.
        begun, seed = torch.cuda.is_initialized(), torch.initial_seed()
        try:
            with torch.random.fork_rng(range(torch.cuda.device_count()) if begun else ()):
                yield
        finally:
            if not begun:
                torch.cuda.manual_seed_all(seed)
