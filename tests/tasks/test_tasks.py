from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from crammed.errors import InputError
from crammed.tasks.task import Suite, Task, TaskKind, load_suite, pieces, suite_names


def written(folder: Path, text: str) -> str:
    (folder / "mine.yaml").write_text(text, "utf-8")
    return str(folder / "mine.yaml")


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        load_suite(written(folder, text))
    return str(caught.value)


def task_refusal(folder: Path, **fields: str) -> str:
    """The message about one task with these fields."""
    fields = {"text": "words", "metric": "accuracy", **fields}
    return refusal(folder, f"tasks: {{a: {{{', '.join(f'{k}: {v}' for k, v in fields.items())}}}}}")


def test_the_suite_names_are_whole() -> None:
    assert suite_names() == ["docs", "glue", "race", "small", "superglue", "swag"]
    for name in suite_names():
        suite = load_suite(name)
        assert suite.name == name
        for task in suite.tasks.values():
            places = (*task.numbers.values(), *task.test.values())
            if task.rows:
                assert {"train", *(place.key for place in places)} == task.rows.keys()


def test_glue_is_as_in_the_paper() -> None:
    suite = load_suite("glue")
    numbers = {n: task for task in suite.tasks.values() for n in task.numbers}
    assert len(suite.tasks) == 9
    assert len(numbers) == 10
    metrics = {name: task.metric for name, task in numbers.items()}
    assert metrics == {
        **dict.fromkeys(("sst2", "mnli", "mnli-mm", "qnli", "rte", "wnli"), ("accuracy",)),
        **dict.fromkeys(("mrpc", "qqp"), ("f1",)),
        "cola": ("matthews",),
        "stsb": ("pearson",),
    }
    assert set(suite.means["GLUE"]) == numbers.keys() - {"wnli"}
    assert set(suite.means["GLUE without CoLA"]) == set(suite.means["GLUE"]) - {"cola"}
    assert set(suite.means["GLUE-5"]) == {"cola", "sst2", "mrpc", "stsb", "rte"}


def test_superglue_scores_its_diagnostic_sets_by_the_model_of_rte() -> None:
    suite = load_suite("superglue")
    numbers = suite.tasks["rte"].numbers
    assert (numbers["axb"].metric, numbers["axb"].text) == (
        ("matthews",),
        ("sentence1", "sentence2"),
    )
    assert numbers["axg"].key == "axg/test"
    assert suite.left_out == ("ReCoRD.jsonl",)
    assert suite.tasks["wsc"].folders == ("wsc.fixed", "wsc")


def test_one_word_stands_for_a_list_and_a_number_for_names(tmp_path: Path) -> None:
    suite = load_suite(
        written(tmp_path, "tasks: {a: {text: words, metric: f1, labels: 2, scored: {b: dev}}}")
    )
    task = suite.tasks["a"]
    assert (suite.name, task.name) == ("mine", "a")
    assert (task.text, task.metric, task.label) == (("words",), ("f1",), ("label",))
    assert task.labels == ("0", "1")
    assert task.numbers["b"].split == "dev"
    assert task.folders == ("a",)
    again = Suite.model_validate(suite.model_dump(mode="json"))
    assert again == suite


@pytest.mark.parametrize("name", ["हिन्दी", "ที่ดี"])
def test_names_may_have_vowel_signs(tmp_path: Path, name: str) -> None:
    suite = load_suite(
        written(tmp_path, f"tasks: {{{name}: {{text: words, metric: f1, labels: 2}}}}")
    )
    assert [*suite.tasks] == [name]


def test_a_task_without_scored_splits_has_one_number() -> None:
    task = Task(name="a", text=("words",), metric=("accuracy",))
    assert {name: at.key for name, at in task.numbers.items()} == {"a": "validation"}


