"""What the functions return: folders, and what is in them. A notebook shows each as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crammed.config.arguments import File, checked
from crammed.data.corpus import Corpus
from crammed.data.show import describe_corpus
from crammed.embedding.card import score_lines
from crammed.evaluation.decision import cell, sentences, ways_in
from crammed.evaluation.scores.table import heldout_text
from crammed.extras import import_extra
from crammed.interface.lines import Line, run_lines, score_text, table_html
from crammed.pretraining import result
from crammed.runs.directory import read_config, read_task_scores
from crammed.runs.logs import heldout_losses, read_events, read_metrics
from crammed.runs.summary import Summary, read_summary


@checked
def read_run(run: File) -> Run:
    """Open the folder of a run, finished or not.

    Raises:
        InputError: it is not a run.
    """
    read_config(Path(run))
    return Run(Path(run))


@dataclass(frozen=True)
class _Result:
    """What is in a folder, wherever the program goes on to work.

    Attributes:
        shown: the folder as it was named.
    """

    folder: Path
    shown: Path = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shown", self.folder)
        object.__setattr__(self, "folder", self.folder.absolute())


@dataclass(frozen=True)
class Run(_Result):
    """A run in its folder; everything is read when it is asked for."""

    @property
    def export(self) -> Path:
        """The model as a Hugging Face folder."""
        return self.folder / "export"

    @property
    def summary(self) -> Summary | None:
        """The contents of ``summary.json``; None until training has finished."""
        return read_summary(self.folder)

    @property
    def scores(self) -> dict[str, dict[str, Any]]:
        """The scores of each task in the run's own evaluation folder, as `Evaluation.scores`.

        A name that several suites have is ``SUITE.NAME``.
        """
        return read_task_scores(self.folder)

    @property
    def log(self) -> Any:
        """The log points as a pandas data frame, a row each, without those that a crash undid."""
        return _frame(read_metrics(self.folder))

    @property
    def heldout(self) -> Any:
        """Held-out losses, during training and after it, without those that a crash undid."""
        return _frame(heldout_losses(read_events(self.folder, heldout=("update",))))

    @property
    def result(self) -> dict[str, Any]:
        """The result of a finished run, as ``--json`` prints it."""
        return result(self.folder, self.shown)

    def _repr_html_(self) -> str:
        from crammed.report.page import curve_html

        if self.summary is None:
            return table_html([("run", f"{self.shown}, which has not finished")])
        return table_html(run_lines(self.result)) + curve_html(self.folder)


def _frame(records: list[dict[str, Any]]) -> Any:
    return import_extra("pandas", "pandas", "a data frame").DataFrame(records)


@dataclass(frozen=True)
class Prepared(_Result):
    """A prepared corpus.

    Attributes:
        manifest: the contents of ``manifest.json``: sources, what was dropped, counts.
        budget: the budget that its vocabulary suits.
    """

    manifest: dict[str, Any]
    budget: str

    @property
    def lines(self) -> list[Line]:
        """The manifest in words."""
        described = dict(describe_corpus(Corpus(self.folder)))
        return [*(described | {"corpus": [str(self.shown)]}).items()]

    def _repr_html_(self) -> str:
        return table_html(self.lines)


@dataclass(frozen=True)
class Evaluation(_Result):
    """Scores of a model on a suite.

    Attributes:
        folder: with the scores and predictions.
        result: everything, as ``--json`` prints it.
    """

    result: dict[str, Any]

    @property
    def scores(self) -> dict[str, Any]:
        """By task, such as ``scores["rte"]["median"]``, or ``"failed"``: why it has no score.

        Of the suites ``blimp`` and ``heldout``, which have no tasks, what was measured.
        """
        (suite,) = self.result["suites"].values()
        scores: dict[str, Any] = suite.get("tasks", suite)
        return scores

    def _repr_html_(self) -> str:
        return table_html([*self._lines(), ("folder", str(self.shown))])

    def _lines(self) -> list[Line]:
        ((suite, scores),) = self.result["suites"].items()
        if suite == "blimp":
            return [("BLiMP", f"{scores['blimp']:.1f}")]
        if suite == "heldout":
            return [("held-out loss", heldout_text(scores).splitlines())]
        return [
            (name, f"failed: {score['failed']}" if "failed" in score else score_text(score))
            for name, score in self.scores.items()
        ]


@dataclass(frozen=True)
class FineTuned(Evaluation):
    """A fine-tuned model that was kept.

    Attributes:
        model: the folder that `crammed.load` opens.
    """

    model: Path

    def _lines(self) -> list[Line]:
        return [*super()._lines(), ("model", str(self.model))]


@dataclass(frozen=True)
class Decision(_Result):
    """Three ways to an encoder, scored on the same tasks.

    Attributes:
        folder: with both runs, the scores, and ``report.html``.
        result: everything, as ``--json`` prints it.
    """

    result: dict[str, Any]

    @property
    def scores(self) -> dict[str, Any]:
        """By task: the score of each way, the best one, and those level with it."""
        scores: dict[str, Any] = self.result["scores"]
        return scores

    @property
    def lines(self) -> list[Line]:
        """What to do and why, in words."""
        return [("decision", sentences(self.scores)), ("report", self.result["report"])]

    def _repr_html_(self) -> str:
        shown = {
            name: (f"{way} {cell(s, way)}" for way in ways_in({name: s}))
            for name, s in self.scores.items()
        }
        return table_html([*((name, [*each]) for name, each in shown.items()), *self.lines])


@dataclass(frozen=True)
class Embedder(_Result):
    """Sentence embeddings.

    Attributes:
        folder: what sentence-transformers opens.
        result: the contents of ``embedding.json``, with the scores ``before`` and ``after``.
    """

    result: dict[str, Any]

    @property
    def lines(self) -> list[Line]:
        """The scores in words."""
        return [*score_lines(self.result), ("model", str(self.shown))]

    def _repr_html_(self) -> str:
        return table_html(self.lines)
