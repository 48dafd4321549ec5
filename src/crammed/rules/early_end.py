"""Describes a run that ends before its budget: its text is used up, or an update does not fit."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from crammed.budget import format_seconds
from crammed.config import RunConfig
from crammed.quantity import quantity

NEARLY_ALL = 0.995
"""A run that spends at least this share of its budget does not end early."""
ENOUGH = 0.95
"""Below this progress of training, a run that one more update would take too far ends short."""
MUCH_LOST = 0.05
"""A run that lost a larger share of its budget of time ends short, too."""


def ended_short(
    config: RunConfig, u: float, begun: float, early: EarlyEnd | None, lost: float = 0.0
) -> str | None:
    """How training ended well before the end of its schedule, and what to do; None if it did not.

    So does a run that lost much of its budget, though its schedule may be complete.

    Args:
        u: progress at the end of training.
        begun: the share of the budget that was spent when its first update began.
        early: how the end of the text ended the run, which is not short.
        lost: seconds of work that was lost.
    """
    if early is not None:
        return None
    limit, said = config.budget.limit, list[str]()
    trained = (u - begun) / (1.0 - begun)
    if trained < ENOUGH:
        alone = " and run nothing beside it" if limit.kind == "time" else ""
        said.append(
            f"training ended at {100 * trained:.0f} % of its schedule, before the learning rate "
            f"had decayed: one more update did not fit into the {limit.part(1.0 - u)} left of "
            f"{limit}; raise the budget or lower batch.rows{alone}"
        )
    if lost_share(config, lost) > MUCH_LOST:
        said.append(
            f"{format_seconds(lost)} of its {limit} went to work that was lost, and only the rest "
            "to this model; to train for all of it, choose another --out"
        )
    return "; ".join(said) or None


def lost_share(config: RunConfig, seconds: float) -> float:
    """The share of a budget of time that lost work was charged; 0 if nothing is charged for it."""
    limit, charged = config.budget.limit, "lost" in config.budget.charge
    return seconds / limit.limit if limit.kind == "time" and charged else 0.0


def text_is_read(config: RunConfig, rows: int, tokens: int) -> bool:
    """Whether one more update would pass `budget.most_epochs`.

    Args:
        rows: number of rows in the corpus.
        tokens: how many tokens the run has read.
    """
    return tokens + config.batch.rows * config.data.row_length > config.most_tokens(rows)


class EarlyEnd(BaseModel):
    """An early end, and how much text the whole budget could use.

    Attributes:
        epochs: how often the text is read.
        share: share of the budget spent by the end.
        spent, budget: this share and the whole budget, in words.
        text_tokens, text_bytes: length of the text; its bytes are None if unknown.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    epochs: Annotated[float, Field(ge=0.0)]
    share: Annotated[float, Field(gt=0.0, lt=1.0)]
    spent: str
    budget: str
    text_tokens: Annotated[int, Field(ge=0)]
    text_bytes: Annotated[float, Field(ge=0.0)] | None

    @classmethod
    def of(
        cls, config: RunConfig, rows: int, text_bytes: float | None, epochs: float, share: float
    ) -> EarlyEnd | None:
        """The end of a run that spends `share` of its budget; None if that is nearly all, or none.

        Args:
            rows: number of rows in the corpus.
        """
        if not 0.0 < share < NEARLY_ALL:
            return None
        limit, text_tokens = config.budget.limit, rows * config.data.row_length
        return cls(
            epochs=epochs,
            share=share,
            spent=limit.part(share),
            budget=str(limit),
            text_tokens=text_tokens,
            text_bytes=text_bytes,
        )

    def words(self, *, over: bool) -> str:
        """A clause about the corpus: how it ends the run, and how much text could be used.

        Args:
            over: whether the run has ended.
        """
        times = 1.0 / self.share
        size = f"{quantity(times * self.text_tokens)} tokens"
        if self.text_bytes is not None:
            size += f", {quantity(times * self.text_bytes, 'B')}"
        many = f"{times:.3g}" if times < 100 else f"{times:,.0f}"
        done, ends = ("was", "ended after") if over else ("is", "ends after about")
        return (
            f"{done} read {self.epochs:.3g} times (budget.most_epochs), so the run {ends} "
            f"{self.spent} of {self.budget}; the whole budget could use {many} times as much text "
            f"({size})"
        )
