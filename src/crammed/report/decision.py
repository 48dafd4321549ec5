"""The page of a decision between several ways to an encoder: the scores of all, and words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crammed.evaluation.decision import sentences, ways_in
from crammed.files.writing import write_text
from crammed.report.bars import Bar
from crammed.report.page import rendered


def write_decision(
    scores: Mapping[str, Mapping[str, Any]], models: Mapping[str, str], out: Path
) -> Path:
    """Write the page to `out`, and return `out`.

    Args:
        scores: as `crammed.evaluation.decision.judged` returns them.
        models: way -> run directory, folder or name of its model.
    """
    reports = {
        way: f"{Path(model).name}/report.html"
        for way, model in models.items()
        if Path(model).resolve().parent == out.parent.resolve()
        and (Path(model) / "report.html").exists()
    }
    page = rendered(
        "decision.html.j2",
        scores=scores,
        bars={name: _bars(each) for name, each in scores.items() if "ways" in each},
        ways=ways_in(scores),
        models=models,
        reports=reports,
        sentences=sentences(scores),
    )
    write_text(out, page)
    return out


def _bars(score: Mapping[str, Any]) -> list[Bar]:
    """The score of each way; those that are level with the best stand out."""
    return [
        Bar(
            way,
            f"{each['score']:.1f}",
            max(0.0, each["score"]),
            "own" if way == score["best"] else "part" if way in score["level"] else "",
        )
        for way, each in score["ways"].items()
    ]
