"""The options that several functions share, and the configuration that results from them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from crammed.budget import Budget
from crammed.config import ComputeConfig, DataConfig, SourceConfig, TokenizerConfig
from crammed.config.arguments import LISTED, File
from crammed.config.base import Section
from crammed.config.kinds import flat
from crammed.config.yamlfile import validated
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.folders import expanded
from crammed.files.scratch import remove_left_overs
from crammed.formats.documents import format_of
from crammed.rules.choosing import Asked
from crammed.rules.recipe import parse_overrides, recipe_names
from crammed.runs.resuming import as_begun, asked_in, default_out
from crammed.terminal.progress import Progress
from crammed.tracking.following import check_tracker

Overrides = Annotated[str | Mapping[str, Any] | Sequence[str], LISTED]
"""Values in place of a recipe's: ``{"model.layers": 4}``, or as typed, ``["model.layers=4"]``."""
Texts = Annotated[str | Path | Sequence[str | Path], LISTED]
"""Where text lies: one or several of what ``--data`` takes."""
Limit = Annotated[
    str | Budget,
    BeforeValidator(lambda b: b if isinstance(b, str | Budget) else Budget.parse(str(b))),
]
"""What may be spent, such as ``1h``; a number without a unit is refused, as when typed."""
Tasks = Annotated[str | Sequence[str], LISTED]
"""Names of tasks: ``rte,mrpc``, or each by itself."""

NO_DATA = "no data: name a file or folder of text, as in --data my-text.jsonl.zst"
_SET_BY_OPTIONS = (
    ("--budget", "budget.limit"),
    ("--seed", "seed"),
    ("--data", "data.sources"),
    ("--corpus", "corpus"),
    ("--fit", "follows_budget"),
    ("--tasks, --suite or --glue", "finetune.tasks"),
)


def configure(
    recipe: str | None,
    overrides: Overrides,
    fixed: dict[str, Any],
    budget: Limit | None = None,
    seed: int | None = None,
    data: Texts = (),
    corpus_dir: File | None = None,
    *,
    fit: bool = False,
    needs_data: bool = True,
    out: File | None = None,
    last: str | None = None,
    ask: Callable[[list[str], dict[str, Any]], Asked] | None = None,
) -> tuple[Asked, Corpus | None, Path | None]:
    """Read what is asked for, open the corpus if a prepared one is given, find the run.

    Args:
        fixed: sections of the configuration that options decide.
        fit: let everything that has a rule follow from the budget, unless `overrides` set it.
        needs_data: refuse a configuration without any data.
        out: the folder to train in, if it was named.
        last: name of the file that only a finished run has, for what trains; without `out`, it
            goes on with an unfinished run of what is asked for, or begins one.
        ask: reads overrides and fixed sections, where that is not `crammed.rules.recipe.ask`.

    Raises:
        InputError: options or overrides are invalid or contradict each other.
    """
    fixed, words, texts = {**fixed}, words_of(overrides), sources_of(data)
    path = None if out is None else Path(out)
    if recipe is not None:
        _refuse_text(recipe, reads_text=needs_data and corpus_dir is None)
    given = (budget is not None, seed is not None, bool(texts), corpus_dir is not None, fit)
    for (option, key), used in zip(_SET_BY_OPTIONS, (*given, "finetune" in fixed), strict=True):
        refuse_twice(words, option, key, used)
    if budget is not None:
        limit = Budget.parse(budget) if isinstance(budget, str) else budget
        fixed |= {"budget": {"limit": limit}}
    fixed |= {} if seed is None else {"seed": seed}
    corpus = None if corpus_dir is None else _opened(Path(corpus_dir), words, texts)
    if corpus is not None:
        fixed |= corpus.settings()
    elif texts:
        fixed["data"] = {"sources": texts}
    if ask is None:
        asked = asked_in(path, recipe, words, fixed, fit=fit)
    else:
        asked = ask(words, fixed)
        asked = asked if path is None else as_begun(path, asked)
    asked = asked.of_corpus(corpus.vocab_size if corpus is not None else None)
    if corpus is None and asked.choice is not None and asked.config.corpus is not None:
        raise InputError(f"{path} was begun with a prepared corpus: name it, with --corpus")
    if needs_data and corpus is None and not asked.config.data.sources:
        raise InputError(NO_DATA)
    if path is None and last is not None:
        path = default_out(asked, Path(corpus_dir or asked.config.data.sources[0].path).name, last)
        asked = as_begun(path, asked)
    check_tracker(asked.config.compute.track)
    return asked, corpus, path


