from __future__ import annotations

import json
import statistics
from typing import Any

import numpy as np
import pytest

from crammed.evaluation.scores import bootstrap
from crammed.evaluation.scores.bootstrap import RESAMPLES, interval, resampled_medians
from crammed.evaluation.scores.metrics import measure
from crammed.evaluation.scores.score import failed_json, score_json, suite_means
from crammed.tasks.rows import Rows, TaskData
from crammed.tasks.task import Scored, Suite, Task


def rows_of(labels: Any, **fields: Any) -> Rows:
    return Rows([("",)] * len(labels), np.asarray(labels, np.float32), **fields)


def seeds_of(truth: Any, right: float, count: int, seed: int = 0) -> list[Any]:
    """Outputs of `count` seeds that are correct with this probability."""
    draw = np.random.default_rng(seed)
    guesses = [np.where(draw.random(len(truth)) < right, truth, 1 - truth) for _ in range(count)]
    return [np.eye(2)[guess] for guess in guesses]


def interval_of(outputs: list[Any], rows: Rows) -> list[float]:
    """The interval of the accuracy of a model with these outputs, one of each seed."""
    return interval(resampled_medians(("accuracy",), [outputs], rows, (), "x", "x")[0]) or [0, 0]


def data_of(train: int = 100) -> TaskData:
    return TaskData(rows_of([0] * train), {"mrpc": rows_of(TRUTH)}, {}, ("no", "yes"), "0" * 64)


TRUTH = np.random.default_rng(9).integers(2, size=300)
MRPC = Task(
    name="mrpc",
    text=("a", "b"),
    metric=("f1",),
    also=("accuracy",),
    rows={"train": 100, "validation": 300},
)


def test_a_score_says_everything_about_its_number() -> None:
    trained, untrained = seeds_of(TRUTH, 0.8, 5), seeds_of(TRUTH, 0.5, 3, seed=1)
    score, medians = score_json(MRPC, "mrpc", trained, untrained, data_of(), {"train": 3})
    assert medians is not None
    assert len(medians) == RESAMPLES
    f1 = [measure("f1", each, rows_of(TRUTH), ()) for each in trained]
    accuracy = [measure("accuracy", each, rows_of(TRUTH), ()) for each in trained]
    assert score["metric"] == "f1 of yes"
    assert score["seeds"] == f1
    assert score["median"] == statistics.median(f1)
    assert score["spread"] == max(f1) - min(f1)
    assert score["interval"][0] < score["median"] < score["interval"][1]
    assert score["also"] == {"accuracy": statistics.median(accuracy)}
    assert score["rows"] == {"train": 100, "validation": 300}
    assert score["official"] is True
    assert "official_rows" not in score
    assert "interval_over" not in score
    assert score["cut"] == {"train": 3}
    assert len(score["untrained"]["seeds"]) == 3
    assert score["untrained"]["interval"][1] < score["interval"][0]
    again = score_json(MRPC, "mrpc", trained, untrained, data_of(), {"train": 3})[0]
    assert json.loads(json.dumps(score)) == again


def test_a_partial_split_is_told_by_its_rows() -> None:
    outputs = seeds_of(TRUTH, 0.8, 1)
    score, _ = score_json(MRPC, "mrpc", outputs, [], data_of(train=60), {})
    assert score["official"] is False
    assert score["rows"] == {"train": 60, "validation": 300}
    assert score["official_rows"] == {"train": 100, "validation": 300}
    assert score["interval_over"] == "rows", "there is one seed"
    assert "untrained" not in score
    own = MRPC.model_copy(update={"rows": {}})
    assert score_json(own, "mrpc", outputs, [], data_of(), {})[0]["official"] is None


def test_another_splits_rows_do_not_make_a_number_partial() -> None:
    task = MRPC.model_copy(
        update={
            "rows": {"train": 100, "matched": 300, "diagnostic/test": 7},
            "scored": {
                "mrpc": Scored(split="matched"),
                "axb": Scored(split="test", folder="diagnostic", metric=("matthews",)),
            },
        }
    )
    data = TaskData(
        rows_of([0] * 100),
        {"mrpc": rows_of(TRUTH), "axb": rows_of(TRUTH[:5])},
        {},
        ("no", "yes"),
        "0" * 64,
    )
    assert score_json(task, "mrpc", seeds_of(TRUTH, 0.8, 1), [], data, {})[0]["official"] is True
    axb, _ = score_json(task, "axb", seeds_of(TRUTH[:5], 0.9, 1), [], data, {})
    assert axb["metric"] == "matthews"
    assert axb["also"] == {}
    assert axb["official"] is False
    assert axb["rows"] == {"train": 100, "diagnostic/test": 5}


