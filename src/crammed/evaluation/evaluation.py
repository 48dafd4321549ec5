"""What ``crammed evaluate`` does: score one model on one suite, and keep the scores in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crammed.config import ComputeConfig, Protocol
from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.blimp import blimp_score
from crammed.evaluation.finetuning.engine import Numerics
from crammed.evaluation.finetuning.probing import refuse_unprobed
from crammed.evaluation.folder import ELSEWHERE, EvaluationFolder, default_folder
from crammed.evaluation.heldout_score import heldout_score
from crammed.evaluation.minimal_pairs import scores_of
from crammed.evaluation.protocol import protocol_for
from crammed.evaluation.submission import submit
from crammed.evaluation.suite import Scores, SuiteEvaluator, first_score, median_seed
from crammed.evaluation.twins import SharedTwins
from crammed.machine.device import Device, choose_device
from crammed.model.trained import has_trained_model
from crammed.runs.directory import read_config
from crammed.tasks.folds import parts_of
from crammed.tasks.read import all_tasks, folder_of, read_pairs_of, read_task
from crammed.tasks.rows import TaskData
from crammed.tasks.task import PAIRS, WITHOUT_FINETUNING, Suite, Task, load_suite, suite_names
from crammed.terminal.progress import Progress


@dataclass(frozen=True)
class Request:
    """Which model to evaluate, on what, and how.

    Attributes:
        model: a run directory, a Hugging Face folder, or a name on the hub.
        suite: a built-in suite, a YAML file of tasks, ``blimp`` or ``heldout``.
        data: folder of tasks, or ``hub``; for ``blimp`` a file or folder of sentence pairs, for
            ``heldout`` a file of documents.
        tasks: names of tasks; None is every task in the data.
        seeds: fine-tuning seeds; None is the protocol's number.
        protocol: a protocol, or its name or file; None is the run's own, or else the paper's.
        into: the evaluation folder; None is `default_folder`.
        elsewhere: what to do where it holds other scores.
        untrained: also fine-tune the untrained model.
        twins: folder in which models of the same shape share what the untrained model predicts.
        submission: zip file to write for the leaderboard.
        jobs: how many models to fine-tune at once; None is what cores and memory allow.
        trust_remote_code: allow Python code that comes with a Hugging Face model.
        keep: a file for the weights of the median seed's model of the request's only task.
    """

    model: str
    suite: str
    data: str
    tasks: tuple[str, ...] | None = None
    seeds: int | None = None
    protocol: str | Protocol | None = None
    into: Path | None = None
    elsewhere: str = ELSEWHERE
    untrained: bool = True
    twins: Path | None = None
    submission: Path | None = None
    jobs: int | None = None
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    trust_remote_code: bool = False
    keep: Path | None = None


def evaluate(request: Request, progress: Progress) -> dict[str, Any]:
    """Evaluate one model on one suite.

    Returns:
        ``{"model", "folder", "protocol": hyperparameters, "suites": {name: scores}}``. For suites
        that fine-tune, also ``"max_length"``: the length in tokens at which sequences are
        truncated. With a submission, also ``"submission"``: the file, and ``"missing"``: what the
        leaderboard expects and the file lacks. With weights to keep, also ``"seed"``: whose.

    Raises:
        InputError: an unknown suite, protocol or task, a model or data that cannot be read, or a
            folder that holds other scores.
    """
    suite = _suite_of(request)
    protocol = protocol_for(request.model, request.protocol, request.seeds)
    spec = BackboneSpec(request.model, request.trust_remote_code)
    backbone = spec.load()
    protocol = protocol.at_width(backbone.width)
    device = choose_device(request.compute)
    path = request.into or default_folder(request.model, request.protocol)
    result: dict[str, Any] = {"model": backbone.name, "folder": str(path)}
    result["protocol"] = protocol.hyperparameters()
    if suite is None:
        with EvaluationFolder(path, backbone, protocol, request.elsewhere) as folder:
            scores = _without_finetuning(request, backbone, device, progress)
            folder.save_suite(request.suite, scores)
        return {**result, "suites": {request.suite: scores}}
    data = folder_of(request.data)
    file = None if request.suite in suite_names() else request.suite
    tasks = suite.select(request.tasks or all_tasks(suite, data, None if file else progress.line))
    if file is None:
        refuse_unprobed(tasks, protocol)
    test = request.submission is not None
    read = read_tasks(suite, tasks, data, protocol, file, test=test) if file else {}
    numerics, shared = Numerics.on(device), request.twins
    twins = SharedTwins.of(shared, backbone, protocol, numerics) if shared is not None else None
    with EvaluationFolder(path, backbone, protocol, request.elsewhere) as folder:
        evaluator = SuiteEvaluator(
            folder,
            backbone,
            spec,
            protocol,
            numerics,
            progress,
            untrained=request.untrained,
            test=test,
            twins=twins,
            jobs=request.jobs,
        )
        result["max_length"] = evaluator.max_length
        if request.tasks is None:
            folder.drop_failures(suite.name, suite.scores_of(task.name for task in tasks))
        scores = scores_of(evaluator, suite, tasks, data, read)
        if request.keep is not None:
            result["seed"] = median_seed(first_score(tasks[0], scores))
            evaluator.train_again(suite, tasks[0], data, read, result["seed"], request.keep)
        if request.submission is not None:
            result["submission"] = str(request.submission)
            result["missing"] = submit(folder, suite, scores, request.submission)
    return {**result, "suites": {suite.name: scores}}


def read_tasks(
    suite: Suite,
    tasks: Sequence[Task],
    data: Path | None,
    protocol: Protocol,
    file: str | None = None,
    *,
    test: bool = False,
) -> dict[str, TaskData]:
    """The data of tasks, whose faults are the user's to mend before any work.

    Tasks of kind minimal-pairs are read as well, and left out of what is returned.

    Args:
        data: folder of the tasks; None for the hub.
        protocol: how models are fine-tuned, or probed.
        file: the suite's file, if it is the user's own and may be at fault.
        test: also read the test splits, for a submission.

    Raises:
        InputError: naming the fault of each task that cannot be fine-tuned, a line each.
    """
    refuse_unprobed(tasks, protocol)
    read, faults = {}, []
    for task in tasks:
        try:
            if task.kind == PAIRS:
                read_pairs_of(task, data, suite)
                continue
            found = read_task(task, data, suite, test=test)
        except InputError as error:
            fault = str(error).removeprefix(f"task {task.name}: ")
            mend = "change the data" + (f", or {file}" if file is not None else "")
            faults.append(f"task {task.name}: {fault}; {mend}")
            continue
        rows = min([len(found.train), *(len(part.train) for part in parts_of(found))])
        if protocol.probe is None and rows < protocol.batch:
            faults.append(
                f"task {task.name}: {rows} training rows are fewer than one batch of "
                f"{protocol.batch}: add rows, or set a smaller batch (--protocol FILE.yaml, or "
                "finetune.batch in a run)"
            )
        read[task.name] = found
    if faults:
        raise InputError(*(f"{len(faults)} faults:", *faults)[len(faults) < 2 :])
    return read


def _suite_of(request: Request) -> Suite | None:
    """The suite to fine-tune on, if any; refuse what does not go with it before any work."""
    suite = None if request.suite in WITHOUT_FINETUNING else load_suite(request.suite)
    if request.submission is not None and not (suite and any(t.test for t in suite.tasks.values())):
        if request.suite in (*suite_names(), *WITHOUT_FINETUNING):
            raise InputError(f"no leaderboard takes a submission of {request.suite}")
        raise InputError(
            f"no task of {request.suite} has `test`, which names the files of a submission: add it "
            "(docs/evaluation.md), or leave out --submission"
        )
    idle = {name: getattr(request, name) is not None for name in ("tasks", "seeds", "jobs")}
    idle |= {"no-untrained": not request.untrained, "dtype": request.compute.dtype != "auto"}
    if suite is None and (given := [name for name, value in idle.items() if value]):
        raise InputError(f"--{given[0]} does nothing for {request.suite}: leave it out")
    if request.twins is not None and not (suite and request.untrained):
        raise InputError("no untrained model is fine-tuned, so leave out --untrained-in")
    if request.twins is not None and request.twins.exists() and not request.twins.is_dir():
        raise InputError(f"{request.twins} is not a folder: name another with --untrained-in")
    return suite


def _without_finetuning(
    request: Request, backbone: Backbone, device: Device, progress: Progress
) -> Scores:
    """BLiMP or held-out loss; a run's loss uses rows as its configuration describes them."""
    file = Path(request.data)
    if request.suite == "blimp":
        return blimp_score(backbone, file, device.torch, progress=progress)
    if file.is_dir():
        raise InputError(
            f"{file} is a folder: name a file, such as heldout.jsonl.gz in that of a corpus"
        )
    own: dict[str, Any] = {}
    if has_trained_model(Path(request.model)):
        data = read_config(Path(request.model)).data
        own = {"most_rows": data.heldout_rows, "length": data.row_length, "framed": data.sep}
    with progress.task("held-out loss") as task:
        scores = heldout_score(backbone, file, device.torch, **own)
        task.update(1, f"{scores['loss@0.15']:.3f} at 15 %, {scores['loss@0.25']:.3f} at 25 %")
    return scores
