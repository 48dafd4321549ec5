"""What to expect of little text, from the ``runs.json`` of a record's runs over several texts."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np

import layout
from crammed.config import RunConfig
from crammed.quantity import counted, quantity
from crammed.rules.choosing import choose, shape_of
from crammed.rules.recipe import ask
from crammed.rules.sizing import expected_tokens, flops_per_token
from crammed.study.result import RATES
from layout import row_of, tabled

DEFAULT = "default"
"""The variant that is the default recipe, except for its size."""
MINUTES = (1, 2, 5, 10, 30, 60)
MORE_TEXT = 100e6
"""Characters of a text that the rule is asked about besides those that were measured."""
NEARLY = 1.02
"""A run may read this many times the tokens of the longest measured one, because of its last
update."""

Run = dict[str, Any]
Shape = tuple[int, int]


def minutes_table(name: str) -> str:
    """What the default recipe does with each text in some minutes, and the loss to expect."""
    values = layout.found(layout.RECORDS / name / "runs.json")
    runs = [run for run in values["runs"] if run["variant"] == DEFAULT]
    characters = {each["tokens"]: each["characters"] for each in values["corpora"].values()}
    texts = {tokens: characters[tokens] for tokens in sorted({run["text_tokens"] for run in runs})}
    longest = max(texts)
    texts[round(longest / texts[longest] * MORE_TEXT)] = MORE_TEXT
    rows = [
        row_of(f"{quantity(size, 'B')}, {quantity(tokens)} tokens", *_foreseen(runs, tokens, n))
        for tokens, size in texts.items()
        for n in MINUTES
    ]
    head = (
        "| text | minutes | layers x width | tokens read | readings | ends after "
        "| held-out loss to expect |"
    )
    words = (
        f"Minutes are those of {counted(runs[0]['cores'], 'core')} of the machine below, at the "
        "speed measured there for the size; losses are at 15 % masking."
    )
    return tabled(head, rows, runs, words)


def _foreseen(runs: list[Run], text: int, minutes: int) -> tuple[str, ...]:
    """The row of `minutes_table` for a text of so many tokens and a budget."""
    config, speed = _chosen(runs, text, minutes)
    rows, shape = text / config.data.row_length, shape_of(config)
    paid, read = expected_tokens(config, speed), expected_tokens(config, speed, rows)
    own = [run for run in runs if (run["text_tokens"], _shape(run)) == (text, shape)]
    return (
        str(minutes),
        f"{shape[0]} x {shape[1]}",
        quantity(read),
        _times(read / text),
        config.budget.limit.part(read / paid) if read < paid else "",
        _expected(_by_tokens(own), read),
    )


def _chosen(runs: list[Run], text: int, minutes: int) -> tuple[RunConfig, float]:
    """The default recipe for a text and a budget on the machine of the runs; its FLOP/s there."""
    fixed = {"budget": {"limit": f"{minutes}m"}}
    asked = ask("crammed", ["compute.device=cpu", f"compute.threads={runs[0]['cores']}"], fixed)
    speeds: dict[Shape, float] = {}  # of the fastest run of each size, which was disturbed least
    for run in runs:
        speed = run["tokens"] / run["charged_seconds"]
        speeds[_shape(run)] = max(speed, speeds.get(_shape(run), 0.0))

    def measured(config: RunConfig) -> float:
        """The FLOP/s of a size, or of the nearest one that was measured."""
        weight = math.log(_weight(shape_of(config)))
        nearest = min(speeds, key=lambda shape: abs(math.log(_weight(shape)) - weight))
        layers, width = nearest
        model = config.model.model_copy(update={"layers": layers, "width": width})
        return speeds[nearest] * flops_per_token(config.model_copy(update={"model": model}))

    chosen = choose(asked, text / asked.config.data.row_length, measured).config
    return chosen, measured(chosen)


def _expected(losses: dict[float, float], read: float) -> str:
    """The loss after `read` tokens, interpolated between runs of the same text and size.

    It is linear in the log of tokens.
    """
    if not losses:
        return "not measured"
    if read > NEARLY * max(losses):
        return "beyond what was measured"
    if read < min(losses):
        return "shorter than what was measured"
    tokens = sorted(losses)
    return f"{np.interp(math.log(read), np.log(tokens), [losses[n] for n in tokens]):.2f}"


def _by_tokens(runs: list[Run]) -> dict[float, float]:
    """The mean loss of runs of one text and size, by the tokens that they read."""
    losses: dict[str, list[float]] = {}
    tokens: dict[str, float] = {}
    for run in runs:
        read = _times(run["tokens"] / run["text_tokens"])
        tokens[read] = run["tokens"]
        losses.setdefault(read, []).append(run["heldout"][RATES[0]])
    return {tokens[read]: statistics.fmean(each) for read, each in losses.items()}


def _times(epochs: float) -> str:
    """A number of readings; rounded, because a run ends before the update that does not fit."""
    return f"{epochs:.2g}" if epochs < 99.5 else f"{epochs:.0f}"


def _shape(run: Run) -> Shape:
    return run["layers"], run["width"]


def _weight(shape: Shape) -> int:
    """The order of sizes: roughly their number of parameters."""
    return shape[0] * shape[1] ** 2
