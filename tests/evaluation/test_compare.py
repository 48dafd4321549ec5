from __future__ import annotations

import io
import json
import re
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from crammed.errors import InputError
from crammed.evaluation.comparison import compare_models
from crammed.evaluation.decision import decided, judged, sentences
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.finetuning.arrays import save_arrays
from crammed.evaluation.folder import outputs_file
from crammed.evaluation.scores.bootstrap import resampled_medians
from crammed.evaluation.scores.compare import Difference, compare, paired_difference
from crammed.evaluation.scores.table import NO_SEEDS, ROWS_ONLY
from crammed.files.writing import write_json
from crammed.tasks.rows import Rows
from crammed.tasks.task import Metric, Suite, Task, load_suite
from crammed.terminal.progress import SILENT
from crammed.terminal.table import show
from support.evaluation import Ask
from support.tasks import write_task

COUNT = 400
TRUTH = np.random.default_rng(3).integers(2, size=COUNT)
ROWS = Rows([("",)] * COUNT, TRUTH.astype(np.float32))
TASKS = {name: Task(name=name, text=("t",), metric=("accuracy",)) for name in "abcd"}
SUITE = Suite(name="s", tasks=TASKS, means={"ALL": ("a", "b", "c"), "TWO": ("a", "b")})


def outputs(wrong: Any) -> Any:
    return np.eye(2)[np.where(wrong, 1 - TRUTH, TRUTH)]


def wrong(share: float, seed: int) -> Any:
    return np.random.default_rng(seed).random(COUNT) < share


def number(median: float, rows: int = COUNT) -> dict[str, Any]:
    return {"metric": "accuracy", "median": median, "rows": {"train": 9, "validation": rows}}


def differing(one: Any, other: Any, metric: Metric = "accuracy") -> Difference:
    """How the scores of two models differ, from the outputs of their seeds."""
    return paired_difference((metric,), one, other, ROWS, (), "a", "a")


def test_a_model_does_not_differ_from_itself() -> None:
    """Also where it has several seeds, and where other logits lead to the same classes."""
    seeds = [outputs(wrong(0.3, seed)) for seed in range(3)]
    said = {"difference": 0.0, "interval": None, "p": None, "same": True}
    for count in (1, 3):
        other = [3 * each for each in seeds[:count]]
        assert differing(seeds[:count], other).json() == said
    others = [*seeds[:2], outputs(wrong(0.3, 9))]
    assert "same" not in differing(seeds, others).json()
    values = [np.random.default_rng(0).random((COUNT, 1))]
    for other, is_same in ((values, True), ([values[0] ** 2], False)):
        found = differing(values, other, "spearman").json()
        assert ("same" in found) == is_same


def test_with_one_seed_the_interval_is_of_rows_and_there_is_no_p() -> None:
    one, three = ([outputs(wrong(0.3, seed)) for seed in range(n)] for n in (1, 3))
    other = [outputs(wrong(0.2, seed)) for seed in range(9, 12)]
    for a, b in ((one, other), (other, one)):
        found = differing(a, b).json()
        assert (found["interval_over"], found["p"]) == ("rows", None)
    found = differing(three, other).json()
    assert "interval_over" not in found
    assert found["p"] is not None


def test_a_difference_has_a_sign_an_interval_and_a_share_on_the_other_side() -> None:
    worse, better = ([outputs(wrong(share, s)) for s in range(3)] for share in (0.4, 0.2))
    up = differing(better, worse).json()
    assert up["interval"][0] < up["difference"] < up["interval"][1]
    assert up["interval"][0] > 0
    assert up["p"] == 0.0
    down = differing(worse, better).json()
    assert down["difference"] == -up["difference"]
    assert down["p"] < 0.01


def test_a_difference_by_chance_has_zero_inside() -> None:
    one, other = ([outputs(wrong(0.3, s)) for s in seeds] for seeds in (range(3), range(9, 12)))
    found = differing(one, other).json()
    assert found["interval"][0] < 0 < found["interval"][1]
    assert found["p"] > 0.05


def test_the_same_rows_are_drawn_for_both() -> None:
    """B makes A's errors and ten more: shared errors cancel out."""
    errors = wrong(0.3, 0)
    more = errors.copy()
    more[np.flatnonzero(~errors)[:10]] = True
    paired = differing([outputs(errors)], [outputs(more)])
    assert paired.value == pytest.approx(2.5)
    assert paired.resampled.std() == pytest.approx(100 * (0.025 / COUNT) ** 0.5, rel=0.1)
    assert paired.resampled.min() >= 0.0


def test_an_undefined_score_is_not_compared() -> None:
    constant = [np.ones((COUNT, 1))]
    with pytest.raises(ValueError, match="all predictions are 1"):
        differing(constant, constant, "pearson")


