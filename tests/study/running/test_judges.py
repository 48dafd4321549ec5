"""What runs are judged by besides held-out loss: resumable, and failures are said."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.evaluation.folder import default_folder
from crammed.files.writing import read_json, write_json
from crammed.rules.recipe import load_config
from crammed.study.result import read_result
from crammed.study.running import runner
from crammed.study.running.checks import tuned_differently
from crammed.study.running.judges import Judge, judges_of, scores_of, unscored, with_scores
from crammed.study.running.places import Ended
from crammed.study.running.runner import run_study
from crammed.study.spec.arms import load_study
from crammed.terminal.progress import SILENT, Progress
from support.command import crammed
from support.evaluation import make_model
from support.study import SUMMARY, write_study
from support.tasks import PAIR, write_task
from support.text import MODEL

BUDGET = Budget.parse("6updates")
BOTH = (("", 70.0), ("untrained.", 50.0))
OWN = """tasks:
  cola: {text: sentence, labels: 2, metric: matthews}
  rte: {text: [sentence1, sentence2], labels: 2, metric: accuracy}
"""


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
        by = f"-{Path(value(words, '--protocol')).stem}" if "--protocol" in words else ""
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
            means = [{"of": good, "value": median, "untrained": 50.0}] if good[1:] else []
            scores["suites"][Path(suite).stem] = {"tasks": {**given, **self.tasks}, "means": means}
        write_json(file, scores)
        return self.fails.get(suite, Ended(0, "", ""))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place()
    monkeypatch.setattr(runner, "opened", lambda *_, **__: nullcontext(made))
    return made


@pytest.fixture
def judged(tmp_path: Path, corpus: Corpus, place: Place) -> Callable[..., dict[str, Any]]:
    """Runs a study of two arms with these judges; returns the entry of one run."""

    def run(*judges: Judge, seeds: int = 1, progress: Progress = SILENT) -> dict[str, Any]:
        arms = {"plain": [], "muon": ["optim.weight_decay=0.5"]}
        study = load_study(write_study(tmp_path, arms), corpus, BUDGET)
        out = tmp_path / "out"
        result = run_study(study, corpus, BUDGET, seeds, out, 1, progress, judges=judges)
        assert result == read_result(out)
        return result.arms["plain"].runs["0"].values()

    return run


def test_judges_take_the_device_and_the_threads_of_a_recipe(
    tmp_path: Path, corpus: Corpus, place: Place, blimp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text("extends: crammed\ncompute: {threads: 3, device: cpu}\n")
    given: list[tuple[str, Any]] = []
    real = place.run

    def run(words: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
        if words[2] == "evaluate":
            given.append((value(words, "--device"), env))
        return real(words, env)

    monkeypatch.setattr(place, "run", run)
    arms = {"plain": [], "decay": ["optim.weight_decay=0.5"]}
    file = write_study(tmp_path, arms, [str(tmp_path / "mine.yaml"), *MODEL])
    judges = judges_of(["blimp"], blimp, None)
    study = load_study(file, corpus, BUDGET)
    run_study(study, corpus, BUDGET, 1, tmp_path / "out", 1, SILENT, judges=judges)
    assert given == 2 * [("cpu", {"OMP_NUM_THREADS": "3"})]


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


def test_arms_that_are_fine_tuned_differently_are_said() -> None:
    configs = {
        "narrow": load_config("crammed", ["model.width=192"], speed=1e9, rows=100),
        "rate": load_config("crammed", ["model.width=128"], speed=1e9, rows=100),
        "wide": load_config("crammed", ["model.width=256"], speed=1e9, rows=100),
    }
    own = Judge("small", Path("tasks"), ("trec",))
    said = tuned_differently(configs, "narrow", [own])
    assert said is not None
    assert said.startswith("note  wide is fine-tuned differently from narrow (")
    assert "pairs" in said
    assert tuned_differently(configs, "narrow", [replace(own, protocol="small")]) is None
    del configs["wide"]  # a rate that follows the width is no other protocol
    assert tuned_differently(configs, "narrow", [own]) is None


def test_a_suite_without_a_mean_has_that_of_the_tasks_that_judge(
    judged: Callable[..., dict[str, Any]], tmp_path: Path, glue: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(OWN)
    scores = judged(*judges_of([str(tmp_path / "mine.yaml")], None, glue))["scores"]
    assert scores == {
        **{f"{twin}mine.{task}": score for task in ("cola", "rte") for twin, score in BOTH},
        **{f"{twin}mine": score for twin, score in BOTH},
    }


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
    one_score = 80.0 if by else 70.0
    assert two["scores"][mean] == one_score
    assert judged(*judges_of(["blimp"], blimp))["scores"][mean] == one_score
    place.fails, place.tasks = {"glue": Ended(5, "", "")}, {"rte": {"failed": "too few rows"}}
    entry = judged(*judges_of([mean], None, glue))
    assert entry["unscored"] == {f"glue.rte{by}": "too few rows"}
    assert {mean, f"untrained.{mean}"}.isdisjoint(entry["scores"])
    assert {f"glue.cola{by}", f"glue.mrpc{by}"} <= entry["scores"].keys()


@pytest.mark.parametrize("means", ["", "means: {all: [c, b, a]}\n"])
def test_the_mean_of_untrained_twins_is_over_the_same_tasks(tmp_path: Path, means: str) -> None:
    task = "{text: text, metric: matthews}"
    (tmp_path / "mine.yaml").write_text(f"tasks: {{a: {task}, b: {task}, c: {task}}}\n{means}")
    judge = Judge(str(tmp_path / "mine.yaml"), tmp_path, ("a", "b", "c"))
    given = {"mine.a": 60.0, "mine.b": 80.0, "mine.c": 70.0, "untrained.mine.a": 10.0}
    found = with_scores({}, {**given, "untrained.mine.c": 40.0}, judge)
    assert found["mine"] == 70.0
    assert "untrained.mine" not in found
    found = with_scores(found, {"untrained.mine.b": 40.0}, judge)
    assert found["untrained.mine"] == 30.0


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"suites": []}', '{"suites": {"glue": {"tasks": [1]}}}']
)
def test_damaged_scores_are_those_of_their_run_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "scores.json").write_text(text)
    judge = Judge("glue", tmp_path, ("rte",))
    assert scores_of(tmp_path, judge) == {}
    assert unscored(tmp_path, judge, {}, "it is damaged") == {"glue.rte": "it is damaged"}


def test_a_study_is_judged_by_the_evaluation(
    tmp_path: Path, corpus: Corpus, blimp: Path, glue: Path
) -> None:
    base = ["crammed", *MODEL, "finetune.seeds=1", "finetune.epochs=1"]
    arms = {"plain": [], "wide": ["batch.rows=4"]}
    (tmp_path / "mine.yaml").write_text(OWN)
    file = write_study(tmp_path, arms, base, judges=["blimp", "mine.yaml.cola"])
    words = ["--corpus", str(corpus.path), "--budget", "2updates", "--seeds", "1"]
    words += ["--out", "out", "--blimp", str(blimp), "--glue", str(glue), "--json"]
    done = crammed("study", file, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for arm in json.loads(done.stdout)["arms"].values():
        scores = arm["runs"]["0"]["scores"]
        assert scores.keys() == {"blimp", "mine.cola", "untrained.mine.cola"}
        assert scores["blimp"] in (0.0, 100.0)
    assert len(list((tmp_path / "out" / "untrained").iterdir())) == 1  # both arms have one twin


def test_a_mean_of_fewer_tasks_is_so_in_runs_that_have_more(
    judged: Callable[..., dict[str, Any]], place: Place, glue: Path, tmp_path: Path
) -> None:
    write_task(glue, "mrpc", 40)
    place.tasks = {name: {"median": m} for name, m in (("cola", 20.0), ("mrpc", 80.0))}
    assert judged(*judges_of(["glue"], None, glue))["scores"]["glue"] == pytest.approx(170 / 3)
    judged(*judges_of(["glue.cola", "glue.rte"], None, glue), seeds=2)
    runs = (read_json(tmp_path / "out" / "study.json") or {})["arms"]["plain"]["runs"]
    assert [runs[seed]["scores"]["glue"] for seed in "01"] == [45.0, 45.0]
    assert runs["0"]["scores"]["glue.mrpc"] == 80.0


def test_a_protocol_that_changed_is_refused(
    judged: Callable[..., dict[str, Any]], glue: Path, tmp_path: Path
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("epochs: 2\n")

    def judges() -> list[Judge]:
        return judges_of([f"glue.rte@{file}"], None, glue)

    place_of = judges()[0].folder(tmp_path)
    assert place_of.name == "evaluation-own"
    first = judged(*judges())
    for changed in ("epochs: 3\n", "epochs: 2\nseeds: 3\n", "epochs: 2\nlr_width: 768\n"):
        file.write_text(changed)
        with pytest.raises(InputError, match=r"own\.yaml has changed since runs were scored with"):
            judged(*judges())
    file.write_text("epochs: 2  # as before\n")
    assert judged(*judges()) == first


def test_why_scores_were_missing_is_said_to_those_who_ask_for_them(
    judged: Callable[..., dict[str, Any]], place: Place, blimp: Path, glue: Path
) -> None:
    place.fails, place.tasks = {"glue": Ended(5, "", "")}, {"rte": {"failed": "too few rows"}}
    asked = judges_of(["blimp", "glue.rte"], blimp, glue)
    assert judged(*asked)["unscored"] == {"glue.rte": "too few rows"}
    assert "unscored" not in judged(*judges_of(["blimp"], blimp))
    assert judged(*asked)["unscored"] == {"glue.rte": "too few rows"}


def test_data_that_changed_without_changing_its_size_is_noticed(
    judged: Callable[..., dict[str, Any]], place: Place, blimp: Path, tmp_path: Path
) -> None:
    (judge,) = judges_of(["blimp"], blimp)
    judged(judge)
    place.asked.clear()
    judged(judge)
    assert place.asked == []
    blimp.write_text(blimp.read_text().replace("The fox", "The cat"))
    judged(judge)
    assert place.asked == 2 * ["blimp"]


def test_data_that_changed_behind_a_link_is_noticed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "tasks", tmp_path / "elsewhere"
    for file in (folder / "RTE" / "train.tsv", elsewhere / "CoLA" / "train.tsv"):
        file.parent.mkdir(parents=True)
        file.write_text("before")
    judge = Judge("glue", folder, ("cola",))
    states = [judge.state()]
    (folder / "CoLA").symlink_to(elsewhere / "CoLA")
    (folder / "CoLA" / "again").symlink_to(folder)  # which has no end
    for text in ("before", "after"):
        (elsewhere / "CoLA" / "train.tsv").write_text(text)
        states.append(judge.state())
    assert len({*states}) == 3


def test_the_folder_of_a_protocol_is_that_of_the_evaluation(
    glue: Path, tmp_path: Path, corpus: Corpus
) -> None:
    (tmp_path / "own@2.yaml").write_text("epochs: 2\n")
    (judge,) = judges_of([f"glue.rte@{tmp_path / 'own@2.yaml'}"], None, glue)
    run = make_model(tmp_path / "run", corpus, 0)
    assert judge.protocol is not None
    assert judge.folder(run) == default_folder(str(run), judge.protocol)


def test_what_is_judged_is_kept_when_the_study_is_killed(
    judged: Callable[..., dict[str, Any]], place: Place, blimp: Path, glue: Path, tmp_path: Path
) -> None:
    asked = judges_of(["blimp", "glue"], blimp, glue)
    run = place.run
    said: list[str] = []

    def killed(words: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
        said.extend(words)
        if "glue" in said:
            raise KeyboardInterrupt
        return run(words, env)

    place.run = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        judged(*asked)
    kept = (read_json(tmp_path / "out" / "study.json") or {})["arms"]["plain"]["runs"]["0"]
    assert kept["scores"] == {"blimp": 61.5}
    assert kept["whole_seconds"] == 0.0
    place.run = run  # type: ignore[method-assign]
    place.asked.clear()
    judged(*asked)
    assert place.asked.count("blimp") == 1  # of the other arm, which had not begun


def test_a_score_is_of_the_task_that_gives_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        """tasks:
  nli: {text: text, metric: accuracy, scored: {easy: validation, hard: test}}
  topic: {text: text, metric: accuracy}
  topic-hard: {text: text, metric: accuracy}
"""
    )
    judge = Judge(str(tmp_path / "mine.yaml"), tmp_path, ("nli", "topic", "topic-hard"))
    assert judge.lacks({"mine.easy": 1.0, "mine.hard": 1.0, "mine.topic-hard": 1.0}) == [
        "mine.topic"
    ]
    tasks: dict[str, Any] = {name: {"median": 60.0} for name in ("easy", "hard", "topic-hard")}
    tasks["topic"] = {"failed": "no rows"}
    scores = {"suites": {"mine": {"tasks": tasks}}}
    write_json(judge.folder(tmp_path) / "scores.json", scores)
    given = scores_of(tmp_path, judge)
    assert [*given] == ["mine.easy", "mine.hard", "mine.topic-hard"]
    assert unscored(tmp_path, judge, given, "it crashed") == {"mine.topic": "no rows"}
    assert "mine" not in with_scores({}, given, judge)
    tasks["easy"] = tasks["hard"] = {"failed": "no text"}
    write_json(judge.folder(tmp_path) / "scores.json", scores)
    given = scores_of(tmp_path, judge)
    assert unscored(tmp_path, judge, given, "it crashed")["mine.nli"] == "no text"
