"""What an update is, decided before it begins."""

from __future__ import annotations

from dataclasses import dataclass

from crammed.budget import Work


@dataclass(frozen=True)
class Update:
    """One optimizer update.

    Attributes:
        number: how many updates came before it.
        first_row: place of its first row in the stream.
        factor: factor on every peak learning rate: the schedule at the predicted middle of the
            update, times `Detour.rate`.
        mask_rate: share of positions to predict.
        cost: the work that it adds.
        layers: how many layers are in use; None changes nothing.
        pieces: into how many shorter rows each row is cut.
        dropped: share of `model.layer_drop`.
    """

    number: int
    first_row: int
    rows: int
    factor: float
    mask_rate: float
    cost: Work
    layers: int | None = None
    pieces: int = 1
    dropped: float = 1.0
