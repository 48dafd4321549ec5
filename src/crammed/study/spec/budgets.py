"""Studies on several budgets: every arm is trained at each, and arms are compared within each.

A study's file names them as multiples of ``--budget``: ``budgets: {x1: 1, x4: 4}``. The arm
``plain`` becomes the arms ``plain@x1`` and ``plain@x4``, which differ in ``budget.limit``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator

from crammed.budget import Budget
from crammed.errors import InputError

LIMIT = "budget.limit="
_LONGEST = 100
"""Most bytes of a name; the name of a run's folder joins an arm, a budget and a seed."""


def _is_budget(text: str) -> str:
    try:
        Budget.parse(text)
    except InputError as error:
        raise ValueError(str(error)) from error
    return text


BudgetText = Annotated[str, AfterValidator(_is_budget)]


def at(arm: str, label: str) -> str:
    """The name of an arm with one of the budgets."""
    return f"{arm}@{label}"


def check_names(arms: Iterable[str], labels: Iterable[str]) -> None:
    """Refuse names that no folder can have, or that could be mistaken for one another.

    Raises:
        InputError: there is such a name; the first is given.
    """
    labels = list(labels)
    for name in (*arms, *labels):
        named = name.strip() == name and not name.startswith(".") and "/" not in name
        if not (named and name.isprintable() and 0 < len(name.encode()) <= _LONGEST):
            raise InputError(
                f"{name[:_LONGEST]!r} cannot name an arm or a budget, because folders take "
                f"their names: write 1 to {_LONGEST} letters, digits and signs other than /, not "
                "beginning with a dot"
            )
    if with_mark := [label for label in labels if "@" in label]:
        raise InputError(
            f"budgets.{with_mark[0]}: leave out @, which separates an arm from its budget"
        )


def split(words: Sequence[str], budget: Budget) -> tuple[list[str], Budget]:
    """An arm's words without its budget, and its budget: the study's if it has none of its own."""
    own = [word.removeprefix(LIMIT) for word in words if word.startswith(LIMIT)]
    kept = [word for word in words if not word.startswith(LIMIT)]
    return kept, Budget.parse(own[-1]) if own else budget


def with_each(
    arms: Mapping[str, Sequence[str]], budgets: Mapping[str, float], budget: Budget
) -> dict[str, tuple[str, ...]]:
    """Every arm at every budget, by name; the arms as they are if there is only the study's."""
    if not budgets:
        return {arm: tuple(words) for arm, words in arms.items()}
    return {
        at(arm, label): (*words, f"{LIMIT}{limit.text}")
        for label, limit in limits(budgets, budget).items()
        for arm, words in arms.items()
    }


def limits(budgets: Mapping[str, float], budget: Budget) -> dict[str, Budget]:
    """The budgets by label, from their multiples of the study's."""
    found = {}
    for label, factor in budgets.items():
        try:
            found[label] = budget.times(factor)
        except InputError as error:
            raise InputError(f"budgets.{label}, {factor:g} times {budget.text}: {error}") from error
    return found