def words_of(overrides: Overrides) -> list[str]:
    """Overrides as typed: ``["model.layers=4"]``."""
    if isinstance(overrides, str):
        return overrides.split()
    if not isinstance(overrides, Mapping):
        return list(overrides)
    return [f"{key}={_typed(value)}" for key, value in overrides.items()]


def _typed(value: Any) -> str:
    """A value as YAML; those of NumPy become plain, and what else JSON lacks is text."""

    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)

    return json.dumps(value, ensure_ascii=False, default=plain)


def sources_of(data: Texts, option: str = "--data") -> list[str]:
    """Where text lies, valid in any working directory."""
    named = [data] if isinstance(data, str | Path) else data
    return [absolute_source(str(each), option) for each in named]


def _opened(corpus_dir: Path, overrides: list[str], texts: list[str]) -> Corpus:
    """A prepared corpus; refuse what would prepare another one."""
    if texts:
        raise InputError("use --data or --corpus, not both")
    corpus = Corpus(corpus_dir)
    settings = corpus.settings()
    kinds: dict[str, type[Section]] = {"data": DataConfig, "tokenizer": TokenizerConfig}
    own = flat({name: validated(kind, settings[name]).complete() for name, kind in kinds.items()})
    for word in overrides:
        if not re.match(r"(data|tokenizer)[.=]", word):
            continue
        for key, value in flat(parse_overrides([word])).items():
            if key not in own:
                raise InputError(
                    f"{word}: the corpus was not prepared with this setting; leave it out, or "
                    "prepare another corpus"
                )
            if own[key] != value:
                known = f"{key}={_typed(own[key])}"
                raise InputError(
                    f"{word}: the corpus was prepared with {known}; leave it out, or prepare "
                    "another one"
                )
    return corpus


def refuse_twice(overrides: list[str], option: str, key: str, given: bool) -> None:
    """Refuse an override of what an option also sets: one of the two would be ignored.

    Args:
        key: what the option sets; `given` says whether it was used.

    Raises:
        InputError: an override sets the key.
    """
    at: Any = parse_overrides(overrides)
    for part in key.split("."):
        at = at.get(part) if isinstance(at, dict) else at  # a section's one value sets it as well
    if given and at is not None:
        raise InputError(f"{key} is set twice, by {option} and by an override: give one of them")


def show_recipe(progress: Progress, asked: Asked) -> None:
    """Log the budget if no word sets it, and where a recipe has changed since its run began."""
    config = asked.config
    if asked.changed:
        progress.line(
            f"recipe  {config.recipe} has changed since this run began "
            f"({', '.join(asked.changed[:3])}): the run continues as it began"
        )
    if asked.choice is None and "budget.limit" not in asked.keys:
        progress.line(
            f"budget  {config.budget.limit}, from recipe {config.recipe}; choose another with "
            "--budget, such as --budget 1h"
        )


def task_names(tasks: Tasks) -> list[str]:
    """Names of tasks: ``rte,mrpc`` as typed, or each by itself.

    Raises:
        InputError: there is none.
    """
    listed = tasks.split(",") if isinstance(tasks, str) else tasks
    if names := [name for name in listed if name]:
        return names
    raise InputError("--tasks names no task: leave it out, or name some, as in --tasks rte,mrpc")


def _refuse_text(recipe: str, *, reads_text: bool) -> None:
    """Refuse a file, a folder or an address that was typed where the recipe stands."""
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
    if not name:
        raise InputError(f"{option} is empty: name a file or folder of text")
    if "://" in name:
        page = r"https?://(?:www\.)?huggingface\.co/datasets/([\w.-]+/[\w.-]+)/?(?!.*/resolve/)"
        if of_hub := re.match(page, name):
            raise InputError(f"{name} is a page about a data set: type {option} hub:{of_hub[1]}")
        return name
    on_disk = SourceConfig(path=name).is_on_disk
    return str(expanded(name).absolute()) if on_disk else name


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Progress on standard error, once what killed commands left in temporary folders is gone."""
    remove_left_overs()
    with Progress(sys.stderr) as progress:
        yield progress


def compute_config(device: str, dtype: str) -> ComputeConfig:
    """The configuration of the device for fine-tuning.

    Raises:
        InputError: a device or number format that does not exist or is not supported here.
    """
    if dtype == "float16":
        raise InputError("--dtype float16: fine-tuning does no loss scaling; use bfloat16")
    return validated(ComputeConfig, {"device": device, "dtype": dtype})
