"""The page of a study: how its arms differ, how certain that is, what they cost, and their curves.

It needs only ``study.json``, as the records keep it. If the folders of the runs still exist, the
page also has their curves and links to their own pages.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from crammed.budget import Budget, format_seconds
from crammed.errors import InputError
from crammed.files.writing import write_text
from crammed.quantity import quantity
from crammed.report.curves import AXES, Line, RunCurve, curves_figure, lines_of, read_curves
from crammed.report.drawing import OF_THE_PAGE
from crammed.report.page import rendered, write_report
from crammed.report.scaling import scaling
from crammed.study.findings import table
from crammed.study.findings.statistics import (
    compare_arms,
    decidable,
    decidable_text,
    require_statistics,
)
from crammed.study.result import RESULT, StudyResult, means_of, read_result, run_folder
from crammed.study.spec.arms import merged
from crammed.study.spec.budgets import at
from crammed.terminal.progress import SILENT, Progress

Json = dict[str, Any]

COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    "seconds": ("charged time", format_seconds),
    "tokens": ("tokens", quantity),
    "exaflop": ("compute", lambda value: quantity(1e18 * value, "FLOP")),
    "memory_bytes": ("peak memory", lambda value: quantity(value, "B")),
    "joules": ("energy", lambda value: quantity(value, "J")),
    "parameters": ("parameters", quantity),
}
"""Costs of a run by their names in ``study.json``: title and format."""


def write_study_page(folder: Path, out: Path, progress: Progress = SILENT) -> Path:
    """Write the page of the study in `folder` to `out`, and return `out`.

    Finished runs whose folders still exist get pages of their own, unless they have one.

    Raises:
        InputError: the folder holds no results of a study, or SciPy is missing.
    """
    require_statistics()
    study = read_result(folder)
    if study.baseline not in study.arms:
        raise InputError(f"{folder} holds no study: name the folder of one, with its {RESULT}")
    write_text(out, _page(folder, study, _linked(folder, study, out, progress)))
    return out


def _page(folder: Path, study: StudyResult, links: Mapping[tuple[str, str], str]) -> str:
    parts, curves = study.parts(), read_curves(folder, study)
    first = next(iter(parts.values()))
    arms = list(dict.fromkeys(arm for part in parts.values() for arm in part.arms))
    lines = lines_of(arms, first.baseline)
    keys = {arm: (OF_THE_PAGE[colour], dashes) for arm, (colour, dashes) in lines.items()}
    return rendered(
        "study.html.j2",
        name=folder.resolve().name,
        study=study,
        arms=arms,
        baseline=first.baseline,
        keys=keys,
        parts=[_part(label, part, curves, lines) for label, part in parts.items()],
        scaling=scaling(study, lines),
        costs=_costs(study),
        changes=_changes(first),
        runs=_runs(study, links),
        measures=[table.title_of(study, each) for each in table.judged_by(study)],
    )


def _part(
    label: str,
    part: StudyResult,
    curves: Mapping[str, Sequence[RunCurve]],
    lines: Mapping[str, Line],
) -> Json:
    names = {arm: at(arm, label) if label else arm for arm in part.arms}
    own = {arm: curves[name] for arm, name in names.items() if name in curves}
    return {
        "label": label,
        "budget": str(Budget.parse(part.budget)),
        "judged": decidable(part) is not False,
        "decided": decidable_text(part),
        "equal": table.equal_text(part),
        "forests": [_forest(part, measure) for measure in table.judged_by(part)],
        "curves": [curves_figure(own, lines, axis, part.main_measure()) for axis in AXES]
        if own
        else [],
        "arms": list(own),
    }


def _linked(
    folder: Path, study: StudyResult, out: Path, progress: Progress
) -> dict[tuple[str, str], str]:
    """Links from the page to those of the runs, by arm and seed, which are written if need be."""
    runs = {
        (arm, seed): run_folder(folder, arm, int(seed))
        for arm, entry in study.arms.items()
        for seed in entry.runs
    }
    there = {key: run for key, run in runs.items() if (run / "metrics.jsonl").exists()}
    links = {}
    old = [run for run in there.values() if _lacks_page(run)]
    if old:
        with progress.task("pages", len(old)) as task:
            for done, run in enumerate(old, 1):
                with suppress(InputError):  # unfinished or damaged: no page
                    write_report([run], run / "report.html")
                task.update(done, run.name)
    for key, run in there.items():
        if (run / "report.html").exists():
            page = os.path.relpath((run / "report.html").resolve(), out.parent.resolve())
            links[key] = quote(page, errors="surrogateescape")
    return links


def _lacks_page(run: Path) -> bool:
    """Whether a run has no page, or has ended or been scored since its page was written."""
    page = run / "report.html"
    if not page.exists():
        return True
    written = page.stat().st_mtime_ns
    results = (run / "summary.json", *run.glob("evaluation*/scores.json"))
    return any(file.exists() and file.stat().st_mtime_ns > written for file in results)


def _forest(study: StudyResult, measure: str) -> Json:
    """What the page says about one measure; positions are in percent of the width."""
    judged = decidable(study) is not False
    compared = compare_arms(study, (measure,))
    limit = table.axis_limit([row[measure] for row in compared if measure in row])

    def place(difference: float) -> float:
        return min(100.0, max(0.0, 50.0 + 50.0 * difference / limit))

    rows = []
    for row in compared:
        one = row.get(measure)
        shown: Json = {**dict.fromkeys(("one", "failed")), "beyond": False, **row}
        if one is not None:
            low, high = (one["interval"] if judged and one["interval"] else None) or (0.0, 0.0)
            difference = one["difference"] or 0.0
            shown |= {
                **{"one": one, "base": row["arm"] == study.baseline},
                **{"dot": place(difference), "left": place(low), "right": place(high)},
                "beyond": abs(difference) > limit,
                "untrained": table.untrained_text(study, row["arm"], measure),
            }
        rows.append(shown)
    ticks = [
        (place(tick), f"{tick:+.{digits}f}" if tick else "0") for tick, digits in _ticks(limit)
    ]
    return {
        "measure": measure,
        "title": table.title_of(study, measure),
        "rows": rows,
        "ticks": ticks,
        "power": table.power_text(study, measure),
        "cut": any(row["beyond"] for row in rows),
        "tested": judged and any(row["one"] and row["one"]["interval"] for row in rows),
        "twins": any(row.get("untrained") for row in rows),
    }


def _ticks(limit: float) -> list[tuple[float, int]]:
    """Round numbers on both sides of 0, and how many decimals they take."""
    most = limit / 1.5
    power = math.floor(math.log10(most))
    step = next(n for n in (5.0, 2.0, 1.0, 0.5) if n * 10.0**power <= most) * 10.0**power
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    count = math.floor(limit / step)
    return [(n * step, digits) for n in range(-count, count + 1)]


def _costs(study: StudyResult) -> Json:
    """Means over the seeds of each arm; a cost that no arm has recorded gets no column."""
    found = {name: means for name in COSTS if (means := means_of(study.arms, name))}
    rows = []
    for arm in study.arms:
        if any(arm in means for means in found.values()):
            cells = [COSTS[n][1](own[arm]) if arm in own else "" for n, own in found.items()]
            rows.append({"arm": arm, "cells": cells})
    return {"titles": [COSTS[name][0] for name in found], "rows": rows}


def _changes(study: StudyResult) -> list[Json]:
    """How each arm differs from the baseline: its recipe, its own words, and words it lacks."""
    base_recipe, *base = merged(study.arms[study.baseline].words)
    changes = []
    for arm, entry in study.arms.items():
        recipe, *words = merged(entry.words)
        own = [word for word in words if word not in base]
        keys = {word.partition("=")[0] for word in words}
        gone = [word for word in base if word.partition("=")[0] not in keys]
        changes.append(
            {
                "arm": arm,
                "base": arm == study.baseline,
                "recipe": recipe if recipe != base_recipe or arm == study.baseline else "",
                "words": base if arm == study.baseline else own,
                "gone": [] if arm == study.baseline else gone,
            }
        )
    return changes


def _runs(study: StudyResult, links: Mapping[tuple[str, str], str]) -> list[Json]:
    measures = table.judged_by(study)
    return [
        {
            "arm": arm,
            "seed": seed,
            "link": links.get((arm, seed)),
            "failed": run.failed,
            "cells": [table.number_text(run.value(each), each) for each in measures],
        }
        for arm, entry in study.arms.items()
        for seed, run in entry.runs.items()
    ]
