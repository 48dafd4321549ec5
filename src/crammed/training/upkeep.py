"""What a run does between updates: it logs, measures held-out loss, saves, stops, goes back."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from crammed.budget import Ledger, Work
from crammed.config import EarlyStop
from crammed.data.corpus import Corpus
from crammed.errors import Diverged, Interrupted, StoppedByPolicy
from crammed.machine.device import Device
from crammed.quantity import counted
from crammed.runs.directory import RunDir
from crammed.terminal.progress import ProgressTask
from crammed.training.agenda import Agenda
from crammed.training.checkpoint import Checkpoints, End, Loaded, TrainState
from crammed.training.distributed import Group, compare_weights
from crammed.training.heldout import HeldoutMeter
from crammed.training.plan import Planner, Update
from crammed.training.recorder import Recorder
from crammed.training.recovery import Recovery
from crammed.training.signals import leave_update
from crammed.training.step import TrainStep


class Upkeep:
    """Follows the agenda, and records how training ends.

    Args:
        loaded: what the run resumes from.
        signals: names of the signals received; more may be added during training.
    """

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
        group: Group | None,
        signals: list[str],
    ) -> None:
        saved, sha256 = loaded.state, corpus.sha256
        self._run, self._ledger, self._planner = run, ledger, planner
        self._signals = signals
        self._early_stop = run.config.train.early_stop
        self._heldout = HeldoutMeter(run, corpus, step.model, device)
        self._agenda = agenda = Agenda(  # starts now, when everything is ready
            run.config.train,
            ledger,
            planner.room_for,
            first=saved.work.updates == 0,
            heldout_u=saved.heldout_u,
        )
        self._recorder = Recorder(run, agenda, ledger, device, task)
        self._checkpoints = Checkpoints(
            run, step, ledger, agenda, device, sha256, loaded.generation
        )
        self._recovery = Recovery(
            run, step, ledger, agenda, planner, self._checkpoints, saved.detour, sha256
        )
        self._compare = partial(compare_weights, step, group)
        if group is None:  # several processes must finish the update together
            step.before_microbatch = partial(leave_update, signals)
        self._recovery.begin()

    def after(self, update: Update, work: Work, loss: Tensor, norm: Tensor | None) -> None:
        """Do what is due after an update; the arguments are those of `Recorder.add`.

        Raises:
            Interrupted: a signal came; everything is saved.
            StoppedByPolicy: the loss is too bad for the recipe's early-stop rule.
            Diverged: the loss or a weight is not finite.
        """
        u = self._planner.progress(work)
        self._recorder.add(update, loss, norm)
        for what in self._agenda.due(u):
            if what == "log":
                self._log(work, u)
            elif what == "heldout":
                self._heldout.measure(work, u, self._agenda)
            else:
                self._recorder.check(work)
                self._save(work)
        if self._signals:
            raise self.stopped(work)

    def _log(self, work: Work, u: float) -> None:
        """Write a log point, and end the run if its loss is too bad."""
        if not self._recorder.has_news():
            return
        self._recorder.log(work, u)
        if fault := _too_bad(self._early_stop, u, self._recorder.loss):
            self._compare()
            self._checkpoints.save_over(work, fault)
            raise StoppedByPolicy(fault)

    def _save(self, work: Work) -> None:
        """Write a checkpoint, after checking that all processes have the same weights."""
        self._compare()
        self._checkpoints.save(work)

    def discarded(self, work: Work) -> None:
        """Record that the last update was not complete in time."""
        self._run.event("discarded", update=work.updates, reason="not complete in time")

    def stopped(self, work: Work) -> Interrupted:
        """Save everything, including the time of an abandoned update; return what to raise."""
        self.keep(work)
        return Interrupted(
            f"stopped by {self._signals[0]} after {counted(work.updates, 'update')}; "
            f"everything is saved, and the same command with --out {self._run.path} resumes "
            "from here"
        )

    def keep(self, work: Work) -> None:
        """Save everything before the run ends, to resume from there."""
        self._recorder.log(work, self._planner.progress(work))
        if work.updates:
            self._save(work)
        self._run.heartbeat(self._ledger.charged())

    def finish(self, work: Work) -> tuple[TrainState, End]:
        """Save everything, and that training has ended.

        Raises:
            Interrupted: a signal came; the same command continues with what follows training.
            Diverged: the loss or a weight is not finite.
        """
        end = End(self._planner.charged, self._planner.progress(work))
        self._recorder.log(work, end.u, ended=True)
        self._compare()
        state = self._checkpoints.save_end(work, end)
        if self._signals:
            raise self.stopped(work)
        return state, end

    def go_back(self, fault: Diverged) -> Work:
        """Go back to the last checkpoint, if the recipe says so; return the work that is kept.

        Raises:
            Diverged: the recipe says to stop, or this has happened too often.
        """
        work = self._recovery.go_back(fault)
        self._recorder.forget()
        return work


def _too_bad(rule: EarlyStop | None, u: float, loss: float) -> str | None:
    """Why the early-stop rule ends the run now; None if it does not."""
    if rule is None or u < rule.after or loss <= rule.loss:
        return None
    return (
        f"early stop: loss {loss:.3f} is above {rule.loss:g} after {100 * u:.0f} % of the run "
        "(train.early_stop)"
    )
