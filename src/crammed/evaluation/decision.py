"""Which way to an encoder is worth taking: several models' scores on the same tasks, in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crammed.evaluation.comparison import differences
from crammed.evaluation.folder import read_scores
from crammed.tasks.task import Suite

SCRATCH, ADAPTED, AS_IT_IS, LINEAR = "from scratch", "adapted", "as it is", "TF-IDF"
WAYS = (LINEAR, AS_IT_IS, ADAPTED, SCRATCH)
"""From the one that costs least to the one that costs most."""
_DONE = {
    SCRATCH: "train from scratch",
    ADAPTED: "adapt the encoder to your text",
    AS_IT_IS: "take the encoder as it is",
    LINEAR: "TF-IDF with a linear model may be all you need",
}


def judged(suite: Suite, folders: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Compare the ways on every score of the suite, and on its means.

    Args:
        folders: of the ways, the evaluation folders with their scores.

    Returns:
        name -> ``{"metric", "ways": {way: {"score", "interval"}}, "best", "level"}``. ``level``
        are the best way and those that are not shown to be worse: the 95 % interval of their
        difference contains 0. TF-IDF, which has no interval, is compared with that of the best
        model. A score that a model lacks is ``{"metric", "failed": reason}``.
    """
    tasks = {w: read_scores(f)["suites"][suite.name]["tasks"] for w, f in folders.items()}
    found = {}
    for name in next(iter(tasks.values())):
        each = {way: scores[name] for way, scores in tasks.items()}
        metric = next(iter(each.values()))["metric"]
        if failed := [
            f"{way}: {score['failed']}" for way, score in each.items() if "failed" in score
        ]:
            found[name] = {"metric": metric, "failed": failed[0]}
        else:
            found[name] = {"metric": metric, **_judged(name, suite, folders, each)}
    return found


def _judged(
    name: str, suite: Suite, folders: Mapping[str, Path], scores: Mapping[str, Any]
) -> dict[str, Any]:
    ways = {way: {"score": s["median"], "interval": s["interval"]} for way, s in scores.items()}
    best = max(ways, key=lambda way: ways[way]["score"])
    level = {best, *(w for w in ways if w != best and not _worse(name, suite, folders, best, w))}
    linear = next(iter(scores.values())).get("linear")
    if linear is not None:
        low, high = ways[best]["interval"] or (ways[best]["score"],) * 2
        ways[LINEAR] = {"score": linear, "interval": None}
        level = {LINEAR} if linear > high else level | ({LINEAR} if linear >= low else set())
        best = LINEAR if linear > ways[best]["score"] else best
    in_order = [way for way in WAYS if way in level]
    return {
        "ways": {way: ways[way] for way in WAYS if way in ways},
        "best": best,
        "level": in_order,
    }


def _worse(name: str, suite: Suite, folders: Mapping[str, Path], best: str, way: str) -> bool:
    """Whether chance does not explain how far a way is behind the best."""
    entries = {each["name"]: each for each in differences(suite, folders[best], folders[way])}
    interval = entries[name].get("interval")
    return interval is not None and interval[0] > 0.0


def decided(scores: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The cheapest of the ways that are level with the best on most scores; None without any."""
    counts = {way: sum(way in each.get("level", ()) for each in scores.values()) for way in WAYS}
    return max(WAYS, key=lambda way: counts[way]) if any(counts.values()) else None


def sentences(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What to do, and then what each score says."""
    way = decided(scores)
    if way is None:
        return ["no task could be scored with every model, so nothing is decided"]
    told = [each for each in scores.values() if "level" in each]
    level = sum(way in each["level"] for each in told)
    of = "the one task" if len(told) == 1 else f"{level} of {len(told)} tasks"
    said = [f"{_DONE[way]}: on {of}, nothing is shown to be better"]
    for name, each in scores.items():
        if "failed" in each:
            said.append(f"{name}: no score ({each['failed']})")
            continue
        best, others = each["best"], [w for w in each["level"] if w != each["best"]]
        beside = (
            f"; {' and '.join(others)} not shown to be worse" if others else ", ahead of the others"
        )
        said.append(f"{name}: {best} is best with {each['ways'][best]['score']:.1f}{beside}")
    return said
