from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from crammed.config import ComputeConfig
from crammed.data.engine import open_engine
from crammed.errors import CrammedError, InputError


def _slow_square(number: int) -> int:
    time.sleep(0.05 if number % 3 == 0 else 0.0)
    return number * number


def _refuse(number: int) -> int:
    raise InputError(f"not {number}")


def _die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_jobs_and_few_jobs_wait(workers: int) -> None:
    drawn = 0

    def jobs() -> Iterator[int]:
        nonlocal drawn
        for number in range(1, 21):
            drawn = number
            yield number

    results = []
    with open_engine(ComputeConfig(workers=workers)) as engine:
        for result in engine.map(_slow_square, jobs()):
            results.append(result)
            assert drawn - len(results) <= workers + 1
    assert results == [n * n for n in range(1, 21)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_workers_error_reaches_the_driver(workers: int) -> None:
    with pytest.raises(InputError, match="not 1"):
        with open_engine(ComputeConfig(workers=workers)) as engine:
            list(engine.map(_refuse, [1, 2, 3]))


def test_a_dead_worker_is_reported_in_one_line() -> None:
    with pytest.raises(CrammedError, match="a worker process died"):
        with open_engine(ComputeConfig(workers=2)) as engine:
            list(engine.map(_die, [1, 2, 3]))
