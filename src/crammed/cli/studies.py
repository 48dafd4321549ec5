"""The verb that compares settings: study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.cli import options
from crammed.cli.output import print_result
from crammed.errors import InputError, TaskFailed
from crammed.quantity import counted
from crammed.terminal.quiet import one_line

if TYPE_CHECKING:
    from crammed.budget import Budget
    from crammed.study.result import StudyResult
    from crammed.study.running.judges import Judge
    from crammed.study.running.request import Request


EVERY = "all"
"""Stands for every built-in study, one after the other."""
SEEDS = 3
"""Runs of each arm unless an option says otherwise."""
_NEEDS = (
    "a study needs --corpus CORPUS_DIR or --data FILES, --out DIR, and --budget BUDGET unless its "
    "file sets budget"
)

StudyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="STUDY",
        help="A built-in study, all of them (all), or your own .yaml file. Without STUDY, the "
        "built-in ones are listed.",
        autocompletion=lambda incomplete: options.beginning("study/studies", incomplete),
    ),
]
WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE|KEY.PATH=VALUE",
        help="A recipe instead of the study's own base, and values that override it.",
        autocompletion=lambda incomplete: options.beginning("recipes", incomplete),
    ),
]
SeedsOption = Annotated[
    int, typer.Option(min=1, max=1000, help="Runs of each arm, each with its own seed.")
]
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
        help="How to score runs: heldout, blimp, suites of tasks such as glue, small or "
        "FILE.yaml, or single tasks such as glue.cola (default: those of the study).",
    ),
]
BlimpOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Sentence pairs for the judge blimp.")
]
TasksDataOption = Annotated[
    Path | None,
    typer.Option("--tasks-data", "--glue", metavar="DIR", help="Folder of the judges' tasks."),
]
RayOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Run on this Ray cluster, such as 10.0.0.5:6379."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Train nothing; say what it would cost.")
]


def study(
    name: StudyArgument = None,
    words: WordsArgument = None,
    corpus: options.CorpusOption = None,
    budget: options.BudgetOption = None,
    seeds: SeedsOption = SEEDS,
    out: FolderOption = None,
    jobs: JobsOption = None,
    as_json: options.JsonOption = False,
    data: options.DataOption = None,
    judges: JudgesOption = None,
    blimp: BlimpOption = None,
    tasks_data: TasksDataOption = None,
    ray: RayOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Compare variants of a recipe at equal budgets and several seeds.

    Without --budget, built-in studies give every run the same FLOPs. With a budget of time, all
    arms are timed before the first run, and each gets as many FLOPs as it can compute in that time.

    Your own study is a YAML file such as this one:

    \b
      base: [crammed, model.layers=4]   # recipe and overrides of every arm
      baseline: muon                    # the arm that the others are compared with
      arms:
        muon: []                        # overrides of this arm
        adamw: [optim.name=adamw]
    """
    from crammed.interface.asking import refuse_twice, sources_of
    from crammed.study.running.places import default_jobs
    from crammed.study.running.request import Request

    if name is None:
        chosen = (corpus, budget, out, jobs, data, judges, blimp, tasks_data, ray, dry_run)
        _list_studies(as_json, asked=any(chosen) or seeds != SEEDS)
        return
    _, overrides = options.recipe_and_overrides(words)
    budgets = _budgets(name, budget)
    if (corpus is None and not data) or not budgets or out is None:
        raise InputError(_NEEDS)
    if corpus is not None and data:
        raise InputError("use --data or --corpus, not both")
    refuse_twice(overrides, "--budget", "budget.limit", given=True)
    requests = [
        Request(
            *(each, words or [], corpus, sources_of(data or []), limit, seeds),
            out / each if name == EVERY else out,
            jobs or default_jobs(),
            _judges(each, judges, blimp, tasks_data),
            ray,
        )
        for each, limit in budgets.items()
    ]
    if dry_run:
        _say_costs(requests, alone=True, as_json=as_json)
    else:
        _run_each(requests, as_json=as_json)


def _budgets(name: str, budget: Budget | None) -> dict[str, Budget]:
    """The budget that was typed or that its file names, of each study; empty if there is none."""
    from crammed.study.spec.arms import read_study, study_names

    every = study_names() if name == EVERY else [name]
    named = {each: budget or read_study(each).usual_budget for each in every}
    return {each: limit for each, limit in named.items() if limit is not None}


def _judges(
    study: str, names: str | None, blimp: Path | None, tasks: Path | None
) -> Sequence[Judge]:
    """The judges and the data that were typed, or those of the study's file."""
    from crammed.study.running.judges import judges_of
    from crammed.study.spec.arms import read_study

    own = read_study(study)
    wanted = own.judges if names is None else filter(None, names.split(","))
    return judges_of(wanted, blimp, tasks, own.judge_data)


