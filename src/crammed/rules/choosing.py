"""Chooses the values that a recipe leaves open, for this budget, this device and this text.

The rules are those of `sizing`. Where the budget is one of time they need the speed of the device,
which differs from size to size: the first choice is made with the nominal speed, the device is
measured at the size chosen, and the choice is made again, until a size is chosen that was
measured. Budgets of tokens, updates and FLOPs need no speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from crammed.config import Names, PositiveFloat, RunConfig, Section
from crammed.errors import InputError
from crammed.machine.speed import nominal_speed
from crammed.quantity import quantity
from crammed.rules.sizing import (
    FOLLOWERS,
    SHAPES,
    best_shape,
    epochs_that_count,
    expected_tokens,
    flops_per_token,
    follow_budget,
    in_vocabulary,
    with_values,
)

Measure = Callable[[RunConfig], float]
"""Measures the FLOP/s that training reaches with a configuration."""
MOST_MEASURED = 3
"""Sizes that are measured at most; the third is hardly ever needed."""
SHAPE = ("model.layers", "model.width")
OF_WIDTH = ("model.head_dim", "tokenizer.vocab_size")
"""What follows from the width."""


@dataclass(frozen=True)
class Asked:
    """What a command asks for, before the budget has decided what that leaves open.

    Attributes:
        config: what is open has values that mean nothing.
        open: the keys that follow from the budget.
        earlier: the version as of which the recipe is read; None is today's.
        former: the same words read as of earlier versions, for runs that began with these, the
            latest first, as far as that is different.
        vocabulary: size of that of the corpus, which may be smaller than the one asked for. All
            that is chosen is counted with it, and what was asked for is saved. None if there is no
            corpus yet.
    """

    config: RunConfig
    open: tuple[str, ...] = ()
    earlier: str | None = None
    former: tuple[Asked, ...] = ()
    vocabulary: int | None = None

    @property
    def needs_speed(self) -> bool:
        """Whether the choice depends on how fast the device is."""
        return bool(self.open) and self.config.budget.limit.kind == "time"

    def like(self, other: RunConfig, keys: Collection[str] | None = None) -> RunConfig:
        """With the values of `other` where something is open; `keys` takes only some of them."""
        taken = values_of(other, self.open if keys is None else set(self.open) & set(keys))
        return with_values(self.config, taken) if taken else self.config

    def wide_open(self, but: Collection[str] = ()) -> Asked:
        """The same with every key open that has a rule, except some."""
        keys = values_of(self.config, FOLLOWERS)
        return replace(self, open=tuple(key for key in keys if key not in but))

    def of_corpus(self, vocabulary: int | None) -> Asked:
        """The same, also as of earlier versions, for a corpus with a vocabulary of this size.

        Args:
            vocabulary: None if there is no corpus yet.
        """
        former = tuple(each.of_corpus(vocabulary) for each in self.former)
        return replace(self, vocabulary=vocabulary, former=former)

    @property
    def counted(self) -> Asked:
        """The same with the vocabulary of its corpus in place of the one that was asked for."""
        return replace(self, config=in_vocabulary(self.config, self.vocabulary), vocabulary=None)

    def saved(self, config: RunConfig) -> RunConfig:
        """What was chosen for `counted`, with the vocabulary that was asked for."""
        return in_vocabulary(config, self.config.tokenizer.vocab_size)

    def nominally(self, rows: float | None = None, speed: float | None = None) -> RunConfig:
        """What would be chosen if the device had its nominal speed, or this one, in FLOP/s."""
        if not self.open:
            return self.config
        if self.vocabulary is not None:
            return self.saved(self.counted.nominally(rows, speed))
        speed = speed or nominal_speed(self.config.compute)
        return follow_budget(self.config, self.open, speed, rows)


class Choice(Section):
    """What a run keeps in ``choice.json`` about the values in its configuration."""

    follows: Names = ()
    """The keys that were left open."""
    flops_per_second: PositiveFloat | None = None
    """The measured speed that they follow from; null where none was needed."""


@dataclass(frozen=True)
class Chosen:
    """A complete configuration, and what decided it."""

    config: RunConfig
    choice: Choice = field(default_factory=Choice)

    @property
    def values(self) -> dict[str, Any]:
        """The values that were chosen, by key."""
        return values_of(self.config, self.choice.follows)


def values_of(config: RunConfig, keys: Collection[str]) -> dict[str, Any]:
    """The values of those among these dotted keys that the configuration has."""
    values = config.model_dump(mode="json")
    places = {key: key.split(".") for key in keys}
    return {
        key: values[section][name]
        for key, (section, name) in places.items()
        if name in values[section]
    }


def choose(
    asked: Asked, rows: float | None, measure: Measure, nominal: float | None = None
) -> Chosen:
    """Choose what is open, and measure the device if the choice depends on its speed.

    Args:
        rows: how many rows of text there are; None if that is not known.
        nominal: FLOP/s to make the first choice with; None is the nominal speed of this machine.

    Raises:
        InputError: no size suits the rest of the configuration, or this machine lacks the device.
    """
    if not asked.open:
        return Chosen(asked.config)
    if asked.vocabulary is not None:
        made = choose(asked.counted, rows, measure, nominal)
        return replace(made, config=asked.saved(made.config))
    if not asked.needs_speed:
        return Chosen(asked.nominally(rows, nominal), Choice(follows=asked.open))
    speed = nominal or nominal_speed(asked.config.compute)
    measured: dict[tuple[int, int], float] = {}
    config = asked.nominally(rows, speed)
    while shape_of(config) not in measured and len(measured) < MOST_MEASURED:
        speed = measured[shape_of(config)] = measure(config)
        config = follow_budget(asked.config, asked.open, speed, rows)
    if measured.get(shape_of(config), speed) < speed:  # two sizes choose each other: the smaller
        speed = measured[shape_of(config)]
        config = follow_budget(asked.config, asked.open, speed, rows)
    return Chosen(config, Choice(follows=asked.open, flops_per_second=speed))


def shape_of(config: RunConfig) -> tuple[int, int]:
    """Layers and width."""
    return config.model.layers, config.model.width


def why_size(chosen: Chosen, rows: float | None) -> str:
    """Why the size was chosen, by the rule."""
    keys = {*SHAPE, *OF_WIDTH} & set(chosen.choice.follows)
    speed = chosen.choice.flops_per_second or nominal_speed(chosen.config.compute)
    return best_shape(chosen.config, keys, speed, rows)[1]


def reasons(config: RunConfig, choice: Choice, rows: float | None, known: str = "measured") -> str:
    """Why a run has the size that it has, and what would help it most, in one line.

    Args:
        rows: number of rows in the corpus; None if there is no corpus yet.
        known: how the speed of the choice is known, in a word.
    """
    budget, speed = config.budget.limit, choice.flops_per_second
    if budget.kind == "time" and speed is None:
        return f"as set; crammed plan measures what suits {budget}"
    spent = f"{budget}"
    if speed is not None:
        spent += f" at {quantity(speed / flops_per_token(config))} tokens/s, {known}"
    follows = set(choice.follows)
    followed = follows >= set(SHAPE)
    keys = {*SHAPE, *OF_WIDTH} & follows if followed else {*SHAPE, *follows & {"model.head_dim"}}
    nominal = speed or nominal_speed(config.compute)
    try:
        best, why = best_shape(config, keys, nominal, rows)
        endless, _ = best_shape(config, keys, nominal)
    except InputError:  # what is set suits none of the sizes to choose from
        return f"as set ({spent})"
    if shape_of(best) != shape_of(config):
        layers, width = shape_of(best)
        why = f"as set; the rule would take {layers} x {width}, {why}"
        why = "as chosen when the run began" if followed else why
    most, little = "more time" if budget.kind == "time" else "a larger budget", "more text"
    if rows is None:
        return f"{why} ({spent}); {most} would help most, given enough text"
    epochs = expected_tokens(config, speed) / config.data.row_length / rows
    in_vain = epochs <= 1.0  # as long as there is text that has not been read
    if shape_of(endless) != shape_of(best) or epochs > epochs_that_count(config):
        most, little = little, most
        in_vain = epochs >= (config.budget.most_epochs or math.inf) * (1.0 - 1e-9)
    elif shape_of(best) == SHAPES[-1]:
        most = "a larger model (model.layers, model.width)"
    return f"{why} ({spent}); {most} would help most, {little} {'would not' if in_vain else 'less'}"
