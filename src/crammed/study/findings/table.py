"""The findings of a study as tables for a terminal, and the wording that its page shares."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from crammed.budget import Budget
from crammed.evaluation.scores import table as scores
from crammed.study.findings.laws import laws_of
from crammed.study.findings.power import MOST_SEEDS, OFTEN, power, seeds_needed
from crammed.study.findings.scaling import analyse
from crammed.study.findings.statistics import (
    FEWEST,
    compare_arms,
    decidable,
    decidable_text,
    on_plateau,
)
from crammed.study.result import BITS, RATES, UNTRAINED, StudyResult, is_loss, means_of
from crammed.terminal.table import Printed, add_column, new_table

Json = Mapping[str, Any]

_NAMES = {
    "loss": "held-out loss",
    "document_loss": "held-out loss on documents by themselves",
    "bits_per_character": "bits per character",
}
_SCORES = {
    "blimp": "BLiMP",
    "glue": "mean of tasks",
    "glue.cola": "CoLA",
    "glue.mnli-mm": "MNLI-mm",
    "glue.sst2": "SST-2",
    "glue.stsb": "STS-B",
    **{f"glue.{task}": task.upper() for task in ("mrpc", "qqp", "mnli", "qnli", "rte", "wnli")},
    "small.sst2": "SST-2",
    "small.stsb": "STS-B",
    **{f"small.{task}": task.upper() for task in ("mnli", "qnli", "subj", "trec")},
}


FURTHEST = 3.0
"""The axis of a figure ends at this many times a typical difference."""
_ALIKE = 1.02
"""Arms whose FLOPs differ by less have equal FLOPs, up to a last update that did not fit."""


def judged_by(study: StudyResult) -> list[str]:
    """The measures that get a table each."""
    main = study.main_measure()
    others = (each for each in study.measures() if each not in (main, RATES[0]))
    return [
        main,
        *(o for o in others if not o.startswith((BITS, UNTRAINED)) and not o.endswith("@0.25")),
    ]


def measure_text(measure: str, *, with_suite: bool = False) -> str:
    """``loss@0.15`` -> ``held-out loss, 15 % masked``; ``glue.cola@mine`` -> ``CoLA by mine``.

    Args:
        with_suite: whether to name the suite of a task, as in ``CoLA of glue by mine``.
    """
    name, _, after = measure.partition("@")
    if name in _NAMES and after:
        return f"{_NAMES[name]}, {100 * float(after):.0f} % masked"
    suite, _, task = name.partition(".")
    title = _SCORES.get(name, task or f"mean of tasks in {suite}")
    title += f" of {suite}" if with_suite else ""
    return f"{title} by {after}" if after else title


def title_of(study: StudyResult, measure: str) -> str:
    """The measure in words; ``BLiMP, partial`` if it was scored on part of the official data.

    Tasks of two suites may have one name, and other rows.
    """
    name = measure.partition("@")[0]
    names = {each.partition("@")[0] for each in study.measures()}
    alike = [each for each in names if each != name and measure_text(each) == measure_text(name)]
    text = measure_text(measure, with_suite=bool(alike))
    return text + (", partial" if study.is_partial(measure) else "")


def mean_text(one: Json, measure: str = RATES[0]) -> str:
    """``4.138 ± 0.012``: a mean and its standard deviation over seeds."""
    digits, deviation = _digits(measure), one["deviation"]
    spread = f" ± {deviation:.{digits}f}" if deviation is not None else ""
    return f"{one['mean']:.{digits}f}{spread}"


def untrained_text(study: StudyResult, arm: str, measure: str) -> str:
    """The mean score of an arm's untrained twins; empty if there are none."""
    values = study.arms[arm].values_of(f"{UNTRAINED}{measure}")
    return number_text(statistics.fmean(values) if values else None, measure)


def difference_text(one: Json, measure: str = RATES[0]) -> str:
    """``+0.123``; empty for the baseline."""
    return "" if one["difference"] is None else f"{one['difference']:+.{_digits(measure)}f}"


def interval_text(one: Json, measure: str = RATES[0]) -> str:
    """``+0.102 to +0.144``; empty without an interval."""
    digits = _digits(measure)
    if one["interval"] is None:
        return ""
    return " to ".join("0" if end == 0.0 else f"{end:+.{digits}f}" for end in one["interval"])


def p_text(one: Json) -> str:
    """A p-value with three digits; empty without one."""
    return "" if one["p"] is None else scores.p_text(one["p"])


def power_text(study: StudyResult, measure: str) -> str:
    """Sentences about which differences the study could have found."""
    seeds = {arm: len(each.values_of(measure)) for arm, each in study.arms.items()}
    of_base = seeds.pop(study.baseline)
    if not of_base:
        return f"The baseline {study.baseline} has no result, so nothing is compared with it."
    most = min(of_base, max(seeds.values(), default=0))
    lead = "" if most >= FEWEST else f"Leads, not findings: a verdict takes {FEWEST} seeds. "
    if not (found := power(study, measure)):
        why = "nothing varies, so nothing is tested." if most > 1 else "one seed tells no variance."
        if most > 1 and on_plateau(study):
            why = "too few arms are past the plateau to say which differences would be found."
        return lead + why[:1].upper() + why[1:]
    stated = _listed(f"{each:g}" for each in found)
    shares = _listed(f"{100 * share:.0f} %" for share in found.values())
    usual = max(FEWEST, statistics.median_low(each for each in seeds.values() if each > 1))
    text = (
        f"{lead}With {usual} seeds, as arms vary here, a difference of {stated} would be found in "
        f"{shares} of such studies."
    )
    rare = next((each for each, share in found.items() if share < OFTEN), None)
    if rare is None:
        return text
    needed = seeds_needed(study, measure, rare) or f"more than {MOST_SEEDS}"
    return (
        f"{text} To find a difference of {rare:g} in {100 * OFTEN:.0f} % of such studies, every "
        f"arm would need {needed} seeds."
    )


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"