def test_a_score_of_several_metrics_is_their_mean() -> None:
    task = MRPC.model_copy(update={"metric": ("accuracy", "macro-f1"), "also": ()})
    outputs = seeds_of(TRUTH, 0.7, 1)
    score, _ = score_json(task, "mrpc", outputs, [], data_of(), {})
    assert score["metric"] == "accuracy and macro-f1"
    assert set(score["also"]) == {"accuracy", "macro-f1"}
    assert score["median"] == pytest.approx(statistics.fmean(score["also"].values()))


@pytest.mark.parametrize(
    ("labels", "positive", "words"),
    [
        (("no", "yes"), None, "f1 of yes"),
        (("no", "yes"), "no", "f1 of no"),
        (("0", "1"), None, "f1"),
        (("0", "1"), "0", "f1 of 0"),
        (("0", "1"), "1", "f1"),
    ],
)
def test_f1_names_its_class_unless_that_is_1(
    labels: tuple[str, str], positive: str | None, words: str
) -> None:
    task = MRPC.model_copy(update={"positive": positive, "also": ("group-f1", "accuracy")})
    place = labels.index(positive or labels[1])
    rows = rows_of(TRUTH, positive=place, groups=[str(n) for n in range(300)])
    data = TaskData(rows_of([0] * 100), {"mrpc": rows}, {}, labels, "0" * 64)
    outputs = seeds_of(TRUTH, 0.8, 1)
    score, _ = score_json(task, "mrpc", outputs, [], data, {})
    turned = measure(
        "f1", outputs[0] if place else outputs[0][:, ::-1], rows_of(place == TRUTH), ()
    )
    assert score["metric"] == words
    assert score["median"] == turned
    assert list(score["also"]) == [f"group-{words}", "accuracy"]
    failed = failed_json(task, "mrpc", "so")["metric"]
    assert failed == ("f1" if positive is None else f"f1 of {positive}"), "no label is known"


def test_an_undefined_score_is_a_failure_with_a_reason() -> None:
    outputs = [*seeds_of(TRUTH, 0.8, 1), np.full((300, 2), np.nan)]
    score, medians = score_json(MRPC, "mrpc", outputs, [], data_of(), {})
    assert score["failed"] == "seed 2: fine-tuning diverged: its outputs are not finite"
    assert score["metric"] == "f1"
    assert medians is None
    score, _ = score_json(MRPC, "mrpc", outputs[:1], outputs[1:], data_of(), {})
    assert "failed" not in score
    assert "seed 1" in score["untrained"]["failed"]
    assert failed_json(MRPC, "mrpc", "no data") == {"metric": "f1", "failed": "no data"}


def test_intervals_hold_what_theory_says() -> None:
    """95 % of a proportion: 1.96 standard errors on each side."""
    truth = np.ones(2000, int)
    guess = np.arange(2000) % 5 > 0  # 80 % correct
    low, high = interval_of([np.eye(2)[guess.astype(int)]], rows_of(truth))
    error = 100 * (0.8 * 0.2 / 2000) ** 0.5
    assert low == pytest.approx(80 - 1.96 * error, abs=0.35 * error)
    assert high == pytest.approx(80 + 1.96 * error, abs=0.35 * error)


def test_seeds_that_differ_widen_the_interval() -> None:
    seeds = [
        np.roll(np.eye(2)[(np.arange(900) < 900 * share).astype(int)], 3, 0)
        for share in (0.5, 0.7, 0.9)
    ]
    one, three = (interval_of(each, rows_of(np.ones(900))) for each in (seeds[1:2], seeds))
    assert three[1] - three[0] > 2 * (one[1] - one[0])


