"""Sections that come in several kinds, distinguished by one of their keys.

`schedule` is one of many curves, selected by `shape`; `optim` is one of several optimizers,
selected by `name`. Each kind has only the keys that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel


class KeepsValues:
    """Marks a choice that keeps the values of shared keys when another kind is chosen.

    A key whose default differs is not shared: what suits one kind does not suit the other. Without
    this marker, the new kind starts from its own defaults.
    """


@dataclass(frozen=True)
class Kinds:
    """One of several kinds of a section.

    Attributes:
        key: the key that distinguishes the kinds.
        kinds: the kinds by their value of that key.
        default: the value for a section that does not name its kind.
        keeps_values: whether the choice is marked with `KeepsValues`.
    """

    key: str
    kinds: Mapping[str, type[BaseModel]]
    default: str
    keeps_values: bool


@cache
def kinds_of(section: type[BaseModel]) -> dict[str, Kinds]:
    """The fields of a section that hold one of several kinds, by name."""
    found = {}
    for name, field in section.model_fields.items():
        if isinstance(key := field.discriminator, str):
            kinds = {kind.model_fields[key].default: kind for kind in get_args(field.annotation)}
            keeps = any(isinstance(mark, KeepsValues) for mark in field.metadata)
            found[name] = Kinds(key, kinds, getattr(field.default, key), keeps)
    return found


def overlaid(base: Mapping[str, Any], change: Mapping[str, Any], section: Any) -> dict[str, Any]:
    """Merge `change` into `base`, both plain values; `change` takes precedence.

    Where the change selects another kind of a section, the base's values for that section are
    dropped, except for the shared keys of a choice marked with `KeepsValues`.

    Args:
        section: the class of section that the values are for, or what `subsection` returns.
    """
    choices = kinds_of(section) if is_section(section) else {}
    result = dict(base)
    for key, value in change.items():
        old = result.get(key)
        if not isinstance(old, Mapping) or not isinstance(value, Mapping):
            result[key] = value
        elif choice := choices.get(key):
            result[key] = {**_kept(choice, old, value), **value}
        else:
            result[key] = overlaid(old, value, subsection(section, key))
    return result


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted keys: ``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


def _kept(choice: Kinds, old: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The old values of a section that remain when `change` is merged into it."""
    kind = change.get(choice.key, old.get(choice.key, choice.default))
    if kind == old.get(choice.key, choice.default):
        return dict(old)
    former = choice.kinds.get(str(old.get(choice.key, choice.default)))
    new = choice.kinds.get(str(kind))
    if former is None or new is None or not choice.keeps_values:
        return {}
    theirs, ours = former.model_fields, new.model_fields
    return {
        key: value
        for key, value in old.items()
        if key in theirs and key in ours and theirs[key].default == ours[key].default
    }


def subsection(section: Any, name: str) -> Any:
    """The type behind a key: a section, a dict or tuple of sections, or None."""
    fields = getattr(section, "model_fields", {})
    if get_origin(section) in (dict, tuple):
        kinds: tuple[Any, ...] = get_args(section)
    elif name in fields:
        kinds = (fields[name].annotation, *get_args(fields[name].annotation))
    else:
        return None
    holders = [
        k for k in kinds if get_origin(k) in (dict, tuple) and any(map(is_section, get_args(k)))
    ]
    found = holders or [k for k in kinds if is_section(k)]
    return found[0] if len(found) == 1 else None


def is_section(kind: Any) -> bool:
    """Whether it is a section class."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)
