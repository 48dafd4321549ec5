"""What a budget will buy on this device: some seconds of real updates, and the rest by the plan.

`measure` times the parts of a run, `forecast` plays the whole run through at these times, and
`candidates` sets other sizes beside the measured one.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crammed.budget import Budget, Clock, Ledger, Work
from crammed.config import ModelConfig, RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.data.heldout import heldout_rows
from crammed.data.masking import predicted_positions
from crammed.data.tokenization.tokenizer import Specials
from crammed.device import Device
from crammed.model.count import block_matrix_parameters, parameters, train_flops_per_token
from crammed.model.encoder import MaskedLM, initialise
from crammed.model.heldout import heldout_loss
from crammed.optim.build import Optimizers, build_optimizer
from crammed.progress import SILENT, Progress
from crammed.rundir import RunDir
from crammed.sizing import MOST_EPOCHS, SHAPES, Size, best_of
from crammed.training.checkpoint import Checkpoints, TrainState
from crammed.training.loop import rows_on_the_way
from crammed.training.plan import Planner, Update, heldout_due
from crammed.training.recorder import Recorder
from crammed.training.step import TrainStep

BYTES_A_PARAMETER = 16
"""Weight, gradient and two moments in float32."""

_WARM = 2
_BLOCK_SECONDS = 0.5
"""Updates are timed in blocks of about this long, so that a GPU's host may run ahead in them."""
_MOST_IN_A_BLOCK = 16


