"""Configurations that older versions saved, brought to the form of today.

Recipes and overrides are not migrated: a person who types a key that is gone is told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def migrate(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Bring the sections of a saved configuration to the form that `RunConfig` has today.

    Whatever reads sections that an older version may have saved calls this before validating them.

    Args:
        saved: plain values by section; any of them may be missing.
    """
    values = dict(saved)
    if isinstance(optim := values.get("optim"), Mapping):
        values["optim"] = _without_unread_options(optim)
    if values.get("corpus") is not None and isinstance(data := values.get("data"), Mapping):
        # Corpora of older versions kept them. Where a run prepares its own corpus, that is either
        # finished, and the key decides nothing any more, or it is prepared by today's rule.
        values["data"] = {"heldout_copies": "keep", **data}
    return values


def _without_unread_options(optim: Mapping[str, Any]) -> dict[str, Any]:
    """Before optimizers had options of their own, all had these two, which only Muon read."""
    if optim.get("name", "adamw") not in ("adamw", "adam"):
        return dict(optim)
    return {key: value for key, value in optim.items() if key not in ("matrix_lr", "momentum")}
