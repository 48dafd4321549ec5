"""The verb that compares the ways to an encoder on one's own tasks: decide."""

from __future__ import annotations

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
            help="What to train from scratch; values of data, batch and compute apply to both.",
        ),
    ] = None,
    data: DataOption = None,
    tasks: TasksOption = None,
    task_adaptive: Annotated[
        bool,
        typer.Option("--task-adaptive", help="Adapt to the training texts of the tasks as well."),
    ] = False,
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
    """Compare training from scratch, adapting, and an encoder as it is, on your tasks."""
    from crammed.interface import models
    from crammed.terminal.table import show

    recipe, overrides = recipe_and_overrides(words)
    done = models.decide(
        model,
        recipe,
        overrides,
        data=data or [],
        suite=suite,
        tasks_data=tasks_data,
        tasks=tasks,
        task_adaptive=task_adaptive,
        budget=budget,
        seed=seed,
        seeds=seeds,
        protocol=protocol,
        out=out,
        jobs=jobs,
        device=device,
        dtype=dtype,
    )
    if not as_json:
        show([_table(done.scores)])
    print_result(done.result, as_json, done.lines)


def _table(scores: dict[str, Any]) -> Printed:
    """The scores of every way."""
    from rich.text import Text

    from crammed.evaluation.decision import cell, ways_in
    from crammed.terminal.table import add_column, new_table

    ways = ways_in(scores)
    table = new_table("In percent, with 95 % intervals")
    add_column(table, "task", widest=34)
    add_column(table, "metric", widest=34)
    for way in ways:
        add_column(table, way, numeric=True)
    for name, each in scores.items():
        table.add_row(name, Text(each["metric"]), *(cell(each, way) for way in ways))
    return table
