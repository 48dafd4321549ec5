"""Whether a finished run could have used more training, in words."""

from __future__ import annotations

from pathlib import Path

from crammed.errors import InputError
from crammed.rules.rates import far_too_high
from crammed.rules.sizing import MOST_EPOCHS
from crammed.runs.directory import read_choice, read_config
from crammed.runs.logs import heldout_losses, read_events
from crammed.runs.summary import Summary

GATE = 1.0
"""How many nats below the unigram cross-entropy a model is that has left the plateau."""
STILL_FALLING = 0.05
"""Nats: a held-out loss that fell by as much between its last two measurements still falls."""


def train_longer(run: Path, summary: Summary) -> str | None:
    """A clause about what more the run needed to learn; None if nothing says that it did."""
    loss, unigram = summary.heldout["loss@0.15"], summary.unigram_cross_entropy
    short_of_text = summary.early_end is not None or summary.epochs > MOST_EPOCHS
    more = "more text" if short_of_text else "a larger budget"
    if loss >= unigram:
        choice = read_choice(run)
        rates = far_too_high(read_config(run), choice.follows if choice is not None else ())
        return f"it predicts no better than word frequencies alone: train with {rates or more}"
    if loss > unigram - GATE:
        return (
            "it is still on the plateau, where a model knows little more than how often words "
            f"occur: train with {more}"
        )
    if summary.early_end is not None or summary.ended_short is not None:
        return None  # which has been said to need more
    try:
        events = read_events(run, heldout=("u", "update", "loss@0.15"))
    except InputError:  # a result does not depend on its log
        return None
    points = heldout_losses(events, summary.updates)
    fell = points[-2]["loss@0.15"] - points[-1]["loss@0.15"] if len(points) > 1 else 0.0
    if fell < STILL_FALLING:
        return None
    between = " and ".join(f"{100 * point['u']:.0f} %" for point in points[-2:])
    return (
        f"its held-out loss was still falling, by {fell:.2f} nats between {between} of the budget: "
        f"{'a larger budget and ' if short_of_text else ''}{more} would lower it further"
    )
