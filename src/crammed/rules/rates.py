"""Learning rates that are far too high for a model, and what to type instead."""

from __future__ import annotations

from collections.abc import Collection

from crammed.config import RunConfig
from crammed.rules.sizing import MATRIX_RATE, learning_rate, rates_of_width

FAR = 8.0
"""A rate above this many times the suitable one is far too high; `train.divergence` lowers rates no
further."""


def far_too_high(config: RunConfig, follows: Collection[str] = ()) -> str | None:
    """What to type instead of rates that are far too high, unless `follows` has left them open.

    Where no rule ties a rate to the width, the optimizer's default suits. Nothing is known of the
    rates of another library. None if no rate is far too high.
    """
    optim, rules = config.optim, rates_of_width(config)
    if optim.name == "library":
        return None
    rate = learning_rate(config) if rules else float(type(optim).model_fields["lr"].default)
    suited = {"optim.lr": rate}
    if "optim.matrix_lr" in rules:
        suited["optim.matrix_lr"] = MATRIX_RATE * rate
    if optim.embedding_lr is not None:
        suited["optim.embedding_lr"] = rate
    own = optim.model_dump()
    high = [
        f"{key}={value:.2g}"
        for key, value in suited.items()
        if key not in follows and own[key.partition(".")[2]] > FAR * value
    ]
    return " ".join(high) or None
