"""Whatever is typed or stands in a file gives a value, or one line that says what is wrong."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crammed.budget import Budget
from crammed.config import RunConfig
from crammed.config.yamlfile import load_yaml
from crammed.errors import InputError
from crammed.quantity import quantity
from crammed.rules.recipe import load_config
from crammed.tasks.task import load_suite

NUMBERS = st.one_of(
    st.integers(),
    st.integers(min_value=-(10**30), max_value=10**30),
    st.floats(),
    st.sampled_from(["1e300", "-1", "0", ".inf", "-.inf", ".nan", "1e-320", "0x_"]),
).map(str)
YAML = st.one_of(
    NUMBERS,
    st.text(),
    st.text(alphabet="[]{}:,&*!?-|>'\"#%@ \n\t0ab~<=."),
    st.sampled_from(
        [
            *("null", "&a [*a]", "{? [1] : 2}", "!!binary x", "!!int x", "!!timestamp 2026-99-99"),
            *("!!python/object:os.system x", "<<: 3", "{1: 2}", "{layers: 2, 3: 4}"),
            *("\x00", "\ud800"),
        ]
    ),
)


def _keys(section: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in section.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{name}.")


KEYS = (
    *_keys(RunConfig(recipe="any").model_dump(mode="json")),
    "extends",
    "follows_budget",
    "x",
    "",
)


def read(how: Callable[..., Any], *values: Any) -> tuple[Any, str]:
    """What is read, or how it is refused; any other error fails the test."""
    try:
        return how(*values), ""
    except InputError as error:
        return None, str(error) or "nothing was said"


def is_a_line_for_each_fault(said: str) -> bool:
    """All lines but the first are indented, and no fault takes two."""
    return not re.search(r"\n(?!  \S)", said.strip())


@given(st.tuples(NUMBERS, st.sampled_from(["s", "h", "tok", "updates"])).map("".join) | YAML)
@example("1e300tok")
@example("1e300h")
@example("9" * 400 + "updates")
@example("1e-400h")
def test_a_budget_is_a_finite_number_or_refused(text: str) -> None:
    budget, said = read(Budget.parse, text)
    assert is_a_line_for_each_fault(said)
    assert said or (0.0 < budget.limit < math.inf and str(budget))


@settings(max_examples=100)
@given(st.sampled_from(KEYS), YAML)
@example("model.layers", "1" + "0" * 22)
@example("model.ffn_ratio", "1e300")
@example("tokenizer.vocab_size", "1000000000000")
@example("optim.weight_decay", ".inf")
@example("budget.limit", "1e300tok")
@example("follows_budget", "5")
@example("seed", "9" * 5000)
@example("seed", "{a: " * 600)
def test_an_override_gives_a_configuration_or_is_refused(key: str, text: str) -> None:
    config, said = read(load_config, "crammed-2022", [f"{key}={text}"])
    assert is_a_line_for_each_fault(said)
    assert said or json.dumps(config.model_dump(mode="json"), allow_nan=False)


@settings(max_examples=50)
@given(YAML)
@example("[" * 600)
@example("!!timestamp 2026-99-99")
@example("!!int x")
@example("9" * 5000)
def test_a_file_is_a_suite_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "mine.yaml"
    for whole in (text, f"tasks: {{mine: {text}}}"):
        file.write_text(whole, "utf-8", errors="surrogatepass")
        assert is_a_line_for_each_fault(read(load_suite, str(file))[1])


LEVELS = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10)]


@pytest.mark.parametrize("text", ["\n".join(["l0: &l0 lol", *LEVELS]), "a: &a [*a]"])
@pytest.mark.parametrize("load", [load_config, load_suite])
def test_aliases_that_multiply_are_refused(
    tmp_path: Path, text: str, load: Callable[[str], Any]
) -> None:
    (tmp_path / "bomb.yaml").write_text(text)
    said = read(load, str(tmp_path / "bomb.yaml"))[1]
    assert said.endswith(
        "is not valid YAML: it has more than 100,000 keys and values, aliases written out"
    )


def test_numbers_are_those_that_people_mean() -> None:
    meant = [8, -3, 1000, 1e3, "007", "010", "1:30"]
    assert load_yaml("[8, -3, 1_000, 1e3, 007, 010, 1:30]") == meant


def test_an_alias_stands_for_what_it_names() -> None:
    assert load_yaml("a: &a {b: 1}\nc: [*a, *a]\nd: {<<: *a}") == {
        "a": {"b": 1},
        "c": [{"b": 1}, {"b": 1}],
        "d": {"b": 1},
    }


@given(st.none() | st.floats() | st.integers())
def test_any_number_can_be_shown(value: Any) -> None:
    assert quantity(value)
