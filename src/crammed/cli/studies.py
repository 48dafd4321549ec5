"""The verb that compares settings: study."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.budget import Budget
from crammed.cli.options import (
    BudgetOption,
    CorpusOption,
    DataOption,
    JsonOption,
    RecipeWords,
    absolute_source,
    refuse_twice,
    shown_progress,
)
from crammed.cli.output import print_result
from crammed.errors import InputError, TaskFailed
from crammed.quantity import counted

if TYPE_CHECKING:
    from crammed.progress import Progress
    from crammed.study.corpora import Corpora
    from crammed.study.folder import Chooser
    from crammed.study.judges import Judge


StudyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="STUDY",
        help="A built-in study, or a .yaml file of your own. Without STUDY, the built-in ones are "
        "listed.",
    ),
]
SeedsOption = Annotated[int, typer.Option(min=1, max=1000, help="Runs of each variant.")]
FolderOption = Annotated[
    Path | None, typer.Option(help="Folder for all runs; resumed if it exists.")
]
JobsOption = Annotated[
    int | None,
    typer.Option(min=1, max=4096, help="Runs at a time (default: one, or one on each GPU)."),
]
JudgesOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="What to judge runs by: heldout, blimp, glue or single tasks such as glue.cola "
        "(default: those of the study).",
    ),
]
BlimpOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Sentence pairs for the judge blimp.")
]
GlueOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of tasks for the judge glue.")
]
RayOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Run on this Ray cluster, such as 10.0.0.5:6379."),
]


def study(
    name: StudyArgument = None,
    words: RecipeWords = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = None,
    seeds: SeedsOption = 3,
    out: FolderOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
    data: DataOption = None,
    judges: JudgesOption = None,
    blimp: BlimpOption = None,
    glue: GlueOption = None,
    ray: RayOption = None,
) -> None:
    """Train variants with equal budgets, and compare their losses.

    A study of your own is a YAML file such as this one:

    \b
      base: [crammed, model.layers=4]   # recipe and overrides of every arm
      baseline: muon                    # the arm that the others are compared with
      arms:
        muon: []                        # overrides of this arm
        adamw: [optim.name=adamw]
    """
    from crammed.study.arms import read_study
    from crammed.study.folder import name_in
    from crammed.study.judges import judges_of
    from crammed.study.places import default_jobs

    if name is None:
        _list_studies(as_json)
        return
    name = name_in(out, name) if out is not None else name
    read = read_study(name)
    if (corpus is None and not data) or budget is None or out is None:
        raise InputError(
            "a study needs --corpus CORPUS_DIR or --data FILES, --budget BUDGET and --out DIR"
        )
    if corpus is not None and data:
        raise InputError("use --data or --corpus, not both")
    refuse_twice([w for w in words or [] if "=" in w], "--budget", "budget.limit", given=True)
    named = read.judges if judges is None else [each for each in judges.split(",") if each]
    asked = judges_of(named, blimp, glue)
    texts = [absolute_source(each) for each in data or []]
    call = _Call(name, words or [], corpus, texts, budget, seeds, out, jobs or default_jobs())
    result = _run(call, asked, ray)
    failed, missing = _failed(result), _unscored(result)
    _print_study(result, {**failed, **missing}, out, as_json)
    _raise_for(result, failed, missing)


def _raise_for(result: dict[str, Any], failed: dict[str, str], missing: dict[str, str]) -> None:
    """Raise `TaskFailed` if runs failed, or scores are missing."""
    faults = []
    if failed:
        runs = sum(len(each["runs"]) for each in result["arms"].values())
        faults.append(f"{len(failed)} of {counted(runs, 'run')} failed: {'; '.join(failed)}")
    if missing:
        faults.append(f"{counted(len(missing), 'score')} could not be had: {'; '.join(missing)}")
    if faults:
        raise TaskFailed(
            f"finished, but {'; '.join(faults)}; the reasons are printed above, and the same "
            "command tries them again"
        )


@dataclass(frozen=True)
class _Call:
    """What was typed."""

    name: str
    words: list[str]
    corpus: Path | None
    texts: list[str]
    budget: Budget
    seeds: int
    out: Path
    jobs: int


def _run(call: _Call, judges: Sequence[Judge], cluster: str | None) -> dict[str, Any]:
    """Prepare what the study reads, check all of it, and run it."""
    from crammed.study.arms import load_study
    from crammed.study.folder import Chooser, began_earlier
    from crammed.study.places import threads_of
    from crammed.study.runner import run_study

    name, words, budget, out = call.name, call.words, call.budget, call.out
    with shown_progress() as progress:
        chooser = Chooser(out, threads_of(call.jobs), progress)
        corpora = _corpora(call, chooser, progress)
        former = began_earlier(name, words, corpora, budget, out)
        loaded = load_study(name, corpora, budget, words, chooser, former)
        if former:
            progress.line("study  goes on with its recipes as they were in an earlier version")
        return run_study(
            loaded,
            corpora,
            budget,
            call.seeds,
            out,
            call.jobs,
            progress,
            chooser.chosen,
            judges,
            cluster,
        )


def _corpora(call: _Call, chooser: Chooser, progress: Progress) -> Corpora:
    """The corpus that was named, or those of the arms, once all arms have been found valid."""
    from crammed.data.corpus import Corpus
    from crammed.study.arms import load_study, read_study, with_words
    from crammed.study.corpora import Corpora
    from crammed.study.preparing import planned_corpora, prepare_corpora

    if call.corpus is not None:
        return Corpora(Corpus(call.corpus))
    study = with_words(read_study(call.name), call.words)
    planned = planned_corpora(study, call.texts, call.budget, call.out)
    load_study(call.name, planned, call.budget, call.words)
    return prepare_corpora(planned, call.out, chooser.tokenizer, progress)


def _print_study(result: dict[str, Any], failed: dict[str, str], out: Path, as_json: bool) -> None:
    """The comparison of the arms; below it what failed, and how to look at the runs."""
    from rich.text import Text

    from crammed.evaluation.scores.table import show
    from crammed.study.statistics import (
        RATES,
        compare_arms,
        decidable,
        measures_of,
        smallest_difference,
    )
    from crammed.study.table import study_tables

    if as_json:
        measures = measures_of(result) or RATES
        compared = {
            "compared": compare_arms(result, measures),
            "smallest_difference": {each: smallest_difference(result, each) for each in measures},
            "decidable": decidable(result),
        }
        print_result({**result, **compared}, as_json, [])
        return
    below = [f"{run} failed: {reason}" for run, reason in failed.items()]
    below.append(f"next  crammed report {shlex.quote(str(out))}")
    show([*study_tables(result), Text("\n".join(below))])


def _failed(result: dict[str, Any]) -> dict[str, str]:
    """The runs that failed, and why."""
    return {
        f"{arm}, seed {seed}": run["failed"]
        for arm, each in result["arms"].items()
        for seed, run in each["runs"].items()
        if "failed" in run
    }


def _unscored(result: dict[str, Any]) -> dict[str, str]:
    """The scores that judges could not give, and why."""
    return {
        f"{name} of {arm}, seed {seed}": reason
        for arm, each in result["arms"].items()
        for seed, run in each["runs"].items()
        for name, reason in run.get("unscored", {}).items()
    }


def _list_studies(as_json: bool) -> None:
    from crammed.study.arms import read_study, study_names

    listed = {name: read_study(name) for name in study_names()}
    values = {name: each.model_dump(mode="json") for name, each in listed.items()}
    lines = [
        (name, f"{each.description}\narms: {', '.join(each.arms)}") for name, each in listed.items()
    ]
    print_result(values, as_json, lines)
