"""Options that several verbs share, and the configuration that results from them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.budget import Budget
from crammed.errors import InputError

if TYPE_CHECKING:
    from crammed.config import ComputeConfig
    from crammed.data.corpus import Corpus
    from crammed.rules.choosing import Asked
    from crammed.terminal.progress import Progress

RecipeWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY.PATH=VALUE]...",
        help="A recipe (name or .yaml file; default: crammed), and values that override its own.",
    ),
]
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="PATH|NAME...",
        help="Files (.txt .md .rst .html .warc .jsonl .ndjson .json .csv .tsv .parquet .arrow .zip "
        ".tar; text also as .gz .bz2 .xz .zst), folders, globs, - for standard input, python-docs, "
        "or hub:NAME.",
    ),
]
BudgetOption = Annotated[
    Budget | None,
    typer.Option(
        "--budget",
        parser=Budget.parse,
        metavar="BUDGET",
        help="Such as 90m, 24h, 2e9tok, 500updates or 1e18flop.",
    ),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of all random choices.")]
CorpusOption = Annotated[
    Path | None, typer.Option("--corpus", help="A corpus directory made by crammed prepare.")
]
FitOption = Annotated[
    bool,
    typer.Option(
        "--fit",
        help="Let size, vocabulary, batch and learning rate follow from the budget, even where "
        "the recipe sets them.",
    ),
]
_SET_BY_OPTIONS = (
    ("--budget", "budget.limit"),
    ("--seed", "seed"),
    ("--data", "data.sources"),
    ("--corpus", "corpus"),
    ("--fit", "follows_budget"),
    ("--tasks, --suite or --glue", "finetune.tasks"),
)
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def configure(
    words: list[str] | None,
    fixed: dict[str, Any],
    budget: Budget | None,
    seed: int | None,
    data: list[str] | None,
    corpus_dir: Path | None,
    *,
    fit: bool = False,
    needs_data: bool = True,
    out: Path | None = None,
    last: str | None = None,
    ask: Callable[[list[str], dict[str, Any]], Asked] | None = None,
) -> tuple[Asked, Corpus | None, Path | None]:
    """Read what a command asks for, open the corpus if a prepared one is given, find the run.

    Args:
        words: a recipe and overrides.
        fixed: sections of the configuration that options decide.
        fit: let everything that has a rule follow from the budget, unless `words` set it.
        needs_data: refuse a configuration without any data.
        out: the folder to train in, if it was named.
        last: name of the file that only a finished run has, for commands that train; without
            `out`, they go on with an unfinished run of what is asked for, or begin one.
        ask: reads overrides and fixed sections, where that is not `crammed.rules.recipe.ask`.

    Raises:
        InputError: options or overrides are invalid or contradict each other.
    """
    from crammed.runs.resuming import as_begun, asked_in, default_out

    recipe, overrides = _recipe_and_overrides(words or [])
    if recipe is not None:
        _refuse_text(recipe, reads_text=needs_data and corpus_dir is None)
    given = (budget is not None, seed is not None, bool(data), corpus_dir is not None, fit)
    for (option, key), used in zip(_SET_BY_OPTIONS, (*given, "finetune" in fixed), strict=True):
        refuse_twice(overrides, option, key, used)
    fixed |= {} if budget is None else {"budget": {"limit": budget}}
    fixed |= {} if seed is None else {"seed": seed}
    corpus = None if corpus_dir is None else _opened(corpus_dir, overrides, data)
    if corpus is not None:
        fixed |= corpus.settings()
    elif data:
        fixed["data"] = {"sources": [absolute_source(name) for name in data]}
    if ask is None:
        asked = asked_in(out, recipe, overrides, fixed, fit=fit)
    else:
        asked = ask(overrides, fixed)
        asked = asked if out is None else as_begun(out, asked)
    asked = asked.of_corpus(corpus.vocab_size if corpus is not None else None)
    if corpus is None and asked.choice is not None and asked.config.corpus is not None:
        raise InputError(f"{out} was begun with a prepared corpus: name it, with --corpus")
    if needs_data and corpus is None and not asked.config.data.sources:
        raise InputError("no data: name a file or folder of text, as in --data my-text.jsonl.zst")
    if out is None and last is not None:
        out = default_out(asked, Path(corpus_dir or asked.config.data.sources[0].path).name, last)
        asked = as_begun(out, asked)
    return asked, corpus, out


def _opened(corpus_dir: Path, overrides: list[str], data: list[str] | None) -> Corpus:
    """A prepared corpus; refuse what else would say how to prepare one."""
    from crammed.data.corpus import Corpus

    if data:
        raise InputError("use --data or --corpus, not both")
    if theirs := [word for word in overrides if re.match(r"(data|tokenizer)[.=]", word)]:
        raise InputError(
            f"{theirs[0]}: the corpus was prepared with its own settings; prepare another one"
        )
    return Corpus(corpus_dir)


def refuse_twice(overrides: list[str], option: str, key: str, given: bool) -> None:
    """Refuse an override of what an option also sets: one of the two would be ignored.

    Args:
        key: what the option sets; `given` says whether it was used.

    Raises:
        InputError: an override sets the key.
    """
    from crammed.rules.recipe import parse_overrides

    at: Any = parse_overrides(overrides)
    for part in key.split("."):
        at = at.get(part) if isinstance(at, dict) else None
    if given and at is not None:
        raise InputError(f"{key} is set twice, by {option} and by an override: give one of them")


def show_recipe(progress: Progress, asked: Asked) -> None:
    """Log the budget if no word sets it, and where a recipe has changed since its run began."""
    config = asked.config
    if asked.changed:
        progress.line(
            f"recipe  {config.recipe} has changed since this run began "
            f"({', '.join(asked.changed[:3])}): it goes on as it was"
        )
    if asked.choice is None and "budget.limit" not in asked.keys:
        progress.line(
            f"budget  {config.budget.limit}, from recipe {config.recipe}; choose another with "
            "--budget, such as --budget 1h"
        )


def _recipe_and_overrides(words: list[str]) -> tuple[str | None, list[str]]:
    overrides = [word for word in words if "=" in word]
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise InputError(f"name one recipe at a time, not {' and '.join(names)}")
    return (names[0] if names else None), overrides


def _refuse_text(recipe: str, *, reads_text: bool) -> None:
    """Refuse a file, a folder or an address that was typed where the recipe stands."""
    from crammed.formats.documents import format_of
    from crammed.rules.recipe import recipe_names

    path = Path(recipe)
    if recipe in recipe_names() or path.suffix in (".yaml", ".yml"):
        return
    if (path / "manifest.json").exists():
        raise InputError(f"no recipe {recipe!r}: it is a corpus; name it as --corpus {recipe}")
    if not (path.exists() or format_of(path) or "://" in recipe):
        return
    absolute_source(recipe)
    if reads_text:
        raise InputError(f"no recipe {recipe!r}: name text with an option, as in --data {recipe}")
    raise InputError(
        f"no recipe {recipe!r}: make a corpus of text with crammed prepare --data {recipe} --out "
        "CORPUS_DIR, and name it with --corpus CORPUS_DIR"
    )


def absolute_source(name: str, option: str = "--data") -> str:
    """A path that is valid in any working directory; names that are not paths stay unchanged.

    Raises:
        InputError: the name is empty, which would stand for the whole working directory, or a page
            about a data set.
    """
    from crammed.config import SourceConfig

    if not name:
        raise InputError(f"{option} is empty: name a file or folder of text")
    if "://" in name:
        page = r"https?://(?:www\.)?huggingface\.co/datasets/([\w.-]+/[\w.-]+)/?(?!.*/resolve/)"
        if of_hub := re.match(page, name):
            raise InputError(f"{name} is a page about a data set: type {option} hub:{of_hub[1]}")
        return name
    on_disk = SourceConfig(path=name).is_on_disk
    return str(Path(name).expanduser().absolute()) if on_disk else name


def shown_progress() -> Progress:
    """Progress on standard error, once what killed commands left in temporary folders is gone."""
    from crammed.files.scratch import remove_left_overs
    from crammed.terminal.progress import Progress

    remove_left_overs()

    return Progress()


def compute_config(device: str, dtype: str) -> ComputeConfig:
    """The configuration of the device for fine-tuning.

    Raises:
        InputError: a device or number format that does not exist or is not supported here.
    """
    from crammed.config import ComputeConfig
    from crammed.config.yamlfile import validated

    if dtype == "float16":
        raise InputError("--dtype float16: fine-tuning does no loss scaling; use bfloat16")
    return validated(ComputeConfig, {"device": device, "dtype": dtype})
