"""YAML files as people mean them, and what is wrong in them in words that help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from crammed.config import Section
from crammed.errors import InputError
from crammed.hints import did_you_mean
from crammed.schedule import Curve, Schedule


class Loader(yaml.SafeLoader):
    """YAML as people mean it: 1e-3 is a number, `on` is a word and 2026-01-01 is text."""


_RESOLVED_OTHERWISE = {f"tag:yaml.org,2002:{kind}" for kind in ("float", "bool", "timestamp")}
Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag not in _RESOLVED_OTHERWISE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"true$|false$", re.IGNORECASE), list("tTfF")
)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?$|[-+]?\.inf$|\.nan$"),
    list("-+.0123456789"),
)


def names_in(folder: Traversable) -> list[str]:
    """Names of the YAML files in a folder of the package, sorted."""
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read_yaml(kind: str, name: str, folder: Traversable) -> dict[str, Any]:
    """The mapping in a built-in YAML file, or in a file of the user's.

    Args:
        kind: what messages call it: ``recipe``.
        name: one of the names in `folder`, or the path of a .yaml file.

    Raises:
        InputError: no such name or file, or one that holds no YAML mapping.
    """
    names = names_in(folder)
    if name in names:
        text = (folder / f"{name}.yaml").read_text("utf-8")
    elif Path(name).suffix in (".yaml", ".yml"):
        try:
            text = Path(name).read_text("utf-8")
        except OSError as error:
            raise InputError(f"cannot read {kind} {name}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{kind} {name} is not UTF-8 text") from error
    else:
        hint, choices = did_you_mean(name, names), ", ".join(names)
        raise InputError(f"no {kind} {name!r}: {hint}choose one of {choices}, or a .yaml file")
    try:
        values = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{kind} {name} is not valid YAML: {problem}") from error
    if not isinstance(values, dict):
        raise InputError(f"{kind} {name} must be a YAML mapping of sections")
    return values


def explain(error: ValidationError, root: type[Section]) -> str:
    """Every fault that was found in a section, as ``key.path: what is wrong``, a line each."""
    faults = [_explain(fault, root) for fault in error.errors(include_url=False)]
    return faults[0] if len(faults) == 1 else "\n  ".join((f"{len(faults)} faults:", *faults))


def _explain(fault: ErrorDetails, root: type[Section]) -> str:
    """One fault as `key.path: what is wrong and what is allowed`."""
    location = tuple(str(part) for part in fault["loc"])
    section: Any = root
    shown: list[str] = []
    for part in location[: -1 if fault["type"] == "extra_forbidden" else None]:
        chosen = _shape(part) if section is None else None
        if chosen is not None:  # the discriminator of `schedule` is no part of the path
            section = chosen
            continue
        shown.append(part)
        section = _subsection(section, part)
    path = ".".join(shown)
    if fault["type"] == "extra_forbidden":
        key = location[-1]
        keys = sorted(getattr(section, "model_fields", {}))
        prefix = "".join(f"{part}." for part in shown)
        hint = did_you_mean(key, keys, prefix)
        return f"{prefix}{key}: no such key; {hint}keys here: {', '.join(keys)}"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "union_tag_invalid":
        message = f"shape must be one of {fault['ctx']['expected_tags']}"
    elif fault["type"] in ("model_type", "model_attributes_type"):
        message = f"must be a section of keys, not {fault['input']!r}"
    elif fault["type"] == "missing":
        message = "is missing"
    elif fault["type"] in ("too_long", "too_short"):
        message = f"{message[0].lower()}{message[1:]}".replace(" after validation", "")
    elif fault["type"] != "value_error":
        message = f"{message[0].lower()}{message[1:]}, not {fault['input']!r}"
    return f"{path}: {message}" if path else message


def _shape(name: str) -> type[Curve] | None:
    shapes = {curve.model_fields["shape"].default: curve for curve in _curves()}
    return shapes.get(name)


def _curves() -> Iterator[type[Curve]]:
    yield from get_args(get_args(Schedule)[0])


def _subsection(section: Any, name: str) -> Any:
    """What stands behind a key: a model class, what holds models by key or number, or None."""
    fields = getattr(section, "model_fields", {})
    if get_origin(section) in (dict, tuple):
        kinds: tuple[Any, ...] = get_args(section)
    elif name in fields:
        kinds = (fields[name].annotation, *get_args(fields[name].annotation))
    else:
        return None
    holders = [k for k in kinds if get_origin(k) in (dict, tuple) and _holds_sections(k)]
    found = holders or [k for k in kinds if _is_section(k)]
    return found[0] if len(found) == 1 else None


def _holds_sections(kind: Any) -> bool:
    return any(map(_is_section, get_args(kind)))


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)