def equal_text(study: StudyResult) -> str:
    """What all arms get the same amount of, such as ``equal FLOPs``, and what they do not.

    Args:
        study: the result at one budget.
    """
    if not study.budget:
        return "equal budgets"
    kind = Budget.parse(study.budget).kind
    name = {"flops": "FLOPs"}.get(kind, kind)
    if kind in ("time", "flops"):
        busy = any(pace.busy for pace in study.paces.values())
        also = ", measured while other work ran" if busy else ""
    else:
        also = _cost_text(study)
    return f"equal {name}{also}{_early_text(study)}"


def _cost_text(study: StudyResult) -> str:
    flops = means_of(study.arms, "exaflop")
    base = flops.get(study.baseline)
    if not base:
        return ", whatever they cost"
    least, most = min(flops.values()) / base, max(flops.values()) / base
    if most <= _ALIKE * least:
        return ", which are equal FLOPs here"
    return f", which cost {least:.2f} to {most:.2f} times the baseline's FLOPs"


def _early_text(study: StudyResult) -> str:
    early = means_of(study.arms, "ended_at")
    if not early:
        return ""
    least, most = (f"{100 * share:.0f}" for share in (min(early.values()), max(early.values())))
    at = f"{least} %" if least == most else f"{least} to {most} %"
    who, whose = f"{len(early)} of {len(study.arms)} arms", "their budgets"
    if len(early) == 1:
        who, whose = next(iter(early)), "its budget"
    return f", except that {who} ran out of text at {at} of {whose}"


def study_tables(study: StudyResult) -> list[Printed]:
    """A table for each measure, the best arm first, and what it can and cannot show.

    For a study on several budgets, these for each budget, and then the laws.
    """
    parts: list[Printed] = []
    for label, part in study.parts().items():
        if label:
            parts.append(Text(f"{label}: {Budget.parse(part.budget)}", style="bold"))
        for measure in judged_by(part):
            parts += [_table(part, measure), Text(power_text(part, measure))]
        parts.append(Text(f"Arms are compared at {equal_text(part)}. {decidable_text(part)}"))
    if laws := laws_of(study, analyse(study)):
        parts.append(Text("\n".join(laws)))
    return parts


def findings(study: StudyResult) -> dict[str, Any]:
    """The findings for scripts.

    Returns:
        ``{"compared", "power", "decidable"}``: what `compare_arms`, `power` for each measure, and
        `decidable` return; for a study on several budgets, ``{"compared_at": {label: ...}}`` with
        these three for each.
    """
    found: dict[str, dict[str, Any]] = {}
    for label, part in study.parts().items():
        measures = part.measures() or RATES
        found[label] = {
            "compared": compare_arms(part, measures),
            "power": {each: power(part, each) for each in measures},
            "decidable": decidable(part),
        }
    return found.get("", {"compared_at": found})


def _table(study: StudyResult, measure: str) -> Table:
    judged, second = decidable(study) is not False, measure == RATES[0]
    name = title_of(study, measure)
    title = "Held-out loss" if second else f"{name[:1].upper()}{name[1:]}"
    table = new_table(title)
    add_column(table, "arm")
    twins = {arm: twin for arm in study.arms if (twin := untrained_text(study, arm, measure))}
    means = ["15 % masked", "25 % masked"] if second else ["mean", *(["untrained"] * bool(twins))]
    found = ["95 % interval", "p"] if judged else []
    for name in ("seeds", *means, f"from {study.baseline}", *found):
        add_column(table, name, numeric=True)
    if judged:
        table.add_column("")
    rates = RATES if second else (measure,)
    for row in compare_arms(study, rates):
        cells = _cells(row, rates, judged=judged)
        if twins and len(cells) > 3:
            cells.insert(3, twins.get(row["arm"], ""))
        table.add_row(*cells)
    return table


def _cells(row: Json, measures: Sequence[str], *, judged: bool) -> list[str]:
    """The cells of one arm; without numbers if it failed or was not measured."""
    main = measures[0]
    if main not in row:
        return [row["arm"], "0", "failed" if "failed" in row else ""]
    means = [mean_text(row[each], each) if each in row else "" for each in measures]
    seeds = f"{row['seeds']} (some failed)" if "failed" in row else str(row["seeds"])
    cells = [row["arm"], seeds, *means, difference_text(row[main], main)]
    if not judged:
        return cells
    return [*cells, interval_text(row[main], main), p_text(row[main]), row[main]["verdict"] or ""]


def axis_limit(compared: Sequence[Json]) -> float:
    """Where the axis of a figure ends, so that a few large differences do not hide the rest.

    Args:
        compared: one measure of each arm.
    """
    sizes = sorted(abs(float(one["difference"])) for one in compared if one["difference"])
    ends = [one["interval"] for one in compared if one["interval"]]
    half = statistics.median(float(high - low) / 2.0 for low, high in ends) if ends else 0.0
    if not sizes:
        return half or 1.0
    middle = max(half, sizes[len(sizes) // 2])
    return 1.15 * max(half, min(sizes[-1], FURTHEST * middle))


def _digits(measure: str) -> int:
    return 3 if is_loss(measure) else 1


def number_text(value: float | None, measure: str) -> str:
    """Three decimals for a loss, one for a score in percent; empty without a value."""
    return "" if value is None else f"{value:.{_digits(measure)}f}"
