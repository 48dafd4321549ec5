"""Tests for reading the logs of a run."""

from __future__ import annotations

from typing import Any

from crammed.runs.logs import heldout_losses


def measured(update: int, u: float) -> dict[str, Any]:
    return {"event": "heldout", "update": update, "u": u}


def test_held_out_losses_that_a_crash_undid_are_left_out() -> None:
    """Time stays charged after a crash, so what was undone lies at other places of the curve."""
    killed = [measured(8, 0.1), measured(45, 0.2), {"event": "resume", "update": 0}]
    resumed = [measured(1, 0.35), measured(18, 0.4), measured(50, 0.5), measured(90, 1.0)]
    assert heldout_losses([*killed, *resumed]) == resumed
    assert heldout_losses([*killed, *resumed], 90) == resumed[:-1]
    assert heldout_losses(killed) == []
    gone_back = [killed[0], measured(45, 0.2), {"event": "back", "update": 8}, measured(60, 0.5)]
    assert heldout_losses(gone_back) == [killed[0], gone_back[-1]]
