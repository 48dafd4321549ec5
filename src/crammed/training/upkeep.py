"""What a run does between updates: it logs, measures held-out loss, saves, stops, goes back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import Tensor

from crammed.budget import Work
from crammed.data.corpus import Corpus
from crammed.errors import Diverged, Interrupted, StoppedByPolicy
from crammed.machine.device import peak_memory
from crammed.quantity import counted
from crammed.terminal.progress import ProgressTask
from crammed.training.checkpoint import Checkpoints, End, TrainState
from crammed.training.distributed import Group, compare_weights
from crammed.training.heldout_meter import HeldoutMeter
from crammed.training.recorder import Recorder
from crammed.training.recovery import go_back
from crammed.training.session import Session
from crammed.training.update.planned import Update


class Upkeep:
    """Follows the agenda, and records how training ends.

    Args:
        held: the generation of checkpoints that the run resumes from, if any.
        signals: names of the signals received; more may be added during training.
    """

    def __init__(
        self,
        session: Session,
        corpus: Corpus,
        held: Path | None,
        task: ProgressTask,
        group: Group | None,
        signals: list[str],
    ) -> None:
        self._session, self._signals = session, signals
        self._heldout = HeldoutMeter(session, corpus)
        self._recorder = Recorder(session, task)
        self._checkpoints = Checkpoints(session, held)
        self._compare = partial(compare_weights, session.step, group)
        if session.run.config.train.divergence.then != "stop" and held is None:
            self._checkpoints.save(Work())  # to go back to

    def after(self, update: Update, work: Work, loss: Tensor, norm: Tensor | None) -> None:
        """Do what is due after an update; the arguments are those of `Recorder.add`.

        Raises:
            Interrupted: a signal came; everything is saved.
            StoppedByPolicy: the loss is too bad for the recipe's early-stop rule.
            Diverged: the loss or a weight is not finite.
        """
        u = self._session.planner.progress(work)
        self._recorder.add(update, loss, norm)
        for what in self._session.agenda.due(u):
            if what == "log":
                self._log(work, u)
            elif what == "heldout":
                self._heldout.measure(work, u)
            else:
                self._recorder.check(work)
                self._save(work)
        if self._signals:
            raise self.stopped(work)

    def _log(self, work: Work, u: float) -> None:
        """Write a log point, and end the run if its loss is too high for the early-stop rule."""
        rule = self._session.run.config.train.early_stop
        if not self._recorder.log(work, u) or rule is None:
            return
        trained, loss = self._session.planner.trained(work), self._recorder.loss
        if trained >= rule.after and loss > rule.loss:
            fault = (
                f"early stop: loss {loss:.3f} is above {rule.loss:g} after {100 * trained:.0f} % "
                "of the run (train.early_stop)"
            )
            self._compare()
            self._checkpoints.write(work, over=fault)
            self._session.run.event("over", reason=fault)
            raise StoppedByPolicy(fault)

    def _save(self, work: Work) -> None:
        """Write a checkpoint, after checking that all processes have the same weights."""
        self._compare()
        self._checkpoints.save(work)

    def stopped(self, work: Work) -> Interrupted:
        """Save everything, including the time of an abandoned update; return what to raise."""
        self.keep(work)
        return Interrupted(
            f"stopped by {self._signals[0]} after {counted(work.updates, 'update')}; "
            f"everything is saved in {self._session.run.path}, and the same command continues "
            "from there"
        )

    def keep(self, work: Work) -> None:
        """Save everything before the run ends, to resume from there."""
        self._recorder.log(work, self._session.planner.progress(work))
        if work.updates not in (0, self._checkpoints.updates()):
            self._save(work)
        self._session.run.heartbeat(self._session.ledger.charged())

    def finish(self, work: Work) -> tuple[TrainState, End]:
        """Save everything, and that training has ended.

        Raises:
            Interrupted: a signal came; the same command continues with what follows training.
            Diverged: the loss or a weight is not finite.
        """
        planner, memory = self._session.planner, peak_memory(self._session.step.device.torch)
        end = End(planner.deadline.charged, planner.progress(work), memory)
        self._recorder.log(work, end.u, ended=True)
        self._compare()
        self._session.step.growth.reach(self._session.run.config.model.layers)
        if (average := self._session.step.average) is not None:
            average.adopt()
        state = self._checkpoints.write(work, end)
        if self._signals:
            raise self.stopped(work)
        return state, end

    def go_back(self, fault: Diverged) -> Work:
        """Go back to the last checkpoint, if the recipe says so; return the work that is kept.

        Raises:
            Diverged: the recipe says to stop, or this has happened too often.
        """
        work = go_back(self._session, self._checkpoints, fault)
        self._recorder.forget()
        return work
