"""A stand-in for the runs of studies."""

from __future__ import annotations

SUMMARY = {
    "tokens": 10,
    "updates": 6,
    "parameters": 5,
    "exaflop": 1e-9,
    "charged_seconds": 2.0,
    "heldout": {"loss@0.15": 4.0, "loss@0.25": 5.0},
}
"""The part of a run's summary that a study reads."""