@dataclass(frozen=True)
class Speed:
    """How long the parts of a run take, in seconds.

    Attributes:
        update: of an update, whatever its rows.
        row: of each row of it.
        prediction: of each position predicted in a row; part of `row` where it is 0.
        first: of the first update, beyond what the others take.
        compile: before the first update, when the compiler finds its results of before.
        first_compile: the same when it finds nothing.
        log: of a log point.
        checkpoint: of a checkpoint; 0 where the budget ends before the first.
        evaluate: of a held-out measurement on the way; 0 where none is charged.
        low, high: a tenth of the blocks took less, or more, than so many times the mean.
        memory: bytes of device memory at the peak; None where the device does not count them.
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

    def seconds(self, rows: int, predicted: int = 0) -> float:
        """Of an update of so many rows with so many predicted positions in each."""
        return self.update + rows * (self.row + predicted * self.prediction)


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
    """Prepare as the run will, then train for some seconds, with small updates and large in turn.

    Args:
        corpus: where rows come from; None draws random ones.
    """
    vocab = corpus.vocab_size if corpus is not None else config.tokenizer.vocab_size
    specials = Specials(0, 1, 2, 3, 4) if corpus is None else Specials.of(corpus.tokenizer)
    model = MaskedLM(config.model, vocab)
    initialise(model, config.model.init_std, torch.Generator().manual_seed(0))
    model.to(device.torch).train()
    optimizer = build_optimizer(model, config.optim)
    with progress.task("measuring", seconds) as task:
        step, took = _prepare(config, model, optimizer, specials, vocab, device, clock)
        speed = Speed(0.0, 0.0, took, None, 0, first_compile=took)
        if device.compile:  # a run that follows finds on disk what the compiler made
            torch._dynamo.reset()
            if device.torch.type == "cuda":
                torch.cuda.empty_cache()  # the run will find that memory free as well
            step, took = _prepare(config, model, optimizer, specials, vocab, device, clock)
            speed = replace(speed, compile=took)
        source = _source(config, corpus, vocab)
        timer = _Timer(config, step, source, device, clock)
        speed = timer.measure(speed, seconds, task.update)
        speed = _with_extras(speed, config, corpus, model, optimizer, device, clock)
    memory = None
    if device.torch.type == "cuda":
        memory = torch.cuda.max_memory_allocated(device.torch)
    return replace(speed, memory=memory, microbatch_rows=step.microbatch_rows)


def _prepare(
    config: RunConfig,
    model: MaskedLM,
    optimizer: Optimizers,
    specials: Specials,
    vocab: int,
    device: Device,
    clock: Clock,
) -> tuple[TrainStep, float]:
    """A step that is ready for all that this run will meet, and the seconds it took."""
    planner = Planner(config, vocab, Ledger(config.budget.charge), device.synchronize)
    step = TrainStep(model, optimizer, config, specials, device)
    began = clock()
    step.prepare(planner.all_row_counts(), planner.all_mask_rates())
    device.synchronize()
    return step, clock() - began


@dataclass(frozen=True)
class _Timer:
    """Times updates of one microbatch, of many, and at the last mask rate where that is another."""

    config: RunConfig
    step: TrainStep
    source: Callable[[int], NDArray[np.int64]]
    device: Device
    clock: Clock

    def measure(self, speed: Speed, seconds: float, show: Callable[[float, str], None]) -> Speed:
        config, masking = self.config, self.config.masking
        few = min(self.step.microbatch_rows, max(1, config.batch.rows // 2))
        prepared = min(self.step.microbatch_rows, config.batch.rows)
        first = self._block(prepared, masking.rate, 1)
        self._block(few, masking.rate, 1)  # a run does not meet this shape, nor compile it
        one = min(self._block(few, masking.rate, 1) for _ in range(_WARM))
        # The larger the second size, the less its extrapolation to a whole batch is off.
        times = max(2, min(config.batch.rows // few, int(seconds / (8 * max(one, 1e-6)))))
        cases = [(few, masking.rate), (times * few, masking.rate)]
        if masking.final_rate is not None:
            cases.append((times * few, masking.final_rate))
        counts = [_in_a_block(one)]
        counts += [_in_a_block(self._block(rows, rate, 1)) for rows, rate in cases[1:]]
        took: list[list[float]] = [[] for _ in cases]
        began, done = self.clock(), 0
        while not took[0] or self.clock() - began < seconds:
            for (rows, rate), count, each in zip(cases, counts, took, strict=True):
                each.append(self._block(rows, rate, count))
                done += count
            show(min(seconds, self.clock() - began), f"{done} updates")
        small, large, *last = (statistics.fmean(each) for each in took)
        row = max(0.0, large - small) / ((times - 1) * few)
        prediction, before = 0.0, 0
        if last:
            length = config.data.row_length
            before, after = (predicted_positions(rate, length) for _, rate in cases[1:])
            if before != after:
                prediction = max(0.0, (last[0] - large) / (times * few * (after - before)))
            row -= prediction * before
        update = max(0.0, large - times * few * (row + prediction * before))
        usual = update + prepared * (row + prediction * before)
        low, high = _tenths(took[1])
        return replace(
            speed,
            update=update,
            row=row,
            prediction=prediction,
            first=max(0.0, first - usual),
            low=low / large,
            high=high / large,
        )

    def _block(self, rows: int, rate: float, count: int) -> float:
        """Seconds of one of `count` updates in a row, reading included."""
        self.device.synchronize()
        began = self.clock()
        for number in range(count):
            ids = torch.from_numpy(self.source(rows))
            lr = self.config.optim.lr
            self.step.gradients(ids, Update(number, 0, rows, 0.0, lr, rate, Work()))
            self.step.apply(lr)
        self.device.synchronize()
        return (self.clock() - began) / count


def _in_a_block(seconds: float) -> int:
    """How many updates of so many seconds make a block."""
    return max(1, min(_MOST_IN_A_BLOCK, round(_BLOCK_SECONDS / max(seconds, 1e-6))))


def _tenths(values: list[float]) -> tuple[float, float]:
    """What a tenth of the values is below, and what a tenth is above."""
    low, high = np.quantile(values, (0.1, 0.9))
    return float(low), float(high)


def _source(
    config: RunConfig, corpus: Corpus | None, vocab: int
) -> Callable[[int], NDArray[np.int64]]:
    """A function that gives the next so many rows."""
    if corpus is None:
        draw = np.random.default_rng(0)
        return lambda count: draw.integers(5, vocab, (count, config.data.row_length))
    stream, place = RowStream(corpus, config.seed, config.order), 0

    def following(count: int) -> NDArray[np.int64]:
        nonlocal place
        place += count  # onwards only: to go back into an earlier epoch means to shuffle it anew
        return stream.read(place - count, count)

    return following


def _with_extras(
    speed: Speed,
    config: RunConfig,
    corpus: Corpus | None,
    model: MaskedLM,
    optimizer: Optimizers,
    device: Device,
    clock: Clock,
) -> Speed:
    """Time what a run does between updates, as far as it will be charged for it."""
    budget, charge = Budget.parse(config.budget.limit), config.budget.charge
    ledger = Ledger(charge, clock)
    with tempfile.TemporaryDirectory() as folder, SILENT.task("") as quiet:
        with RunDir.open(Path(folder) / "run", config) as run:
            recorder = Recorder(run, ledger, device, quiet, config.train.log_seconds)
            nothing = torch.zeros((), device=device.torch)
            began = clock()
            recorder.add(Update(0, 0, 1, 0.0, 1.0, 0.5, Work(1, 1, 1, 1.0)), nothing, nothing)
            recorder.log(Work(1, 1, 1, 1.0), 0.0)
            speed = replace(speed, log=clock() - began)
            if budget.kind == "time" and budget.limit > config.train.checkpoint_seconds:
                checkpoints = Checkpoints(run, model, optimizer, ledger, 0.0)
                checkpoints.save(TrainState(Work(), ledger.state(), "", 0.0))
                speed = replace(speed, checkpoint=checkpoints.cost)
    if "evaluate" in charge and corpus is not None and config.train.heldout_every is not None:
        most = rows_on_the_way(config)
        rows = heldout_rows(corpus.tokenizer, corpus.heldout, most, corpus.row_length)
        began = clock()
        heldout_loss(model.eval(), rows, Specials.of(corpus.tokenizer).mask, device.torch)
        speed = replace(speed, evaluate=clock() - began)
    return speed


def forecast(config: RunConfig, vocab: int, rows: int | None, speed: Speed) -> dict[str, Any]:
    """Play the whole run through at a measured speed.

    It sees what is charged: compiling, every update with the rows and the mask rate of its turn,
    log points, checkpoints, held-out measurements, and the last update that does not fit.

    Args:
        rows: of the corpus; None if there is none yet.

    Returns:
        ``updates``, ``tokens``, ``tokens_between`` (at the speeds of the slowest and the fastest
        tenth of what was measured), ``seconds`` (charged), ``compile_seconds``,
        ``first_compile_seconds``, ``exaflop``, ``epochs`` (None without a corpus),
        ``tokens_per_second``, ``parameters``, ``tokens_per_parameter``, ``memory``,
        ``microbatch_rows``, ``sizes`` (of `candidates`), ``best_size`` and ``notes`` on what will
        not go well.
    """
    ledger, work = _play(config, vocab, speed)
    computing = sum(ledger.seconds[name] for name in ("step", "log"))
    size = parameters(config.model, vocab)
    epochs = work.rows / rows if rows is not None else None
    between = [work.tokens, work.tokens]
    if Budget.parse(config.budget.limit).kind == "time":
        between = [round(work.tokens / speed.high), round(work.tokens / speed.low)]
    sizes = candidates(config, vocab, rows, work.tokens)
    return {
        "updates": work.updates,
        "tokens": work.tokens,
        "tokens_between": between,
        "seconds": min(ledger.charged(), _limit(config)),
        "compile_seconds": speed.compile,
        "first_compile_seconds": speed.first_compile,
        "exaflop": work.flops / 1e18,
        "tokens_per_second": work.tokens / computing if work.tokens else 0.0,
        "epochs": epochs,
        "parameters": size,
        "tokens_per_parameter": work.tokens / size,
        "memory": speed.memory,
        "microbatch_rows": speed.microbatch_rows,
        "sizes": sizes,
        "best_size": best_size(sizes) if work.tokens else None,
        "notes": list(_notes(config, work, rows, epochs)),
    }


def _play(config: RunConfig, vocab: int, speed: Speed) -> tuple[Ledger, Work]:
    """The loop of training, with a clock that is put forward instead of work."""
    clock = _Simulated()
    ledger = Ledger(config.budget.charge, clock)
    planner = Planner(config, vocab, ledger, lambda: None)
    length, train = config.data.row_length, config.train
    work, logged, saved, measured = Work(), 0.0, 0.0, 0.0
    with ledger.account("compile"):
        clock.now += speed.compile
    logged = saved = clock.now
    with ledger.account("step"):
        while (update := planner.next(work)) is not None:
            predicted = predicted_positions(update.mask_rate, length)
            clock.now += speed.seconds(update.rows, predicted)
            clock.now += speed.first if work.updates == 0 else 0.0
            if not planner.room_for(0.0):
                break
            work += update.cost
            u = planner.budget.progress(work, planner.finished(update))
            due = update.number == 0 or clock.now - logged >= train.log_seconds
            if due and planner.room_for(2 * speed.log):
                with ledger.account("log"):
                    clock.now += speed.log
                logged = clock.now
            if heldout_due(train.heldout_every, u, measured):
                with ledger.account("evaluate"):
                    clock.now += speed.evaluate
                logged, measured = logged + speed.evaluate, u
            due = clock.now - saved >= train.checkpoint_seconds
            if due and planner.room_for(2 * speed.checkpoint):
                with ledger.account("checkpoint"):
                    clock.now += speed.checkpoint
                logged, saved = logged + speed.checkpoint, clock.now
    ledger.charged()  # books up to now
    return ledger, work


def candidates(
    config: RunConfig, vocab: int, rows: int | None, tokens: int
) -> list[dict[str, Any]]:
    """This recipe in other sizes, the cheapest first.

    A size costs what its FLOPs say, at the FLOP/s of the measured one; small sizes will be somewhat
    slower than that, and large ones faster.

    Args:
        rows: of the corpus; None if there is none yet.
        tokens: what the recipe's own size will read.

    Returns:
        For each ``layers``, ``width``, ``measured`` (whether it is the recipe's own),
        ``parameters``, ``layer_parameters`` (of their products), ``tokens``,
        ``tokens_per_layer_parameter``, ``epochs``
        (None without a corpus) and ``held_memory`` (bytes of weights, gradients and moments).
    """
    length, own = config.data.row_length, config.model
    work_decides = Budget.parse(config.budget.limit).kind in ("tokens", "updates")
    rates = (config.masking.rate, config.masking.final_rate or config.masking.rate)
    mean_rate = sum(rates) / 2
    predicted = predicted_positions(mean_rate, length)

    def cost(model: ModelConfig) -> float:
        return train_flops_per_token(model, vocab, length, predicted)

    shapes = {(layers, width) for layers, width in SHAPES if width % own.head_dim == 0}
    models = [
        own.model_copy(update={"layers": layers, "width": width})
        for layers, width in shapes | {(own.layers, own.width)}
    ]
    found = []
    for model in sorted(models, key=cost):
        layers, width = model.layers, model.width
        size = parameters(model, vocab)
        read = tokens if work_decides else round(tokens * cost(own) / cost(model))
        found.append(
            {
                "layers": layers,
                "width": width,
                "measured": (layers, width) == (own.layers, own.width),
                "parameters": size,
                "layer_parameters": block_matrix_parameters(model),
                "tokens": read,
                "tokens_per_layer_parameter": read / block_matrix_parameters(model),
                "epochs": read / length / rows if rows is not None else None,
                "held_memory": BYTES_A_PARAMETER * size,
            }
        )
    return found


def best_size(sizes: list[dict[str, Any]]) -> dict[str, Any]:
    """Which of these to train: ``layers``, ``width`` and ``why``, by the rule of `best_of`."""
    place, why = best_of(
        [Size(size["layer_parameters"], size["tokens"], size["epochs"]) for size in sizes]
    )
    return {"layers": sizes[place]["layers"], "width": sizes[place]["width"], "why": why}


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
