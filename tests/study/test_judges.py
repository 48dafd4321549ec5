"""What runs are judged by besides held-out loss: resumable, and failures are said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.data.corpus import Corpus
from crammed.doctor import TINY
from crammed.errors import InputError
from crammed.files import read_json, write_json
from crammed.progress import SILENT
from crammed.study import runner
from crammed.study.arms import Study, load_study
from crammed.study.judges import Judge, judges_of, scores_of, unscored
from crammed.study.places import Ended
from crammed.study.runner import run_study
from support.command import crammed
from support.tasks import write_task

BUDGET = Budget.parse("6updates")
MODEL = [word for word in TINY if not word.startswith(("data.", "tokenizer."))]
SUMMARY = {
    "tokens": 10,
    "updates": 6,
    "parameters": 5,
    "exaflop": 1e-9,
    "charged_seconds": 2.0,
    "heldout": {"loss@0.15": 4.0, "loss@0.25": 5.0},
}
PAIR = {
    "sentence_good": "The fox runs.",
    "sentence_bad": "The fox run.",
    "UID": "agreement",
    "linguistics_term": "agreement",
    "field": "morphology",
}


def value(words: Sequence[str], name: str) -> str:
    return words[words.index(name) + 1]


class Place:
    """Trains and judges in no time.

    Attributes:
        asked: what was done: ``pretrain`` or a suite.
        fails: how suites end.
        tasks: scores of GLUE in place of good ones.
    """

    slots = 1

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails: dict[str, Ended] = {}
        self.tasks: dict[str, Any] = {}

    def stop(self) -> None:
        """Nothing runs."""

    def run(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
        if words[2] == "pretrain":
            self.asked.append("pretrain")
            write_json(Path(value(words, "--out")) / "summary.json", SUMMARY)
            return Ended(0, "", "")
        suite, file = value(words, "--suite"), Path(words[3]) / "evaluation" / "scores.json"
        self.asked.append(suite)
        if suite in self.fails and self.fails[suite].code != 5:
            return self.fails[suite]
        scores = read_json(file) or {"suites": {}}
        if suite == "blimp":
            scores["suites"]["blimp"] = {"blimp": 61.5}
        else:
            tasks = value(words, "--tasks").split(",")
            twin = {"median": 50.0}
            given = {each: {"median": 70.0, "untrained": twin} for each in tasks}
            means = [{"of": tasks, "value": 70.0, "untrained": 50.0}] if tasks[1:] else []
            scores["suites"]["glue"] = {"tasks": {**given, **self.tasks}, "means": means}
        write_json(file, scores)
        return self.fails.get(suite, Ended(0, "", ""))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place()

    @contextmanager
    def opened(*_: Any, **__: Any) -> Iterator[Place]:
        yield made

    monkeypatch.setattr(runner, "opened", opened)
    monkeypatch.setattr(runner, "read_summary", lambda run: read_json(run / "summary.json"))
    return made


@pytest.fixture
def judged(tmp_path: Path, corpus: Corpus, place: Place) -> Callable[..., dict[str, Any]]:
    """Runs a study of two arms with these judges; returns the entry of one run."""

    def run(*judges: Judge) -> dict[str, Any]:
        file = tmp_path / "s.yaml"
        arms = {"plain": [], "muon": ["optim.name=muon"]}
        file.write_text(
            json.dumps({"base": ["crammed", *MODEL], "baseline": "plain", "arms": arms})
        )
        study: Study = load_study(str(file), corpus, BUDGET)
        out = tmp_path / "out"
        result = run_study(study, corpus, BUDGET, 1, out, 1, SILENT, judges=judges)
        assert result == read_json(out / "study.json")
        entry: dict[str, Any] = result["arms"]["plain"]["runs"]["0"]
        return entry

    return run


@pytest.fixture
def blimp(tmp_path: Path) -> Path:
    file = tmp_path / "blimp.jsonl"
    file.write_text(json.dumps(PAIR) + "\n")
    return file


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    for task in ("cola", "rte"):
        write_task(tmp_path / "glue", task, 40)
    return tmp_path / "glue"


def test_a_run_whose_judge_is_missing_is_judged_and_not_trained_again(
    judged: Callable[..., dict[str, Any]], place: Place, blimp: Path, glue: Path
) -> None:
    assert "scores" not in judged()
    assert place.asked == 2 * ["pretrain"]
    place.asked.clear()
    names = ["heldout", "blimp", "glue"]
    first = judged(*judges_of(names, blimp, glue))
    assert first["scores"] == {
        "blimp": 61.5,
        "glue.cola": 70.0,
        "untrained.glue.cola": 50.0,
        "glue.rte": 70.0,
        "untrained.glue.rte": 50.0,
        "glue": 70.0,
        "untrained.glue": 50.0,
    }
    assert first["loss@0.15"] == 4.0
    assert place.asked == 2 * ["blimp", "glue"]
    place.asked.clear()
    assert judged(*judges_of(names, blimp, glue)) == first
    assert judged(*judges_of(["glue.rte"], None, glue)) == first
    assert place.asked == []


def test_other_data_is_judged_anew(
    judged: Callable[..., dict[str, Any]], place: Place, blimp: Path
) -> None:
    judged(*judges_of(["blimp"], blimp))
    with blimp.open("a") as file:
        file.write(json.dumps(PAIR) + "\n")
    place.asked.clear()
    judged(*judges_of(["blimp"], blimp))
    assert place.asked == 2 * ["blimp"]


def test_a_judge_that_fails_is_said_and_tried_again(
    judged: Callable[..., dict[str, Any]], place: Place, blimp: Path, glue: Path
) -> None:
    place.fails = {"blimp": Ended(2, "", "error: no mask token"), "glue": Ended(5, "", "")}
    place.tasks = {"rte": {"failed": "too few rows"}}
    asked = judges_of(["blimp", "glue"], blimp, glue)
    entry = judged(*asked)
    assert entry["unscored"] == {"blimp": "no mask token", "glue.rte": "too few rows"}
    assert entry["scores"]["glue.cola"] == 70.0
    assert "failed" not in entry
    place.fails, place.tasks = {}, {}
    place.asked.clear()
    entry = judged(*asked)
    assert "unscored" not in entry
    assert entry["scores"]["blimp"] == 61.5
    assert place.asked == 2 * ["blimp", "glue"]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"suites": []}', '{"suites": {"glue": {"tasks": [1]}}}']
)
def test_damaged_scores_are_those_of_their_run_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "scores.json").write_text(text)
    judge = Judge("glue", tmp_path, ("rte",))
    assert scores_of(tmp_path, judge) == {}
    assert unscored(tmp_path, judge, {}, "it is damaged") == {"glue.rte": "it is damaged"}


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (["blimb"], {}, "no judge 'blimb': did you mean blimp"),
        (["blimp"], {}, "the judge blimp needs its data: give --blimp FILE"),
        (["glue"], {"glue": Path("none")}, "no glue data at none"),
        (["heldout"], {"blimp": Path(__file__)}, "--blimp names data that no judge uses"),
    ],
)
def test_wrong_judges_are_refused(names: list[str], given: dict[str, Path], message: str) -> None:
    with pytest.raises(InputError, match=message):
        judges_of(names, **given)


def test_a_task_without_data_is_refused(glue: Path) -> None:
    with pytest.raises(InputError, match="has no task mrpc: it has cola, rte"):
        judges_of(["glue.mrpc"], None, glue)
    assert [each.names for each in judges_of(["glue"], None, glue)] == [("glue.cola", "glue.rte")]


def test_a_study_is_judged_by_the_evaluation(
    tmp_path: Path, corpus: Corpus, blimp: Path, glue: Path
) -> None:
    file = tmp_path / "s.yaml"
    base = ["crammed", *MODEL, "finetune.seeds=1", "finetune.epochs=1"]
    values = {"base": base, "baseline": "plain", "arms": {"plain": [], "wide": ["batch.rows=4"]}}
    file.write_text(json.dumps({**values, "judges": ["blimp", "glue.cola"]}))
    words = ["--corpus", str(corpus.path), "--budget", "2updates", "--seeds", "1"]
    words += ["--out", "out", "--blimp", str(blimp), "--glue", str(glue), "--json"]
    done = crammed("study", file, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for arm in json.loads(done.stdout)["arms"].values():
        scores = arm["runs"]["0"]["scores"]
        assert scores.keys() == {"blimp", "glue.cola", "untrained.glue.cola"}
        assert scores["blimp"] in (0.0, 100.0)
