"""Metrics against values by hand and reference implementations, and on resamples."""

from __future__ import annotations

import math
import sys
import tracemalloc
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crammed.evaluation.scores.metrics import measure, units_of, weighted_metric
from crammed.evaluation.scores.predictions import spans
from crammed.tasks.rows import Rows
from crammed.tasks.task import Metric
from support.metrics import reference

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def rows_of(labels: Any, **fields: Any) -> Rows:
    return Rows([("",)] * len(labels), np.asarray(labels, np.float32), **fields)


def words_of(*rows: list[int]) -> Rows:
    """Rows of words with these labels."""
    texts = [("",) * len(row) for row in rows]
    return Rows(texts, np.concatenate(rows).astype(np.float32))


def logits(guesses: Any, classes: int) -> Any:
    return np.eye(classes)[np.asarray(guesses)]


def test_several_labels_a_row() -> None:
    outputs = np.array([[1.0, -1.0, -2.0], [0.5, 0.1, -1.0], [-1.0, -1.0, -1.0]])
    rows = rows_of([[1, 0, 0], [0, 1, 0], [1, 0, 0]])
    # Hits 2, false 1, missed 1; the third label occurs nowhere.
    assert measure("micro-f1", outputs, rows, ()) == pytest.approx(100 * 4 / 6)
    assert measure("macro-f1", outputs, rows, ()) == pytest.approx(100 * (2 / 4 + 1) / 2)
    assert measure("accuracy", outputs, rows, ()) == pytest.approx(100 / 3)
    with pytest.raises(ValueError, match="use micro-f1"):
        measure("f1", outputs, rows, ())
    with pytest.raises(ValueError, match="no row has a label or a prediction"):
        measure("micro-f1", -np.ones((2, 3)), rows_of(np.zeros((2, 3))), ())


def test_the_best_choice_counts() -> None:
    rows = Rows([("",)] * 6, np.array([2.0, 0.0], np.float32), choices=3)
    outputs = np.array([[0.1, 0.2, 0.9], [0.1, 0.2, 0.1]])
    assert measure("accuracy", outputs, rows, ()) == 50.0


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O O", set()),
        ("B-PER I-PER O", {(0, 2, "PER")}),
        ("O I-PER I-PER", {(1, 3, "PER")}),  # begins with I- after O
        ("B-PER B-PER", {(0, 1, "PER"), (1, 2, "PER")}),
        ("B-PER I-LOC", {(0, 1, "PER"), (1, 2, "LOC")}),
        ("I-PER B-PER I-PER", {(0, 1, "PER"), (1, 3, "PER")}),
        ("B-LOC I-LOC I-LOC", {(0, 3, "LOC")}),
    ],
)
def test_spans_are_read_as_conll_reads_them(tags: str, found: set[Any]) -> None:
    assert spans(tags.split()) == found


def test_span_f1_wants_the_exact_span_and_ends_it_with_its_row() -> None:
    rows = words_of([0, 1, 2], [2, 0, 3])
    outputs = logits([0, 1, 2, 2, 0, 1], 5)  # the last is a person instead of a place
    assert measure("span-f1", outputs, rows, TAGS) == pytest.approx(100 * 2 * 2 / 6)
    joined = words_of([0, 1, 2, 2, 0, 3])  # in one row the second span belongs to the first
    assert measure("span-f1", outputs, joined, TAGS) == pytest.approx(100 * 2 * 1 / 4)
    with pytest.raises(ValueError, match="not 'NOUN'"):
        measure("span-f1", outputs, rows, ("O", "NOUN", "a", "b", "c"))
    with pytest.raises(ValueError, match="hold no span"):
        measure("span-f1", outputs, words_of([0] * 6), TAGS)


def test_groups_are_scored_as_multirc_scores_them() -> None:
    rows = rows_of([1, 0, 1, 0, 0], groups=["a", "b", "a", "b", "c"])
    outputs = logits([1, 0, 1, 1, 0], 2)
    assert measure("group-exact", outputs, rows, ()) == pytest.approx(200 / 3)
    assert measure("group-f1", outputs, rows, ()) == pytest.approx(100 * 4 / 5)
    with pytest.raises(ValueError, match="no groups"):
        measure("group-exact", outputs, rows_of([1, 0, 1, 0, 0]), ())


