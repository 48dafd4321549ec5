"""The verb that trains a model of others further: adapt."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crammed.cli.models import ModelArgument
from crammed.cli.options import (
    BudgetOption,
    CorpusOption,
    DataOption,
    JsonOption,
    SeedOption,
    absolute_source,
    configure,
    show_recipe,
    shown_progress,
)
from crammed.cli.output import print_result
from crammed.cli.training import RunOption, run_lines
from crammed.errors import InputError

if TYPE_CHECKING:
    from crammed.adaptation.general_text import Replay


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
            metavar="PATH[:SHARE]", help="General text to mix in, such as wiki.jsonl:0.1 (default)."
        ),
    ] = None,
    old_text: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Text of the old domain, to measure forgetting on."),
    ] = None,
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
        ask=partial(ask_for, original, replay=_replay(replay, corpus)),
    )
    assert out is not None
    if opened is not None:
        original.check_corpus(opened)
    refuse_too_little(asked.config, None, None if opened is None else opened.rows)
    adaptation = Adaptation(
        original, None if old_text is None else absolute_source(old_text, "--old-text")
    )
    with shown_progress() as progress:
        show_recipe(progress, asked)
        progress.line(f"run  {out}")
        result = run_everything(asked, out, corpus, None, progress, adaptation)
    print_result(result, as_json, run_lines(result))


def _replay(words: str | None, corpus: Path | None) -> Replay | None:
    """What ``--replay`` names.

    Raises:
        InputError: it is wrong, or the corpus is prepared already.
    """
    from crammed.adaptation.general_text import Replay

    if words is None:
        return None
    if corpus is not None:
        raise InputError("--replay mixes text while it is prepared: name the text with --data")
    given = Replay.parse(words)
    return Replay(absolute_source(given.path, "--replay"), given.share)
