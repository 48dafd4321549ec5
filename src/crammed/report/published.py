"""Published scores, and which of them a model's own may be put beside."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

Json = dict[str, Any]


@cache
def published() -> Json:
    """``{"glue": [{"name", "source", "scores": {number: %}}], "blimp": {model: %}}``."""
    text = resources.files("crammed.report").joinpath("published.yaml").read_text("utf-8")
    values: Json = yaml.safe_load(text)
    return values


def published_beside(suite: str, scores: Mapping[str, Any]) -> Json | None:
    """A table of published models with this one on top; None where nothing is comparable.

    Comparable are numbers on data of official size, and means that are whole.

    Args:
        suite: its name.
        scores: its JSON, ``{"tasks", "means"}``.

    Returns:
        ``{"columns": [...], "rows": [{"name", "source", "values"}]}``.
    """
    models = published()["glue"] if suite == "glue" else []
    if not models:
        return None
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
    own = [*tasks.values(), *(value for value, _ in means.values())]
    rows = [{"name": "this model", "source": "", "values": own}]
    for model in models:
        values = [model["scores"][name] for name in tasks]
        values += [statistics.fmean(model["scores"][n] for n in of) for _, of in means.values()]
        rows.append({"name": model["name"], "source": model["source"], "values": values})
    return {"columns": [*tasks, *means], "rows": rows}