def _run_each(requests: Sequence[Request], *, as_json: bool) -> None:
    """Run studies one after the other, write their pages, and print what they found.

    Of several, the costs are printed first. If one of them is refused, the others still run.
    """
    from crammed.interface.asking import shown_progress
    from crammed.study.findings.statistics import require_statistics
    from crammed.study.findings.table import findings
    from crammed.study.running.request import run, sharing

    require_statistics()
    if several := len(requests) > 1:
        _say_costs(requests, alone=False, as_json=as_json)
    results: dict[str, StudyResult] = {}
    printed: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for request in requests:
        with shown_progress() as progress:
            try:
                result = run(sharing(request, requests), progress)
            except InputError as error:
                if not several:
                    raise
                refused[request.name] = str(error)
                progress.line(f"{request.name}  refused: {error}")
                continue
        results[request.name], page = result, str(_write_page(request.out))
        printed[request.name] = {**result.values(), **findings(result), "report": page}
        if not as_json:
            _print_study(result, page)
    if as_json:
        whole = {**printed, **{name: {"refused": why} for name, why in refused.items()}}
        print_result(whole if several else printed[requests[0].name], as_json, [])
    _raise_for(results, refused, several=several)


def _write_page(out: Path) -> Path:
    """Write the page of a study, unless ``study.json`` has not changed since it was written."""
    from crammed.interface.asking import shown_progress
    from crammed.report.study import write_study_page
    from crammed.study.result import RESULT

    page = out / "report.html"
    if page.exists() and page.stat().st_mtime_ns >= (out / RESULT).stat().st_mtime_ns:
        return page
    with shown_progress() as progress:
        return write_study_page(out, page, progress)


def _raise_for(
    results: Mapping[str, StudyResult], refused: Mapping[str, str], *, several: bool
) -> None:
    from crammed.study.result import StudyResult

    def faulty(of: Callable[[StudyResult], dict[str, str]]) -> list[str]:
        named = ((f"{name}: " if several else "", of(result)) for name, result in results.items())
        return [f"{name}{fault}" for name, found in named for fault in found]

    faults = [f"{name} was refused ({why})" for name, why in refused.items()]
    if failed := faulty(StudyResult.failed_runs):
        runs = sum(len(arm.runs) for result in results.values() for arm in result.arms.values())
        faults.append(f"{len(failed)} of {counted(runs, 'run')} failed: {'; '.join(failed)}")
    if missing := faulty(StudyResult.missing_scores):
        faults.append(f"{counted(len(missing), 'score')} missing: {'; '.join(missing)}")
    if faults:
        raise TaskFailed(
            f"finished, but {'; '.join(faults)}; the reasons are printed above, and the same "
            "command tries them again"
        )


def _say_costs(requests: Sequence[Request], *, alone: bool, as_json: bool) -> None:
    """Print what studies cost, on standard output if that is all that was asked for.

    If one of several is refused, the others are still counted.
    """
    from crammed.interface.asking import shown_progress
    from crammed.study.running.costs import Cost
    from crammed.study.running.request import cost
    from crammed.study.running.timing import Timing

    costs: dict[str, Cost] = {}
    refused: dict[str, str] = {}
    with shown_progress() as progress:
        timing = Timing(progress)
        for request in requests:
            try:
                costs[request.name] = cost(request, timing)
            except InputError as error:
                if len(requests) == 1:
                    raise
                refused[request.name] = str(error)
        lines = [(name, str(each)) for name, each in costs.items()]
        lines += [(name, f"refused: {why}") for name, why in refused.items()]
        if len(requests) > 1 and costs:
            first, *others = costs.values()
            lines.append((EVERY, str(sum(others, first))))
        if not alone:
            for name, said in lines:
                progress.line(f"{name}  {said}")
            return
    values = {name: each.values() for name, each in costs.items()}
    values |= {name: {"refused": why} for name, why in refused.items()}
    print_result(values, as_json, lines)
    if refused:
        raise TaskFailed(f"refused: {', '.join(refused)}; the reasons are printed above")


def _print_study(result: StudyResult, page: str) -> None:
    """Print the comparison of the arms; below it, what failed, and where the page is."""
    from rich.text import Text

    from crammed.study.findings.table import study_tables
    from crammed.terminal.table import show

    faults = {**result.failed_runs(), **result.missing_scores()}
    below = [f"{run} failed: {reason}" for run, reason in faults.items()]
    below.append(f"page  {page}")
    show([*study_tables(result), Text("\n".join(map(one_line, below)))])


def _list_studies(as_json: bool, *, asked: bool) -> None:
    """List the built-in studies, unless options have asked to run one."""
    from crammed.study.spec.arms import read_study, study_names

    if asked:
        raise InputError(
            "name the study to run, such as ablation or FILE.yaml; without options, crammed study "
            "lists them"
        )
    listed = {name: read_study(name) for name in study_names()}
    values = {name: each.model_dump(mode="json") for name, each in listed.items()}
    lines = [
        (name, (each.description, f"arms: {', '.join(each.arms)}")) for name, each in listed.items()
    ]
    print_result(values, as_json, lines)
