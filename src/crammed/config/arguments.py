"""Checks what Python programs pass to functions, by the functions' annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from crammed.config.yamlfile import shown
from crammed.errors import InputError
from crammed.files.faults import failing
from crammed.files.folders import expanded


def _named(file: str | Path) -> str | Path:
    if not str(file):
        raise ValueError("the name is empty, which would stand for the working directory")
    return expanded(file) if str(file).startswith("~") else file


def _listed(given: Any) -> Any:
    alone = isinstance(given, str | bytes | Path | Mapping) or not isinstance(given, Iterable)
    return given if alone else list(given)


File = Annotated[str | Path, AfterValidator(_named)]
LISTED = BeforeValidator(_listed)
"""Marks what may be one value or several: generators, sets and arrays become lists."""
AtLeastOne = Annotated[int, Field(ge=1)]
Seeds = Annotated[int, Field(ge=1, le=1000)]
Jobs = Annotated[int, Field(ge=1, le=4096)]

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """A function that turns wrong arguments and faults of the machine into an `InputError`.

    Arguments get the types of their annotations, so that NumPy's numbers become Python's.
    """

    @cache  # when it is called, for annotations may name what is defined below the function
    def kinds() -> dict[str, TypeAdapter[Any]]:
        hints = get_type_hints(function, include_extras=True)
        return {name: TypeAdapter(kind) for name, kind in hints.items() if name != "return"}

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature(function).bind(*args, **kwargs)
        for name in given.arguments.keys() & kinds().keys():
            try:
                given.arguments[name] = kinds()[name].validate_python(given.arguments[name])
            except ValidationError as error:
                fault = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
                why = fault["msg"].removeprefix("Value error, ")
                value = "" if fault["type"] == "value_error" else f", not {shown(fault['input'])}"
                raise InputError(f"{name}: {why[0].lower()}{why[1:]}{value}") from None
        try:
            return function(*given.args, **given.kwargs)
        except OSError as error:
            raise InputError(failing(error)) from error

    return called
