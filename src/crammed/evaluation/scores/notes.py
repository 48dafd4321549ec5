"""What a score says beside those of simpler models, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def gain(score: Mapping[str, Any]) -> tuple[float, tuple[float, float]] | None:
    """How many points a score is above the untrained model's, and the 95 % interval of that.

    None if that is unknown. Older scores have two intervals in place of that of the difference,
    which is then taken to reach from one end of them to the other.
    """
    twin = score.get("untrained") or {}
    if score.get("median") is None or "median" not in twin:
        return None
    between, own, other = score.get("gain"), score.get("interval"), twin.get("interval")
    if between is None and own and other:
        between = own[0] - other[1], own[1] - other[0]
    return (score["median"] - twin["median"], (between[0], between[1])) if between else None


def notes(tasks: Mapping[str, Any]) -> list[str]:
    """A sentence for each score on which pretraining did not help, or a linear model does as well.

    Args:
        tasks: scores as JSON, by name; those without a median have failed.
    """
    found = []
    for name, score in tasks.items():
        if (brought := gain(score)) is not None and brought[1][0] <= 0.0:
            points, (low, high) = brought
            did = "hurt" if high < 0.0 else "made no clear difference"
            found.append(
                f"{name}: pretraining {did}: {points:+.1f} points over the untrained model, 95 % "
                f"interval {low:+.1f} to {high:+.1f}"
            )
    return [*found, *as_good(tasks)]


def as_good(tasks: Mapping[str, Any]) -> list[str]:
    """A sentence on the tasks on which a linear model does as well, with its scores.

    And one on those of two texts that the model read in one sequence; see `notes`.
    """
    found: dict[str, list[str]] = {}
    for name, score in tasks.items():
        median, linear = score.get("median"), score.get("linear")
        if median is not None and linear is not None and median <= linear:
            instead = "it may be all you need there"
            if score.get("joint"):
                instead = "--protocol small, which reads two texts apart, may do better"
            found.setdefault(instead, []).append(f"{name} ({linear:.1f})")
    return [
        f"TF-IDF with a linear model does as well or better on {', '.join(names)}; {instead}"
        for instead, names in found.items()
    ]
