"""Reads YAML the way users mean it, and explains what is wrong in a file."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from crammed.config.kinds import Kinds, is_section, kinds_of, subsection
from crammed.errors import InputError, in_one_line
from crammed.files.folders import expanded
from crammed.files.regular import read_text
from crammed.hints import did_you_mean


class Loader(yaml.SafeLoader):
    """YAML as users mean it: 1e-3 is a number, `on` is a word, and 2026-01-01 and 007 are text.

    A duplicate key in a mapping is an error, where PyYAML would keep the last.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line, before = key.start_mark.line + 1, lines.get((key.tag, key.value))
            if before is not None:
                problem = f"the key {key.value} is on line {before} and again on line {line}"
                raise yaml.constructor.ConstructorError(problem=problem)
            lines[key.tag, key.value] = line
        return super().construct_mapping(node, deep)


_RESOLVED_OTHERWISE = {
    f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "timestamp")
}
Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag not in _RESOLVED_OTHERWISE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"true$|false$", re.IGNORECASE), list("tTfF")
)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789")
)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$"
    ),
    list("-+.0123456789"),
)


MOST_NODES = 100_000
_MOST_SHOWN = 80
"""Characters of a wrong value that a message repeats."""


def load_yaml(text: str) -> Any:
    """The value of a YAML text, which is parsed once, however often a study asks for it.

    Raises:
        ValueError: it is not valid YAML, or holds more than `MOST_NODES` keys and values with its
            aliases written out, in one line that says why.
    """
    return copy.deepcopy(_parsed(text))


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _nodes(node, {}) > MOST_NODES:
            raise ValueError(
                f"it has more than {MOST_NODES:,} keys and values, aliases written out"
            )
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(in_one_line(error)) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except Exception as error:  # PyYAML lets Python's errors about numbers and dates through
        raise ValueError(in_one_line(error)) from error


def _nodes(node: yaml.Node, counted: dict[int, float]) -> float:
    """The number of nodes from this one down, aliases expanded; infinite if one holds itself."""
    if id(node) not in counted:
        counted[id(node)] = math.inf
        below: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            below = [part for pair in below for part in pair]
        counted[id(node)] = 1.0 + sum(_nodes(part, counted) for part in below)
    return counted[id(node)]


