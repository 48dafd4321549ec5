"""Runs a study as it was asked for, from its file to the last score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from crammed.budget import Budget
from crammed.data.corpus import Corpus
from crammed.files.locks import in_use, is_locked
from crammed.study.result import StudyResult, read_result
from crammed.study.running.checks import check_budgets, tuned_differently
from crammed.study.running.costs import Cost, cost_of
from crammed.study.running.folder import Chooser, config_of, going_on, refuse_foreign
from crammed.study.running.judges import Judge, check_data
from crammed.study.running.places import threads_of
from crammed.study.running.preparing import FOLDER, planned_corpora, prepare_corpora
from crammed.study.running.runner import run_study
from crammed.study.running.seconds import in_seconds
from crammed.study.running.timing import Timing
from crammed.study.spec.arms import Choose, Study, left_out, load_study, read_study, with_words
from crammed.study.spec.corpora import ArmCorpora, Corpora, decides_corpus
from crammed.terminal.progress import Progress


@dataclass(frozen=True)
class Request:
    """A study, and where and on what it is to run.

    Attributes:
        name: a built-in study, or the user's own .yaml file.
        words: a recipe or overrides, which replace those of the study's base.
        corpus: a prepared corpus for all arms; None prepares those of the arms from `texts`.
        seeds: runs of each arm.
        out: folder of the study.
        jobs: runs at a time, which share the CPU's cores.
        judges: what each run is judged by, besides held-out loss.
        cluster: address of a Ray cluster; None is this machine.
    """

    name: str
    words: Sequence[str]
    corpus: Path | None
    texts: Sequence[str]
    budget: Budget
    seeds: int
    out: Path
    jobs: int
    judges: Sequence[Judge] = ()
    cluster: str | None = None

    @cached_property
    def study(self) -> Study:
        """The study with the words of the request in its base, as it was read."""
        return with_words(read_study(self.name), self.words)

    @property
    def prepared(self) -> Path:
        """The corpus of the study's base, if the study prepares one."""
        return self.out / FOLDER / "base"

    @property
    def has_corpora(self) -> bool:
        """Whether arms of the study have corpora of their own."""
        words = [word for arm in self.study.arms for word in self.study.words(arm)]
        return any(map(decides_corpus, words))


def sharing(request: Request, requests: Sequence[Request]) -> Request:
    """The request with a corpus that another has prepared, if all its arms read one corpus."""
    there = [each for each in requests if (each.prepared / "manifest.json").exists()]
    if request.corpus is not None or request in there or request.has_corpora:
        return request
    shared = next((each for each in there if not each.has_corpora), None)
    return request if shared is None else replace(request, corpus=shared.prepared, texts=[])


def cost(request: Request, timing: Timing) -> Cost:
    """The cost of what is left of a study, before anything is prepared.

    Raises:
        InputError: as `run`.
    """
    corpora: ArmCorpora
    if request.corpus is not None:
        corpora = Corpora(Corpus(request.corpus))
    else:
        corpora = planned_corpora(request.study, request.texts, request.budget, request.out)
    loaded = _loaded(request, corpora)
    limits = (request.budget, request.seeds, request.out, request.jobs)
    found = cost_of(loaded, corpora, *limits, timing, request.judges)
    return found if request.cluster is None else replace(found, jobs=None)


def run(request: Request, progress: Progress) -> StudyResult:
    """Prepare the corpora of a study, check its arms, train and judge its runs.

    Raises:
        InputError: the folder holds something else or is in use, text is unsuitable, or an arm is
            refused.
    """
    refuse_foreign(request.out)
    if is_locked(request.out):  # so that nothing is measured beside the runs of that process
        raise in_use(request.out)
    before = read_result(request.out)
    check_data(request.judges, before.judges, before.measures())
    threads = threads_of(request.jobs)
    choose = Chooser(request.out, threads, progress)
    corpora = _corpora(request, choose, progress)
    loaded = _loaded(request, corpora, choose)
    if same := left_out(request.study, loaded):
        progress.line(f"study  leaves out {', '.join(same)}: same as other arms at this budget")
    configs = {arm: config_of(loaded, arm, corpora, request.budget) for arm in loaded.arms}
    if words := tuned_differently(configs, loaded.baseline, request.judges):
        progress.line(words)
    loaded, paces = in_seconds(loaded, corpora, request.budget, request.out, threads, progress)
    return run_study(
        loaded,
        corpora,
        request.budget,
        request.seeds,
        request.out,
        request.jobs,
        progress,
        chosen=choose.chosen,
        judges=request.judges,
        cluster=request.cluster,
        paces=paces,
    )


def _loaded(request: Request, corpora: ArmCorpora, choose: Choose | None = None) -> Study:
    """The study with the values of all arms; those that have begun keep theirs."""
    loaded = load_study(request.name, corpora, request.budget, request.study, choose)
    return going_on(loaded, request.study, request.out)


def _corpora(request: Request, choose: Chooser, progress: Progress) -> Corpora:
    if request.corpus is not None:
        return Corpora(Corpus(request.corpus))
    planned = planned_corpora(request.study, request.texts, request.budget, request.out)
    arms = load_study(request.name, planned, request.budget, request.study)
    begins = not (request.prepared / "manifest.json").exists()
    trackers = begins and request.cluster is None
    check_budgets(arms, planned, request.budget, trackers=trackers)
    return prepare_corpora(planned, request.out, choose.tokenizer, progress)
