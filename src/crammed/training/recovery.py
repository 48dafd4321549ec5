"""What a run does when it diverges: it stops, or goes back to its last checkpoint.

Going back discards every update since that checkpoint. Their time stays charged, as lost, and
budgets other than time count only what is kept. Training goes on with other rows or with lower
rates, as `train.divergence` says; a checkpoint records this before the next update, so that a run
that is stopped and resumed later does the same.
"""

from __future__ import annotations

from dataclasses import replace

from crammed.budget import Ledger, Work
from crammed.errors import Diverged
from crammed.quantity import counted
from crammed.rules.rates import far_too_high
from crammed.runs.directory import RunDir
from crammed.training.agenda import Agenda
from crammed.training.checkpoint import Checkpoints, Detour, load_checkpoint
from crammed.training.plan import Planner
from crammed.training.step import TrainStep


class Recovery:
    """Goes back as often as the recipe allows.

    Args:
        detour: what returns have changed in earlier processes.
        corpus_sha256: hash of the corpus that the run trains on.
    """

    def __init__(
        self,
        run: RunDir,
        step: TrainStep,
        ledger: Ledger,
        agenda: Agenda,
        planner: Planner,
        checkpoints: Checkpoints,
        detour: Detour,
        corpus_sha256: str,
    ) -> None:
        self._rule = run.config.train.divergence
        self._run = run
        self._step = step
        self._ledger = ledger
        self._agenda = agenda
        self._planner = planner
        self._checkpoints = checkpoints
        self._corpus_sha256 = corpus_sha256
        self._take(detour)

    def _take(self, detour: Detour) -> None:
        self._detour = self._checkpoints.detour = detour
        self._planner.skipped_rows, self._planner.rate = detour.skipped_rows, detour.rate

    def begin(self) -> None:
        """Write a checkpoint to go back to, if the recipe allows returns and there is none."""
        if self._rule.then != "stop" and self._checkpoints.held is None:
            self._checkpoints.save(Work())

    def go_back(self, fault: Diverged) -> Work:
        """Restore the last checkpoint and apply what `train.divergence` changes.

        Returns:
            the work that is kept.

        Raises:
            Diverged: the recipe says to stop, or the run has gone back as often as it may.
        """
        self._run.heartbeat(self._ledger.charged())  # so that a resume charges what is discarded
        self._run.event("diverged", reason=str(fault))
        rule, detour = self._rule, self._detour
        if rule.then == "stop":
            raise Diverged(f"{fault}; {self._advice()}") from fault
        if detour.returns >= rule.times:
            raise Diverged(
                f"{fault}, though the run went back {counted(detour.returns, 'time')} "
                f"(train.divergence.times); {self._advice()}"
            ) from fault
        saved = load_checkpoint(self._run.checkpoints, self._step, self._corpus_sha256).state
        lost = self._ledger.lose(saved.accounts)
        self._agenda.went_back(saved.heldout_u)
        detour = replace(detour, returns=detour.returns + 1)
        if rule.then == "skip":
            detour = replace(detour, skipped_rows=self._planner.reached - saved.work.rows)
        else:
            detour = replace(detour, rate=rule.factor * detour.rate)
        self._take(detour)
        self._checkpoints.save(saved.work, again=True)
        self._run.event(
            "back",
            update=saved.work.updates,
            lost_s=lost,
            skipped_rows=detour.skipped_rows,
            rate=detour.rate,
        )
        return saved.work

    def _advice(self) -> str:
        """What is kept, and what to type instead."""
        kept = "no checkpoint was written before that"
        if (updates := self._checkpoints.updates()) is not None:
            kept = f"the checkpoint of update {updates} is kept, and all its values are finite"
        if high := far_too_high(self._run.config, self._run.choice.follows):
            return f"the learning rate is far too high: train anew with {high}, in another --out"
        if self._rule.then == "stop":
            return (
                f"{kept}: repeat the command with train.divergence.then=lower (or skip) to "
                "continue, or train anew with a lower optim.lr"
            )
        return f"{kept}: train anew with a lower optim.lr"