def test_what_both_have_is_compared_and_the_rest_is_named() -> None:
    a = {"a": number(80), "b": number(70), "c": {"metric": "f1", "failed": "bad label"}}
    b = {"a": number(78), "b": number(74), "c": number(50), "d": number(60)}
    differences = {
        "a": Difference(2.0, np.full(9, 2.0), 3),
        "b": Difference(-4.0, np.full(9, -4.0), 1),
    }
    entries = compare(SUITE, a, b, differences, {})
    assert [entry["name"] for entry in entries] == ["a", "b", "c", "d", "TWO"]
    assert entries[0]["a"] == 80
    assert entries[0]["b"] == 78
    assert entries[0]["difference"] == 2.0
    assert entries[2] == {"name": "c", "why": "A failed: bad label"}
    assert entries[3] == {"name": "d", "why": "A has no score"}
    assert entries[4]["difference"] == -1.0
    assert entries[4]["interval"] == [-1.0, -1.0]
    assert entries[4]["interval_over"] == "rows", "one of its scores has one seed"
    assert "interval_over" not in entries[0]
    assert entries[4]["a"] == 75
    assert entries[4]["of"] == ["a", "b"]


def test_other_rows_and_given_reasons_are_not_compared() -> None:
    a, b = {"a": number(80), "b": number(70)}, {"a": number(78, rows=9), "b": number(7)}
    entries = compare(SUITE, a, b, {}, {"b": "another protocol"})
    assert entries == [
        {"name": "a", "why": "different numbers of rows"},
        {"name": "b", "why": "another protocol"},
    ]


def test_numbers_of_one_task_have_the_same_seeds_in_a_resample() -> None:
    """Each seed has the same score on both, so resamples differ only in the seeds drawn."""
    seeds = [outputs(np.full(COUNT, wrong)) for wrong in (True, False, True, False)]
    one, other = (
        resampled_medians(("accuracy",), [seeds], ROWS, (), name, "mnli")[0]
        for name in ("mnli", "mnli-mm")
    )
    assert one.tolist() == other.tolist()
    elsewhere = resampled_medians(("accuracy",), [seeds], ROWS, (), "mnli", "cola")[0]
    assert one.tolist() != elsewhere.tolist()


def _keep_labels(folder: Path, labels: Any, *names: str, **about: Any) -> None:
    about |= {"sha256": "d", "labels": names, "groups": [], "choices": 1, "index": [*range(COUNT)]}
    none = np.asarray([], np.int64)
    save_arrays(folder / "gold/mine/a.npz", {"labels": labels, "counts": none}, about)


def _evaluated(folder: Path, protocol: dict[str, Any], share: float, **fields: Any) -> Path:
    """Scores of three seeds that are wrong in this share of the rows of one task."""
    about = {"model": {"name": folder.name, "sha256": folder.name}, "protocol": protocol}
    write_json(folder / "evaluation.json", about)
    entry = {**number(100 * (1 - share)), "seeds": [0.0] * 3, **fields}
    write_json(folder / "scores.json", {**about, "suites": {"mine": {"tasks": {"a": entry}}}})
    _keep_labels(folder, ROWS.labels)
    for seed in range(3):
        file = outputs_file(folder, "mine", "a", seed, trained=True)
        save_arrays(file, {"a": outputs(wrong(share, seed)).astype(np.float32)}, {})
    return folder


def suite_file(folder: Path, text: str = "t", metric: str = "accuracy", means: str = "{}") -> str:
    """A suite of one task."""
    file = folder / "mine.yaml"
    file.write_text(f"tasks: {{a: {{text: {text}, metric: {metric}}}}}\nmeans: {means}\n")
    return str(file)


@pytest.mark.parametrize("apart", [{"lr": 2e-5}, {"max_length": 64}, {}])
def test_models_judged_by_different_protocols_get_no_p(
    tmp_path: Path, apart: dict[str, Any]
) -> None:
    suite = suite_file(tmp_path, means="{all: [a]}")
    protocol = {"lr": 4e-5, "max_length": 128}
    one = _evaluated(tmp_path / "one", protocol, 0.2)
    other = _evaluated(tmp_path / "other", {**protocol, **apart}, 0.4)
    found = compare_models(one, other, suite)
    assert all(entry["difference"] == pytest.approx(20.0, abs=5.0) for entry in found.entries)
    printed = io.StringIO()
    show(found.parts(), printed)
    if not apart:
        assert found.entries[0]["p"] == 0.0
        assert "< 0.001" in printed.getvalue()
        return
    for entry in found.entries:
        assert (entry["interval"], entry["p"]) == (None, None)
    ((name, value),) = apart.items()
    said = f"no interval and no p: {name} is {protocol[name]} for A, {value} for B, which may"
    assert found.notes[0].startswith(said)
    assert "< 0.001" not in printed.getvalue()
    assert re.search(r"\+\d+\.\d +different protocols +none", printed.getvalue())


