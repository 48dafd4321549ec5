from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crammed.tasks.labels import class_number, flag_of, in_order, name_of, value_of
from crammed.tasks.task import Task


@given(st.lists(st.text(min_size=1).filter(lambda n: not n.isdigit()), min_size=2, unique=True))
def test_a_name_gives_its_position(names: list[str]) -> None:
    names = [name for name in names if name_of(name) == name and name != "-1"]
    assert [class_number(name, names) for name in names] == list(range(len(names)))


@given(st.sets(st.integers(0, 300), min_size=2))
def test_numbers_that_are_names_are_taken_as_names(numbers: set[int]) -> None:
    names = in_order(map(name_of, numbers))
    assert list(names) == [str(number) for number in sorted(numbers)]
    for form in (int, float, str, lambda n: f"{n}.0"):
        assert [class_number(form(n), names) for n in sorted(numbers)] == list(range(len(names)))


def test_numbers_of_equal_value_are_always_in_the_same_order() -> None:
    """A set of text gives them in an order that differs from process to process."""
    numbers = [f"{'0' * zeros}{n}" for n in (2, 1) for zeros in range(12)]
    ordered = [f"{'0' * zeros}{n}" for n in (1, 2) for zeros in reversed(range(12))]
    assert in_order(numbers) == tuple(ordered)


@pytest.mark.parametrize(
    ("value", "names", "place"),
    [
        (True, ("false", "true"), 1),
        (True, ("False", "True"), 1),
        (False, ("true", "false"), 1),
        (True, ("0", "1"), 1),
        (False, ("no", "yes"), 0),
        ("1", ("no", "yes"), 1),
    ],
)
def test_truth_values_as_labels(value: Any, names: tuple[str, ...], place: int) -> None:
    assert class_number(value, names) == place


def test_a_label_that_is_no_class_is_refused_with_the_classes() -> None:
    with pytest.raises(ValueError, match="label 'wet' is not one of ' wet', dry"):
        class_number("wet", (" wet", "dry"))
    with pytest.raises(ValueError, match="label True is not one of a, b, c"):
        class_number(True, ("a", "b", "c"))


def test_names_are_spelled_as_labels_of_the_data_are() -> None:
    stars = ["0.5", "1.0", "1.5", "2.0", "2.5"]
    task = Task.model_validate({"name": "a", "text": "t", "metric": "accuracy", "labels": stars})
    assert [class_number(label, task.labels) for label in stars] == [0, 1, 2, 3, 4]
    assert class_number(2.0, task.labels) == 3


@pytest.mark.parametrize("digits", [640, 5000])
def test_numbers_of_any_length_are_names(digits: int) -> None:
    number = "9" * digits
    assert in_order(["10", "9", number]) == (
        ("9", "10", number) if digits == 640 else ("10", "9", number)
    )
    with pytest.raises(ValueError, match="is not one of a, b"):
        class_number(number, ("a", "b"))


@pytest.mark.parametrize("value", ["a" * 10**7, ["a"] * 10**5])
def test_a_message_about_a_long_label_is_short(value: Any) -> None:
    names = [f"{n}{'b' * 10**5}" for n in range(20)]
    for act in (
        lambda: class_number(value, names),
        lambda: value_of(value),
        lambda: flag_of(value),
    ):
        with pytest.raises(ValueError, match=r"label|neither") as caught:
            act()
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", [pytest.param(10**400, id="huge"), 1e39, "1e39", "-1e39"])
def test_a_value_that_32_bits_do_not_hold_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a (finite )?number"):
        value_of(value)
    assert value_of("1e38") == 1e38
