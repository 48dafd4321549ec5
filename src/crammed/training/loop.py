"""Pretraining, top to bottom.

From the command line to ``backward()`` a run passes four files: `crammed.cli.training` calls
`crammed.pipeline`, which calls `pretrain` here, which calls `crammed.training.step`. Beside them,
`plan` decides what each update is and `agenda` what is due between two of them, and `build` makes
the model, its optimizer and the step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import torch

from crammed.budget import Clock, Ledger, Work, format_seconds
from crammed.config import EarlyStop, RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.data.tokenization.tokenizer import Specials
from crammed.device import Device
from crammed.errors import InputError, Interrupted, StoppedByPolicy
from crammed.model.encoder import MaskedLM
from crammed.progress import Progress, ProgressTask
from crammed.rundir import RunDir
from crammed.training.agenda import Agenda
from crammed.training.build import build
from crammed.training.checkpoint import Checkpoints, TrainState, resume
from crammed.training.distributed import Group, compare_weights, leading, note_processes
from crammed.training.heldout import HeldoutMeter
from crammed.training.plan import Planner
from crammed.training.recorder import Recorder
from crammed.training.signals import UpdateLeft, noted_signals
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

    Args:
        group: the processes that train together, if this one leads several.

    Raises:
        InputError: the corpus is smaller than a batch, or the budget than an update.
        Interrupted: a signal came; a checkpoint was written.
        StoppedByPolicy: the recipe's early-stop rule fired; a checkpoint was written.
        Diverged: the loss is not finite.
    """
    _check_size(corpus, config.batch.rows)
    ledger = Ledger(config.budget.charge, clock)
    alone = build(config, corpus.vocab_size, Specials.of(corpus.tokenizer), device)
    saved = resume(run, alone, ledger, corpus.sha256)
    note_processes(run, group, progress, resumed=saved.work.updates > 0)
    planner = Planner(config, corpus.vocab_size, ledger, device.synchronize)
    stream, work = RowStream(corpus, config.seed, config.order), saved.work
    with (
        progress.task("pretraining", 1.0) as task,
        noted_signals() as signals,
        leading(alone, group) as step,
        ledger.account("step"),
    ):
        if group is None:  # several processes finish the update together
            alone.before_microbatch = partial(_leave_if, signals)
        with ledger.account("compile"):
            step.prepare(planner.all_row_counts(), planner.all_mask_rates())
        with ledger.account("setup"):
            between = _Between(run, corpus, device, alone, ledger, planner, saved, task, group)

        while (update := planner.next(work)) is not None:
            with ledger.account("data_wait"):
                rows = torch.from_numpy(stream.read(update.first_row, update.rows))
            try:
                loss = step.gradients(rows, update)
            except UpdateLeft:
                step.discard()
                raise between.stopped(signals[0], work, planner.progress(work)) from None
            if not planner.in_time():  # an update counts only if it is complete in time
                step.discard()
                run.event("discarded", update=work.updates, reason="not complete in time")
                break
            norm = step.apply(update.factor)
            work += update.cost
            planner.finished(update)
            between.recorder.add(update, loss, norm)
            between.do_what_is_due(work, planner.progress(work))
            if signals:
                raise between.stopped(signals[0], work, planner.progress(work))

    if work.updates == 0:
        raise _nothing_trained(planner, ledger)
    between.recorder.log(work, planner.progress(work))
    trained = Trained(alone.model, work, ledger.state(), planner.charged, planner.progress(work))
    between.checkpoints.save(work)  # what follows may fail, and training is dear
    return trained


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
        saved: TrainState,
        task: ProgressTask,
        group: Group | None,
    ) -> None:
        self.heldout = HeldoutMeter(run, corpus, step.model, device)
        self.early_stop = run.config.train.early_stop
        self.agenda = Agenda(  # begins now that everything is ready
            run.config.train,
            ledger,
            planner.room_for,
            first=saved.work.updates == 0,
            heldout_u=saved.heldout_u,
        )
        self.recorder = Recorder(run, self.agenda, ledger, device, task)
        self.checkpoints = Checkpoints(run, step, ledger, self.agenda, device, corpus.sha256)
        self._run = run
        self._ledger = ledger
        self._compare = partial(compare_weights, step, group)

    def do_what_is_due(self, work: Work, u: float) -> None:
        """Log, measure and save as far as the agenda says so; stop if the loss is too bad."""
        if self.recorder.has_news() and self.agenda.log_due():
            self.recorder.log(work, u)
            if fault := _too_bad(self.early_stop, u, self.recorder.loss):
                self.save(work)
                raise StoppedByPolicy(fault)
        if self.agenda.heldout_due(u):
            self.heldout.measure(work, u, self.agenda)
        if self.agenda.checkpoint_due():
            self.save(work)

    def stopped(self, signal: str, work: Work, u: float) -> Interrupted:
        """Write down everything so far, and the time of an update that was left undone."""
        self.recorder.log(work, u)
        if work.updates:
            self.save(work)
        self._run.heartbeat(self._ledger.charged())
        return _interrupted(signal, work, self._run)

    def save(self, work: Work) -> None:
        """Write a checkpoint, of weights that are the same in all processes."""
        self._compare()
        self.checkpoints.save(work)


def _leave_if(signals: list[str]) -> None:
    if signals:
        raise UpdateLeft


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
