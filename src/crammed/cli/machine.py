"""The verbs that show what there is: recipes, runs, doctor, watch."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.cli import options
from crammed.cli.output import plain, print_result
from crammed.terminal.quiet import one_line

if TYPE_CHECKING:
    from crammed.config import RunConfig


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A recipe to show; a name or .yaml file.",
            autocompletion=lambda incomplete: options.beginning("recipes", incomplete),
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """List the recipes, or show the configuration of one."""
    import yaml

    from crammed.rules.recipe import load_config, recipe_names

    if name is not None:
        config = load_config(name)
        values = {**_costs(config), "config": config.complete()}
        if as_json:
            print_result(values, as_json, [])
            return
        typer.echo(yaml.safe_dump(values["config"], sort_keys=False), nl=False)
        typer.echo(f"# {_cost_text(values)}")  # so that all of it is YAML
        return
    listed = {each: load_config(each) for each in recipe_names()}
    table = {each: {**_costs(c), "description": c.description} for each, c in listed.items()}
    lines = [(n, (_cost_text(v), v["description"])) for n, v in table.items()]
    print_result(table, as_json, lines)


def _costs(config: RunConfig) -> dict[str, Any]:
    """Parameters, and training FLOPs per token."""
    from crammed.model.count import parameters
    from crammed.rules.sizing import flops_per_token

    return {
        "parameters": parameters(config.model, config.tokenizer.vocab_size),
        "train_flops_per_token": flops_per_token(config),
    }


def _cost_text(values: dict[str, Any]) -> str:
    """``120,212,480 parameters, 0.62 GFLOP per token``."""
    gigaflop = values["train_flops_per_token"] / 1e9
    return f"{values['parameters']:,} parameters, {gigaflop:.3g} GFLOP per token"


def runs(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Where to look.", show_default="the working directory"),
    ] = Path(),
    as_json: options.JsonOption = False,
) -> None:
    """List the runs below a folder, with their progress and results."""
    from rich.text import Text

    from crammed.quantity import counted
    from crammed.runs.listing import list_runs
    from crammed.terminal.table import add_column, new_table, show

    found = list_runs(folder)
    if as_json:
        print_result({"runs": [asdict(each) for each in found]}, as_json, [])
        return
    table = new_table()
    for name in ("run", "recipe", "budget", "state", "held-out loss", "scores"):
        add_column(table, name, numeric=name == "held-out loss")
    for each in found:
        state = each.state_text + (f": {each.problem}" if each.problem else "")
        loss = "" if each.heldout_loss is None else f"{each.heldout_loss:.3f}"
        cells = (each.path, each.recipe_text, each.budget or "", state, loss, each.scores_text)
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    show(
        [
            *([table] if found else []),
            Text(f"{counted(len(found), 'run')} below {one_line(folder)}"),
        ]
    )


def watch(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Where to look.", show_default="the working directory"),
    ] = Path(),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")
    ] = 8642,
) -> None:
    """Show the runs below a folder in a browser, while they train."""
    import os
    import signal

    from crammed.report.watching import Server
    from crammed.runs.listing import list_runs

    list_runs(folder)  # refuses what is no folder
    # Before the line that names Ctrl-C is printed: from then on somebody may press it.
    # Nothing has to be tidied up, and an exception could be lost in whatever runs just then.
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    with Server(folder, port) as server:
        os.nice(10)  # drawing must not slow training down
        typer.echo(f"{server.address} shows the runs below {one_line(folder)}; Ctrl-C ends it")
        sys.stdout.flush()
        server.serve_forever()


def doctor(as_json: options.JsonOption = False) -> None:
    """Describe this machine, and train a tiny encoder as a self-test."""
    from crammed.doctor import examine
    from crammed.interface.asking import shown_progress

    with shown_progress() as progress:
        values = examine(progress)
    labels = {"because": "chosen"}  # the label of the reasons, for people
    lines = [(labels.get(key, key), plain(value)) for key, value in values.items()]
    print_result(values, as_json, lines)
