"""Learning rates that are far too high for a model, and what to type instead."""

from __future__ import annotations

from collections.abc import Collection

from crammed.config import RunConfig
from crammed.rules.sizing import MATRIX_RATE, learning_rate, rates_of_width

FAR = 8.0
"""A rate above this many times the suitable one is far too high; `train.divergence` lowers rates no
further."""


def suited_rates(config: RunConfig) -> dict[str, float]:
    """The learning rates that would suit the model, by the keys that its optimizer reads.

    Where no rule ties the rate to the width, it is the optimizer's default. Nothing is known of
    those of another library.
    """
    optim, rules = config.optim, rates_of_width(config)
    if optim.name == "library":
        return {}
    rate = learning_rate(config) if rules else float(type(optim).model_fields["lr"].default)
    suited = {"optim.lr": rate}
    if "optim.matrix_lr" in rules:
        suited["optim.matrix_lr"] = MATRIX_RATE * rate
    if optim.embedding_lr is not None:
        suited["optim.embedding_lr"] = rate
    return suited


def far_too_high(config: RunConfig, follows: Collection[str] = ()) -> str | None:
    """What to type instead of rates that are far too high, unless `follows` has left them open."""
    own = config.optim.model_dump()
    high = {
        key: suited
        for key, suited in suited_rates(config).items()
        if key not in follows and own[key.partition(".")[2]] > FAR * suited
    }
    return " ".join(f"{key}={suited:.2g}" for key, suited in high.items()) or None
