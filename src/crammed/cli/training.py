"""The verbs that train: run, pretrain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crammed.cli.options import (
    BudgetOption,
    CorpusOption,
    DataOption,
    FitOption,
    JsonOption,
    RecipeWords,
    SeedOption,
    recipe_and_overrides,
)
from crammed.cli.output import print_run
from crammed.errors import InputError

RunOption = Annotated[Path | None, typer.Option(help="Run directory; resumed if it exists.")]


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