@pytest.mark.parametrize(
    ("metric", "outputs", "labels", "words"),
    [
        ("pearson", np.ones((3, 1)), [1, 2, 3], "all predictions are 1"),
        ("spearman", np.arange(3.0)[:, None], [2, 2, 2], "all labels are 2"),
        ("pearson", np.array([[1.0], [np.inf], [2.0]]), [1, 2, 3], "not finite"),
        ("f1", logits([0, 1, 1], 2), [1, 1, 1], "every label is 1"),
        ("matthews", logits([0, 1, 1], 2), [0, 0, 0], "every label is 0"),
        ("f1", logits([0, 1, 2], 3), [0, 1, 2], "takes two classes, not 3"),
        ("accuracy", np.full((3, 2), np.nan), [0, 1, 1], "not finite"),
    ],
)
def test_what_is_undefined_has_no_number(
    metric: Metric, outputs: Any, labels: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        measure(metric, outputs, rows_of(labels), ())


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
@pytest.mark.parametrize(("scale", "shift"), [(1e-3, 1e4), (1e30, 0.0), (1e-30, 0.0)])
def test_correlations_of_any_size_take_no_scipy(
    monkeypatch: pytest.MonkeyPatch, metric: Metric, scale: float, shift: float
) -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(6, size=2000)
    values = (labels + draw.normal(size=2000)) * scale + shift
    outputs, rows = values.astype(np.float32)[:, None], rows_of(labels)
    expected = reference(metric, outputs.astype(float), rows, ())
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert measure(metric, outputs, rows, ()) == pytest.approx(100 * (expected or 0), rel=1e-9)
    assert measure(metric, rows.labels[:, None], rows, ()) == pytest.approx(100)
    assert measure(metric, rows.labels[:, None], rows, ()) <= 100
    assert measure(metric, -rows.labels[:, None], rows, ()) >= -100


def _case(metric: Metric, draw: np.random.Generator) -> tuple[Any, Rows, tuple[str, ...]]:
    """Random predictions that are correct more often than not."""
    count = int(draw.integers(2, 25))
    groups = [str(n) for n in draw.integers(5, size=count)] if metric[:5] == "group" else []
    if metric in ("pearson", "spearman"):
        truth = draw.integers(6, size=count)
        return truth[:, None] + draw.integers(3, size=(count, 1)), rows_of(truth), ()
    if metric == "span-f1":
        lengths = draw.integers(1, 6, size=count)
        rows = words_of(*[draw.integers(-1, 5, size=n).tolist() for n in lengths])
        truth = np.maximum(0, rows.labels).astype(int)
        return logits(truth, 5) + draw.random((len(truth), 5)) * 1.3, rows, TAGS
    if metric in ("micro-f1", "macro-f1", "accuracy") and draw.random() < 0.5:
        table = (draw.random((count, 9)) < draw.random()).astype(int)
        return table - 0.5 + draw.normal(size=(count, 9)) / 2, rows_of(table), ()
    classes = 2 if metric in ("f1", "group-f1") else int(draw.integers(2, 12))
    truth = draw.integers(0 if groups else -1, classes, size=count)
    outputs = logits(np.maximum(0, truth), classes) + draw.random((count, classes))
    return outputs, rows_of(truth, groups=groups, positive=int(draw.integers(2))), ()


def _resampled(outputs: Any, rows: Rows, weights: Any) -> tuple[Any, Rows]:
    """The resample written out; a group that is drawn twice becomes two groups."""
    unit = units_of(rows)
    words = len(rows.labels) != len(rows)
    of_label = np.repeat(np.arange(len(rows)), [len(t) for t in rows.texts]) if words else None
    texts: list[Any] = []
    labels: list[float] = []
    picked: list[int] = []
    groups: list[str] = []
    for copy in range(int(weights.max())):
        for row in range(len(rows)):
            if weights[unit[row]] > copy:
                at = [row] if of_label is None else np.flatnonzero(of_label == row).tolist()
                texts.append(rows.texts[row])
                labels.extend(rows.labels[at])
                picked.extend(at)
                groups.append(f"{rows.groups[row]}/{copy}" if rows.groups else "")
    groups = groups if rows.groups else []
    values = np.asarray(labels, np.float32)
    return outputs[picked], Rows(texts, values, groups=groups, positive=rows.positive)


@pytest.mark.parametrize("metric", get_args(Metric))
@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_a_metric_is_that_of_the_reference_implementation(metric: Metric, seed: int) -> None:
    """They agree to the last bit, so scores of versions that used scikit-learn are reproduced.

    Only the correlations, which were SciPy's, are rounded differently.
    """
    outputs, rows, labels = _case(metric, np.random.default_rng(seed))
    assume((rows.labels >= 0).any())
    expected = reference(metric, outputs, rows, labels)
    if expected is not None:
        value = 100.0 * expected
        near = pytest.approx(value, abs=1e-10) if metric in ("pearson", "spearman") else value
        assert measure(metric, outputs, rows, labels) == near
        return
    with pytest.raises(ValueError, match="undefined"):
        measure(metric, outputs, rows, labels)


@pytest.mark.parametrize("metric", get_args(Metric))
@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_the_metric_of_a_resample_is_the_metric_of_its_rows(metric: Metric, seed: int) -> None:
    draw = np.random.default_rng(seed)
    outputs, rows, labels = _case(metric, draw)
    assume((rows.labels >= 0).any())
    units = int(units_of(rows).max()) + 1
    weights = draw.multinomial(units, np.full(units, 1 / units), size=4).astype(float)
    weights[0] = 1  # the rows themselves
    try:
        fast = weighted_metric(metric, outputs, rows, labels)(weights)
    except ValueError:  # undefined on every resample
        fast = np.full(len(weights), math.nan)
    for weight, value in zip(weights, fast, strict=True):
        try:
            slow = measure(metric, *_resampled(outputs, rows, weight), labels)
        except ValueError:
            slow = math.nan
        assert value == pytest.approx(slow, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("metric", ["macro-f1", "micro-f1", "matthews"])
def test_thousands_of_classes_take_little_memory(metric: Metric) -> None:
    """A table of rows and classes, as the outputs are, takes 64 MB; its sums would take more."""
    count = 4000
    truth = np.arange(count)
    outputs = np.zeros((count, count), np.float32)
    outputs[truth, np.where(truth % 2, truth, truth - 1)] = 1.0
    rows = rows_of(truth)
    tracemalloc.start()
    try:
        found = weighted_metric(metric, outputs, rows, ())(np.ones((8, count)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6
    assert found.tolist() == [100.0 * (reference(metric, outputs, rows, ()) or 0.0)] * 8
