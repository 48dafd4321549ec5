"""What scores and fine-tunes models: evaluate, decide, finetune, embed."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from crammed import deciding
from crammed.adaptation.adapting import Adaptation, ask_for
from crammed.adaptation.general_text import TaskTexts
from crammed.adaptation.original import Original
from crammed.budget import Budget
from crammed.config.arguments import File, Jobs, Seeds, checked
from crammed.data.preparing.read.source import check_text
from crammed.embedding.making import make
from crammed.embedding.tuning import Partners, Tuning
from crammed.errors import CrammedError, InputError
from crammed.evaluation import evaluation
from crammed.evaluation.decision import ADAPTED, SCRATCH
from crammed.evaluation.evaluation import Request
from crammed.files.folders import behind_links
from crammed.files.writing import check_file
from crammed.finetuned.keeping import keep
from crammed.hints import no_such
from crammed.interface import asking
from crammed.interface.results import Decision, Embedder, Evaluation, FineTuned
from crammed.interface.turn import own_turn
from crammed.report.page import write_report
from crammed.terminal.progress import Progress
from crammed.terminal.quiet import one_line
from crammed.training.plan import refuse_too_little


@checked
@own_turn()
def evaluate(
    model: File,
    suite: File = "glue",
    *,
    data: File,
    tasks: asking.Tasks | None = None,
    seeds: Seeds | None = None,
    protocol: File | None = None,
    untrained: bool = True,
    untrained_in: File | None = None,
    submission: File | None = None,
    into: File | None = None,
    jobs: Jobs | None = None,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
) -> Evaluation:
    """Score an encoder on tasks, BLiMP or held-out text, as ``crammed evaluate``.

    Whatever the folder of scores holds already is not computed again.

    Args:
        model: a run, a Hugging Face folder, or a name on the hub.
        suite: a built-in suite, a .yaml file of tasks, ``blimp`` or ``heldout``.
        data: folder of tasks, or ``hub``; for ``blimp`` a file or folder of pairs, for ``heldout``
            a file.
        tasks: names of tasks; None is every task in the data.
        untrained: also fine-tune the untrained model.
        untrained_in: folder in which models of a shape share the untrained model's predictions.
        submission: zip file to write for the leaderboard.
        into: folder for scores and predictions; None is ``evaluation`` in a run, or else
            ``evaluations/MODEL``.

    Raises:
        InputError: something given is wrong, or missing. A task that fails does not raise.
    """
    if submission is not None:
        check_file(Path(submission))
    request = replace(
        _request(model, suite, data, seeds, protocol, jobs, device, dtype),
        tasks=None if tasks is None else tuple(asking.task_names(tasks)),
        into=None if into is None else Path(into),
        untrained=untrained,
        twins=None if untrained_in is None else Path(untrained_in),
        submission=None if submission is None else Path(submission),
        trust_remote_code=trust_remote_code,
    )
    with asking.shown_progress() as progress:
        result = evaluation.evaluate(request, progress)
        _rewrite_report(Path(model), Path(result["folder"]), progress)
    return Evaluation(Path(result["folder"]), result)


def _request(
    model: File,
    suite: File,
    data: File,
    seeds: int | None,
    protocol: File | None,
    jobs: int | None,
    device: str,
    dtype: str,
) -> Request:
    return Request(
        str(model),
        str(suite),
        str(data),
        seeds=seeds,
        protocol=None if protocol is None else str(protocol),
        jobs=jobs,
        compute=asking.compute_config(device, dtype),
    )


def _rewrite_report(run: Path, folder: Path, progress: Progress) -> None:
    """Let the report of a run show what was found now; if it has none, none is written."""
    report = run / "report.html"
    if not report.exists() or folder.resolve().parent != run.resolve():
        return
    try:
        progress.line(f"report  {write_report([run], report)}")
    except CrammedError as error:
        progress.line(f"report  not rewritten: {one_line(error).partition(';')[0]}")


def _compute_section(words: list[str], device: str, dtype: str) -> dict[str, Any]:
    """What options decide about where models train."""
    chosen = {k: v for k, v in (("device", device), ("dtype", dtype)) if v != "auto"}
    for name in chosen:
        asking.refuse_twice(words, f"--{name}", f"compute.{name}", given=True)
    return {"compute": chosen} if chosen else {}


_OF_BOTH = re.compile(r"(data|batch|compute|train\.divergence)[.=]")


@checked
@own_turn()
def decide(
    model: File,
    recipe: str | None = None,
    overrides: asking.Overrides = (),
    *,
    data: asking.Texts,
    suite: File,
    tasks_data: File,
    tasks: asking.Tasks | None = None,
    task_adaptive: bool = False,
    budget: asking.Limit | None = None,
    seed: int | None = None,
    seeds: Seeds | None = None,
    protocol: File | None = None,
    out: File = "decision",
    jobs: Jobs | None = None,
    device: str = "auto",
    dtype: str = "auto",
) -> Decision:
    """Train from scratch, adapt an encoder, or take it as it is, as ``crammed decide``.

    The same call again goes on where an earlier one ended.

    Args:
        model: a pretrained encoder: a Hugging Face folder, or a name on the hub.
        recipe, overrides: what to train from scratch; values of data, batch, compute and
            train.divergence are for both runs.
        task_adaptive: adapt to the texts of the tasks' training rows as well.
        out: the folder for everything.

    The other arguments, and errors, are those of `crammed.run` and `evaluate`.
    """
    original = Original.find(str(model))
    request = replace(
        _request(model, suite, tasks_data, seeds, protocol, jobs, device, dtype),
        tasks=None if tasks is None else tuple(asking.task_names(tasks)),
        untrained=False,
    )
    folder = behind_links(Path(out))
    runs, words = deciding.places(folder), asking.words_of(overrides)
    both = [*filter(_OF_BOTH.match, words)]
    if task_adaptive and request.tasks is not None:
        raise InputError(
            "--task-adaptive reads the texts of all tasks of the suite: leave out --tasks, or name "
            "a suite of these tasks alone"
        )
    texts = TaskTexts.of(request.suite, request.data) if task_adaptive else None
    other = partial(ask_for, original, tasks=texts)
    fixed = _compute_section(words, device, dtype)
    scratch, _, _ = asking.configure(recipe, words, fixed, budget, seed, data, out=runs[SCRATCH])
    equal = scratch.config.budget.limit
    adapting, _, _ = asking.configure(
        None, both, fixed, equal, seed, data, out=runs[ADAPTED], ask=other
    )
    for each in (scratch, adapting):
        refuse_too_little(each.nominally())
        check_text(each.config.data)
    with asking.shown_progress() as progress:
        result = deciding.decide(scratch, adapting, Adaptation(original), request, folder, progress)
    return Decision(folder, result)


@checked
@own_turn()
def finetune(
    model: File,
    suite: File,
    *,
    data: File,
    out: File,
    task: str | None = None,
    seeds: Seeds | None = None,
    protocol: File | None = None,
    untrained: bool = True,
    into: File | None = None,
    jobs: Jobs | None = None,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    license: str | None = None,
) -> FineTuned:
    """Fine-tune an encoder on a task, and keep the median seed's model: ``crammed finetune``.

    Args:
        task: one of several tasks in the suite.
        out: the folder to create.
        license: for its model card; None is that of the encoder's card.

    The other arguments, and errors, are those of `evaluate`.
    """
    request = replace(
        _request(model, suite, data, seeds, protocol, jobs, device, dtype),
        tasks=None if task is None else (task,),
        into=None if into is None else Path(into),
        untrained=untrained,
        trust_remote_code=trust_remote_code,
    )
    kept = Path(out)
    with asking.shown_progress() as progress:
        result = keep(request, behind_links(kept), progress, license)
    return FineTuned(Path(result["folder"]), result, kept.absolute())


@checked
@own_turn()
def embed(
    model: File,
    *,
    data: asking.Texts,
    out: File,
    budget: asking.Limit = "10m",
    partners: str = "neighbours",
    pairs: File | None = None,
    beside: File | None = None,
    batch: int = 64,
    length: int = 128,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    license: str | None = None,
) -> Embedder:
    """Tune an encoder into sentence embeddings on unlabelled text, as ``crammed embed``.

    Args:
        model: a run, a Hugging Face folder, or a name on the hub.
        data: files or folders of text, or names such as ``hub:NAME``.
        out: the folder to create, for sentence-transformers.
        budget: time, tokens or updates of the tuning.
        partners: what a passage is to be near to: ``neighbours``, or itself with other
            ``dropout``. With ``denoise``, it is rebuilt from its vector, as in TSDAE.
        pairs: a file of pairs of texts that people rated, to score on.
        beside: another model, whose vectors are scored as well.
        batch: pairs of an update.
        length: tokens at which texts are truncated.
        license: for the model card; None is that of the encoder's card.

    Raises:
        InputError: something given is wrong, or missing.
    """
    if not (sources := asking.sources_of(data)):
        raise InputError(asking.NO_DATA)
    limit = Budget.parse(budget) if isinstance(budget, str) else budget
    if partners not in get_args(Partners):
        raise InputError(no_such("partners", partners, get_args(Partners)))
    tuning = Tuning(limit, cast(Partners, partners), batch, length, seed)
    rated = None if pairs is None else Path(pairs)
    kept, compute = Path(out), asking.compute_config(device, dtype)
    with asking.shown_progress() as progress:
        result = make(
            str(model),
            sources,
            behind_links(kept),
            tuning,
            rated,
            compute,
            progress,
            beside=None if beside is None else str(beside),
            trust_remote_code=trust_remote_code,
            license=license,
        )
    return Embedder(kept, result)
