"""The verb that trains somebody else's model further: adapt."""

from __future__ import annotations

from typing import Annotated

import typer

from crammed.cli.models import ModelArgument
from crammed.cli.options import (
    BudgetOption,
    CorpusOption,
    DataOption,
    JsonOption,
    SeedOption,
)
from crammed.cli.output import print_run
from crammed.cli.training import RunOption
from crammed.errors import InputError

NewWordsOption = Annotated[
    str | None,
    typer.Option(
        "--new-words",
        metavar="FILE|N",
        help="Add words to the tokenizer: those of a file, or the N most frequent ones that it "
        "splits.",
    ),
]


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
            metavar="PATH", help="Text like that MODEL was trained on, to measure forgetting."
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
    """Train somebody else's encoder further on your own text, and export it."""
    from crammed.interface import training

    if named := [word for word in words or [] if "=" not in word]:
        raise InputError(f"{named[0]} is no KEY=VALUE: name text with --data {named[0]}")
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
