"""How long the parts of a run take on this device: some seconds of real updates, timed."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from crammed.budget import Clock, Ledger, Work
from crammed.config import RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.data.masking import predicted_positions
from crammed.data.tokenization.tokenizer import Specials
from crammed.files.scratch import scratch_folder
from crammed.machine.device import Device, release_gpu_memory
from crammed.model.cooccurrence import begin_with_neighbours
from crammed.runs.directory import RunDir
from crammed.terminal.progress import SILENT, Progress
from crammed.training.checkpoint import Checkpoints
from crammed.training.gradinit import begin_with_scales
from crammed.training.heldout_meter import HeldoutMeter
from crammed.training.plan import Planner
from crammed.training.recorder import Recorder
from crammed.training.session import Session
from crammed.training.start import MOST_TOKENS, rows_to_count
from crammed.training.update.build import build
from crammed.training.update.planned import Update
from crammed.training.update.step import TrainStep

FIRST_IDS = Specials(0, 1, 2, 3, 4)
"""The special tokens of our own tokenizers, one of which a run without a corpus will get."""
_WARM = 2
_BLOCK_SECONDS = 0.5
"""Updates are timed in blocks of about this length, within which a GPU's host may run ahead."""
_MOST_IN_A_BLOCK = 16

Source = Callable[[int], NDArray[np.int64]]
"""Returns the next rows, as many as are asked for, [rows, row_length]."""


@dataclass(frozen=True)
class PartTimes:
    """How long the parts of a run take, in seconds.

    Attributes:
        update: the part of an update that does not depend on its rows.
        row: each row of an update.
        compile: compiling before the first update, with the compiler's cache filled.
        memory: bytes of device memory at the peak; None if the device does not count them.
        microbatch_rows: rows of one forward and backward pass.
        prediction: each position predicted in a row; 0 if `row` includes it.
        first: what the first update takes beyond a usual one.
        first_compile: compiling with an empty cache.
        log: a log point.
        checkpoint: a checkpoint; 0 if the budget ends before the first.
        evaluate: a held-out measurement during training; 0 if it is not charged.
        start: what comes before compiling: initialising embeddings from the text, learning scales.
        low, high: the 10th and 90th percentiles of the blocks, as multiples of the mean.
    """

    update: float
    row: float
    compile: float
    memory: int | None
    microbatch_rows: int
    prediction: float = 0.0
    first: float = 0.0
    first_compile: float = 0.0
    log: float = 0.0
    checkpoint: float = 0.0
    evaluate: float = 0.0
    low: float = 1.0
    high: float = 1.0
    start: float = 0.0

    def seconds(self, rows: int, predicted: int = 0) -> float:
        """Seconds of an update of `rows` rows, with `predicted` positions predicted in each."""
        return self.update + rows * (self.row + predicted * self.prediction)


def measure_speed(
    config: RunConfig,
    corpus: Corpus | None,
    device: Device,
    seconds: float,
    progress: Progress,
    clock: Clock = time.perf_counter,
) -> PartTimes:
    """Prepare as the run will, then train for some seconds with small and large updates in turn.

    Args:
        corpus: where rows come from; None draws random ones.
        seconds: how long updates are timed; preparing comes on top.
    """
    config = config.grown()  # as deep as it will be at the end
    vocab_size, specials = config.tokenizer.vocab_size, FIRST_IDS
    if corpus is not None:
        vocab_size, specials = corpus.vocab_size, Specials.of(corpus.tokenizer)
    step = build(config, vocab_size, specials, device)
    with progress.task("measuring", seconds) as task:
        source = source_of(config, corpus, vocab_size)
        start = _start(config, corpus, step, source, clock)
        if device.compile:
            task.line("measuring  compiling comes first, which can take minutes")
        took = first = _prepare(config, step, device, clock)
        if device.compile:  # a later run finds the compiler's output on disk, so measure that too
            torch._dynamo.reset()
            del step
            release_gpu_memory(device.torch)  # the run will find it free as well
            step = build(config, vocab_size, specials, device)  # as a run begins
            took = _prepare(config, step, device, clock)
        timer = _Timer(config, step, source, device, clock)
        updates = timer.measure(seconds, task.update)
        between = _between_updates(config, corpus, step, device, clock)
    memory = None
    if device.torch.type == "cuda":
        memory = torch.cuda.max_memory_allocated(device.torch)
    return PartTimes(
        **updates,
        **between,
        compile=took,
        first_compile=first,
        memory=memory,
        microbatch_rows=step.microbatch_rows,
        start=start,
    )


def _start(
    config: RunConfig, corpus: Corpus | None, step: TrainStep, source: Source, clock: Clock
) -> float:
    """Begin as `crammed.training.start` does; return the seconds it takes.

    Scales are learned in two updates, the second of which is timed for all.
    """
    took = 0.0
    if config.model.embedding_start != "random":
        table = step.model.encoder.tokens.weight
        rows = None if corpus is None else corpus.rows
        planner = Planner(config, len(table), rows, Ledger(()))
        count = rows_to_count(config, MOST_TOKENS if rows is None else rows, planner)
        began = clock()
        begin_with_neighbours(table, source(count), config.model.first_embedding_std, config.seed)
        took += clock() - began
    if (scaling := config.train.grad_init) is not None:
        ids, one = source(2 * scaling.rows), scaling.model_copy(update={"updates": 1})
        begin_with_scales(config, one, step, ids)
        began = clock()
        begin_with_scales(config, one, step, ids)
        took += scaling.updates * (clock() - began)
    return took


def _prepare(config: RunConfig, step: TrainStep, device: Device, clock: Clock) -> float:
    began = clock()
    step.prepare(config.batch.row_counts(), config.mask_rates())
    device.synchronize()
    return clock() - began


