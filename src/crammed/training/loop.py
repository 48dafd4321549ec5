"""Pretraining, from start to finish.

Between the command line and ``backward()`` are four files: `crammed.interface.training` calls
`crammed.pretraining`, which calls `pretrain` here, which calls `crammed.training.update.step`. In
addition, `build` makes the model, its optimizer and the step, `plan` decides what each update is,
and `upkeep` does what is due between two updates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch

from crammed.budget import Clock, Ledger, Work, format_seconds
from crammed.config import RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.errors import Diverged, InputError
from crammed.machine.device import Device
from crammed.quantity import counted
from crammed.rules.early_end import lost_share
from crammed.runs.directory import RunDir
from crammed.terminal.progress import Progress
from crammed.training.agenda import Agenda
from crammed.training.checkpoint import End, Loaded, TrainState, resume
from crammed.training.distributed import (
    Group,
    LeadingStep,
    leading,
    note_processes,
    share_start,
)
from crammed.training.plan import Planner
from crammed.training.session import Session
from crammed.training.signals import UpdateLeft, noted_signals
from crammed.training.start import start_weights
from crammed.training.update.build import build_for
from crammed.training.update.lanes import with_lanes
from crammed.training.update.step import TrainStep
from crammed.training.upkeep import Upkeep

Build = Callable[[RunConfig, Corpus, Device], TrainStep]
NOTABLE = 0.01
"""Share of a budget of time from which on its loss is said; a saved stop loses less."""


@dataclass(frozen=True)
class Trained:
    """The result of pretraining.

    Attributes:
        model: as in `TrainStep`.
        accounts: seconds by account of the ledger.
        charged_seconds: seconds charged to the budget by the end of the last update.
        u: progress at that point.
        begun: as in `Planner`.
        memory_bytes: as in `End`.
    """

    model: Any
    work: Work
    accounts: dict[str, float]
    charged_seconds: float
    u: float
    begun: float
    memory_bytes: int | None

    @classmethod
    def of(cls, model: Any, state: TrainState, end: End) -> Trained:
        return cls(model, state.work, state.accounts, begun=state.begun, **asdict(end))


def pretrain(
    config: RunConfig,
    corpus: Corpus,
    run: RunDir,
    device: Device,
    progress: Progress,
    clock: Clock = time.monotonic,
    group: Group | None = None,
    build: Build = build_for,
) -> Trained:
    """Train until the budget or the text is used up; resume from a checkpoint if there is one.

    The result is also in the last checkpoint, so a call after the end of training returns the same
    and trains no further.

    Args:
        group: the processes that train together, if this one leads several.
        build: makes the step, with the model to train.

    Raises:
        InputError: the corpus is smaller than a batch, or the budget smaller than an update; or a
            file of the corpus was truncated, in which case a checkpoint was written.
        Interrupted: a signal came; a checkpoint was written.
        StoppedByPolicy: the recipe's early-stop rule fired, now or earlier; the run is over.
        Diverged: the loss or a weight is not finite, and `train.divergence` ends the run.
        RanksDiffer: the processes do not train the same model.
    """
    check_size(corpus, config.batch.rows)
    ledger = Ledger(config.budget.charge, clock)
    config = with_lanes(config, run, device, progress)
    alone = build(config, corpus, device)
    loaded = resume(run, alone, ledger, corpus.sha256)
    _say_resumed(loaded, config, progress)
    note_processes(run, group, progress, resumed=loaded.state.work.updates > 0)
    planner = Planner(config, corpus.vocab_size, corpus.rows, ledger, device.synchronize)
    planner.go_on(loaded.state.detour, loaded.state.rows, loaded.state.begun)
    stream, work = RowStream(corpus, config.seed, config.order), loaded.state.work
    if loaded.generation is None:
        with ledger.account("compile"):
            start_weights(config, alone, stream, corpus.rows, planner, progress)
            share_start(config, alone, group)
    with (
        progress.task("pretraining", 1.0) as task,
        noted_signals() as signals,
        leading(alone, group, signals) as step,
        ledger.account("step"),
    ):
        if loaded.state.end is not None:
            return Trained.of(alone.model, loaded.state, loaded.state.end)
        # A signal in it is answered before the first update, as one that comes then.
        with ledger.account("compile"), suppress(UpdateLeft):
            step.prepare(config.batch.row_counts(), config.mask_rates())
        with ledger.account("setup"):
            new, heldout_u = work.updates == 0, loaded.state.heldout_u
            room_for = planner.deadline.room_for
            agenda = Agenda(config, ledger, room_for, first=new, heldout_u=heldout_u)
            session = Session(run, alone, ledger, planner, agenda, corpus.sha256)
            upkeep = Upkeep(session, corpus, loaded.generation, task, group, signals)
        state, end = _train_to_the_end(work, stream, step, session, upkeep)
        return Trained.of(alone.model, state, end)


def _say_resumed(loaded: Loaded, config: RunConfig, progress: Progress) -> None:
    """Say which checkpoints are damaged, and how much of a budget of time is lost."""
    for words in loaded.damaged:
        progress.line(f"checkpoint  {words}: resuming from {loaded.generation}")
    share = lost_share(config, loaded.lost)
    if share > NOTABLE:
        begin = loaded.generation is None and share > 0.5
        again = "; to start over, choose another --out" if begin else ""
        progress.line(
            f"pretraining  resumes after {counted(loaded.state.work.updates, 'update')}; "
            f"{format_seconds(loaded.lost)} of its budget were lost when the previous process "
            f"ended{again}"
        )


def _train_to_the_end(
    work: Work,
    stream: RowStream,
    step: TrainStep | LeadingStep,
    session: Session,
    upkeep: Upkeep,
) -> tuple[TrainState, End]:
    """Train to the end, again after each divergence the recipe allows; return what is kept."""
    while True:
        try:
            work = _train(work, stream, step, session, upkeep)
            if work.updates == 0:
                raise session.planner.nothing_fits()
            return upkeep.finish(work)  # saved to disk, because later steps may fail
        except Diverged as fault:
            work = upkeep.go_back(fault)
            if isinstance(step, LeadingStep):
                step.reload()


def _train(
    work: Work,
    stream: RowStream,
    step: TrainStep | LeadingStep,
    session: Session,
    upkeep: Upkeep,
) -> Work:
    """Update until no further update fits; return the work done."""
    planner, ledger = session.planner, session.ledger
    while (update := planner.next(work)) is not None:
        try:
            with ledger.account("data_wait"):
                rows = torch.from_numpy(stream.read(update.first_row, update.rows))
        except InputError:  # the corpus has changed on disk
            upkeep.keep(work)
            raise
        try:
            loss = step.gradients(rows, update)
        except UpdateLeft:
            step.discard()
            raise upkeep.stopped(work) from None
        if not planner.deadline.met():  # an update counts only if it is complete in time
            step.discard()
            session.run.event("discarded", update=work.updates, reason="not complete in time")
            break
        norm = step.apply(update.factor)
        work += update.cost
        planner.deadline.end(update.rows)
        if norm is not None and session.step.spread is not None:
            planner.adapt(enough=session.step.spread.enough)
        upkeep.after(update, work, loss, norm)
    return work


def check_size(corpus: Corpus, rows: int) -> None:
    """Raise `InputError` if the corpus has too few rows for one batch."""
    if corpus.rows < rows:
        raise InputError(
            f"the corpus has {corpus.rows:,} rows, fewer than one batch of {rows:,}: "
            "add text or lower batch.rows"
        )
