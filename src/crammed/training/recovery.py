"""What a run does when it diverges: it stops, or goes back to its last checkpoint.

Going back discards every update since that checkpoint. Their time stays charged, as lost, and
budgets other than time count only what is kept. Training goes on with other rows or with lower
rates, as `train.divergence` says; a checkpoint records this before the next update, so that a run
that is stopped and resumed later does the same.
"""

from __future__ import annotations

from dataclasses import replace

from crammed.budget import Work
from crammed.errors import Diverged
from crammed.quantity import counted
from crammed.rules.rates import far_too_high
from crammed.runs.directory import RunDir
from crammed.training.checkpoint import Checkpoints, load_checkpoint
from crammed.training.session import Session


def go_back(session: Session, checkpoints: Checkpoints, fault: Diverged) -> Work:
    """Restore the last checkpoint and apply what `train.divergence` changes.

    Returns:
        the work that is kept.

    Raises:
        Diverged: the recipe says to stop, or the run has gone back as often as it may.
    """
    run, planner, ledger = session.run, session.planner, session.ledger
    run.heartbeat(ledger.charged())  # so that a resume charges what is discarded
    run.event("diverged", reason=str(fault))
    rule, detour = run.config.train.divergence, planner.detour
    if rule.then == "stop":
        raise Diverged(f"{fault}; {_advice(run, checkpoints)}") from fault
    if detour.returns >= rule.times:
        raise Diverged(
            f"{fault}, though the run went back {counted(detour.returns, 'time')} "
            f"(train.divergence.times); {_advice(run, checkpoints)}"
        ) from fault
    saved = load_checkpoint(run.checkpoints, session.step, session.corpus_sha256).state
    lost = ledger.lose(saved.accounts)
    session.agenda.went_back(saved.heldout_u)
    detour = replace(detour, returns=detour.returns + 1)
    if rule.then == "skip":
        detour = replace(detour, skipped_rows=planner.reached - saved.work.rows)
    else:
        detour = replace(detour, rate=rule.factor * detour.rate)
    planner.go_on(detour, saved.rows, saved.begun)
    checkpoints.write(saved.work)  # again, with the new detour
    changed = {"skipped_rows": detour.skipped_rows, "rate": detour.rate}
    run.event("back", update=saved.work.updates, lost_s=lost, **changed)
    return saved.work


def _advice(run: RunDir, checkpoints: Checkpoints) -> str:
    """What is kept, and what to type instead."""
    kept = "no checkpoint was written before that"
    if (updates := checkpoints.updates()) is not None:
        kept = f"the checkpoint of update {updates} is kept, and all its values are finite"
    if high := far_too_high(run.config, run.choice.follows):
        return (
            f"the learning rate is far too high: start a new run with {high} and a different --out"
        )
    if run.config.train.divergence.then == "stop":
        return (
            f"{kept}: repeat the command with train.divergence.then=lower (or skip) to "
            "continue, or start a new run with a lower optim.lr"
        )
    return f"{kept}: start a new run with a lower optim.lr"