def names_in(folder: Traversable) -> list[str]:
    """Names of the YAML files in a folder of the package, sorted."""
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read_yaml(kind: str, name: str, folder: Traversable) -> dict[str, Any]:
    """The mapping in a built-in YAML file or in the user's own.

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
            text = read_text(expanded(name))
        except OSError as error:
            hint = did_you_mean(Path(name).stem, names).rstrip()
            raise InputError(
                f"cannot read {kind} {name}: {error.strerror}{f'; {hint}' if hint else ''}"
            ) from error
        except UnicodeDecodeError as error:
            raise InputError(f"{kind} {name} is not UTF-8 text") from error
    else:
        hint, choices = did_you_mean(name, names), ", ".join(names)
        raise InputError(f"no {kind} {name!r}: {hint}choose one of {choices}, or a .yaml file")
    try:
        values = load_yaml(text)
    except ValueError as error:
        raise InputError(f"{kind} {name} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{kind} {name} must be a YAML mapping of keys to values")
    return values


S = TypeVar("S", bound=BaseModel)


def read_section(
    kind: str,
    name: str,
    folder: Traversable,
    section: type[S],
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> S:
    """The section in a built-in YAML file or one of the user's, found as `read_yaml` finds it.

    Args:
        defaults: values of keys that the file may leave out.

    Raises:
        InputError: no such file, or faults in it, a line each.
    """
    return validated(section, {**defaults, **read_yaml(kind, name, folder)}, f"{kind} {name}")


def validated(section: type[S], values: Mapping[str, Any], origin: str = "") -> S:
    """A section from plain values.

    Args:
        origin: where they come from, for the message.

    Raises:
        InputError: naming every fault as ``key.path: what is wrong``, a line each.
    """
    try:
        return section.model_validate(dict(values) if isinstance(values, Mapping) else values)
    except ValidationError as error:
        faults = [_explain(fault, section) for fault in _faults(error)]
        faults = [f"{len(faults)} faults:", *faults][len(faults) < 2 :]
        found = InputError(*faults)
        raise (found.within(origin) if origin else found) from error


def _faults(error: ValidationError) -> list[ErrorDetails]:
    """What is wrong; where a number or a word would do, pydantic lists two faults for one."""
    faults: list[ErrorDetails] = []
    for fault in error.errors(include_url=False):
        place, last = fault["loc"][:-1], str(*fault["loc"][-1:])
        before = [each["loc"][:-1] for each in faults[-1:]]
        if last.startswith("literal[") and before == [place]:
            number, word = faults.pop(), fault["ctx"]["expected"]
            fault = {**number, "loc": place, "msg": f"{number['msg']} or {word}"}
        faults.append(fault)
    return faults


def _explain(fault: ErrorDetails, root: type[BaseModel]) -> str:
    """One fault as ``key.path: what is wrong and what is allowed``."""
    *parents, last = (str(part) for part in fault["loc"]) if fault["loc"] else ("",)
    location = _Location(root)
    for part in parents:
        location = location.below(part)
    if fault["type"] == "extra_forbidden":
        return location.unknown_key(last)
    if last:
        location = location.below(last)
    message = fault["msg"].removeprefix("Value error, ")
    path, given = location.path, fault["input"]
    if fault["type"] == "union_tag_invalid":
        context = fault["ctx"]
        path = f"{path}.{context['discriminator'].strip(chr(39))}"
        message = f"must be one of {context['expected_tags']}, not {shown(context['tag'])}"
        message += _near(context["tag"], context["expected_tags"])
    elif fault["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = f"must be a section of keys, not {shown(given)}"
    elif fault["type"] == "tuple_type":
        message = f"must be a list such as [one, two], not {shown(given)}"
    elif fault["type"] == "missing":
        message = "is missing"
    elif fault["type"] in ("too_long", "too_short"):
        message = f"{message[0].lower()}{message[1:]}".replace(" after validation", "")
    elif fault["type"] != "value_error":
        message = f"{message[0].lower()}{message[1:]}, not {shown(given)}"
        if fault["type"] == "literal_error":
            message += _near(given, fault["ctx"]["expected"])
    # Some messages begin with the key itself.
    return f"{path}: {message}" if path and not message.startswith(f"{path}.") else message


def _near(given: object, expected: str) -> str:
    """``; did you mean accuracy?`` if one of the quoted values is close to the given one."""
    hint = did_you_mean(str(given), re.findall(r"'([^']*)'", expected)).rstrip()
    return f"; {hint}" if hint else ""


def shown(given: object) -> str:
    """The given value in one line, truncated if long."""
    text = " ".join(repr(given).split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ..."


def _deeper(section: Any, key: str, prefix: str) -> str:
    """``did you mean optim.lr? `` if a section below has a key of this name."""
    for name in getattr(section, "model_fields", {}):
        choice = kinds_of(section).get(name)
        kinds = choice.kinds.values() if choice is not None else [subsection(section, name)]
        if any(key in getattr(kind, "model_fields", {}) for kind in kinds):
            return f"did you mean {prefix}{name}.{key}? "
    return ""


@dataclass(frozen=True)
class _Location:
    """A place in nested sections, followed from the root as pydantic counts it.

    Attributes:
        holds: the section there, or a dict or tuple of sections; None for a plain value.
        path: its keys as a user types them.
        choice: the kinds to choose from, if none has been chosen yet.
    """

    holds: Any
    path: str = ""
    choice: Kinds | None = None
    kind: str = ""

    def below(self, part: str) -> _Location:
        """The place under a key, a number or a kind; a kind is not part of the path."""
        if self.choice is not None:
            kind = f" with {self.path}.{self.choice.key}={part}"
            return _Location(self.choice.kinds.get(part), self.path, kind=kind)
        path = f"{self.path}.{part}" if self.path else part
        if is_section(self.holds) and (choice := kinds_of(self.holds).get(part)):
            return _Location(None, path, choice)
        return _Location(subsection(self.holds, part), path)

    def unknown_key(self, key: str) -> str:
        """The message for a key that this section does not have."""
        keys = sorted(getattr(self.holds, "model_fields", {}))
        prefix = f"{self.path}." if self.path else ""
        hint = did_you_mean(key, keys, prefix) or _deeper(self.holds, key, prefix)
        return f"{prefix}{key}: no such key{self.kind}; {hint}keys here: {', '.join(keys)}"
