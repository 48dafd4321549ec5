"""The verb that compares the ways to an encoder on one's own tasks: decide."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.cli.models import (
    DeviceOption,
    DtypeOption,
    JobsOption,
    ModelArgument,
    ProtocolOption,
    SeedsOption,
    SuiteOption,
    TasksOption,
)
from crammed.cli.options import (
    BudgetOption,
    DataOption,
    JsonOption,
    SeedOption,
    recipe_and_overrides,
)
from crammed.cli.output import print_result

if TYPE_CHECKING:
    from crammed.terminal.table import Printed

_OF_BOTH = re.compile(r"(data|batch|compute)\.")


def decide(
    model: ModelArgument,
    suite: SuiteOption,
    tasks_data: Annotated[
        str, typer.Option("--tasks-data", metavar="DIR", help="Folder of the tasks, or hub.")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY.PATH=VALUE]...",
            help="What to train from scratch; values of data, batch and compute are for both runs.",
        ),
    ] = None,
    data: DataOption = None,
    tasks: TasksOption = None,
    budget: BudgetOption = None,
    seed: SeedOption = None,
    seeds: SeedsOption = None,
    protocol: ProtocolOption = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for everything; continued if it exists.")
    ] = Path("decision"),
    jobs: JobsOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Train from scratch, adapt, or take an encoder as it is: score all three on your tasks."""
    from crammed import deciding
    from crammed.adaptation.adapting import Adaptation, ask_for
    from crammed.adaptation.original import Original
    from crammed.evaluation.decision import ADAPTED, SCRATCH, sentences
    from crammed.evaluation.evaluation import Request
    from crammed.files.folders import behind_links
    from crammed.interface.asking import compute_config, configure, shown_progress
    from crammed.terminal.table import show

    original = Original.find(model)
    request = Request(
        model=model,
        suite=suite,
        data=tasks_data,
        tasks=tuple(name for name in tasks.split(",") if name) if tasks is not None else None,
        seeds=seeds,
        protocol=protocol,
        untrained=False,
        jobs=jobs,
        compute=compute_config(device, dtype),
    )
    runs = deciding.places(out := behind_links(out))
    given: list[Any] = [{}, budget, seed, data or []]
    scratch, _, _ = configure(*recipe_and_overrides(words), *given, out=runs[SCRATCH])
    both, other = [*filter(_OF_BOTH.match, words or [])], partial(ask_for, original)
    adapting, _, _ = configure(None, both, *given, out=runs[ADAPTED], ask=other)
    with shown_progress() as progress:
        found = deciding.decide(scratch, adapting, Adaptation(original), request, out, progress)
    if not as_json:
        show([_table(found["scores"])])
    said = sentences(found["scores"])
    print_result(found, as_json, [("decision", said), ("report", found["report"])])


def _table(scores: dict[str, Any]) -> Printed:
    """The scores of every way."""
    from rich.text import Text

    from crammed.evaluation.decision import WAYS
    from crammed.evaluation.scores.table import interval_text
    from crammed.terminal.table import add_column, new_table

    ways = [way for way in WAYS if any(way in each.get("ways", ()) for each in scores.values())]
    table = new_table("In percent, with 95 % intervals")
    add_column(table, "task", widest=34)
    add_column(table, "metric", widest=34)
    for way in ways:
        add_column(table, way, numeric=True)
    for name, each in scores.items():
        cells = []
        for way in ways:
            score = each.get("ways", {}).get(way)
            if score is None:
                cells.append("none")
                continue
            interval = score["interval"]
            beside = "" if interval is None else f" ({interval_text(interval)})"
            cells.append(f"{score['score']:.1f}{beside}")
        table.add_row(name, Text(each["metric"]), *cells)
    return table
