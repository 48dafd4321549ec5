"""What the verbs print."""

from __future__ import annotations

from typing import Any

import pytest

from crammed.cli.training import run_lines

RESULT: dict[str, Any] = {
    "heldout": {"loss@0.15": 3.0, "loss@0.25": 3.5},
    "unigram_cross_entropy": 5.0,
    "export": {"format": "bert"},
    "tokens": 1000,
    "updates": 10,
    "u": 0.5,
    "budget": "1h",
    "exaflop": 0.1,
    "export_dir": "run/export",
    "report": None,
    "mask_token": "[MASK]",
}


def test_a_loss_above_the_unigram_models_is_said_to_be_above() -> None:
    worse = {**RESULT, "heldout": {"loss@0.15": 5.05, "loss@0.25": 5.1}, "tasks": {}}
    said = "5.050 nats with 15 % masked (0.05 nats above the unigram model), 5.100 with 25 %"
    assert dict(run_lines(worse))["held-out loss"] == said


@pytest.mark.parametrize(
    ("untrained", "words"),
    [
        ({"median": 40.0, "spread": 1.5, "seeds": [40.0]}, "untrained model 40.0 (spread 1.5)"),
        (None, "untrained model none"),
        ({"failed": "all predictions are 1"}, "untrained model undefined"),
    ],
)
def test_a_score_is_shown_with_or_without_the_untrained_model(untrained: Any, words: str) -> None:
    entry = {"metric": "f1", "median": 80.0, "spread": 2.0, "official": None}
    lines = dict(run_lines({**RESULT, "tasks": {"mrpc": {**entry, "untrained": untrained}}}))
    assert lines["mrpc"] == f"80.0 f1 (spread 2.0); {words}"
