"""Train from scratch, adapt a pretrained encoder, or take it as it is: all three on one's tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from crammed.adaptation.adapting import Adaptation
from crammed.config import Protocol
from crammed.errors import InputError
from crammed.evaluation.decision import ADAPTED, AS_IT_IS, SCRATCH, decided, judged
from crammed.evaluation.evaluation import Request, evaluate, read_tasks
from crammed.evaluation.protocol import protocol_for
from crammed.evaluation.suite import raise_for_failed_tasks
from crammed.pipeline import GivenTasks, run_everything
from crammed.report.decision import write_decision
from crammed.rules.choosing import Asked
from crammed.tasks.task import PAIRS, Suite
from crammed.terminal.progress import Progress

PROTOCOL = "cramming"
"""One protocol for all models, whatever the recipe says; its rate follows the width."""
ELSEWHERE = "save a changed protocol under another name, or name another --out"
"""What to do where a folder holds other scores."""


def decide(
    scratch: Asked,
    adapting: Asked,
    adaptation: Adaptation,
    request: Request,
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Train both models, and score them and the pretrained encoder on the same tasks.

    A repeated call goes on where an earlier one ended.

    Args:
        scratch, adapting: what to run, `as_begun` in `places`.
        adaptation: of the pretrained encoder.
        request: that encoder, the tasks, and how to score; without a protocol, `PROTOCOL`.
        out: the folder for everything.

    Returns:
        ``{"decision": way, "scores": as from `judged`, "models": {way: model}, "folder",
        "report"}``.

    Raises:
        InputError: wrong input; faults of the tasks are noticed before anything is trained.
        TaskFailed: everything finished, but a task has no score.
    """
    protocol = request.protocol or PROTOCOL
    request = replace(request, protocol=protocol, elsewhere=ELSEWHERE)
    suite, runs = _readable(request, progress), places(out)
    request = replace(request, tasks=tuple(suite.tasks))  # as read, and said, here
    run_everything(scratch, runs[SCRATCH], None, None, progress)
    run_everything(adapting, runs[ADAPTED], None, None, progress, adaptation)
    models = {AS_IT_IS: request.model, ADAPTED: str(runs[ADAPTED]), SCRATCH: str(runs[SCRATCH])}
    folders = {way: _folder(out, way, protocol) for way in models}
    suites = {}
    for way, model in models.items():
        progress.line(f"{way}  {model}")
        values = evaluate(replace(request, model=model, into=folders[way]), progress)
        suites[way] = values["suites"][suite.name]
    scores = judged(suite, folders)
    report = write_decision(scores, models, out / "report.html")
    raise_for_failed_tasks(suites, suite.scores_of(suite.tasks))
    found: dict[str, Any] = {"decision": decided(scores), "scores": scores, "models": models}
    return {**found, "folder": str(out), "report": str(report)}


def _folder(out: Path, way: str, protocol: str | Protocol) -> Path:
    """Where a model is evaluated: each protocol that was named has folders of its own."""
    by = f"-{Path(protocol).stem}" if isinstance(protocol, str) and protocol != PROTOCOL else ""
    return out / "evaluations" / f"{way.replace(' ', '-')}{by}"


def places(out: Path) -> dict[str, Path]:
    """The run directories within `out`."""
    return {SCRATCH: out / "from-scratch", ADAPTED: out / "adapted"}


def _readable(request: Request, progress: Progress) -> Suite:
    """The tasks; their data is read once, so that its faults are known before training."""
    given = GivenTasks.of(request.suite, request.data)
    tasks = given.suite.select(request.tasks or given.all_names(progress.line))
    if pairs := [task.name for task in tasks if task.kind == PAIRS]:
        raise InputError(f"nothing is fine-tuned on {', '.join(pairs)}: name others with --tasks")
    protocol = protocol_for(request.model, request.protocol, request.seeds)
    read_tasks(given.suite, tasks, given.folder, protocol, given.file)
    return given.suite.model_copy(update={"tasks": {task.name: task for task in tasks}})
