"""What a score says beside those of simpler models, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def notes(tasks: Mapping[str, Any]) -> list[str]:
    """A sentence for each score that a simpler model reaches as well.

    Args:
        tasks: scores as JSON, by name.
    """
    found = []
    for name, score in tasks.items():
        if "failed" in score:
            continue
        floor, linear = score.get("untrained", {}).get("median"), score.get("linear")
        if floor is not None and score["median"] <= floor:
            found.append(f"{name}: pretraining did not help; the untrained model does as well")
        elif floor is not None and score["interval"] and score["interval"][0] <= floor:
            found.append(f"{name}: too few rows to tell whether pretraining helped")
        if linear is not None and score["median"] <= linear:
            found.append(f"{name}: TF-IDF with a linear model does as well; it may be all you need")
    return found