@dataclass(frozen=True)
class _Timer:
    """Times updates of few rows, of many, and at the last of the run's mask rates if they differ.

    `numbers` counts all of these updates in one sequence: an optimizer counts its own, and may need
    the curvature in some of them.
    """

    config: RunConfig
    step: TrainStep
    source: Source
    device: Device
    clock: Clock
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def measure(self, seconds: float, show: Callable[[float, str], None]) -> dict[str, float]:
        """Time updates for some seconds; return the fields of `PartTimes` that describe an update.

        Args:
            show: called with the seconds that have passed, and with the progress in words.
        """
        config, rate = self.config, self.config.masking.rate
        whole = min(self.step.microbatch_rows, config.batch.rows)
        few = min(self.step.microbatch_rows, max(1, config.batch.rows // 2))
        first = self._block(whole, rate, 1)
        self._block(few, rate, 1)  # untimed: a run neither uses nor compiles this shape
        one = min(self._block(few, rate, 1) for _ in range(_WARM))
        # The larger the second size, the smaller the error of extrapolating to a whole batch.
        times = max(2, min(config.batch.rows // few, int(seconds / (8 * max(one, 1e-6)))))
        cases = [(few, rate), (times * few, rate)]
        if (other := config.mask_rates()[-1]) != rate:
            cases.append((times * few, other))
        took = self._in_turns(cases, one, seconds, show)
        small, large, *last = (statistics.fmean(each) for each in took)
        row = max(0.0, large - small) / ((times - 1) * few)
        prediction, before = 0.0, 0
        if last:
            length = config.data.row_length
            before, after = (predicted_positions(each, length) for _, each in cases[1:])
            if before != after:
                prediction = max(0.0, (last[0] - large) / (times * few * (after - before)))
            row -= prediction * before
        update = max(0.0, large - times * few * (row + prediction * before))
        usual = update + whole * (row + prediction * before)
        low, high = np.quantile(took[1], (0.1, 0.9)) / large
        return {
            "update": update,
            "row": row,
            "prediction": prediction,
            "first": max(0.0, first - usual),
            "low": float(low),
            "high": float(high),
        }

    def _in_turns(
        self,
        cases: list[tuple[int, float]],
        one: float,
        seconds: float,
        show: Callable[[float, str], None],
    ) -> list[list[float]]:
        """Seconds of an update for each case of rows and rate, block by block.

        Args:
            one: seconds of an update of the first case.
        """
        counts = [_in_a_block(one)]
        counts += [_in_a_block(self._block(rows, rate, 1)) for rows, rate in cases[1:]]
        took: list[list[float]] = [[] for _ in cases]
        turn = list(zip(cases, counts, took, strict=True))
        began, done = self.clock(), 0
        while not took[0] or self.clock() - began < seconds:
            for (rows, rate), count, each in turn:
                each.append(self._block(rows, rate, count))
                done += count
            turn.reverse()  # or one case might get all the updates that measure curvature
            show(min(seconds, self.clock() - began), f"{done} updates")
        return took

    def _block(self, rows: int, rate: float, count: int) -> float:
        """Mean seconds of an update over `count` consecutive ones, including reading."""
        self.device.synchronize()
        began = self.clock()
        for number in itertools.islice(self.numbers, count):
            ids = torch.from_numpy(self.source(rows))
            self.step.gradients(ids, Update(number, 0, rows, 1.0, rate, Work()))
            self.step.apply(0.0)  # the same work, and weights that stay finite
        self.device.synchronize()
        return (self.clock() - began) / count


def _in_a_block(seconds: float) -> int:
    """How many updates of so many seconds make a block."""
    return max(1, min(_MOST_IN_A_BLOCK, round(_BLOCK_SECONDS / max(seconds, 1e-6))))


def source_of(config: RunConfig, corpus: Corpus | None, vocab_size: int) -> Source:
    """Where rows come from; without a corpus, they are random."""
    if corpus is None:
        draw, least = np.random.default_rng(0), max(FIRST_IDS.ids) + 1
        return lambda count: draw.integers(least, vocab_size, (count, config.data.row_length))
    stream, place = RowStream(corpus, config.seed, config.order), 0

    def following(count: int) -> NDArray[np.int64]:
        nonlocal place
        place += count  # forward only: going back to an earlier epoch would shuffle it again
        return stream.read(place - count, count)

    return following


def _between_updates(
    config: RunConfig,
    corpus: Corpus | None,
    step: TrainStep,
    device: Device,
    clock: Clock,
) -> dict[str, float]:
    """Time the work between updates that a run's budget is charged for."""

    def timed(work: Callable[[], object]) -> float:
        began = clock()
        work()
        return clock() - began

    budget, charge = config.budget.limit, config.budget.charge
    once, nothing = Work(1, 1, 1, 1.0), torch.zeros((), device=device.torch)
    ledger = Ledger(charge, clock)
    with (
        scratch_folder() as folder,
        RunDir.open(folder / "run", config) as run,
        SILENT.task("") as quiet,
    ):
        session = Session.untimed(run, step, ledger)
        recorder = Recorder(session, quiet)
        recorder.add(Update(0, 0, 1, 1.0, 0.5, once), nothing, nothing)
        took = {"log": timed(lambda: recorder.log(once, 0.0))}
        if budget.kind == "time" and budget.limit > config.checkpoint_every():
            took["checkpoint"] = timed(lambda: Checkpoints(session).save(once))
        if "evaluate" in charge and corpus is not None and config.train.heldout_every is not None:
            meter = HeldoutMeter(session, corpus)
            took["evaluate"] = timed(lambda: meter.measure(once, 0.0))
    return took
