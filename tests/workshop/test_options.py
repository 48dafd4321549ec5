"""The table of options is true: what works can be typed, and what can be typed is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from crammed.config import (
    BatchConfig,
    CleanConfig,
    MaskingConfig,
    ModelConfig,
    OrderConfig,
    RunConfig,
    TokenizerConfig,
)
from crammed.config.kinds import kinds_of
from crammed.config.training import AdaptiveConfig, Divergence, TrainConfig
from crammed.rules.recipe import load_config
from support.variants import choices

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in PAGE.read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| option ")
]
WHOLE: dict[str, type[BaseModel]] = {
    "model": ModelConfig,
    "masking": MaskingConfig,
    "order": OrderConfig,
    "batch": BatchConfig,
}
"""Sections all of whose keys are options; of the others below, only keys with named values are."""
SECTIONS: dict[str, type[BaseModel]] = {
    **WHOLE,
    "tokenizer": TokenizerConfig,
    "data.clean": CleanConfig,
    "train": TrainConfig,
    "train.divergence": Divergence,
    "batch.adaptive": AdaptiveConfig,
}


def typed(cell: str) -> Iterator[tuple[str, ...]]:
    """The overrides in the second cell of a row, one piece of code after the other."""
    words: tuple[str, ...] = ()
    for code in re.findall(r"`([^`]+)`", cell):
        if "=" in code:
            words = tuple(code.split())
        else:  # another value of the key before it
            words = (*words[:-1], f"{words[-1].partition('=')[0]}={code}")
        yield words


RECIPE = [
    tuple(words.split())
    for words in re.findall(
        r"^\| `([a-z]+\.[^`]+=[^`]+)` \|",
        (PAGE.parent / "recipe.md").read_text("utf-8"),
        re.MULTILINE,
    )
]
WORKING = [words for _, cell, _, _ in ROWS for words in typed(cell)]


def test_every_row_can_be_typed() -> None:
    for option, cell, _, _ in ROWS:
        assert list(typed(cell)), option


@pytest.mark.parametrize("words", WORKING, ids=" ".join)
def test_what_works_is_accepted(words: tuple[str, ...]) -> None:
    load_config("crammed-2022", words)


@pytest.mark.parametrize("words", RECIPE, ids=" ".join)
def test_what_the_default_recipe_leaves_off_can_be_typed(words: tuple[str, ...]) -> None:
    load_config("crammed", words)


def test_every_value_of_the_configuration_is_in_the_table() -> None:
    there = {word for words in WORKING for word in words}
    keys = {word.partition("=")[0] for word in there}
    keys |= {key.rpartition(".")[0] for key in keys}  # of options that hold further keys
    wanted = {
        f"{section}.{key}={str(value).lower() if isinstance(value, bool) else value}"
        for section, kind in SECTIONS.items()
        for key, values in choices(kind).items()
        for value in values
    }
    for name, choice in kinds_of(RunConfig).items():
        wanted |= {f"{name}.{choice.key}={each}" for each in choice.kinds}
        for each in choice.kinds.values():
            assert {f"{name}.{key}" for key in each.model_fields} <= keys
    assert wanted - there == set()
    for section, kind in WHOLE.items():
        assert {f"{section}.{key}" for key in kind.model_fields} <= keys
