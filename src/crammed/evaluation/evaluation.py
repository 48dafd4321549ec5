"""What ``crammed evaluate`` does: a model, a suite, an evaluation folder; and comparisons."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from crammed.config import ComputeConfig, Protocol
from crammed.config.yamlfile import read_section
from crammed.device import Device, choose_device
from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.spec import BackboneSpec, local_digest
from crammed.evaluation.blimp import blimp_score
from crammed.evaluation.finetuning.engine import Numerics
from crammed.evaluation.folder import (
    EvaluationFolder,
    gold_of,
    kept_outputs,
    stored,
    tested_name,
)
from crammed.evaluation.heldout import heldout_score
from crammed.evaluation.scores.compare import Difference, compare, paired_difference
from crammed.evaluation.scores.score import metrics_of
from crammed.evaluation.scores.submission import write_submission
from crammed.evaluation.scores.table import Part, comparison_tables
from crammed.evaluation.suite import Scores, evaluate_suite
from crammed.progress import Progress
from crammed.rundir import read_config
from crammed.tasks.read import tasks_in
from crammed.tasks.task import Suite, load_suite

WITHOUT_TUNING = ("blimp", "heldout")
"""Suites that score a masked language model as it is."""


@dataclass(frozen=True)
class Request:
    """What is to be evaluated, on what, and how.

    Attributes:
        model: a run directory, a Hugging Face folder, or a name on the hub.
        suite: a built-in suite, a YAML file of tasks, ``blimp`` or ``heldout``.
        data: folder of tasks, or ``hub``; file of sentence pairs or of documents.
        tasks: names of tasks; None is all that the data has.
        seeds: None is what the protocol says.
        protocol: name or file; None is the run's own, or else the paper's.
        into: the evaluation folder; None is ``evaluation`` in a run, or ``evaluations/MODEL``, see
            `default_folder`.
        twin: fine-tune the untrained model too.
        submission: zip file to write for the leaderboard.
        jobs: models that are fine-tuned at a time; None is what cores and memory allow.
    """

    model: str
    suite: str
    data: str
    tasks: tuple[str, ...] | None = None
    seeds: int | None = None
    protocol: str | None = None
    into: Path | None = None
    twin: bool = True
    submission: Path | None = None
    jobs: int | None = None
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    trust_remote_code: bool = False


def evaluate(request: Request, progress: Progress) -> dict[str, Any]:
    """Evaluate one model on one suite.

    Returns:
        ``{"model", "folder", "protocol": hyperparameters, "suites": {name: scores}, "missing":
        files the leaderboard wants}``.

    Raises:
        InputError: an unknown suite, protocol or task, a model or data that cannot be read, or a
            folder that holds other scores.
    """
    suite = None if request.suite in WITHOUT_TUNING else load_suite(request.suite)
    if request.submission is not None and (suite is None or not _test_files(suite)):
        raise InputError(f"no leaderboard takes a submission of {request.suite}")
    protocol = protocol_of(request.model, request.protocol)
    if request.seeds is not None:
        protocol = protocol.model_copy(update={"seeds": request.seeds})
    spec = BackboneSpec(request.model, protocol.dropout, request.trust_remote_code)
    encoder = spec.load()
    device = choose_device(request.compute)
    folder = request.into or default_folder(request.model, request.protocol)
    result: dict[str, Any] = {
        "model": encoder.name,
        "folder": str(folder),
        "protocol": protocol.hyperparameters(),
    }
    if suite is None:
        name = request.suite
        with EvaluationFolder(folder, about(encoder), protocol) as kept:
            scores = _without_tuning(request, encoder, device, progress)
            kept.save_suite(name, scores)
    else:
        name, data = suite.name, None if request.data == "hub" else Path(request.data)
        names = [task.name for task in suite.select(request.tasks or tasks_in(suite, data))]
        with EvaluationFolder(folder, about(encoder), protocol) as kept:
            scores = evaluate_suite(
                kept,
                encoder,
                spec,
                suite,
                names,
                data,
                protocol,
                numerics_of(device),
                progress,
                twin=request.twin,
                test=request.submission is not None,
                most=request.jobs,
            )
            if request.submission is not None:
                result["missing"] = _submit(kept, suite, scores, request.submission)
    return {**result, "suites": {name: scores}}


def load_protocol(name: str) -> Protocol:
    """A built-in protocol by its name, or one of the user's by the path of its .yaml file.

    Raises:
        InputError: no such protocol, or faults in it.
    """
    return read_section("protocol", name, _PROTOCOLS, Protocol)


_PROTOCOLS = resources.files("crammed") / "evaluation" / "protocols"


def protocol_of(model: str, named: str | None) -> Protocol:
    """The protocol that was named; or a run's own, or the paper's."""
    if named is not None:
        return load_protocol(named)
    if is_run(model):
        own = read_config(Path(model)).finetune
        return Protocol.model_validate(own.model_dump(exclude={"tasks"}))
    return load_protocol("cramming")


def is_run(model: str) -> bool:
    """Whether it names a run directory with a trained model."""
    return (Path(model) / "final" / "config.json").is_file()


def default_folder(model: str, protocol: str | None) -> Path:
    """Where a model's scores go unless one says so."""
    suffix = f"-{Path(protocol).stem}" if protocol is not None else ""
    if is_run(model):
        return Path(model) / f"evaluation{suffix}"
    name = _path_name(Path(model)) if Path(model).exists() else str(model).strip("/.")
    return Path("evaluations") / (re.sub(r"[^\w.-]+", "-", name) + suffix)