def test_groups_are_drawn_whole() -> None:
    """Ten questions whose thirty answers are all right or all wrong are ten facts, not 300."""
    right = np.arange(300) // 30 % 2
    outputs = [np.eye(2)[right]]
    rows = rows_of(np.ones(300)), rows_of(np.ones(300), groups=[str(n // 30) for n in range(300)])
    alone, grouped = (interval_of(outputs, each) for each in rows)
    assert grouped[1] - grouped[0] > 3 * (alone[1] - alone[0])


def test_how_many_weights_are_held_at_once_changes_nothing(monkeypatch: Any) -> None:
    def medians() -> Any:
        seeds = [seeds_of(TRUTH, 0.8, 3)]
        return resampled_medians(("f1",), seeds, rows_of(TRUTH), (), "x", "x")[0]

    whole = medians()
    monkeypatch.setattr(bootstrap, "_MOST_WEIGHTS", 7 * len(TRUTH))
    assert np.array_equal(medians(), whole)


def test_resamples_on_which_a_score_is_undefined_are_left_out() -> None:
    truth = np.array([0, 1])  # half of the resamples have one class
    medians = resampled_medians(("f1",), [seeds_of(truth, 1.0, 2)], rows_of(truth), (), "x", "x")[0]
    assert 0.3 < np.isnan(medians).mean() < 0.7
    assert interval(medians) == [100.0, 100.0]
    assert interval(np.full(3, np.nan)) is None


def _number(value: float, official: bool | None = True, untrained: float | None = 1.0) -> Any:
    score = {"metric": "f1", "median": value, "seeds": [value] * 2, "official": official}
    return score if untrained is None else {**score, "untrained": {"median": untrained}}


def _suite(**means: tuple[str, ...]) -> Suite:
    tasks = {name: MRPC.model_copy(update={"name": name}) for name in "abcd"}
    return Suite(name="s", tasks=tasks, means=means)


def _spread(*names: str) -> dict[str, Any]:
    return {name: np.linspace(0, 10, RESAMPLES) for name in names}


def test_a_whole_mean_goes_by_its_name() -> None:
    suite = _suite(ALL=("a", "b", "c"), SOME=("a", "b"))
    tasks = {"a": _number(60), "b": _number(70, untrained=3.0), "c": _number(95)}
    means = suite_means(suite, tasks, _spread("a", "b", "c"))
    assert [mean["name"] for mean in means] == ["ALL", "SOME"]
    assert means[0]["value"] == 75.0
    assert means[0]["untrained"] == pytest.approx(5 / 3)
    assert means[0]["interval"] == pytest.approx([0.25, 9.75], abs=0.01)
    assert means[0]["partial"] is False
    assert "failed" not in means[0]


def test_a_mean_over_partial_data_says_so() -> None:
    suite = _suite(ALL=("a", "b"))
    tasks = {"a": _number(60), "b": _number(70, official=False, untrained=None)}
    (mean,) = suite_means(suite, tasks, _spread("a", "b"))
    assert mean["partial"] is True
    assert "untrained" not in mean
    assert "interval_over" not in mean
    tasks["b"] = {**_number(70), "seeds": [70.0]}
    assert suite_means(suite, tasks, _spread("a", "b"))[0]["interval_over"] == "rows"
    tasks["b"] = _number(70, official=None)
    assert suite_means(suite, tasks, _spread("a", "b"))[0]["partial"] is False


def test_a_mean_that_lacks_a_number_is_named_by_what_it_is_over() -> None:
    suite = _suite(ALL=("a", "b", "c", "d"), SOME=("a", "d"))
    tasks = {"a": _number(60), "b": _number(70), "c": {"metric": "f1", "failed": "why"}}
    (mean,) = suite_means(suite, tasks, _spread("a", "b"))
    assert mean["name"] == "mean of a, b"
    assert mean["value"] == 65.0
    assert mean["failed"] == ["c"]
    assert suite_means(suite, tasks, _spread("a"))[0]["interval"] is None
    # One score does not make a mean, and a mean with a name of its own is given once.
    assert suite_means(suite, {"a": _number(60)}, _spread("a")) == []
    named = suite_means(suite, {"a": _number(60), "d": _number(62)}, _spread("a", "d"))
    assert [each["name"] for each in named] == ["SOME"]
