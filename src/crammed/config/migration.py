"""Migrates configurations that older versions saved to the current format.

Recipes and overrides are not migrated: a user who types a removed key gets an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def migrate(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Migrate the sections of a saved configuration to the format that `RunConfig` has now.

    Call this before validating sections that an older version may have saved.

    Args:
        saved: plain values by section; any of them may be missing.
    """
    values = dict(saved)
    if isinstance(optim := values.get("optim"), Mapping):
        values["optim"] = _without_unread_options(optim)
    compute = values.get("compute")
    if isinstance(compute, Mapping) and compute.get("kernels") == "triton":
        values["compute"] = {**compute, "kernels": "auto"}  # which differs by rounding alone
    if values.get("corpus") is not None and isinstance(data := values.get("data"), Mapping):
        # Corpora of older versions kept the copies. A run that prepares its own corpus has either
        # finished it, so that the key has no effect, or prepares it by the current rule.
        values["data"] = {"heldout_copies": "keep", **data}
    return values


def _without_unread_options(optim: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the two options that every optimizer once had, though only Muon read them."""
    if optim.get("name", "adamw") not in ("adamw", "adam"):
        return dict(optim)
    return {key: value for key, value in optim.items() if key not in ("matrix_lr", "momentum")}
