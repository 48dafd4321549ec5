"""Figures of the records of built-in studies: each arm's difference from the baseline, as SVG.

Figures are written without a library, so that the same record gives the same file everywhere, and
`tools/records.py tables --check` can compare it. Their colours follow light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from crammed.study.findings.statistics import compare_arms, decidable
from crammed.study.findings.table import axis_limit, difference_text, measure_text
from crammed.study.result import StudyResult

Row = Mapping[str, Any]

WIDTH, LEFT, RIGHT, ROW, TOP = 860, 280, 70, 20, 34
"""In pixels: the figure's width, the columns of names and of numbers, a row, the space on top."""
STYLE = """
  text { font: 12px sans-serif; fill: #1f2933; } .soft { fill: #616e7c; }
  line { stroke: #cbd2d9; } .reach { stroke-width: 3; }
  .better { fill: #047857; stroke: #047857; } .worse { fill: #b91c1c; stroke: #b91c1c; }
  .other { fill: #829ab1; stroke: #829ab1; } .base { fill: none; stroke: #616e7c; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb; } .soft { fill: #9aa5b1; } line { stroke: #52606d; }
    .better { fill: #34d399; stroke: #34d399; } .worse { fill: #f87171; stroke: #f87171; }
    .other { fill: #9fb3c8; stroke: #9fb3c8; } .base { fill: none; stroke: #9aa5b1; }
  }
"""


def differences_figure(study: StudyResult) -> str:
    """The differences of all arms of a study with one budget, the best first, with intervals."""
    measure = study.main_measure()
    rows = [row for row in compare_arms(study, (measure,)) if measure in row]
    limit = axis_limit([row[measure] for row in rows])
    bottom = TOP + ROW * len(rows)
    judged = decidable(study) is not False
    title = f"{measure_text(measure)}: difference from {study.baseline}"
    note = "with 95 % intervals" if judged else "not decidable at this budget"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 26}" '
        f'width="{WIDTH}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        _text(8, 18, f"{title}, {note}", "soft"),
        *_axis(limit, bottom),
    ]
    for place, row in enumerate(rows):
        parts += _arm(row["arm"], row[measure], study, limit, TOP + ROW * place)
    return "\n".join([*parts, "</svg>\n"])


def _x(difference: float, limit: float) -> float:
    half = (WIDTH - LEFT - RIGHT) / 2
    return LEFT + half * (1.0 + min(1.0, max(-1.0, difference / limit)))


def _axis(limit: float, bottom: int) -> Iterator[str]:
    power = 10.0 ** math.floor(math.log10(limit / 2.0))
    step = next(size * power for size in (5.0, 2.0, 1.0) if size * power <= limit / 2.0)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    for number in range(-math.floor(limit / step), math.floor(limit / step) + 1):
        x = _x(number * step, limit)
        yield f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>'
        label = f"{number * step:+.{digits}f}" if number else "0"
        yield _text(x, bottom + 16, label, "soft", "middle")


def _arm(arm: str, one: Row, study: StudyResult, limit: float, top: int) -> Iterator[str]:
    """One arm: its name, its interval, its difference as a dot, and in numbers."""
    y, base = top + ROW / 2, arm == study.baseline
    verdict = one["verdict"] if one["verdict"] in ("better", "worse") else "other"
    kind = "base" if base else verdict
    yield _text(LEFT - 12, y + 4, arm, "", "end")
    if decidable(study) is not False and one["interval"]:
        low, high = (_x(end, limit) for end in one["interval"])
        yield (f'<line class="reach {kind}" x1="{low:.1f}" y1="{y:g}" x2="{high:.1f}" y2="{y:g}"/>')
    x, difference = _x(one["difference"] or 0.0, limit), one["difference"] or 0.0
    text = difference_text(one, study.main_measure())
    if abs(difference) > limit:
        side = math.copysign(8.0, difference)
        points = f"{x:.1f},{y:g} {x - side:.1f},{y - 5:g} {x - side:.1f},{y + 5:g}"
        yield f'<polygon class="{kind}" points="{points}"/>'
    else:
        yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y:g}" r="4.5"/>'
    yield _text(WIDTH - RIGHT + 10, y + 4, "baseline" if base else text)


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    where = f'x="{x:.1f}" y="{y:g}" text-anchor="{anchor}"'
    return f"<text {where}{of_kind}>{escape(words)}</text>"
