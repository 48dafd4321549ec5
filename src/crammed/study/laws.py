"""What `scaling` finds, in sentences for a terminal or a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crammed.quantity import flops_text, quantity
from crammed.study.budgets import by_budget, still_on_plateau
from crammed.study.scaling import analyse
from crammed.study.statistics import decidable


def laws_of(study: Mapping[str, Any]) -> list[str]:
    """The findings of a study on several budgets, a line each; none if fewer than two finished."""
    found = analyse(study) if "budgets" in study else None
    return [*doubts(study), *law_lines(found)] if found is not None else []


def doubts(study: Mapping[str, Any]) -> list[str]:
    """Sentences on budgets that are too small for findings, and on arms that are left out."""
    parts, said = by_budget(study), []
    if slow := still_on_plateau(study):
        which = "; ".join(f"{', '.join(arms)} at {label}" for label, arms in slow.items())
        said.append(f"Left out, because still on the plateau of word frequencies: {which}.")
    if stuck := [label for label, part in parts.items() if decidable(part) is False]:
        which = "any of these budgets" if len(stuck) == len(parts) else ", ".join(stuck)
        said.append(f"Not decidable at {which}, so what follows is not a finding:")
    return said


def law_lines(found: Mapping[str, Any]) -> list[str]:
    """Laws, best sizes and the test of types as lines of text.

    Args:
        found: what `analyse` returns.
    """
    lines = []
    for name, one in found["types"].items():
        law = "" if one["law"] is None else f"{_law(one['law'])}; "
        lines.append(f"{name}: {law}best {_points(one['points'])}")
        if sizes := _sizes(one["sizes"]):
            grows = one["exponent"]
            power = "" if grows is None else f"; it grows with C^{grows:.2f}"
            lines.append(f"{name}: best size by parabolas {sizes}{power}")
    if found["test"] is not None:
        lines += _test(found["test"])
    return lines


def _law(law: Mapping[str, Any]) -> str:
    floor = f" + {law['c']:.2f}" if law["c"] else ""
    between = law["b_interval"]
    range_ = "" if between is None else f" (exponent {between[0]:.3f} to {between[1]:.3f})"
    return f"loss {law['a']:.3g} C^-{law['b']:.3f}{floor}{range_}"


def _points(points: Sequence[Mapping[str, Any]]) -> str:
    shown = (
        f"{point['size'] or quantity(point['parameters'])} {point['loss']:.3f} "
        f"at {flops_text(point['flops'])}"
        for point in points
    )
    return ", ".join(shown)


def _sizes(sizes: Sequence[Mapping[str, Any]]) -> str:
    shown = []
    for each in sizes:
        if each["parameters"] is not None:
            between = each["interval"]
            range_ = "" if between is None else f" ({' to '.join(map(quantity, between))})"
            shown.append(f"{quantity(each['parameters'])}{range_} at {flops_text(each['flops'])}")
    return ", ".join(shown)


def _test(test: Mapping[str, Any]) -> list[str]:
    first, second = test["freedom"]
    verdict = "types differ" if test["p_permutation"] < 0.05 else "types cannot be told apart"
    lines = [
        f"{verdict}: one curve for all against one for each, F({first}, {second}) = "
        f"{test['f']:.2f}, p = {test['p']:.3g}, by exchanging types {test['p_permutation']:.3g}"
    ]
    for name, shift in test["shifts"].items():
        worth = shift["compute"]
        priced = "" if worth is None else f", as all types with {worth:.2f} times the FLOPs"
        lines.append(f"{name}: {shift['percent']:+.2f} % loss at equal size and FLOPs{priced}")
    return lines
