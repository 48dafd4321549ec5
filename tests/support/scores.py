"""Scores as evaluations store them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from crammed.evaluation.protocol import load_protocol


def score(median: float, **fields: Any) -> dict[str, Any]:
    """A score on data of official size."""
    return {
        "metric": "f1",
        "seeds": [median - 1, median - 0.5, median, median + 1, median + 2],
        "median": median,
        "spread": 3.0,
        "interval": [median - 3, median + 3],
        "also": {"accuracy": 71.25},
        "rows": {"train": 3668, "validation": 408},
        "official": True,
        "cut": {"train": 3, "validation": 0},
        "untrained": {"seeds": [40.5], "median": 40.5, "spread": 0.0, "interval": [38.0, 42.0]},
        **fields,
    }


def mean(name: str, *of: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "of": list(of),
        "value": 66.6,
        "interval": [60.0, 70.0],
        "partial": False,
        **fields,
    }


GLUE: dict[str, Any] = {
    "tasks": {
        "mrpc": score(88.1),
        "rte": score(55.2),
        "qqp": score(80.0, official=False, official_rows={"train": 363846, "validation": 408}),
        "cola": {"metric": "matthews", "failed": "line 4: no column <sentence>"},
        "stsb": score(60.0, interval=None, untrained={"failed": "all predictions are 1"}),
    },
    "means": [
        mean("mean of mrpc, rte, qqp", "mrpc", "rte", "qqp", partial=True, failed=["cola"]),
        mean("GLUE-2", "mrpc", "rte", untrained=40.5),
    ],
}
PAPERS = load_protocol("cramming").at_width(768).hyperparameters()
BLIMP = {
    "pairs": 67000,
    "paradigms": 67,
    "official": True,
    "blimp": 76.31,
    "interval": [76.0, 76.6],
    "fields": {"syntax": 70.2},
    "phenomena": {"npi_licensing": 61.0, "ellipsis": 82.5},
    "paradigm": {"ellipsis_n_bar_1": 82.5},
}
HELDOUT = {
    **{"rows": 2000, "length": 128, "tokens_per_character": 0.21},
    **{"loss@0.15": 2.51234, "loss@0.25": 2.7},
    **{"bits_per_character@0.15": 0.8, "bits_per_character@0.25": 0.85},
}


def evaluated(run: Path, **suites: Any) -> Path:
    """The run, given these scores."""
    (run / "evaluation").mkdir(exist_ok=True)
    about = {"schema": 2, "model": {"name": run.name, "sha256": ""}, "protocol": PAPERS}
    (run / "evaluation" / "evaluation.json").write_text(json.dumps(about))
    (run / "evaluation" / "scores.json").write_text(json.dumps({**about, "suites": suites}))
    return run
