"""The verbs that tell: recipes, doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from crammed.cli.options import JsonOption, shown_progress
from crammed.cli.output import cost_words, costs, plain, print_result


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes, or show one resolved, with parameters and FLOPs."""
    import yaml

    from crammed.recipe import load_config, recipe_names

    if name is not None:
        config = load_config(name)
        values = {**costs(config), "config": config.model_dump(mode="json")}
        if as_json:
            print_result(values, as_json, [])
            return
        typer.echo(yaml.safe_dump(values["config"], sort_keys=False), nl=False)
        typer.echo(cost_words(values))
        return
    listed = {each: load_config(each) for each in recipe_names()}
    table = {each: {**costs(c), "description": c.description} for each, c in listed.items()}
    print_result(
        table, as_json, [(n, f"{cost_words(v)}\n{v['description']}") for n, v in table.items()]
    )


def doctor(as_json: JsonOption = False) -> None:
    """Versions, device, disk, and a self-test that trains and exports a tiny encoder."""
    from crammed.doctor import examine

    with shown_progress() as progress:
        values = examine(progress)
    print_result(values, as_json, [(key, plain(value)) for key, value in values.items()])
