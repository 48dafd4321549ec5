"""What tables of results share: the results, rows, and the text below them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import nct as noncentral
from scipy.stats import t as student
from scipy.stats import ttest_ind

from crammed.files.writing import read_json
from crammed.study.findings.table import difference_text, interval_text
from crammed.study.result import RATES

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "records"
BENCHMARKS = ROOT / "benchmarks" / "results"
PAGE_WIDTH = 120


def benchmarks(*names: str) -> list[dict[str, Any]]:
    return [found(BENCHMARKS / name) for name in names]


def found(file: Path) -> dict[str, Any]:
    """The values in a result that a page names."""
    values = read_json(file)
    if values is None:
        raise SystemExit(f"a page names {file.name}, which is not in {file.parent}")
    return values


def row_of(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def difference_cell(one: dict[str, Any], measure: str = RATES[0]) -> str:
    """A difference with its interval, which a single seed does not have."""
    interval = interval_text(one, measure)
    return difference_text(one, measure) + (f" ({interval})" if interval else "")


def welch(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """The difference of the means, and its 95 % interval by Welch's t-test."""
    between = ttest_ind(a, b, equal_var=False).confidence_interval()
    return float(np.mean(a) - np.mean(b)), float(between.low), float(between.high)


def findable(a: list[float], b: list[float]) -> float:
    """The difference that Welch's test would find in 80 % of cases if all seeds varied as these."""
    parts = [float(np.var(each, ddof=1)) / len(each) for each in (a, b)]
    if not (error := sum(parts)):
        return 0.0
    freedom = error**2 / sum(v**2 / (len(x) - 1) for v, x in zip(parts, (a, b), strict=True))
    limit = student.ppf(0.975, freedom)
    away = brentq(lambda each: noncentral.sf(limit, freedom, each) - 0.8, 0.0, 100.0)
    return math.sqrt(error) * float(away)


def unrepeated(rows: list[str]) -> list[str]:
    """The lines of a table, with the first cell left empty where it repeats the one above."""
    cells = [row.partition(" | ") for row in rows]
    above = ["", *(first for first, _, _ in cells)]
    return [
        f"| | {rest}" if first == before else row
        for row, (first, _, rest), before in zip(rows, cells, above, strict=False)
    ]


def filled(head: str, rows: list[str]) -> tuple[str, list[str]]:
    """A table without the columns that are empty in every line."""
    columns = zip(*(row.strip("|").split("|") for row in (head, *rows)), strict=True)
    kept = (column for column in columns if any(cell.strip() for cell in column[1:]))
    first, *others = ("|".join(["", *cells, ""]) for cells in zip(*kept, strict=True))
    return first, others


def table(head: str, rows: Iterable[str], *below: str) -> str:
    """A table, given its first line and the others, and paragraphs below it."""
    rule = "|".join(["", *["---"] * (head.count("|") - 1), ""])
    return "\n\n".join(["\n".join([head, rule, *rows]), *below]) + "\n"


def wrapped(*sentences: str, below: str = "") -> str:
    """A paragraph as pages wrap it; each line after the first begins with `below`."""
    text = " ".join(sentences)
    return textwrap.fill(text, PAGE_WIDTH, break_on_hyphens=False, subsequent_indent=below)


def source(results: list[dict[str, Any]]) -> str:
    """The devices, PyTorch versions and commits behind these results."""
    devices = sorted({result["device"] for result in results})
    commits = sorted({str(result["environment"]["commit"]) for result in results})
    torch = sorted({result["environment"]["packages"]["torch"] for result in results})
    return f"{', '.join(devices)}; PyTorch {', '.join(torch)}; commit {', '.join(commits)}."


def tabled(head: str, rows: list[str], results: list[dict[str, Any]], *words: str) -> str:
    """A table, optional sentences about it, and the source of its results."""
    return table(head, rows, wrapped(*words, source(results)) if words else source(results))
