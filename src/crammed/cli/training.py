"""The verbs that train: run, pretrain, adapt, decide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.cli.options import (
    BudgetOption,
    CorpusOption,
    DataOption,
    DeviceOption,
    DtypeOption,
    FitOption,
    JobsOption,
    JsonOption,
    ModelArgument,
    ProtocolOption,
    RecipeWords,
    SeedOption,
    SeedsOption,
    SuiteOption,
    TasksOption,
    recipe_and_overrides,
)
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
    words: RecipeWords = None,
    budget: BudgetOption = None,
    data: DataOption = None,
    corpus: CorpusOption = None,
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
    seed: SeedOption = None,
    out: RunOption = None,
    fit: FitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Do everything: prepare, pretrain, evaluate, export, report."""
    from crammed.interface import training

    recipe, overrides = recipe_and_overrides(words)
    done = training.run(
        recipe,
        overrides,
        data=data or [],
        corpus=corpus,
        budget=budget,
        suite=suite,
        tasks_data=tasks_data,
        glue=glue,
        tasks=tasks,
        seed=seed,
        out=out,
        fit=fit,
    )
    print_run(done, as_json)


def pretrain(
    words: RecipeWords = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = None,
    seed: SeedOption = None,
    out: RunOption = None,
    fit: FitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train an encoder on a corpus within a budget, and export it."""
    from crammed.interface import training
    from crammed.machine.workers import is_leader

    if corpus is None:
        raise InputError("name the corpus to train on: --corpus CORPUS_DIR")
    recipe, overrides = recipe_and_overrides(words)
    done = training.pretrain(
        recipe, overrides, corpus=corpus, budget=budget, seed=seed, out=out, fit=fit
    )
    if is_leader():
        print_run(done, as_json)


def adapt(
    model: ModelArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Values, such as optim.lr=2e-4."),
    ] = None,
    data: DataOption = None,
    corpus: CorpusOption = None,
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
    budget: BudgetOption = None,
    seed: SeedOption = None,
    out: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue pretraining an existing encoder on your own text, and export it."""
    from crammed.interface import training

    if named := [word for word in words or [] if "=" not in word]:
        raise InputError(f"{named[0]} is not a KEY=VALUE pair: name text with --data {named[0]}")
    done = training.adapt(
        model,
        words or [],
        data=data or [],
        corpus=corpus,
        replay=replay,
        old_text=old_text,
        task_adaptive=task_adaptive,
        tasks_data=tasks_data,
        new_words=new_words,
        budget=budget,
        seed=seed,
        out=out,
    )
    print_run(done, as_json)


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
            help="Recipe and overrides for the run from scratch; those of data, batch, compute and "
            "train.divergence also apply to adapting.",
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
    """Compare training from scratch, adapting an encoder, and using it unchanged, on your tasks."""
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
        show([_ways_table(done.scores)])
    print_result(done.result, as_json, done.lines)


def _ways_table(scores: dict[str, Any]) -> Printed:
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
