"""The verb that compares settings: study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    from crammed.study.arms import Study
    from crammed.study.corpora import Corpora
    from crammed.study.costs import Cost
    from crammed.study.folder import Chooser
    from crammed.study.judges import Judge
    from crammed.study.result import StudyResult
    from crammed.study.timing import Timing
    from crammed.terminal.progress import Progress


EVERY = "all"
"""Stands for every built-in study, one after the other."""

StudyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="STUDY",
        help="A built-in study, all of them (all), or your own .yaml file. Without STUDY, the "
        "built-in ones are listed.",
    ),
]
SeedsOption = Annotated[
    int, typer.Option(min=1, max=1000, help="Runs of each arm, each with another seed.")
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
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what it would cost.")]


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
    dry_run: DryRunOption = False,
) -> None:
    """Compare variants of a recipe, trained with equal budgets and several seeds.

    Your own study is a YAML file such as this one:

    \b
      base: [crammed, model.layers=4]   # recipe and overrides of every arm
      baseline: muon                    # the arm that the others are compared with
      arms:
        muon: []                        # overrides of this arm
        adamw: [optim.name=adamw]
    """
    from crammed.study.arms import read_study
    from crammed.study.places import default_jobs

    if name is None:
        _list_studies(as_json)
        return
    if name != EVERY:
        read_study(name)
    if (corpus is None and not data) or budget is None or out is None:
        raise InputError(
            "a study needs --corpus CORPUS_DIR or --data FILES, --budget BUDGET and --out DIR"
        )
    if corpus is not None and data:
        raise InputError("use --data or --corpus, not both")
    refuse_twice([w for w in words or [] if "=" in w], "--budget", "budget.limit", given=True)
    texts = [absolute_source(each) for each in data or []]
    call = _Call(name, words or [], corpus, texts, budget, seeds, out, jobs or default_jobs(), ray)
    calls = _every(call) if name == EVERY else [call]
    asked = [_judges(each, judges, blimp, glue) for each in calls]
    if dry_run or name == EVERY:
        _say_costs(calls, asked, alone=dry_run, as_json=as_json)
    if not dry_run:
        _run_each(calls, asked, as_json=as_json)


def _run_each(calls: Sequence[_Call], judges: Sequence[Sequence[Judge]], *, as_json: bool) -> None:
    """Run studies one after the other, write their pages, and print what they found.

    If one of several is refused, the others still run.

    Raises:
        InputError: the only study is refused.
        TaskFailed: studies were refused, runs failed, or scores are missing.
    """
    from crammed.study.table import findings

    several = len(calls) > 1
    results: dict[str, StudyResult] = {}
    printed: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for call, asked in zip(calls, judges, strict=True):
        try:
            result = _run(_sharing(call, calls), asked)
        except InputError as error:
            if not several:
                raise
            refused[call.name] = str(error)
            with shown_progress() as progress:
                progress.line(f"{call.name}  refused: {error}")
            continue
        results[call.name], page = result, str(_write_page(call.out))
        printed[call.name] = {**result.values(), **findings(result), "report": page}
        if not as_json:
            _print_study(result, page)
    if as_json:
        whole = {**printed, **{name: {"refused": why} for name, why in refused.items()}}
        print_result(whole if several else printed[calls[0].name], as_json, [])
    _raise_for(results, refused, several=several)


def _write_page(out: Path) -> Path:
    """Write the page of a study, unless ``study.json`` has not changed since it was written."""
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
    """Raise `TaskFailed` if studies were refused, runs failed, or scores are missing."""
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


@dataclass(frozen=True)
class _Call:
    """What was typed for one study."""

    name: str
    words: list[str]
    corpus: Path | None
    texts: list[str]
    budget: Budget
    seeds: int
    out: Path
    jobs: int
    cluster: str | None

    @property
    def study(self) -> Study:
        """The study with the words of the command in its base, as it was read."""
        from crammed.study.arms import read_study, with_words

        return with_words(read_study(self.name), self.words)


def _every(call: _Call) -> list[_Call]:
    """The call for each built-in study, in a folder of its own."""
    from crammed.study.arms import study_names

    return [replace(call, name=name, out=call.out / name) for name in study_names()]


def _judges(
    call: _Call, names: str | None, blimp: Path | None, glue: Path | None
) -> Sequence[Judge]:
    """The judges and the data that were typed, or those of the study's file."""
    from crammed.study.arms import read_study
    from crammed.study.judges import judges_of

    study = read_study(call.name)
    wanted = study.judges if names is None else filter(None, names.split(","))
    return judges_of(wanted, blimp, glue, study.judge_data)


def _sharing(call: _Call, calls: Sequence[_Call]) -> _Call:
    """The call with the corpus that another study has prepared, if all its arms read one corpus."""
    from crammed.study.preparing import FOLDER

    prepared = [each for each in calls if (each.out / FOLDER / "base" / "manifest.json").exists()]
    if call.corpus is not None or call in prepared or _has_corpora(call):
        return call
    shared = next((each for each in prepared if not _has_corpora(each)), None)
    return call if shared is None else replace(call, corpus=shared.out / FOLDER / "base", texts=[])


