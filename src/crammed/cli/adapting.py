"""The verb that trains a model of others further: adapt."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from crammed.cli.models import ModelArgument
from crammed.cli.options import (
    BudgetOption,
    CorpusOption,
    DataOption,
    JsonOption,
    SeedOption,
    configure,
    show_recipe,
    shown_progress,
)
from crammed.cli.output import print_result
from crammed.cli.training import RunOption, run_lines
from crammed.errors import InputError


def adapt(
    model: ModelArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Values, such as optim.lr=2e-4."),
    ] = None,
    data: DataOption = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = None,
    seed: SeedOption = None,
    out: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on training an encoder of others on your own text, and export it."""
    from crammed.adaptation.adapting import Adaptation, ask_for
    from crammed.adaptation.original import Original
    from crammed.machine.workers import world_size
    from crammed.pipeline import run_everything
    from crammed.training.plan import refuse_too_little

    if world_size() > 1:
        raise InputError("adapt trains in one process: start it without torchrun")
    if named := [word for word in words or [] if "=" not in word]:
        raise InputError(f"{named[0]} is no KEY=VALUE: name text with --data {named[0]}")
    original = Original.find(model)

    asked, opened, out = configure(
        words,
        {},
        budget,
        seed,
        data,
        corpus,
        out=out,
        last="report.html",
        ask=partial(ask_for, original),
    )
    assert out is not None
    if opened is not None:
        original.check_corpus(opened)
    refuse_too_little(asked.config, None, None if opened is None else opened.rows)
    with shown_progress() as progress:
        show_recipe(progress, asked)
        progress.line(f"run  {out}")
        result = run_everything(asked, out, corpus, None, progress, Adaptation(original))
    print_result(result, as_json, run_lines(result))