@pytest.mark.parametrize(("probe", "words"), [("linear", NO_SEEDS), (None, ROWS_ONLY)])
def test_more_seeds_are_advised_only_where_there_are_seeds(
    tmp_path: Path, probe: str | None, words: str
) -> None:
    suite, protocol = suite_file(tmp_path), {} if probe is None else {"probe": probe}
    one, other = (
        _evaluated(tmp_path / f"{share}", protocol, share, seeds=[0.0], interval=[50.0, 90.0])
        for share in (0.2, 0.4)
    )
    *_, notes = compare_models(one, other, suite).parts()
    assert str(notes) == words
    decision = sentences(judged(load_suite(suite), {"as it is": one, "adapted": other}))
    assert decision[1].endswith("; all others worse")
    assert decision[2:] == [ROWS_ONLY] * (probe is None)


def test_how_two_texts_are_read_does_not_matter_to_tasks_of_one(tmp_path: Path) -> None:
    one = _evaluated(tmp_path / "one", {"pairs": "apart"}, 0.2)
    other = _evaluated(tmp_path / "other", {}, 0.4)  # joint, which is left out
    for text, notes in (("t", 0), ("[t, u]", 1)):
        found = compare_models(one, other, suite_file(tmp_path, text, means="{all: [a]}"))
        assert [entry["p"] is None for entry in found.entries] == [bool(notes)] * 2
        assert [note.partition(",")[0] for note in found.notes] == [
            "no interval and no p: pairs is apart for A"
        ] * notes


def test_scores_by_another_metric_than_the_suites_are_not_compared(tmp_path: Path) -> None:
    suite = suite_file(tmp_path, metric="macro-f1")  # which was accuracy
    one, other = (_evaluated(tmp_path / name, {}, 0.2) for name in ("one", "other"))
    (entry,) = compare_models(one, other, suite).entries
    words = "both have accuracy, and mine asks for macro-f1 now: evaluate both again"
    assert entry["why"] == words


@pytest.mark.parametrize(
    ("labels", "names"), [(1 - ROWS.labels, "xy"), (ROWS.labels, "yx"), (ROWS.labels, "xy")]
)
def test_scores_on_different_labels_are_not_compared(
    tmp_path: Path, labels: Any, names: str
) -> None:
    """The suite's order of them or their column may have changed, and the data not."""
    suite = suite_file(tmp_path)
    one, other = (_evaluated(tmp_path / name, {}, 0.2) for name in ("one", "other"))
    _keep_labels(one, ROWS.labels, "x", "y")
    _keep_labels(other, labels, *names)
    (entry,) = compare_models(one, other, suite).entries
    if labels is ROWS.labels and names == "xy":
        assert entry["difference"] == 0.0
    else:
        assert entry == {"name": "a", "why": "different labels: evaluate both again"}


