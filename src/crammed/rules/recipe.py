"""Recipes: complete configurations in files, and overrides of single values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from crammed.config import ModelConfig, RunConfig
from crammed.config.kinds import flat, overlaid
from crammed.config.yamlfile import load_yaml, names_in, read_yaml, validated
from crammed.errors import InputError
from crammed.rules.choosing import Asked
from crammed.rules.sizing import FOLLOWERS, head_dim, rates_of_width, refuse_unruled
from crammed.schedule import Dive

FOLLOWS = "follows_budget"
"""The recipe key that lists what follows from the budget."""

DEFAULT = "crammed"
"""The recipe of a command that names none."""


def recipe_names() -> list[str]:
    """Names of the built-in recipes, sorted."""
    return names_in(resources.files("crammed") / "recipes")


def _read_recipe(recipe: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    if recipe in seen:
        raise InputError(f"recipe {recipe} extends itself: {' -> '.join((*seen, recipe))}")
    values = read_yaml("recipe", recipe, resources.files("crammed") / "recipes")
    base_name = values.pop("extends", None)
    if base_name is None:
        return values
    base = _read_recipe(str(base_name), (*seen, recipe))
    return overlaid(base, values, RunConfig)


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """``["a.b=1", "a.c=x"]`` becomes ``{"a": {"b": 1, "c": "x"}}``.

    Raises:
        InputError: a value is not YAML, or two overrides contradict each other.
    """
    nested: dict[str, Any] = {}
    for override in overrides:
        path, _, text = override.partition("=")
        try:
            value = load_yaml(text) if text else ""
        except ValueError as error:
            raise InputError(f"the value in {override!r} is not valid YAML") from error
        at = nested
        *parents, leaf = path.split(".")
        for parent in parents:
            at = at.setdefault(parent, {})
            if not isinstance(at, dict):
                raise InputError(
                    f"{override!r} sets a part of what another override sets: leave one out"
                )
        if leaf in at:
            raise InputError(f"{path} is set twice: leave one out")
        at[leaf] = value
    return nested


def typed(recipe: str | None, overrides: Sequence[str], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """What a command sets, by section, without what it leaves to its recipe.

    The arguments are those of `ask`.

    Raises:
        InputError: as `parse_overrides`.
    """
    given = overlaid(parse_overrides(overrides), fixed, RunConfig)
    return given if recipe is None else {"recipe": Path(recipe).stem, **given}


def ask(
    recipe: str | None,
    overrides: Sequence[str] = (),
    fixed: Mapping[str, Any] | None = None,
    *,
    fit: bool = False,
) -> Asked:
    """Read a recipe, and find out what it leaves to the budget.

    ``model.max_length`` is raised to the length of the data's rows, unless `overrides` or `fixed`
    set it. ``follows_budget`` in `overrides` opens the keys it lists even where the recipe sets
    them.

    Args:
        recipe: the name of a built-in recipe or a file; None is `DEFAULT`.
        overrides: each ``key.path=value``.
        fixed: values by section, set by command-line options.
        fit: open every key that has a rule, unless `overrides` or `fixed` set it.

    Raises:
        InputError: an unknown recipe, key or value; all errors at once, one per line.
    """
    given = typed(None, overrides, fixed or {})
    named, recipe = recipe is not None, recipe or DEFAULT
    own = {"recipe": Path(recipe).stem, **_read_recipe(recipe)}
    values = overlaid(own, given, RunConfig)
    if not _is_set(given, "model.max_length"):
        values = overlaid(values, _limit_of_rows(values), RunConfig)
    recipes, following = _following(own, recipe), _following(values, recipe)
    values.pop(FOLLOWS, None)
    listed = FOLLOWS in given
    left_open = tuple(key for key in following if not _is_set(given if listed else values, key))
    if "model.head_dim" in left_open:
        values = overlaid(values, _heads_of_width(values), RunConfig)
    config = validated(RunConfig, values, f"recipe {recipe}")
    _refuse_at_odds(config)
    words = {"recipe": config.recipe, **given} if named else given
    if listed and not fit:
        _check_listed(following, recipes, values, config)
    if not fit:
        return Asked(config, left_open, words)
    wide = Asked(config).wide_open(but=[key for key in FOLLOWERS if _is_set(given, key)])
    return replace(wide, typed={**words, FOLLOWS: list(wide.open)})


def _refuse_at_odds(config: RunConfig) -> None:
    """Refuse values that do not go together; runs of older versions may have them.

    They are a schedule that would jump from its warm-up, and options of an order that is not named.
    """
    schedule, order = config.schedule, config.order
    if isinstance(schedule, Dive) and schedule.warmup + schedule.falling > 1.0:
        raise InputError(
            f"schedule.warmup {schedule.warmup:g} and schedule.falling {schedule.falling:g} are "
            "more than the whole of training: lower one of them"
        )
    if order.by == "random" and (order.share, order.pool) != (1.0, 1.0):
        raise InputError(
            "order.share and order.pool have no effect with order.by=random: set order.by to a "
            "stored order, such as sentence-length, or order.share=1 and order.pool=1"
        )


def refuse_idle(asked: Asked) -> None:
    """Refuse words of one command that have no effect beside the others.

    A study may set in its base what matters in some arms alone.

    Raises:
        InputError: there is one.
    """
    typed, data = flat(asked.typed), asked.config.data
    idle = [key for key in typed if key.startswith("tokenizer.") and key != "tokenizer.file"]
    if idle and typed.get("tokenizer.file") is not None:
        raise InputError(
            f"tokenizer.file brings a tokenizer that is used as it is: leave {', '.join(idle)} out"
        )
    mixed = data.mix.temperature is not None or any(each.share for each in data.sources)
    if "data.mix.most_readings" in typed and not mixed and asked.config.corpus is None:
        raise InputError(
            "data.mix.most_readings has no effect unless the sources have shares or "
            "data.mix.temperature is set: set one of these as well, or leave it out"
        )


def _following(values: Mapping[str, Any], recipe: str) -> list[str]:
    keys = values.get(FOLLOWS) or []
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise InputError(f"recipe {recipe}: follows_budget must be a list of keys")
    return list(dict.fromkeys(keys))


def _check_listed(
    listed: Sequence[str],
    recipes: Sequence[str],
    values: Mapping[str, Any],
    config: RunConfig,
) -> None:
    """Check that a ``follows_budget`` override leaves no key without a rule or a value.

    Args:
        listed: the keys that the override lists.
        recipes: those that the recipe lists, which the override replaces.
        values: those of the recipe with everything typed merged over them.
    """
    refuse_unruled(listed)
    rates = {key for key in FOLLOWERS if key.startswith("optim.")} - {*rates_of_width(config)}
    if foreign := rates.intersection(listed):
        raise InputError(
            f"follows_budget: there is no rule for {', '.join(sorted(foreign))} of "
            f"{config.optim.name}: leave it out"
        )
    gone = [key for key in recipes if key not in (*listed, *rates) and not _is_set(values, key)]
    if gone:
        raise InputError(
            f"follows_budget leaves {', '.join(gone)} without a value: list or set that as well"
        )


def load_config(
    recipe: str,
    overrides: Sequence[str] = (),
    fixed: Mapping[str, Any] | None = None,
    speed: float | None = None,
    rows: int | None = None,
) -> RunConfig:
    """Resolve a recipe for a device of a given speed.

    Args:
        overrides, fixed: as in `ask`.
        speed: FLOP/s of the device; None is the nominal speed of this machine.
        rows: number of rows in the corpus; None if there is no corpus yet.

    Raises:
        InputError: as in `ask`.
    """
    return ask(recipe, overrides, fixed).nominally(rows, speed)


def _limit_of_rows(values: Mapping[str, Any]) -> dict[str, Any]:
    """``model.max_length`` raised to the length of the rows, where they are longer."""
    data, model = (values.get(name) or {} for name in ("data", "model"))
    if not (isinstance(data, Mapping) and isinstance(model, Mapping)):
        return {}
    lengths = [data.get("row_length"), model.get("max_length", ModelConfig().max_length)]
    if not all(type(each) is int for each in lengths) or lengths[0] <= lengths[1]:
        return {}
    return {"model": {"max_length": lengths[0]}}


def _heads_of_width(values: Mapping[str, Any]) -> dict[str, Any]:
    width = values["model"].get("width") if isinstance(values.get("model"), Mapping) else None
    return {"model": {"head_dim": head_dim(width)}} if type(width) is int and width > 0 else {}


def _is_set(values: Mapping[str, Any], key: str) -> bool:
    section, _, name = key.partition(".")
    values = values.get(section) or {}
    return isinstance(values, Mapping) and name in values
