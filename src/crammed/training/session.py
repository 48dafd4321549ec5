"""What the parts of a training share."""

from __future__ import annotations

from dataclasses import dataclass

from crammed.budget import Ledger
from crammed.runs.directory import RunDir
from crammed.training.agenda import Agenda
from crammed.training.plan import Planner
from crammed.training.update.step import TrainStep


@dataclass(frozen=True)
class Session:
    """A run while this process trains it.

    Attributes:
        corpus_sha256: hash of the corpus that the run trains on.
    """

    run: RunDir
    step: TrainStep
    ledger: Ledger
    planner: Planner
    agenda: Agenda
    corpus_sha256: str

    @classmethod
    def untimed(
        cls, run: RunDir, step: TrainStep, ledger: Ledger | None = None, corpus_sha256: str = ""
    ) -> Session:
        """A session outside of training, whose budget never ends."""
        ledger = Ledger(()) if ledger is None else ledger
        planner = Planner(run.config, step.model.encoder.tokens.num_embeddings, None, ledger)
        agenda = Agenda(run.config, ledger, lambda seconds: True)
        return cls(run, step, ledger, planner, agenda, corpus_sha256)
