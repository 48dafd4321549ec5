"""Losses as the tables of arms and variants show them."""

from __future__ import annotations

from typing import Any


def mean_text(loss: dict[str, Any]) -> str:
    """The mean over seeds, and the standard deviation if there are several."""
    deviation = loss["deviation"]
    return f"{loss['mean']:.3f}" + (f" ± {deviation:.3f}" if deviation is not None else "")


def difference_text(loss: dict[str, Any]) -> str:
    """The difference from the baseline with its interval; nothing for the baseline itself."""
    if loss["difference"] is None:
        return ""
    between = loss["interval"]
    words = f" ({between[0]:+.3f} to {between[1]:+.3f})" if between is not None else ""
    return f"{loss['difference']:+.3f}{words}"