def _has_corpora(call: _Call) -> bool:
    """Whether arms of the study have corpora of their own."""
    from crammed.study.corpora import is_of_corpus
    from crammed.study.preparing import BY

    study = call.study
    words = [word for arm in study.arms for word in study.words(arm)]
    return any(is_of_corpus(word) or word.startswith(BY) for word in words)


def _say_costs(
    calls: Sequence[_Call], judges: Sequence[Sequence[Judge]], *, alone: bool, as_json: bool
) -> None:
    """Print what studies cost, on standard output if that is all that was asked for.

    If one of several is refused, the others are still counted.
    """
    from crammed.study.timing import Timing

    costs: dict[str, Cost] = {}
    refused: dict[str, str] = {}
    with shown_progress() as progress:
        timing = Timing(progress)
        for call, asked in zip(calls, judges, strict=True):
            try:
                costs[call.name] = _cost(call, asked, timing)
            except InputError as error:
                if len(calls) == 1:
                    raise
                refused[call.name] = str(error)
        lines = [(name, str(cost)) for name, cost in costs.items()]
        lines += [(name, f"refused: {why}") for name, why in refused.items()]
        if len(calls) > 1 and costs:
            first, *others = costs.values()
            lines.append((EVERY, str(sum(others, first))))
        if not alone:
            for name, said in lines:
                progress.line(f"{name}  {said}")
            return
    values = {name: cost.values() for name, cost in costs.items()}
    values |= {name: {"refused": why} for name, why in refused.items()}
    print_result(values, as_json, lines)


def _cost(call: _Call, judges: Sequence[Judge], timing: Timing) -> Cost:
    """The cost of what is left of a study, before anything is prepared."""
    from crammed.data.corpus import Corpus
    from crammed.study.arms import load_study
    from crammed.study.corpora import ArmCorpora, Corpora
    from crammed.study.costs import cost_of
    from crammed.study.folder import going_on
    from crammed.study.preparing import planned_corpora

    asked: Study = call.study
    corpora: ArmCorpora
    if call.corpus is not None:
        corpora = Corpora(Corpus(call.corpus))
    else:
        corpora = planned_corpora(asked, call.texts, call.budget, call.out)
    loaded = load_study(call.name, corpora, call.budget, call.words)
    loaded = going_on(loaded, asked, call.out)
    given = (call.budget, call.seeds, call.out, call.jobs)
    cost = cost_of(loaded, corpora, *given, timing, judges)
    return cost if call.cluster is None else replace(cost, jobs=None)


def _run(call: _Call, judges: Sequence[Judge]) -> StudyResult:
    """Prepare the corpora of a study, check its arms, and run it."""
    from crammed.study.arms import left_out, load_study
    from crammed.study.folder import Chooser, going_on
    from crammed.study.places import threads_of
    from crammed.study.runner import run_study

    name, words, budget, out = call.name, call.words, call.budget, call.out
    with shown_progress() as progress:
        chooser = Chooser(out, threads_of(call.jobs), progress)
        corpora = _corpora(call, chooser, progress)
        loaded = load_study(name, corpora, budget, words, chooser)
        loaded = going_on(loaded, call.study, out)
        if same := left_out(name, loaded):
            progress.line(f"study  without {', '.join(same)}: at this budget the same as others")
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
            call.cluster,
        )


def _corpora(call: _Call, chooser: Chooser, progress: Progress) -> Corpora:
    """The corpus that was named, or those of the arms, prepared once all arms have been checked."""
    from crammed.data.corpus import Corpus
    from crammed.study.arms import load_study
    from crammed.study.checks import check_budgets
    from crammed.study.corpora import Corpora
    from crammed.study.preparing import planned_corpora, prepare_corpora

    if call.corpus is not None:
        return Corpora(Corpus(call.corpus))
    planned = planned_corpora(call.study, call.texts, call.budget, call.out)
    check_budgets(load_study(call.name, planned, call.budget, call.words), planned, call.budget)
    return prepare_corpora(planned, call.out, chooser.tokenizer, progress)


def _print_study(result: StudyResult, page: str) -> None:
    """Print the comparison of the arms; below it, what failed, and where the page is."""
    from rich.text import Text

    from crammed.evaluation.scores.table import show
    from crammed.study.table import study_tables

    faults = {**result.failed_runs(), **result.missing_scores()}
    below = [f"{run} failed: {reason}" for run, reason in faults.items()]
    below.append(f"page  {page}")
    show([*study_tables(result), Text("\n".join(below))])


def _list_studies(as_json: bool) -> None:
    from crammed.study.arms import read_study, study_names

    listed = {name: read_study(name) for name in study_names()}
    values = {name: each.model_dump(mode="json") for name, each in listed.items()}
    lines = [
        (name, f"{each.description}\narms: {', '.join(each.arms)}") for name, each in listed.items()
    ]
    print_result(values, as_json, lines)
