"""The verbs that train: run, pretrain, adapt, decide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.cli import options
from crammed.cli.output import print_result, print_run
from crammed.errors import InputError

if TYPE_CHECKING:
    from crammed.terminal.table import Printed

RunOption = Annotated[Path | None, typer.Option(help="Run directory; resumed if it exists.")]
NewWordsOption = Annotated[
    str | None,
    typer.Option(
        "--new-words",
        metavar="FILE|N",
        help="Add words to the tokenizer: those of a file, or the N most frequent ones that it "
        "splits.",
    ),
]


def run(
    words: options.RecipeWords = None,
    budget: options.BudgetOption = None,
    data: options.DataOption = None,
    corpus: options.CorpusOption = None,
    suite: Annotated[
        str, typer.Option(help="glue, superglue, small, race, swag, docs or FILE.yaml.")
    ] = "glue",
    tasks_data: Annotated[
        str | None,
        typer.Option(
            "--tasks-data",
            metavar="DIR",
            help="Folder of the suite's tasks to fine-tune on (docs/evaluation.md), or hub.",
        ),
    ] = None,
    glue: Annotated[
        str | None, typer.Option(metavar="DIR", help="Short for --suite glue --tasks-data DIR.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks, such as rte,mrpc (default: all in the folder).")
    ] = None,
    seed: options.SeedOption = None,
    out: RunOption = None,
    fit: options.FitOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Do everything: prepare, pretrain, evaluate, export, report."""
    given = options.arguments(locals())
    from crammed.interface import training

    print_run(training.run(**given), as_json)


def pretrain(
    words: options.RecipeWords = None,
    corpus: options.CorpusOption = None,
    budget: options.BudgetOption = None,
    seed: options.SeedOption = None,
    out: RunOption = None,
    fit: options.FitOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Train an encoder on a corpus within a budget, and export it."""
    given = options.arguments(locals())
    from crammed.interface import training
    from crammed.machine.workers import is_leader

    if corpus is None:
        raise InputError("name the corpus to train on: --corpus CORPUS_DIR")
    done = training.pretrain(**given)
    if is_leader():
        print_run(done, as_json)


def adapt(
    model: options.ModelArgument,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.PATH=VALUE", help="Values, such as optim.lr=2e-4."),
    ] = None,
    data: options.DataOption = None,
    corpus: options.CorpusOption = None,
    replay: Annotated[
        str | None,
        typer.Option(
            metavar="PATH[:SHARE]", help="General text to mix in, and its share (default: 0.1)."
        ),
    ] = None,
    old_text: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Text like MODEL's original training text, to measure forgetting."
        ),
    ] = None,
    task_adaptive: Annotated[
        str | None,
        typer.Option(
            "--task-adaptive",
            metavar="SUITE",
            help="Also learn from the training texts of tasks, without labels.",
        ),
    ] = None,
    tasks_data: Annotated[
        str | None,
        typer.Option("--tasks-data", metavar="DIR", help="Folder of these tasks, or hub."),
    ] = None,
    new_words: NewWordsOption = None,
    budget: options.BudgetOption = None,
    seed: options.SeedOption = None,
    out: RunOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Continue pretraining an encoder on your text, and export it."""
    given = options.arguments(locals())
    from crammed.interface import training

    if named := [word for word in overrides or [] if "=" not in word]:
        raise InputError(f"{named[0]} is not a KEY=VALUE pair: name text with --data {named[0]}")
    print_run(training.adapt(**given), as_json)


def decide(
    model: options.ModelArgument,
    suite: options.SuiteOption,
    tasks_data: Annotated[
        str, typer.Option("--tasks-data", metavar="DIR", help="Folder of the tasks, or hub.")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE|KEY.PATH=VALUE",
            help="Recipe and overrides for the run from scratch; those of data, batch, compute and "
            "train.divergence also apply to adapting.",
        ),
    ] = None,
    data: options.DataOption = None,
    tasks: options.TasksOption = None,
    task_adaptive: Annotated[
        bool,
        typer.Option("--task-adaptive", help="Adapt to the training texts of the tasks as well."),
    ] = False,
    budget: options.BudgetOption = None,
    seed: options.SeedOption = None,
    seeds: options.SeedsOption = None,
    protocol: options.ProtocolOption = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for everything; continued if it exists.")
    ] = Path("decision"),
    jobs: options.JobsOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Train from scratch, adapt an encoder, or neither? Ask your tasks."""
    given = options.arguments(locals())
    from crammed.interface import models
    from crammed.terminal.table import show

    done = models.decide(**given)
    if not as_json:
        show([_ways_table(done.scores)])
    print_result(done.result, as_json, done.lines)


def _ways_table(scores: dict[str, Any]) -> Printed:
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
