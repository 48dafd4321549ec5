"""Pretraining, top to bottom.

From the command line to ``backward()`` a run passes four files: `crammed.cli.training` calls
`crammed.pipeline`, which calls `pretrain` here, which calls `crammed.training.step`. Beside them,
`plan` decides what each update is and `agenda` what is due between two of them, `build` makes the
model, its optimizer and the step, and `recovery` goes back when training has diverged.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from crammed.budget import Clock, Ledger, Work, format_seconds
from crammed.config import EarlyStop, RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.data.tokenization.tokenizer import Specials
from crammed.device import Device
from crammed.errors import Diverged, InputError, Interrupted, StoppedByPolicy
from crammed.model.encoder import MaskedLM
from crammed.progress import Progress, ProgressTask
from crammed.rundir import RunDir
from crammed.training.agenda import Agenda
from crammed.training.build import build
from crammed.training.checkpoint import Checkpoints, End, Loaded, TrainState, resume
from crammed.training.distributed import Group, LeadingStep, leading, reload_followers
from crammed.training.heldout import HeldoutMeter
from crammed.training.plan import Planner
from crammed.training.recorder import Recorder
from crammed.training.recovery import Recovery
from crammed.training.signals import noted_signals
from crammed.training.step import TrainStep


@dataclass(frozen=True)
class Trained:
    """What pretraining gives.

    Attributes:
        accounts: seconds by account of the ledger.
        charged_seconds: seconds that counted against the budget when the last update was finished.
        u: share of the budget that was spent by then.
    """

    model: MaskedLM
    work: Work
    accounts: dict[str, float]
    charged_seconds: float
    u: float


def pretrain(
    config: RunConfig,
    corpus: Corpus,
    run: RunDir,
    device: Device,
    progress: Progress,
    clock: Clock = time.monotonic,
    group: Group | None = None,
) -> Trained:
    """Train until the budget is spent; go on from a checkpoint where there is one.

    What this returns is in the last checkpoint, too, so that a call after the end of training
    returns the same and trains no further.

    Args:
        group: the processes that train together, if this one leads several.

    Raises:
        InputError: the corpus is smaller than a batch, or the budget than an update.
        Interrupted: a signal came; a checkpoint was written.
        StoppedByPolicy: the recipe's early-stop rule fired, now or earlier; the run is over.
        Diverged: the loss or a weight is not finite, and `train.divergence` says to stop.
    """
    _check_size(corpus, config.batch.rows)
    ledger = Ledger(config.budget.charge, clock)
    alone = build(config, corpus.vocab_size, Specials.of(corpus.tokenizer), device)
    loaded = resume(run, alone, ledger, corpus.sha256)
    for words in loaded.damaged:
        progress.line(f"checkpoint  {words}: going on from {loaded.generation}")
    planner = Planner(config, corpus.vocab_size, ledger, device.synchronize)
    stream, work = RowStream(corpus, config.seed, config.order), loaded.state.work
    with (
        progress.task("pretraining", 1.0) as task,
        noted_signals() as signals,
        leading(alone, group) as step,
        ledger.account("step"),
    ):
        if loaded.state.end is not None:
            return _trained(alone.model, loaded.state, loaded.state.end)
        with ledger.account("compile"):
            step.prepare(planner.all_row_counts(), planner.all_mask_rates())
        with ledger.account("setup"):
            between = _Between(run, corpus, device, alone, ledger, planner, loaded, task)
        between.recovery.begin()

        while True:  # once more after every divergence that the recipe survives
            try:
                work = _until_spent(work, step, stream, planner, between, signals, ledger)
                state, end = between.finish(work, planner)  # what follows may fail
                break
            except Diverged as fault:
                work = between.go_back(fault)
                reload_followers(step)
        if signals:
            raise _interrupted(signals[0], work, run)
    return _trained(alone.model, state, end)


def _until_spent(
    work: Work,
    step: TrainStep | LeadingStep,
    stream: RowStream,
    planner: Planner,
    between: _Between,
    signals: list[str],
    ledger: Ledger,
) -> Work:
    """Update after update, until the budget is spent; returns the work by then."""
    while (update := planner.next(work)) is not None:
        with ledger.account("data_wait"):
            rows = torch.from_numpy(stream.read(update.first_row, update.rows))
        loss = step.gradients(rows, update)
        if not planner.in_time():  # an update counts only if it is complete in time
            step.discard()
            between.run.event("discarded", update=work.updates, reason="not complete in time")
            break
        norm = step.apply(update.factor)
        work += update.cost
        planner.finished(update)
        between.recorder.add(update, loss, norm)
        between.do_what_is_due(work, planner.progress(work))
        if signals:
            between.log_and_save(work, planner.progress(work))
            raise _interrupted(signals[0], work, between.run)
    if work.updates == 0:
        raise _nothing_trained(planner, ledger)
    return work


def _trained(model: MaskedLM, state: TrainState, end: End) -> Trained:
    return Trained(model, state.work, state.accounts, end.charged_seconds, end.u)


class _Between:
    """What a run does between two updates: it logs, measures held-out loss and saves."""

    def __init__(
        self,
        run: RunDir,
        corpus: Corpus,
        device: Device,
        step: TrainStep,
        ledger: Ledger,
        planner: Planner,
        loaded: Loaded,
        task: ProgressTask,
    ) -> None:
        saved, sha256 = loaded.state, corpus.sha256
        self.run = run
        self.heldout = HeldoutMeter(run, corpus, step.model, device)
        self.early_stop = run.config.train.early_stop
        self.agenda = agenda = Agenda(  # begins now that everything is ready
            run.config.train,
            ledger,
            planner.room_for,
            first=saved.work.updates == 0,
            heldout_u=saved.heldout_u,
        )
        self.recorder = Recorder(run, agenda, ledger, device, task)
        held = loaded.generation
        self.checkpoints = Checkpoints(run, step, ledger, agenda, device, sha256, held)
        self.recovery = Recovery(
            run, step, ledger, agenda, planner, self.checkpoints, saved.detour, sha256
        )

    def do_what_is_due(self, work: Work, u: float) -> None:
        """Log, measure and save as far as the agenda says so; stop if the loss is too bad."""
        if self.recorder.has_news() and self.agenda.log_due():
            self.recorder.log(work, u)
            if fault := _too_bad(self.early_stop, u, self.recorder.loss):
                self.checkpoints.save_over(work, fault)
                raise StoppedByPolicy(fault)
        if self.agenda.heldout_due(u):
            self.heldout.measure(work, u, self.agenda)
        if self.agenda.checkpoint_due():
            self.recorder.check(work)
            self.checkpoints.save(work)

    def log_and_save(self, work: Work, u: float) -> None:
        """Write down everything so far, whether it is due or not."""
        self.recorder.log(work, u)
        self.checkpoints.save(work)

    def finish(self, work: Work, planner: Planner) -> tuple[TrainState, End]:
        """Write down everything, and that training has ended."""
        end = End(planner.charged, planner.progress(work))
        self.recorder.log(work, end.u)
        return self.checkpoints.save_end(work, end), end

    def go_back(self, fault: Diverged) -> Work:
        """Undo what led to divergence, if the recipe says so; returns the work that is kept."""
        work = self.recovery.go_back(fault)
        self.recorder.forget()
        return work


def _too_bad(rule: EarlyStop | None, u: float, loss: float) -> str | None:
    """Why the early-stop rule ends the run now; None if it does not."""
    if rule is None or u < rule.after or loss <= rule.loss:
        return None
    return (
        f"early stop: loss {loss:.3f} is above {rule.loss:g} with {100 * u:.0f} % of the budget "
        "spent (train.early_stop)"
    )


def _check_size(corpus: Corpus, rows: int) -> None:
    """Raise an `InputError` if the corpus has not enough rows for one batch."""
    if corpus.rows < rows:
        raise InputError(
            f"the corpus has {corpus.rows:,} rows, fewer than one batch of {rows:,}: "
            "add text or lower batch.rows"
        )


def _interrupted(signal: str, work: Work, run: RunDir) -> Interrupted:
    return Interrupted(
        f"stopped by {signal} after {work.updates} updates, all of them saved; the same command "
        f"with --out {run.path} goes on from here"
    )


def _nothing_trained(planner: Planner, ledger: Ledger) -> InputError:
    seconds = ledger.seconds["lost"]
    lost = f", {format_seconds(seconds)} of it lost earlier" if seconds else ""
    return InputError(
        f"a budget of {planner.budget}{lost} ends before one update of {planner.rows(0.0)} rows is "
        "done: raise the budget or lower batch.rows"
    )
