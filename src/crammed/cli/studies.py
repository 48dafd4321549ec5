"""The verb that compares settings: study."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from rich.table import Table


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
    from crammed.study.folder import Chooser, began_earlier, name_in
    from crammed.study.runner import run_study, threads_of

    if name is None:
        _list_studies(as_json)
        return
    name = name_in(out, name) if out is not None else name
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
    """The comparison of the arms; below it what failed, or else how to look at the runs."""
    from rich.text import Text

    from crammed.evaluation.scores.table import show
    from crammed.study.statistics import compare_arms

    rows = compare_arms(result)
    if as_json:
        print_result({**result, "compared": rows}, as_json, [])
        return
    below = [f"{run} failed: {reason}" for run, reason in failed.items()]
    below = below or [f"next  crammed report {shlex.quote(str(out))}/*-0"]
    show([_table(rows, result["baseline"]), Text("\n".join(below))])


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


def _table(rows: list[dict[str, Any]], baseline: str) -> Table:
    """The arms of a study, the best first."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, title="Held-out loss", title_justify="left")
    table.add_column("arm")
    difference = f"difference from {baseline} (15 %)"
    for name in ("seeds", "15 % masked", "25 % masked", difference, "95 % interval", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if "loss@0.15" not in row:
            table.add_row(row["arm"], "0", "failed")
            continue
        at15, at25 = row["loss@0.15"], row["loss@0.25"]
        between = at15["interval"]
        table.add_row(
            row["arm"],
            str(row["seeds"]),
            _mean_text(at15),
            _mean_text(at25),
            "" if at15["difference"] is None else f"{at15['difference']:+.3f}",
            "" if between is None else f"{between[0]:+.3f} to {between[1]:+.3f}",
            "" if at15["p"] is None else f"{at15['p']:.3f}",
        )
    return table


def _mean_text(loss: dict[str, Any]) -> str:
    deviation = loss["deviation"]
    return f"{loss['mean']:.3f}" + (f" ± {deviation:.3f}" if deviation is not None else "")
