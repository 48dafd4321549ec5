"""Pretraining, top to bottom."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from crammed.budget import Clock, Ledger, Work, format_seconds
from crammed.config import EarlyStop, RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.data.heldout import heldout_rows
from crammed.data.tokenization.tokenizer import Specials
from crammed.device import Device
from crammed.errors import InputError, Interrupted, StoppedByPolicy
from crammed.model.encoder import MaskedLM
from crammed.model.heldout import heldout_loss
from crammed.progress import Progress
from crammed.rundir import RunDir
from crammed.sizing import expected_tokens
from crammed.training.build import build
from crammed.training.checkpoint import Checkpoints, TrainState, load_checkpoint
from crammed.training.distributed import Group, leading
from crammed.training.plan import Planner, heldout_due
from crammed.training.recorder import Recorder
from crammed.training.signals import noted_signals

ROWS_READ_FOR_ONE_HELD_OUT = 100
FEWEST_HELDOUT_ROWS = 32
MOST_HELDOUT_ROWS = 512
"""Measurements on the way are for the eye: a part of the rows; the last one takes all of them."""


@dataclass(frozen=True)
class Trained:
    """What pretraining gives.

    Attributes:
        accounts: seconds by account of the ledger.
        charged_seconds: what counts of them, when the last update was complete.
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
        group: the other processes, which this one leads.

    Raises:
        InputError: the corpus is smaller than a batch, or the budget than an update.
        Interrupted: a signal came; a checkpoint was written.
        StoppedByPolicy: the recipe's early-stop rule fired; a checkpoint was written.
        Diverged: the loss is not finite.
    """
    if corpus.rows < config.batch.rows:
        raise InputError(
            f"the corpus has {corpus.rows:,} rows, fewer than one batch of {config.batch.rows:,}: "
            "add text or lower batch.rows"
        )
    ledger = Ledger(config.budget.charge, clock)
    planner = Planner(config, corpus.vocab_size, ledger, device.synchronize)
    model, optimizer, alone = build(config, corpus, device)
    stream = RowStream(corpus, config.seed, config.order)
    heldout = _HeldoutMeter(config, corpus, model, device, run, ledger)

    saved = load_checkpoint(run.checkpoints, model, optimizer, corpus.sha256)
    work = saved.work if saved else Work()
    heldout.last_u = saved.heldout_u if saved else 0.0
    _restore_ledger(ledger, saved, run)
    if saved:
        alone.restore(saved.loss_scale)
    u, charged = planner.progress(work), ledger.charged()

    def state() -> TrainState:
        return TrainState(work, ledger.state(), corpus.sha256, heldout.last_u, alone.loss_scale())

    model.train()
    with (
        progress.task("pretraining", 1.0) as task,
        noted_signals() as signals,
        leading(alone, group) as step,
        ledger.account("step"),
    ):
        with ledger.account("compile"):
            step.prepare(planner.all_row_counts(), planner.all_mask_rates())
        recorder = Recorder(run, ledger, device, task, config.train.log_seconds)
        every = config.train.checkpoint_seconds
        checkpoints = Checkpoints(run, model, optimizer, ledger, every, device.synchronize)

        while (update := planner.next(work)) is not None:
            with ledger.account("data_wait"):
                rows = torch.from_numpy(stream.read(update.first_row, update.rows))
            loss = step.gradients(rows, update)
            if not planner.in_time():  # an update counts only if it is complete in time
                step.discard()
                run.event("discarded", update=work.updates, reason="not complete in time")
                break
            norm = step.apply(update.lr)
            work += update.cost
            charged = planner.finished(update)
            u = planner.budget.progress(work, charged)
            recorder.add(update, loss, norm)

            if recorder.due() and planner.room_for(2 * recorder.cost):
                recorder.log(work, u)
                if fault := _too_bad(config.train.early_stop, u, recorder.loss):
                    checkpoints.save(state())
                    raise StoppedByPolicy(fault)
            if heldout.due(u):
                heldout.measure(u, work)
            if checkpoints.due() and planner.room_for(2 * checkpoints.cost):
                checkpoints.save(state())
            if signals:
                recorder.log(work, u)
                checkpoints.save(state())
                raise Interrupted(
                    f"stopped by {signals[0]} after {work.updates} updates with all of them saved; "
                    f"the same command with --out {run.path} goes on from here"
                )

    if work.updates == 0:
        lost = f", {format_seconds(ledger.seconds['lost'])} of it lost earlier"
        raise InputError(
            f"a budget of {planner.budget}{lost if ledger.seconds['lost'] else ''} ends before one "
            f"update of {planner.rows(0.0)} rows is done: raise the budget or lower batch.rows"
        )
    recorder.log(work, u)
    trained = Trained(model, work, ledger.state(), charged, u)
    checkpoints.save(state())  # what comes after training may fail, and training is dear
    return trained


def _too_bad(rule: EarlyStop | None, u: float, loss: float) -> str | None:
    """Why the early-stop rule ends the run now; None where it does not."""
    if rule is None or u < rule.after or loss <= rule.loss:
        return None
    return (
        f"early stop: loss {loss:.3f} is above {rule.loss:g} with {100 * u:.0f} % of the budget "
        "spent (train.early_stop)"
    )


def _restore_ledger(ledger: Ledger, saved: TrainState | None, run: RunDir) -> None:
    """Take over the accounts of earlier processes, and the time that a crash destroyed."""
    accounts = saved.accounts if saved else {}
    charged = sum(accounts.get(name, 0.0) for name in ledger.charge)
    lost = max(0.0, run.last_heartbeat() - charged)
    ledger.restore(accounts, lost)
    if saved or lost:
        run.event("resume", update=saved.work.updates if saved else 0, lost_s=lost)


def rows_on_the_way(config: RunConfig) -> int:
    """Held-out rows of a measurement during training; in a short run few, so that it stays short.

    The number follows from configuration and device: points of one curve are of the same rows.
    """
    share = expected_tokens(config) / config.data.row_length / ROWS_READ_FOR_ONE_HELD_OUT
    following = min(max(round(share), FEWEST_HELDOUT_ROWS), MOST_HELDOUT_ROWS)
    return min(following, config.data.heldout_rows)


class _HeldoutMeter:
    """Measures held-out loss now and then, in an account of its own."""

    def __init__(
        self,
        config: RunConfig,
        corpus: Corpus,
        model: MaskedLM,
        device: Device,
        run: RunDir,
        ledger: Ledger,
    ) -> None:
        self._every = config.train.heldout_every
        most = rows_on_the_way(config)
        self._rows = heldout_rows(corpus.tokenizer, corpus.heldout, most, corpus.row_length)
        self._mask = Specials.of(corpus.tokenizer).mask
        self._model = model
        self._device = device
        self._run = run
        self._ledger = ledger
        self.last_u = 0.0

    def due(self, u: float) -> bool:
        """Whether another share of the budget is spent since the last measurement."""
        return heldout_due(self._every, u, self.last_u)

    def measure(self, u: float, work: Work) -> None:
        """Measure now and note it as an event."""
        self._device.synchronize()  # training that is still under way belongs to training
        with self._ledger.account("evaluate"):
            self._model.eval()
            loss = heldout_loss(self._model, self._rows, self._mask, self._device.torch)
            self._model.train()
        self.last_u = u
        self._run.event("heldout", u=u, update=work.updates, tokens=work.tokens, **loss)
