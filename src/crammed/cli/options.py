"""Options that several verbs share."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from crammed.budget import Budget
from crammed.errors import InputError


def beginning(folder: str, begun: str) -> list[str]:
    """Built-in YAML files whose names begin like this, for a shell's completion.

    It is asked for at each key, so nothing that takes long is imported for it.
    """
    names = (file.name for file in resources.files("crammed").joinpath(folder).iterdir())
    return sorted(
        name.removesuffix(".yaml")
        for name in names
        if name.startswith(begun) and name.endswith(".yaml")
    )


RecipeWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE|KEY.PATH=VALUE",
        help="A recipe (name or .yaml file; default: crammed), and values that override it.",
        autocompletion=lambda incomplete: beginning("recipes", incomplete),
    ),
]
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="PATH|NAME...",
        help="Files (.txt .md .rst .html .warc .jsonl .ndjson .json .csv .tsv .parquet .arrow .zip "
        ".tar; text also as .gz .bz2 .xz .zst), folders, globs, - for standard input, python-docs, "
        "hub:NAME or, for training, an address such as s3://bucket/texts.",
    ),
]
BudgetOption = Annotated[
    Budget | None,
    typer.Option(
        "--budget",
        parser=Budget.parse,
        metavar="BUDGET",
        help="Training budget, such as 90m, 24h, 2e9tok, 500updates or 1e18flop.",
    ),
]
LicenseOption = Annotated[
    str | None,
    typer.Option("--license", help="For the model card: a licence, such as apache-2.0."),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of all random choices.")]
CorpusOption = Annotated[
    Path | None, typer.Option("--corpus", help="A corpus directory made by crammed prepare.")
]
FitOption = Annotated[
    bool,
    typer.Option(
        "--fit",
        help="Let the budget determine model size, vocabulary, batch size and learning rate, even "
        "where the recipe sets them.",
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A run, a Hugging Face folder, or a name on the hub."),
]
SuiteOption = Annotated[
    str,
    typer.Option(help="Built-in suite (glue, superglue, small, race, swag, docs), or FILE.yaml."),
]
TasksOption = Annotated[
    str | None, typer.Option(help="Tasks to evaluate, such as rte,mrpc (default: all).")
]
SeedsOption = Annotated[
    int | None, typer.Option(min=1, max=1000, help="Number of fine-tuning seeds per task.")
]
ProtocolOption = Annotated[
    str | None,
    typer.Option(
        help="cramming, small, bert-base, glue-long, superglue, linear-probe, knn-probe or "
        "FILE.yaml."
    ),
]
UntrainedOption = Annotated[
    bool,
    typer.Option(
        "--untrained/--no-untrained",
        help="Also fine-tune the untrained twin: the same architecture with random weights.",
    ),
]
IntoOption = Annotated[
    Path | None,
    typer.Option(help="Folder for scores and predictions; resumed if it exists."),
]
JobsOption = Annotated[
    int | None, typer.Option(min=1, max=4096, help="Models to fine-tune at a time.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
DtypeOption = Annotated[str, typer.Option(help="auto, float32 or bfloat16.")]
TrustOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Allow the model's own Python code to run.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def arguments(options: dict[str, Any], *own: str) -> dict[str, Any]:
    """The options of a verb as the function of its name in `crammed.interface` takes them.

    What is not typed is left out, so that it has the function's own default. Call it first in a
    verb, with `locals()`.

    Args:
        options: the verb's arguments by name.
        own: those that the function does not have.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in (*own, "words", "as_json"):
        given.pop(name, None)
    if "words" in options:
        given["recipe"], given["overrides"] = recipe_and_overrides(options["words"])
    # some of these functions have no default for data, and say themselves what is missing
    return {"data": [], **given} if "data" in options else given


def recipe_and_overrides(words: list[str] | None) -> tuple[str | None, list[str]]:
    """Which words name a recipe, and which set values.

    Raises:
        InputError: several name a recipe.
    """
    overrides = [word for word in words or [] if "=" in word]
    names = [word for word in words or [] if "=" not in word]
    if len(names) > 1:
        raise InputError(f"name one recipe at a time, not {' and '.join(names)}")
    return (names[0] if names else None), overrides