def _path_name(path: Path) -> str:
    """``runs/a/export`` below the working directory; of what is elsewhere the last two names."""
    path, here = path.resolve(), Path.cwd()
    if path != here and path.is_relative_to(here):
        return str(path.relative_to(here))
    return "/".join(path.parts[1:][-2:])


def about(encoder: Backbone) -> dict[str, Any]:
    """What identifies a model in an evaluation folder."""
    return {
        "name": encoder.name,
        "sha256": encoder.sha256,
        "parameters": encoder.parameters,
        "max_length": encoder.max_length,
    }


def numerics_of(device: Device) -> Numerics:
    """How fine-tuning computes on a device: CUDA graphs where there is CUDA."""
    return Numerics(device.torch, device.tuning_dtype, graphs=device.torch.type == "cuda")


def _without_tuning(
    request: Request, encoder: Backbone, device: Device, progress: Progress
) -> Scores:
    file = Path(request.data)
    if request.suite == "blimp":
        return blimp_score(encoder, file, device.torch, progress=progress)
    rows, length = 2000, min(128, encoder.max_length)
    if is_run(request.model):
        config = read_config(Path(request.model))
        rows, length = config.data.heldout_rows, config.data.row_length
    with progress.task("held-out loss") as task:
        scores = heldout_score(encoder, file, device.torch, rows, length)
        task.update(1, f"{scores['loss@0.15']:.3f} at 15 %, {scores['loss@0.25']:.3f} at 25 %")
    return dict(scores)


def _test_files(suite: Suite) -> list[str]:
    return [file for task in suite.tasks.values() for file in task.test]


def _submit(kept: EvaluationFolder, suite: Suite, scores: Scores, out: Path) -> list[str]:
    """Write what the median seed of each task predicts; returns the files that are missing."""
    predicted: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    for name, task in suite.tasks.items():
        score = scores["tasks"].get(next(iter(task.numbers)), {})
        seeds = score.get("seeds", [])
        if not seeds:
            continue
        middle = int(np.argsort(seeds, kind="stable")[(len(seeds) - 1) // 2])
        outputs = kept_outputs(kept.folder, suite.name, name, middle)
        for file in task.test:
            if not any(each.startswith(f"test/{file}/") for each in outputs):
                continue
            rows, described = gold_of(kept.folder, suite.name, f"test-{file}")
            own = tested_name(file, described["sha256"])
            if own in outputs:
                predicted[file] = rows.index, outputs[own]
                labels[file] = described["labels"]
    return write_submission(suite, predicted, labels, out)


@dataclass(frozen=True)
class Comparison:
    """Two models on a suite.

    Attributes:
        a, b: names of the models.
        entries: of `crammed.evaluation.scores.compare.compare`.
        notes: where the protocols differ.
    """

    a: str
    b: str
    entries: list[dict[str, Any]]
    notes: list[str]

    def json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {"a": self.a, "b": self.b, "numbers": self.entries, "notes": self.notes}

    def parts(self) -> list[Part]:
        """As a terminal shows it."""
        tables = comparison_tables(self.a, self.b, self.entries)
        return [*tables, Text("\n".join(self.notes))] if self.notes else tables


def scores_folder(named: str, protocol: str | None) -> Path:
    """The evaluation folder that is named, or that of the model which is.

    Raises:
        InputError: that folder holds scores of another model.
    """
    own = Path(named)
    if (own / "evaluation.json").exists():
        return own
    folder = default_folder(named, protocol)
    if own.is_dir() and (folder / "evaluation.json").exists():
        model = stored(folder)["model"]
        if model["sha256"] != local_digest(own):
            raise InputError(
                f"{folder} holds scores of another model, {model['name']}, than {named}: evaluate "
                "that with --into, and name its folder"
            )
    return folder


def compare_models(a: Path, b: Path, named: str) -> Comparison:
    """Compare what two evaluation folders hold of a suite, number by number.

    Raises:
        InputError: a folder holds no scores of the suite, or both are the same one.
    """
    if a.resolve() == b.resolve():
        raise InputError(f"A and B are both {a}: name two folders of evaluations")
    if named in WITHOUT_TUNING:
        raise InputError(f"{named} is one number a model: compare two by looking at them")
    suite = load_suite(named)
    one, other = stored(a), stored(b)
    for folder, scores in ((a, one), (b, other)):
        if suite.name not in scores["suites"]:
            raise InputError(
                f"{folder} holds no scores of {suite.name}: evaluate that model first (--data)"
            )
    tasks_a, tasks_b = (scores["suites"][suite.name]["tasks"] for scores in (one, other))
    differences: dict[str, Difference] = {}
    reasons: dict[str, str] = {}
    for task in suite.tasks.values():
        for number in task.numbers:
            if any("seeds" not in scores.get(number, {}) for scores in (tasks_a, tasks_b)):
                continue
            rows, described = gold_of(a, suite.name, number)
            if described["sha256"] != gold_of(b, suite.name, number)[1]["sha256"]:
                reasons[number] = "other data"
                continue
            outputs = [
                [
                    kept_outputs(folder, suite.name, task.name, seed)[number]
                    for seed in range(len(scores[number]["seeds"]))
                ]
                for folder, scores in ((a, tasks_a), (b, tasks_b))
            ]
            metrics = metrics_of(task, number)
            differences[number] = paired_difference(
                metrics, outputs[0], outputs[1], rows, described["labels"], number, task.name
            )
    entries = compare(suite, tasks_a, tasks_b, differences, reasons)
    notes = [
        f"{name} is {value} for A, {other['protocol'][name]} for B"
        for name, value in one["protocol"].items()
        if other["protocol"].get(name) != value
    ]
    return Comparison(one["model"]["name"], other["model"]["name"], entries, notes)
