"""Studies at any budget: recipes scaled down in proportion, and values multiplied by factors.

The paper's recipes are for a day on a GPU. A study whose file has a ``small`` form takes them as
they are if its budget is enough for the base's own size, and otherwise scales them down: the base
to the size and batch that `crammed.rules.sizing` gives, every other recipe so that its ratio to the
base stays. Learning rates that follow the width are multiplied by the square root of the factor by
which a model is narrower, as in `crammed.rules.sizing`. Initial standard deviations stay: larger
ones were tried, and are worse.

Arms may set ``key*=factor``, which multiplies the value that the arm would have without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from crammed.config import RunConfig
from crammed.config.kinds import flat, overlaid
from crammed.errors import InputError
from crammed.model.count import block_matrix_parameters
from crammed.rules.choosing import values_of
from crammed.rules.recipe import parse_overrides
from crammed.rules.sizing import head_dim, rates_of_width, with_values
from crammed.study.spec.corpora import of_training

NARROWEST = 8
"""Widths are multiples of this, so that heads can have a width that suits rotary positions."""
FEWEST_HEADS = 4
"""So many heads are left of a recipe in small, so that an arm can have a quarter of them."""

Values = dict[str, Any]


def scaled_down(full: RunConfig, fitted: RunConfig, but: Iterable[str]) -> RunConfig:
    """A recipe in the size that suits a budget, or as it is if it is no larger.

    Args:
        full: the recipe as it is.
        fitted: the recipe with what follows from the budget.
        but: keys that were typed, whose values stay.
    """
    if block_matrix_parameters(full.model) <= block_matrix_parameters(fitted.model):
        return full
    moved = _narrowed(full, fitted.model.width)
    return with_values(fitted, {key: value for key, value in moved.items() if key not in but})


def in_proportion(config: RunConfig, full: RunConfig, small: RunConfig) -> RunConfig:
    """A recipe scaled down by the ratios of `small` to `full`.

    Args:
        config: the recipe as it is.
        full: the base of the study as it is.
        small: the base as `scaled_down` gives it.
    """
    if small == full:
        return config
    width = _whole_width(config.model.width * small.model.width / full.model.width)
    layers = _whole(config.model.layers * small.model.layers / full.model.layers)
    rows = _whole(config.batch.rows * small.batch.rows / full.batch.rows)
    changed = {"model.layers": layers, "model.width": width, "batch.rows": rows}
    return _unchecked(config, {**_narrowed(config, width), **changed})


def in_rows_of(config: RunConfig, length: int) -> RunConfig:
    """The configuration with the batch that keeps its tokens per update at another row length.

    Args:
        length: tokens of a row; the number of rows is rounded.
    """
    if length == config.data.row_length:
        return config
    rows = _whole(config.batch.rows * config.data.row_length / length)
    return _unchecked(config, {"batch.rows": rows})


def scaled_words(config: RunConfig, but: Iterable[str]) -> list[str]:
    """Overrides with the values that scaling changes, except for some keys."""
    shape = ("model.layers", "model.width", "model.head_dim", "batch.rows")
    values = values_of(config, [k for k in (*shape, *rates_of_width(config)) if k not in but])
    return [f"{key}={value}" for key, value in values.items() if value is not None]


def typed_keys(words: Iterable[str]) -> set[str]:
    """The keys that words set, also in whole sections such as ``optim={name: adam}``."""
    return {*flat(parse_overrides([word for word in words if "=" in word]))}


def has_factor(word: str) -> bool:
    """Whether a word multiplies a value instead of setting it."""
    return word.partition("=")[0].endswith("*")


def resolved(own: Sequence[str], config: RunConfig, proportional: bool) -> tuple[str, ...]:
    """An arm's own words with numbers in place of factors.

    Args:
        config: the arm's configuration without its own words. Factors multiply what it is with the
            others of these words, such as the rate that another optimizer brings.
        proportional: whether a factor on the width also changes the learning rates that follow the
            width, and the width of heads, unless the arm sets them.

    Raises:
        InputError: a factor is no positive number, or its key has no number to multiply.
    """
    words = [word for word in own if not has_factor(word)]
    config = _with_own(config, words)
    values = config.model_dump(mode="json")
    changed: Values = {}
    for word in filter(has_factor, own):
        key, _, factor = word.partition("=")
        section, _, name = key[:-1].partition(".")
        held = values.get(section)
        value = held.get(name) if isinstance(held, dict) else None
        if key[:-1] in typed_keys(words):
            raise InputError(f"{word}: {key[:-1]} is set as well: leave one of the two out")
        changed[key[:-1]] = _multiplied(word, value, factor)
    width = changed.get("model.width")
    if proportional and width is not None:
        set_by_arm = typed_keys(words) | changed.keys()
        follow = _narrowed(config, width).items()
        changed |= {key: value for key, value in follow if key not in set_by_arm}
    return (*words, *(f"{key}={value}" for key, value in changed.items()))


def _with_own(config: RunConfig, words: Sequence[str]) -> RunConfig:
    own = parse_overrides([word for word in of_training(words) if "=" in word])
    try:
        return RunConfig.model_validate(overlaid(config.model_dump(mode="json"), own, RunConfig))
    except ValidationError:  # the check of the arm refuses this
        return config


def _multiplied(word: str, value: Any, text: str) -> int | float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0.0 < factor < math.inf:
        raise InputError(f"{word}: a factor is a number above 0, such as optim.lr*=0.5")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{word}: there is no number to multiply: set the value itself")
    if value * factor == math.inf:
        raise InputError(f"{word}: {value:g} times that is too large a number")
    if word.startswith("model.width*"):
        return _whole_width(value * factor)
    return _whole(value * factor) if isinstance(value, int) else float(f"{value * factor:.6g}")


def _narrowed(config: RunConfig, width: int) -> Values:
    """Learning rates and the width of heads for the configuration at another width."""
    factor = math.sqrt(config.model.width / width)
    rates = values_of(config, rates_of_width(config))
    found = {k: float(f"{v * factor:.6g}") for k, v in rates.items() if v is not None}
    return {**found, "model.head_dim": head_dim(width, FEWEST_HEADS)}


def _unchecked(config: RunConfig, values: Values) -> RunConfig:
    """The configuration with other values, which an arm may yet replace: it is checked as a whole.

    Args:
        values: by dotted keys, of the right types.
    """
    for key, value in values.items():
        section, _, name = key.partition(".")
        own = getattr(config, section).model_copy(update={name: value})
        config = config.model_copy(update={section: own})
    return config


def _whole(value: float) -> int:
    return max(1, math.floor(value + 0.5))


def _whole_width(value: float) -> int:
    return NARROWEST * _whole(value / NARROWEST)
