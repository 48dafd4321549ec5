"""What `scaling` finds, in sentences for a terminal or a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crammed.quantity import flops_text, quantity
from crammed.study.findings.exchange import Cell, Exchange
from crammed.study.findings.scaling import BestSize, Law, TypeFit
from crammed.study.findings.statistics import FEWEST, LEVEL, decidable, still_on_plateau
from crammed.study.result import StudyResult


def laws_of(
    study: StudyResult, found: tuple[Mapping[str, TypeFit], Exchange | None] | None
) -> list[str]:
    """The findings of a study on several budgets, a line each; none if fewer than two finished.

    First come doubts: budgets that are too small for findings, and arms that are left out.

    Args:
        found: what `analyse` returns.
    """
    if found is None:
        return []
    types, test = found
    lines = _doubts(study)
    for name, one in types.items():
        law = "" if one.law is None else f"{_law(one.law)}; "
        lines.append(f"{name}: {law}lowest loss {_best(one.best)}")
        if sizes := _sizes(one.sizes):
            power = "" if one.exponent is None else f"; it grows with C^{one.exponent:.2f}"
            lines.append(f"{name}: best size by parabolas {sizes}{power}")
    if test is None:
        return lines
    named = all(cell.size for one in types.values() for cell in one.best)
    return [*lines, *_test(test, "equal size and FLOPs" if named else "equal FLOPs")]


def _doubts(study: StudyResult) -> list[str]:
    parts, said = study.parts(), []
    if slow := still_on_plateau(study):
        which = "; ".join(f"{', '.join(arms)} at {label}" for label, arms in slow.items())
        said.append(f"Left out, because still on the plateau of word frequencies: {which}.")
    if stuck := [label for label, part in parts.items() if decidable(part) is False]:
        which = "any of these budgets" if len(stuck) == len(parts) else ", ".join(stuck)
        said.append(f"Not decidable at {which}, so what follows is not a finding:")
    return said


def _law(law: Law) -> str:
    floor = f" + {law.c:.2f}" if law.c else ""
    between = law.between
    range_ = "" if between is None else f" (exponent {between[0]:.3f} to {between[1]:.3f})"
    return f"loss {law.a:.3g} C^{-law.b:.3f}{floor}{range_}"


def _best(cells: Sequence[Cell]) -> str:
    shown = (
        f"{cell.mean:.3f} at {flops_text(cell.flops)} "
        f"({cell.size or f'{quantity(cell.parameters)} parameters'})"
        for cell in cells
    )
    return ", ".join(shown)


def _sizes(sizes: Sequence[BestSize]) -> str:
    shown = []
    for each in sizes:
        if each.parameters is not None:
            between = each.between
            range_ = "" if between is None else f" ({' to '.join(map(quantity, between))})"
            shown.append(f"{quantity(each.parameters)}{range_} at {flops_text(each.flops)}")
    return ", ".join(shown)


def _test(test: Exchange, equal: str) -> list[str]:
    verdict = "types differ" if test.p < LEVEL else "types cannot be told apart"
    lines = [
        f"{verdict}: one curve for all types against one per type, permutation test over seeds, "
        f"p = {test.p:.3g} (smallest attainable p: {test.least:.2g})"
    ]
    if test.seeds < FEWEST:
        lines = [f"types: leads only, because a verdict takes {FEWEST} seeds"]
    for name, (percent, worth) in test.shifts.items():
        priced = "" if worth is None else f", equivalent to {worth:.2f} times the FLOPs"
        lines.append(f"{name}: {percent:+.2f} % loss at {equal}{priced}")
    return lines
