"""Chooses the values that a recipe leaves open, for this budget, this device and this text.

The rules are those of `sizing`. With a time budget they need the speed of the device, which varies
with the model's size: the first choice uses the nominal speed, then the device is measured at the
chosen size and the choice is repeated, until it falls on a size already measured. Budgets of
tokens, updates and FLOPs need no speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from crammed.config import Names, PositiveFloat, RunConfig, Section
from crammed.config.kinds import flat
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
"""At most this many sizes are measured; the third is hardly ever needed."""
SHAPE = ("model.layers", "model.width")


class Choice(Section):
    """What ``choice.json`` keeps about the values in a run's configuration."""

    follows: Names = ()
    """The keys that were left open."""
    flops_per_second: PositiveFloat | None = None
    """The measured speed from which they follow; null if none was needed."""
    typed: Names | None = None
    """The keys that the command set; null in runs of older versions."""
    busy: bool = False
    """Whether other work slowed the measurement; until the first update, the run chooses again."""


@dataclass(frozen=True)
class Asked:
    """What a command asks for, before the budget has decided what it leaves open.

    Attributes:
        config: the configuration; its values for open keys are meaningless.
        open: the keys that follow from the budget.
        typed: what the command sets, by section, without what it leaves to the recipe.
        vocabulary: size of the corpus's vocabulary, which may be smaller than requested. The rules
            count with this size, but the requested one is saved. None if there is no corpus yet.
        choice: how the values of a run that goes on were chosen; None if they are still to be.
        changed: what the recipe would set otherwise by now, as ``KEY THERE -> HERE``.
    """

    config: RunConfig
    open: tuple[str, ...] = ()
    typed: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: int | None = None
    choice: Choice | None = None
    changed: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The dotted keys that the command sets."""
        return tuple(sorted(flat(self.typed)))

    def like(self, other: RunConfig) -> RunConfig:
        """The configuration with `other`'s values for the open keys."""
        taken = values_of(other, self.open)
        return with_values(self.config, taken) if taken else self.config

    def wide_open(self, but: Collection[str] = ()) -> Asked:
        """The same, with every key open that has a rule, except those in `but`."""
        keys = values_of(self.config, FOLLOWERS)
        return replace(self, open=tuple(key for key in keys if key not in but))

    def of_corpus(self, vocabulary: int | None) -> Asked:
        """The same for a corpus with a vocabulary of this size; None if there is no corpus yet."""
        return replace(self, vocabulary=vocabulary)

    @property
    def counted(self) -> Asked:
        """The same, with the corpus's vocabulary in place of the requested one."""
        return replace(self, config=in_vocabulary(self.config, self.vocabulary), vocabulary=None)

    def saved(self, config: RunConfig) -> RunConfig:
        """A configuration chosen for `counted`, with the requested vocabulary restored."""
        return in_vocabulary(config, self.config.tokenizer.vocab_size)

    def nominally(self, rows: float | None = None, speed: float | None = None) -> RunConfig:
        """What would be chosen for a device of this speed in FLOP/s; None is its nominal speed."""
        if not self.open:
            return self.config
        if self.vocabulary is not None:
            return self.saved(self.counted.nominally(rows, speed))
        speed = speed or nominal_speed(self.config.compute)
        return follow_budget(self.config, self.open, speed, rows)


@dataclass(frozen=True)
class Chosen:
    """A complete configuration, and how it was chosen."""

    config: RunConfig
    choice: Choice = field(default_factory=Choice)

    @property
    def values(self) -> dict[str, Any]:
        return values_of(self.config, self.choice.follows)


def values_of(config: RunConfig, keys: Collection[str]) -> dict[str, Any]:
    """The values of these dotted keys, without keys that the configuration does not have."""
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
        rows: how many rows of text there are; None if unknown.
        nominal: FLOP/s for the first choice; None is the nominal speed of this machine.

    Raises:
        InputError: no size suits the rest of the configuration, or this machine lacks the device.
    """
    if not asked.open:
        return Chosen(asked.config, asked.choice or Choice())
    if asked.vocabulary is not None:
        made = choose(asked.counted, rows, measure, nominal)
        return replace(made, config=asked.saved(made.config))
    if asked.config.budget.limit.kind != "time":
        return Chosen(asked.nominally(rows, nominal), Choice(follows=asked.open))
    speed = nominal or nominal_speed(asked.config.compute)
    measured: dict[tuple[int, int], float] = {}
    config = asked.nominally(rows, speed)
    while shape_of(config) not in measured and len(measured) < MOST_MEASURED:
        speed = measured[shape_of(config)] = measure(config)
        config = follow_budget(asked.config, asked.open, speed, rows)
    # Where two sizes lead to each other, the speed of the larger decides, which gives the smaller.
    if measured.get(shape_of(config), speed) < speed:
        speed = measured[shape_of(config)]
        config = follow_budget(asked.config, asked.open, speed, rows)
    return Chosen(config, Choice(follows=asked.open, flops_per_second=speed))


def shape_of(config: RunConfig) -> tuple[int, int]:
    """Layers and width."""
    return config.model.layers, config.model.width


def why_size(chosen: Chosen, rows: float | None) -> str:
    """The rule's reason for the chosen size."""
    speed = chosen.choice.flops_per_second or nominal_speed(chosen.config.compute)
    return best_shape(chosen.config, chosen.choice.follows, speed, rows)[1]


def reasons(config: RunConfig, choice: Choice, rows: float | None, known: str = "measured") -> str:
    """Why a run has its size, and what would help it most, in one line.

    Args:
        rows: number of rows in the corpus; None if there is no corpus yet.
        known: a word for how the speed of the choice is known.
    """
    budget, speed = config.budget.limit, choice.flops_per_second
    if budget.kind == "time" and speed is None:
        return f"as set; crammed plan measures what suits {budget}"
    spent = f"{budget}"
    if speed is not None:
        spent += f" at {quantity(speed / flops_per_token(config))} tokens/s, {known}"
    follows = set(choice.follows)
    followed = follows >= set(SHAPE)
    keys = follows if followed else {*SHAPE, *follows & {"model.head_dim", "batch.rows"}}
    nominal = speed or nominal_speed(config.compute)
    try:
        best, why = best_shape(config, keys, nominal, rows)
        endless, _ = best_shape(config, keys, nominal)
    except InputError:  # the values that are set suit none of the sizes to choose from
        return f"as set ({spent})"
    if shape_of(best) != shape_of(config):
        layers, width = shape_of(best)
        why = f"as set; the rule would take {layers} x {width}: {why}"
        why = "as chosen when the run began" if followed else why
    most, little = "more time" if budget.kind == "time" else "a larger budget", "more text"
    if rows is None:
        return f"{why} ({spent}); {most} would help most, given enough text"
    epochs = expected_tokens(config, speed) / config.data.row_length / rows
    in_vain = epochs <= 1.0  # more text is no use while some has not been read
    if shape_of(endless) != shape_of(best) or epochs > epochs_that_count(config):
        most, little = little, most
        in_vain = epochs >= (config.budget.most_epochs or math.inf) * (1.0 - 1e-9)
    elif shape_of(best) == SHAPES[-1]:
        most = "a larger model (model.layers, model.width)"
    return f"{why} ({spent}); {most} would help most, {little} {'would not' if in_vain else 'less'}"