def test_pieces_of_templates() -> None:
    assert pieces("word") == [("", "word")]
    assert pieces("{a}: {b c}!") == [("", "a"), (": ", "b c"), ("!", None)]
    assert pieces("{{{a}}}") == [("{", None), ("", "a"), ("}", None)]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"metrc": "accuracy"}, "tasks.a.metrc: no such key; did you mean tasks.a.metric?"),
        ({"metric": "acc"}, "tasks.a.metric.0: input should be 'accuracy'"),
        ({"metric": "acuracy"}, "not 'acuracy'; did you mean accuracy?"),
        ({"kind": "classificaton"}, "not 'classificaton'; did you mean classification?"),
        ({"kind": "choise"}, "tasks.a.kind: input should be 'classification', 'multi-label'"),
        ({"text": "[a, b, c]"}, "tasks.a.text: value should have at most 2 items, not 3"),
        ({"text": "'{a'"}, "tasks.a.text: template '{a': expected '}'"),
        ({"text": "'{}'"}, "must name columns, as in {question}"),
        ({"text": "'{a!r}'"}, "must name columns"),
        ({"metric": "pearson"}, "tasks.a: metric pearson is not for kind classification"),
        ({"metric": "f1", "labels": "3"}, "metric f1 takes two labels, not 3"),
        ({"metric": "group-f1"}, "group-f1 needs group"),
        ({"positive": "x"}, "positive is for metric f1 or group-f1, not accuracy"),
        ({"positive": "[x]"}, "tasks.a.positive: label ['x'] is neither a name nor a whole"),
        (
            {"positive": "x", "metric": "group-exact", "group": "b"},
            "positive is for metric f1 or group-f1, not group-exact",
        ),
        ({"labels": "1"}, "labels must be two or more different names"),
        ({"labels": "99999999999"}, "tasks.a.labels: 99999999999 is more than 100,000 labels"),
        ({"labels": "[a, a]"}, "labels must be two or more different names"),
        ({"label": "[a, b]"}, "kind classification takes one column in label"),
        ({"choices": "answers"}, "kind classification has no choices"),
        ({"kind": "choice"}, "kind choice needs choices"),
        ({"kind": "choice", "choices": "'{a}'"}, "a template for each answer"),
        ({"kind": "choice", "choices": "a", "choice_text": "b"}, "must contain {choice}"),
        ({"kind": "choice", "choices": "a", "text": "[a, b]"}, "takes one column in text, not 2"),
        ({"kind": "tokens", "text": "'{a} {b}'"}, "takes a column in text, not a template"),
        ({"kind": "tokens", "test": "{A.tsv: test}"}, "kind tokens has no test: a submission has"),
        ({"kind": "regression", "labels": "2", "metric": "pearson"}, "regression has no labels"),
        ({"kind": "multi-label", "label": "[a, b]", "labels": "3"}, "3 labels for 2 columns"),
        ({"kind": "multi-label", "label": "[a, b, a]"}, "label names a column twice: leave one"),
        ({"name": "b"}, "tasks.a.name: leave it out"),
        ({"scored": "{a: {splt: b}}"}, "did you mean tasks.a.scored.a.split?"),
        ({"scored": "{a: {text: [b, c]}}"}, "validation has 2 texts, but the task 1"),
        ({"scored": "{b/c: dev}"}, "'b/c' names files: use only letters, digits"),
        ({"scored": f"{{{'b' * 201}: dev}}"}, "bb ... names files: choose a name of at most 200"),
        ({"test": "{a.txt: test}"}, "test file a.txt must end in .tsv or .jsonl"),
        ({"rows": "{train: 0}"}, "tasks.a.rows.train: input should be greater than 0, not 0"),
    ],
)
def test_faults_of_a_task_are_named(tmp_path: Path, fields: dict[str, str], words: str) -> None:
    assert words in task_refusal(tmp_path, **fields)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tasks: {}", "tasks: dictionary should have at least 1 item"),
        ("tasks: {a: 3}", "tasks.a: must be a section of keys, not 3"),
        ("tasks: {1: {text: b, metric: f1}}", "the task 1 must be text: write '1':"),
        ("tasks: {null: {text: b, metric: f1}}", "the task null must be text: write 'null':"),
        ("hub: x", "tasks: is missing"),
        ("- a", "must be a YAML mapping"),
        ("{a", "is not valid YAML"),
        (
            "tasks: {a: {text: b, metric: f1}}\nmeans: {all: [aa]}",
            "no number 'aa': did you mean a?",
        ),
        (
            "tasks: {a: {text: b, metric: f1, test: {A.tsv: t}}}\nbetween: {B.tsv: [0, 1]}",
            "between: no test file 'B.tsv': did you mean A.tsv?",
        ),
        (
            "tasks: {a: {text: b, metric: f1, scored: {n: x}}, c: {text: b, metric: f1, scored: "
            "{n: x}}}",
            "two tasks give the number n",
        ),
    ],
)
def test_faults_of_a_suite_are_named(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, text)


@pytest.mark.parametrize("between", ["[5, 0]", "[5, 5]", "[.nan, 5]", "[0, .nan]"])
def test_answers_lie_between_two_numbers(tmp_path: Path, between: str) -> None:
    """Others would make every answer of a submission the same."""
    task = "tasks: {a: {text: b, metric: f1, test: {A.tsv: t}}}"
    said = refusal(tmp_path, f"{task}\nbetween: {{A.tsv: {between}}}")
    assert said.endswith("between.A.tsv: write [smallest, largest], such as [0, 5]")
    good = load_suite(written(tmp_path, f"{task}\nbetween: {{A.tsv: [0, 5]}}"))
    assert good.between == {"A.tsv": (0.0, 5.0)}


@pytest.mark.parametrize("name", ["blimp", "heldout"])
def test_a_suite_has_not_the_name_of_what_is_no_suite_of_tasks(tmp_path: Path, name: str) -> None:
    file = tmp_path / f"{name}.yaml"
    file.write_text("tasks: {a: {text: b, metric: f1}}")
    with pytest.raises(InputError, match=f"{name} is a built-in name: rename the suite"):
        load_suite(str(file))


def test_a_suite_is_called_what_its_file_is(tmp_path: Path) -> None:
    task = "tasks: {a: {text: b, metric: f1}}"
    assert load_suite(written(tmp_path, f"name: mine\n{task}")).name == "mine"
    said = refusal(tmp_path, f"name: other\n{task}")
    file = tmp_path / "mine.yaml"
    assert said == f"suite {file}: leave out `name`: a suite is called what its file is"


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    text = refusal(tmp_path, "tasks: {a: {txt: b, metric: acc}}")
    assert "3 faults" in text
    assert "tasks.a.text: is missing" in text


def test_an_unknown_suite_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no suite 'gleu': did you mean glue\?.*superglue"):
        load_suite("gleu")
    with pytest.raises(InputError, match=r"cannot read suite .*none.yaml: No such file"):
        load_suite(str(tmp_path / "none.yaml"))


def test_unknown_tasks_are_answered_with_the_known_ones() -> None:
    suite = load_suite("glue")
    assert [task.name for task in suite.select(["rte", "cola", "rte"])] == ["rte", "cola"]
    with pytest.raises(InputError, match=r"suite glue: no task 'stb': did you mean stsb\?"):
        suite.select(["stb"])


def test_the_examples_of_the_documentation_load(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"
    examples = re.findall(r"```yaml\n(tasks:.*?)```", page.read_text("utf-8"), re.DOTALL)
    kinds = {t.kind for e in examples for t in load_suite(written(tmp_path, e)).tasks.values()}
    assert kinds == set(get_args(TaskKind))