@pytest.mark.parametrize(
    "changed",
    [
        {"text": ["t", "u"]},
        {"label": ["other"]},
        {"kind": "choice", "choices": ["{x}", "{y}"]},
        {"choice_text": "So {choice}"},
        {"group": "g"},
        {"scored": {"a": {"split": "test"}}},
        {"scored": {"a": {"split": "validation", "text": ["u"]}}},
    ],
)
def test_scores_of_a_task_that_was_defined_otherwise_are_not_compared(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    """The models may have read other texts of the same data."""
    suite, task = suite_file(tmp_path), TASKS["a"].model_dump(mode="json")
    one, other = (_evaluated(tmp_path / name, {}, 0.2) for name in ("one", "other"))
    _keep_labels(one, ROWS.labels, task=task)
    _keep_labels(other, ROWS.labels, task={**task, **changed})
    (entry,) = compare_models(one, other, suite).entries
    assert entry == {"name": "a", "why": "defined differently: evaluate both again"}
    same = {"rows": {"train": 9}, "scored": {"a": {"split": "validation", "folder": None}}}
    _keep_labels(other, ROWS.labels, task={**task, **same})
    (entry,) = compare_models(one, other, suite).entries
    assert entry["difference"] == 0.0


def test_labels_are_not_kept_before_there_are_outputs_of_the_same_rows(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or those of corrected data would be compared with the outputs of earlier ones."""
    write_task(tmp_path, "cola", rows=40)
    interrupted = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("crammed.evaluation.suite.run_jobs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(ask(seeds=1, untrained=False), SILENT)
    assert not (tmp_path / "scores" / "gold").exists()


SCORES_DAMAGED: list[dict[str, Any]] = [
    *({"seeds": 5}, {"seeds": []}),
    *({"metric": None}, {"median": None}),
]


def damage_scores(folder: Path, values: dict[str, Any]) -> None:
    file = folder / "scores.json"
    scores = json.loads(file.read_text())
    entry = scores["suites"]["mine"]["tasks"]["a"]
    entry |= values
    scores["suites"]["mine"]["tasks"]["a"] = {k: v for k, v in entry.items() if v is not None}
    write_json(file, scores)


def damage_labels(folder: Path) -> None:
    save_arrays(folder / "gold/mine/a.npz", {}, {})


def damage_predictions(folder: Path, values: Any) -> None:
    save_arrays(outputs_file(folder, "mine", "a", 1, trained=True), {"a": values}, {})


@pytest.mark.parametrize(
    "damage",
    [
        *(partial(damage_scores, values=each) for each in SCORES_DAMAGED),
        damage_labels,
        *(
            partial(damage_predictions, values=value)
            for value in (np.zeros((3, 2)), np.full((COUNT, 2), np.nan), np.full((COUNT, 2), "x"))
        ),
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_folder_is_named(tmp_path: Path, damage: Any, which: int) -> None:
    folders = [_evaluated(tmp_path / name, {}, 0.2) for name in ("one", "other")]
    damage(folders[which])
    with pytest.raises(InputError, match=f"^{folders[which]} is damaged: restore it from"):
        compare_models(folders[0], folders[1], suite_file(tmp_path))


def test_a_task_that_the_suite_no_longer_has_is_named(tmp_path: Path) -> None:
    for name in ("one", "other"):
        scores = {"suites": {"mine": {"tasks": {"removed": number(80)}}}}
        about = {"model": {"name": name, "sha256": name}, "protocol": {}}
        write_json(tmp_path / name / "evaluation.json", about)
        write_json(tmp_path / name / "scores.json", {**about, **scores})
    found = compare_models(tmp_path / "one", tmp_path / "other", suite_file(tmp_path))
    assert found.entries == [{"name": "removed", "why": "suite mine no longer has it"}]


@pytest.mark.parametrize(
    ("wrong_shares", "linear", "best", "level", "said"),
    [
        ((0.4, 0.2, 0.1), None, "from scratch", ["from scratch"], "train from scratch: on the one"),
        ((0.4, 0.2, 0.2), None, "adapted", ["adapted", "from scratch"], "adapt the encoder to"),
        ((0.2, 0.2, 0.4), 79.0, "as it is", ["TF-IDF", "as it is", "adapted"], "TF-IDF with a"),
        ((0.2, 0.4, 0.4), 70.0, "as it is", ["as it is"], "take the encoder as it is: on the one"),
        ((0.2, 0.4, 0.4), 95.0, "TF-IDF", ["TF-IDF"], "TF-IDF with a linear model may be all"),
    ],
)
def test_the_cheapest_way_that_is_not_shown_to_be_worse_is_decided_for(
    tmp_path: Path,
    wrong_shares: tuple[float, ...],
    linear: float | None,
    best: str,
    level: list[str],
    said: str,
) -> None:
    """Whatever protocols the models were judged by: each has the rate of its width."""
    suite = Suite(name="mine", tasks={"a": TASKS["a"]})
    folders = {}
    for n, way in enumerate(("as it is", "adapted", "from scratch")):
        share = wrong_shares[n]
        fields: dict[str, Any] = {"interval": [96 - 100 * share, 104 - 100 * share]}
        fields |= {} if linear is None else {"linear": linear}
        folders[way] = _evaluated(tmp_path / way, {"lr": n}, share, **fields)
    earlier = json.loads((folders["as it is"] / "scores.json").read_text())
    earlier["suites"]["mine"]["tasks"]["b"] = number(99)  # of a call that asked for more tasks
    write_json(folders["as it is"] / "scores.json", earlier)
    scores = judged(suite, folders)
    assert scores.keys() == {"a"}
    assert (scores["a"]["best"], scores["a"]["level"]) == (best, level)
    assert decided(scores) == level[0]
    words = sentences(scores)
    assert words[0].startswith(said)
    others = [way for way in level if way != best]
    beside = f"; not shown to be worse: {', '.join(others)}" if others else "; all others worse"
    assert words[1].startswith(f"a: best {best}, with ")
    assert beside in words[1]


def test_nothing_is_decided_by_a_score_that_a_model_lacks(tmp_path: Path) -> None:
    suite = Suite(name="mine", tasks={"a": TASKS["a"]})
    fields = {"interval": [70.0, 90.0]}
    folders = {
        way: _evaluated(tmp_path / way, {}, 0.2, **fields) for way in ("adapted", "as it is")
    }
    folders["from scratch"] = _evaluated(tmp_path / "c", {}, 0.2, failed="memory ran out")
    scores = judged(suite, folders)
    assert scores["a"]["failed"] == "from scratch: memory ran out"
    assert decided(scores) is None
    assert sentences(scores)[0].startswith("no task could be scored with every model")
