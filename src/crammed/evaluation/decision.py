"""Which way to an encoder is worth taking: several models' scores on the same tasks, in words."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from crammed.evaluation.comparison import differences
from crammed.evaluation.folder import read_scores
from crammed.evaluation.scores.table import ROWS_ONLY, interval_text, is_over_rows
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
    """Compare the ways on every score of the suite.

    Args:
        folders: of the ways, the evaluation folders with their scores.

    Returns:
        name -> ``{"metric", "ways": {way: {"score", "interval"}}, "best", "level"}``. ``level``
        are the best way and those that are not shown to be worse: the 95 % interval of their
        difference contains 0. TF-IDF, which has no interval, is compared with that of the best
        model. With it comes ``interval_over``, as in scores, if other seeds might change that. A
        score that a model lacks is ``{"metric", "failed": reason}``.
    """
    read = {way: read_scores(folder) for way, folder in folders.items()}
    tasks = {way: scores["suites"][suite.name]["tasks"] for way, scores in read.items()}
    seeded = not any(scores["protocol"].get("probe") for scores in read.values())
    behind = _behind(suite, folders)
    found = {}
    for name in (number for task in suite.tasks.values() for number in task.numbers):
        if not all(name in scores for scores in tasks.values()):
            continue  # the data lacks this split
        each = {way: scores[name] for way, scores in tasks.items()}
        metric = next(iter(each.values()))["metric"]
        failed = [f"{way}: {score['failed']}" for way, score in each.items() if "failed" in score]
        worse = {(way, other) for number, way, other in behind if number == name}
        said: dict[str, Any] = {"failed": failed[0]} if failed else _judged(each, worse)
        if seeded and not failed and any(map(is_over_rows, each.values())):
            said["interval_over"] = "rows"
        found[name] = {"metric": metric, **said}
    return found


def _behind(suite: Suite, folders: Mapping[str, Path]) -> set[tuple[str, str, str]]:
    """(score, way, other way) wherever the first way is worse by more than chance explains."""
    found = set()
    for a, b in combinations(folders, 2):
        for entry in differences(suite, folders[a], folders[b]):
            low, high = entry.get("interval") or (0.0, 0.0)
            if low > 0.0:
                found.add((entry["name"], b, a))
            elif high < 0.0:
                found.add((entry["name"], a, b))
    return found


def _judged(scores: Mapping[str, Any], behind: set[tuple[str, str]]) -> dict[str, Any]:
    ways = {way: {"score": s["median"], "interval": s["interval"]} for way, s in scores.items()}
    best = max(ways, key=lambda way: ways[way]["score"])
    level = {way for way in ways if (way, best) not in behind}
    linear = next(iter(scores.values())).get("linear")
    if linear is not None:
        low, high = ways[best]["interval"] or (ways[best]["score"],) * 2
        ways[LINEAR] = {"score": linear, "interval": None}
        level = {LINEAR} if linear > high else level | ({LINEAR} if linear >= low else set())
        best = LINEAR if linear > ways[best]["score"] else best
    return {
        "ways": {way: ways[way] for way in WAYS if way in ways},
        "best": best,
        "level": [way for way in WAYS if way in level],
    }


def ways_in(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The ways that have a score, from the one that costs least."""
    return [way for way in WAYS if any(way in each.get("ways", ()) for each in scores.values())]


def cell(score: Mapping[str, Any], way: str) -> str:
    """A way's score with its interval: ``82.1 (80.0 to 84.3)``."""
    if (own := score.get("ways", {}).get(way)) is None:
        return "none"
    beside = "" if own["interval"] is None else f" ({interval_text(own['interval'])})"
    return f"{own['score']:.1f}{beside}"


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
        beside = f"not shown to be worse: {', '.join(others)}" if others else "all others worse"
        said.append(f"{name}: best {best}, with {each['ways'][best]['score']:.1f}; {beside}")
    return said + [ROWS_ONLY] * any("interval_over" in each for each in told)
