"""What a budget will buy on this device: some seconds of real updates, and the rest by the plan."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count as count_from
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crammed.budget import Budget, Clock, Ledger, Work
from crammed.config import RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.data.tokenizer import Specials
from crammed.device import Device
from crammed.model.count import parameters
from crammed.model.encoder import MaskedLM, initialise
from crammed.optim.build import build_optimizer
from crammed.progress import Progress
from crammed.train.plan import Planner, Update
from crammed.train.step import TrainStep

MOST_EPOCHS = 4.0
"""Text that is read more often than this teaches little more (Muennighoff et al. 2023)."""
_WARM = 2


@dataclass(frozen=True)
class Speed:
    """How long an update takes: seconds of its own, and seconds a row.

    Attributes:
        compile: seconds before the first update.
        memory: bytes of device memory at the peak; None where the device does not count them.
    """

    update: float
    row: float
    compile: float
    memory: int | None
    microbatch_rows: int

    def seconds(self, rows: int) -> float:
        """Of an update of so many rows."""
        return self.update + rows * self.row


class _Simulated:
    """A clock that only the simulation moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def measure(
    config: RunConfig,
    corpus: Corpus | None,
    device: Device,
    seconds: float,
    progress: Progress,
    clock: Clock = time.perf_counter,
) -> Speed:
    """Train for some seconds, with updates of one microbatch and of two in turn.

    Args:
        corpus: where rows come from; None draws random ones.
    """
    vocab = corpus.vocab_size if corpus is not None else config.tokenizer.vocab_size
    specials = Specials(0, 1, 2, 3, 4) if corpus is None else Specials.of(corpus.tokenizer)
    model = MaskedLM(config.model, vocab)
    initialise(model, config.model.init_std, torch.Generator().manual_seed(0))
    model.to(device.torch).train()
    step = TrainStep(model, build_optimizer(model, config.optim), config, specials, device)
    with progress.task("measuring", seconds) as task:
        began = clock()
        few = min(device.microbatch_rows, max(1, config.batch.rows // 2))
        step.prepare([few, 2 * few], [config.masking.rate])
        compiled = clock() - began if device.compile else 0.0
        took: dict[int, list[float]] = {few: [], 2 * few: []}
        source = _source(config, corpus, vocab)
        began = clock()
        number = 0
        while clock() - began < seconds or number < 2 * (_WARM + 1):
            for rows in took:
                device.synchronize()
                at = clock()
                ids = torch.from_numpy(source(rows))
                rate, lr = config.masking.rate, config.optim.lr
                step.gradients(ids, Update(number, 0, rows, 0.0, lr, rate, Work()))
                step.apply(config.optim.lr)
                device.synchronize()
                if number >= 2 * _WARM:
                    took[rows].append(clock() - at)
                number += 1
            task.update(min(seconds, clock() - began), f"{number} updates")
    one, two = (statistics.median(took[rows]) for rows in (few, 2 * few))
    a_row = max(two - one, one / 2) / few
    memory = None
    if device.torch.type == "cuda":
        memory = torch.cuda.max_memory_allocated(device.torch)
    return Speed(max(0.0, one - few * a_row), a_row, compiled, memory, step.microbatch_rows)


def _source(
    config: RunConfig, corpus: Corpus | None, vocab: int
) -> Callable[[int], NDArray[np.int64]]:
    """A function that gives the next so many rows."""
    if corpus is None:
        draw = np.random.default_rng(0)
        return lambda count: draw.integers(5, vocab, (count, config.data.row_length))
    stream, places = RowStream(corpus, config.seed, config.order), count_from(0)
    return lambda count: stream.read(next(places) * count, count)


def forecast(config: RunConfig, vocab: int, rows: int | None, speed: Speed) -> dict[str, Any]:
    """Play the whole run through at a measured speed.

    Args:
        rows: of the corpus; None if there is none yet.

    Returns:
        ``updates``, ``tokens``, ``seconds`` (charged), ``exaflop``, ``epochs`` (None without a
        corpus), ``tokens_per_second``, ``parameters``, ``tokens_per_parameter``, ``memory``,
        ``microbatch_rows`` and ``notes`` on what will not go well.
    """
    clock = _Simulated()
    ledger = Ledger(config.budget.charge, clock)
    planner = Planner(config, vocab, ledger, lambda: None)
    work, training = Work(), 0.0
    with ledger.account("compile"):
        clock.now += speed.compile
    with ledger.account("step"):
        while (update := planner.next(work)) is not None:
            clock.now += speed.seconds(update.rows)
            if not planner.room_for(0.0):
                break
            work += update.cost
            training += speed.seconds(update.rows)
            planner.finished(update)
    charged = min(ledger.charged(), _limit(config))
    size = parameters(config.model, vocab)
    epochs = work.rows / rows if rows is not None else None
    return {
        "updates": work.updates,
        "tokens": work.tokens,
        "seconds": charged,
        "exaflop": work.flops / 1e18,
        "tokens_per_second": work.tokens / training if training else 0.0,
        "epochs": epochs,
        "parameters": size,
        "tokens_per_parameter": work.tokens / size,
        "memory": speed.memory,
        "microbatch_rows": speed.microbatch_rows,
        "notes": list(_notes(config, work, rows, epochs)),
    }


def _limit(config: RunConfig) -> float:
    budget = Budget.parse(config.budget.limit)
    return budget.limit if budget.kind == "time" else float("inf")


def _notes(config: RunConfig, work: Work, rows: int | None, epochs: float | None) -> Iterator[str]:
    if work.updates == 0:
        yield "the budget ends before one update: lower batch.rows"
    elif work.updates < 200:
        yield (
            f"only {work.updates} updates: lower batch.rows ({config.batch.rows}), or train a "
            "smaller model"
        )
    if rows is not None and rows < config.batch.rows:
        yield f"the corpus has {rows:,} rows, less than one batch: add text or lower batch.rows"
    if epochs is not None and epochs > MOST_EPOCHS:
        yield f"the corpus is read {epochs:.1f} times: add text"
