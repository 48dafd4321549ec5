"""Published scores, and which of a model's own scores are comparable to them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

from crammed.config import Protocol

Json = dict[str, Any]

_PAPERS = Protocol.in_full(Protocol().hyperparameters())  # the defaults are the paper's
_SEEDS = Protocol().seeds


@cache
def published() -> Json:
    """``{"glue": [{"name", "source", "scores": {number: %}}], "blimp": {model: %}}``."""
    file = resources.files("crammed.evaluation.scores") / "published.yaml"
    values: Json = yaml.safe_load(file.read_text("utf-8"))
    return values


def published_beside(
    suite: str, scores: Mapping[str, Any], protocol: Mapping[str, Any]
) -> Json | None:
    """A table of published models with this one on top; None if nothing is comparable.

    Scores are comparable if the paper's protocol was used on data of official size; means, if all
    of their scores are. If the number of seeds is not the paper's five, the table says so.

    Args:
        suite: the suite's name.
        scores: its scores as JSON, ``{"tasks", "means"}``.
        protocol: the hyperparameters of fine-tuning.

    Returns:
        ``{"columns": [...], "rows": [{"name", "source", "values"}]}``.
    """
    own = Protocol.in_full(protocol)
    if suite != "glue" or any(own.get(name) != value for name, value in _PAPERS.items()):
        return None
    models = published()["glue"]
    known = models[0]["scores"].keys()
    tasks = {
        name: score["median"]
        for name, score in scores["tasks"].items()
        if name in known and "failed" not in score and score["official"]
    }
    means = {
        mean["name"]: (mean["value"], mean["of"])
        for mean in scores["means"]
        if set(mean["of"]) <= tasks.keys()
    }
    if not tasks:
        return None
    values = [*tasks.values(), *(value for value, _ in means.values())]
    seeds = {len(scores["tasks"][name]["seeds"]) for name in tasks}
    rows = [{"name": _own_name(seeds), "source": "", "values": values}]
    for model in models:
        values = [model["scores"][name] for name in tasks]
        values += [statistics.fmean(model["scores"][n] for n in of) for _, of in means.values()]
        rows.append({"name": model["name"], "source": model["source"], "values": values})
    return {"columns": [*tasks, *means], "rows": rows}


def _own_name(seeds: set[int]) -> str:
    """``this model``, and its number of seeds if that is not the paper's five."""
    if seeds == {_SEEDS}:
        return "this model"
    counts = " or ".join(map(str, sorted(seeds)))
    return f"this model, {counts} seed{'' if seeds == {1} else 's'}"
