"""What runs are judged by besides held-out loss: resumable, and failures are said."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.cli import studies
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.writing import read_json, write_json
from crammed.study import runner
from crammed.study.arms import Study, load_study
from crammed.study.judges import Judge, judges_of, scores_of, unscored
from crammed.study.places import Ended
from crammed.study.runner import run_study
from crammed.terminal.progress import SILENT, Progress
from support.command import PATIENCE, crammed
from support.study import SUMMARY
from support.tasks import write_task
from support.text import MODEL

BUDGET = Budget.parse("6updates")
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
        by = f"-{value(words, '--protocol')}" if "--protocol" in words else ""
        suite, file = value(words, "--suite"), Path(words[3]) / f"evaluation{by}" / "scores.json"
        self.asked.append(suite)
        if suite in self.fails and self.fails[suite].code != 5:
            return self.fails[suite]
        scores = read_json(file) or {"suites": {}}
        if suite == "blimp":
            scores["suites"]["blimp"] = {"blimp": 61.5}
        else:
            tasks = value(words, "--tasks").split(",")
            twin = {"median": 50.0}
            median = 80.0 if by else 70.0
            given = {each: {"median": median, "untrained": twin} for each in tasks}
            good = [each for each in tasks if "failed" not in self.tasks.get(each, {})]
            means = [{"of": good, "value": 70.0, "untrained": 50.0}] if good[1:] else []
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

    def run(*judges: Judge, seeds: int = 1, progress: Progress = SILENT) -> dict[str, Any]:
        file = tmp_path / "s.yaml"
        arms = {"plain": [], "muon": ["optim.name=muon"]}
        file.write_text(
            json.dumps({"base": ["crammed", *MODEL], "baseline": "plain", "arms": arms})
        )
        study: Study = load_study(str(file), corpus, BUDGET)
        out = tmp_path / "out"
        result = run_study(study, corpus, BUDGET, seeds, out, 1, progress, judges=judges)
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


def test_a_study_says_which_runs_are_judged(
    judged: Callable[..., dict[str, Any]],
    place: Place,
    blimp: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, run = io.StringIO(), place.run

    def patiently(words: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
        until, arm = time.monotonic() + PATIENCE, Path(words[3]).name.removesuffix("-0")
        while words[2] == "evaluate" and f"{arm} seed 0: judging" not in said.getvalue():
            assert time.monotonic() < until, said.getvalue()
            time.sleep(0.01)
        return run(words, env)

    monkeypatch.setattr(place, "run", patiently)
    monkeypatch.setattr(runner, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr("crammed.terminal.progress.SECONDS_BETWEEN_LINES", 0.0)
    assert judged(*judges_of(["blimp"], blimp), progress=Progress(said))["scores"]


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


def test_a_task_may_be_scored_by_several_protocols(
    judged: Callable[..., dict[str, Any]], place: Place, glue: Path
) -> None:
    judges = judges_of(["glue.rte", "glue.rte@bert-base"], None, glue)
    first = judged(*judges)
    assert first["scores"] == {
        "glue.rte": 70.0,
        "untrained.glue.rte": 50.0,
        "glue.rte@bert-base": 80.0,
        "untrained.glue.rte@bert-base": 50.0,
    }
    place.asked.clear()
    assert judged(*judges) == first
    assert place.asked == []
    (glue / "rte" / "README").write_text("Other data.")  # by which both have to be judged anew
    judged(*judges)
    assert place.asked == 4 * ["glue"]
    place.tasks = {"rte": {"failed": "too few rows"}}
    fails = judges_of(["glue.rte@glue-long"], None, glue)
    assert judged(*fails)["unscored"] == {"glue.rte@glue-long": "too few rows"}


def test_other_data_is_judged_anew(
    judged: Callable[..., dict[str, Any]], place: Place, blimp: Path
) -> None:
    judged(*judges_of(["blimp"], blimp))
    with blimp.open("a") as file:
        file.write(json.dumps(PAIR) + "\n")
    place.asked.clear()
    judged(*judges_of(["blimp"], blimp))
    assert place.asked == 2 * ["blimp"]


def test_other_data_makes_all_scores_of_its_suite_worthless(
    judged: Callable[..., dict[str, Any]], place: Place, blimp: Path, tmp_path: Path
) -> None:
    judged(*judges_of(["blimp"], blimp), seeds=2)
    with blimp.open("a") as file:
        file.write(json.dumps(PAIR) + "\n")
    judged(*judges_of(["blimp"], blimp), seeds=1)
    runs = (read_json(tmp_path / "out" / "study.json") or {})["arms"]["plain"]["runs"]
    assert {seed: run["scores"] for seed, run in runs.items()} == {"0": {"blimp": 61.5}, "1": {}}
    place.asked.clear()
    judged(*judges_of(["blimp"], blimp), seeds=2)
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


@pytest.mark.parametrize("by", ["", "@bert-base"])
def test_a_mean_is_over_the_same_tasks_in_all_runs(
    judged: Callable[..., dict[str, Any]], place: Place, blimp: Path, glue: Path, by: str
) -> None:
    write_task(glue, "mrpc", 40)
    mean = f"glue{by}"
    two = judged(*judges_of([f"glue.cola{by}", f"glue.mrpc{by}"], None, glue))
    assert two["scores"][mean] == 70.0
    assert judged(*judges_of(["blimp"], blimp))["scores"][mean] == 70.0
    place.fails, place.tasks = {"glue": Ended(5, "", "")}, {"rte": {"failed": "too few rows"}}
    entry = judged(*judges_of([mean], None, glue))
    assert entry["unscored"] == {f"glue.rte{by}": "too few rows"}
    assert {mean, f"untrained.{mean}"}.isdisjoint(entry["scores"])
    assert {f"glue.cola{by}", f"glue.mrpc{by}"} <= entry["scores"].keys()


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
        (["blimp@bert-base"], {}, "blimp@bert-base: blimp fine-tunes nothing"),
        (["glue@bert-bass"], {}, "no protocol 'bert-bass': did you mean bert-base"),
        (["heldout"], {"blimp": Path(__file__)}, "--blimp names data that no judge uses"),
    ],
)
def test_wrong_judges_are_refused(names: list[str], given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        judges_of(names, **given)


def test_protocols_of_the_same_name_are_refused(tmp_path: Path, glue: Path) -> None:
    (tmp_path / "bert-base.yaml").write_text("{seeds: 1}")
    names = ["glue.cola@bert-base", f"glue.cola@{tmp_path / 'bert-base.yaml'}"]
    with pytest.raises(InputError, match="two protocols of judges are called bert-base"):
        judges_of(names, glue=glue)


def test_a_task_without_data_is_refused(glue: Path) -> None:
    with pytest.raises(InputError, match="has no task mrpc: it has cola, rte"):
        judges_of(["glue.mrpc"], None, glue)
    assert [each.names for each in judges_of(["glue"], None, glue)] == [("glue.cola", "glue.rte")]


def declared(tmp_path: Path, judges: str | None = None, **typed: Any) -> list[tuple[Any, ...]]:
    """Suites, data and tasks that a study asks for whose file names judges and their data."""
    values = {"base": ["crammed", *MODEL], "baseline": "plain", "arms": {"plain": [], "b": []}}
    file = tmp_path / "studies" / "s.yaml"
    file.parent.mkdir(exist_ok=True)
    (file.parent / "own.yaml").write_text("epochs: 2\n")
    judging = ["blimp", "glue.cola@own.yaml"]
    own = {"judges": judging, "blimp": "../blimp.jsonl", "glue": "../glue"}
    file.write_text(json.dumps({**values, **own}))
    call = studies._Call(str(file), [], None, [], BUDGET, 1, tmp_path / "out", 1)
    found = studies._judges(call, judges, typed.get("blimp"), typed.get("glue"))
    assert all(each.by in ("", "@own") for each in found)
    return [(each.suite, each.data.resolve(), each.tasks) for each in found]


def test_a_file_declares_judges_and_what_is_typed_wins(
    tmp_path: Path, blimp: Path, glue: Path
) -> None:
    both = [("blimp", blimp, ()), ("glue", glue, ("cola",))]
    assert declared(tmp_path) == both
    assert declared(tmp_path, judges="glue.rte") == [("glue", glue, ("rte",))]
    assert declared(tmp_path, judges="heldout") == []
    other = blimp.rename(tmp_path / "other.jsonl")
    assert declared(tmp_path, blimp=other) == [("blimp", other, ()), both[1]]
    with pytest.raises(InputError, match=r"no blimp data at .*: name a FILE that exists"):
        declared(tmp_path)


def test_judges_of_a_file_are_checked_before_anything_is_prepared(
    tmp_path: Path, text_file: Path, glue: Path
) -> None:
    file = tmp_path / "s.yaml"
    values = {"base": ["crammed", *MODEL], "baseline": "plain", "arms": {"plain": [], "b": []}}
    file.write_text(json.dumps({**values, "judges": ["glue.mrpc"], "glue": "glue"}))
    texts, out = [str(text_file)], tmp_path / "out"
    with pytest.raises(InputError, match="has no task mrpc: it has cola, rte"):
        studies.study(str(file), budget=BUDGET, data=texts, out=out)
    assert not out.exists()


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
