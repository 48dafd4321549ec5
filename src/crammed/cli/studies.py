"""The verb that compares settings: study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crammed.cli.options import (
    BudgetOption,
    CorpusOption,
    JsonOption,
    RecipeWords,
    refuse_twice,
    shown_progress,
)
from crammed.cli.output import print_result
from crammed.errors import InputError, TaskFailed


def study(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY",
            help="A built-in study, or a .yaml file of your own. Without STUDY, the built-in ones "
            "are listed.",
        ),
    ] = None,
    words: RecipeWords = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each variant.")] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Folder for all runs; resumed if it exists.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=4096, help="Runs at a time; 1 on a GPU.")] = 1,
    as_json: JsonOption = False,
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
    from crammed.data.corpus import Corpus
    from crammed.study.arms import load_study, read_study
    from crammed.study.folder import Chooser, began_earlier
    from crammed.study.runner import run_study, threads_of

    if name is None:
        _list_studies(as_json)
        return
    if corpus is None or budget is None or out is None:
        read_study(name)
        raise InputError("a study needs --corpus CORPUS_DIR, --budget BUDGET and --out DIR")
    refuse_twice([w for w in words or [] if "=" in w], "--budget", "budget.limit", given=True)
    opened = Corpus(corpus)
    with shown_progress() as progress:
        chooser = Chooser(opened, out, threads_of(jobs), progress)
        former = began_earlier(name, words or [], opened, budget, out)
        loaded = load_study(name, opened, budget, words or [], chooser, former)
        if former:
            progress.line("study  goes on with its recipes as they were in an earlier version")
        result = run_study(loaded, opened, budget, seeds, out, jobs, progress, chooser.chosen)
    failed = _failed(result)
    _print_study(result, failed, out, as_json)
    if failed:
        raise TaskFailed(
            f"finished, but these runs failed: {'; '.join(failed)}; the reasons are printed above, "
            "and the same command tries them again"
        )


def _print_study(result: dict[str, Any], failed: dict[str, str], out: Path, as_json: bool) -> None:
    """The comparison of the arms; below it what failed, and where the page is."""
    from rich.text import Text

    from crammed.evaluation.scores.table import show
    from crammed.report.study import write_study_page
    from crammed.study.statistics import (
        RATES,
        compare_arms,
        decidable,
        measures_of,
        smallest_difference,
    )
    from crammed.study.table import study_tables

    with shown_progress() as progress:
        page = str(write_study_page(out, out / "report.html", progress))
    if as_json:
        measures = measures_of(result) or RATES
        compared = {
            "compared": compare_arms(result, measures),
            "smallest_difference": {each: smallest_difference(result, each) for each in measures},
            "decidable": decidable(result),
        }
        print_result({**result, **compared, "report": page}, as_json, [])
        return
    below = [f"{run} failed: {reason}" for run, reason in failed.items()]
    below.append(f"page  {page}")
    show([*study_tables(result), Text("\n".join(below))])


def _failed(result: dict[str, Any]) -> dict[str, str]:
    """The runs that failed, and why."""
    return {
        f"{arm}, seed {seed}": run["failed"]
        for arm, each in result["arms"].items()
        for seed, run in each["runs"].items()
        if "failed" in run
    }


def _list_studies(as_json: bool) -> None:
    from crammed.study.arms import read_study, study_names

    listed = {name: read_study(name) for name in study_names()}
    values = {name: each.model_dump(mode="json") for name, each in listed.items()}
    lines = [
        (name, f"{each.description}\narms: {', '.join(each.arms)}") for name, each in listed.items()
    ]
    print_result(values, as_json, lines)
