"""A study: arms, seeds, budgets, and how significant differences are."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from crammed.budget import Budget
from crammed.cli.studies import study as verb
from crammed.config.yamlfile import load_yaml
from crammed.data.corpus import Corpus
from crammed.doctor import TINY
from crammed.errors import InputError
from crammed.machine import workers
from crammed.rules.recipe import load_config
from crammed.study.result import Run, read_result
from crammed.study.running.folder import config_of
from crammed.study.running.places import Processes
from crammed.study.running.runner import run_study
from crammed.study.spec.arms import Study, left_out, load_study, read_study, with_words
from crammed.study.spec.corpora import Corpora
from crammed.terminal.progress import SILENT, Progress
from crammed.tracking import following
from support.command import PATIENCE, crammed, popen, wait_for
from support.study import commands, write_study
from support.text import MODEL, documents, write_jsonl

BUDGET = Budget.parse("6updates")


def write(folder: Path, **values: Any) -> str:
    arms = {"plain": [], "muon": ["optim.name=muon", "optim.lr=2e-3"]}
    return write_study(folder, **{"arms": arms, **values})


def test_arms_replace_values_of_the_base(tmp_path: Path, corpus: Corpus) -> None:
    file = write(tmp_path, base=["demo", "optim.lr=1e-3", "masking.z_loss=0.5"])
    study = load_study(file, corpus, BUDGET)
    recipe, *plain = study.words("plain")
    assert recipe == "demo"
    assert {"optim.lr=0.001", "masking.z_loss=0.5", "model.layers=2", "batch.rows=16"} <= set(plain)
    muon = study.words("muon")
    assert {"optim.lr=2e-3", "masking.z_loss=0.5", "model.layers=2", "optim.name=muon"} <= set(muon)
    assert len({word.partition("=")[0] for word in muon}) == len(muon)
    other = write(tmp_path, base=["demo"], arms={"plain": [], "old": ["crammed-2022"]})
    words = load_study(other, corpus, BUDGET).words("old")
    most = load_config("demo").budget.most_epochs
    assert words == ["crammed-2022", f"budget.most_epochs={most:g}"]  # so no arm trains longer


def test_a_tilde_stands_for_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths in a study's file are relative to it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, tasks_data="tasks")
    assert read_study("~/s.yaml").judge_data == {"tasks": tmp_path / "tasks"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"baseline": "none"}, "baseline none is not one of its arms"),
        ({"arms": {"plain": []}}, "arms"),
        ({"arms": {"plain": [], "x": ["optim.lrr=1"]}}, "arm x: .*did you mean optim.lr"),
        ({"bass": []}, "bass: no such key; did you mean base"),
        ({"glue": "a", "tasks_data": "b"}, "glue and tasks_data are the same: leave glue out"),
        ({"base": "crammed"}, r"base: must be a list such as \[crammed, optim.lr=5e-4\], not 'cr"),
        ({"arms": {"plain": [], "x": None}}, r"arms.x: must be a list such as \[.*, not None"),
        ({"arms": {"plain": [], "a/b": []}}, r"study .*'a/b' cannot name an arm"),
        ({"arms": {"plain": [], "..": []}}, "cannot name an arm"),
        ({"arms": {"plain": [], " ": []}}, "cannot name an arm"),
        ({"arms": {"plain": [], "x\x1b[2J": []}}, r"'x\\x1b\[2J' cannot name an arm"),
        ({"arms": {"plain": [], "ä" * 51: []}}, "cannot name an arm"),
        ({"budgets": {"b@x1": 1}}, r"budgets\.b@x1: leave out @, which separates"),
        ({"budgets": {"x1": 0}}, r"budgets\.x1: .*greater than 0"),
        ({"arms": {"plain": [], "x": ["data.cls=true"]}}, "arm x: data.cls=true is a property of"),
        ({"arms": {"plain": [], "x": ["seed=3"]}}, "arm x: seed: runs have the seeds 0, 1, 2"),
        ({"base": ["demo", "budget.limit=1h"]}, "arm plain: budget.limit: all arms have that of"),
        (
            {"base": ["demo"], "arms": {"plain": [], "x": ["budget={limit: 1h}"]}},
            "arm x: budget.limit: all arms",
        ),
        ({"arms": {"plain": [], "x": ["corpus=abc"]}}, "arm x: corpus: all arms have that of"),
        (
            {"base": ["demo"], "small": ["tokenizer.vocab_size=300"]},
            r"study .*small: tokenizer\.vocab_size=300: the corpus is the same at every budget",
        ),
        (
            {"base": ["demo"], "small": ["order.by=sentence-length"]},
            r"small: order\.by=sentence-length: the corpus is the same at every budget: set it in",
        ),
        (
            {"base": ["demo"], "small": ["izsak"]},
            "^study .*: small: izsak is not a KEY=VALUE pair$",
        ),
        ({"budgets": {"x1": 0.01}}, r"budgets\.x1, 0\.01 times 6updates: .* leaves nothing"),
        ({"arms": [["x"] * 99] * 99}, r"arms: must be a section of keys, not .{80} \.\.\.$"),
        ({"arms": ["plain", "x"]}, r"arms: must be a section of keys, not \['plain', 'x'\]"),
    ],
)
def test_a_wrong_study_is_refused(
    tmp_path: Path, corpus: Corpus, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load_study(write(tmp_path, **values), corpus, BUDGET)
    with pytest.raises(InputError, match="cannot read study"):
        load_study(str(tmp_path / "none.yaml"), corpus, BUDGET)


def test_the_help_shows_a_study_that_can_be_read() -> None:
    shown = (verb.__doc__ or "").partition("\b")[2]
    study = Study.model_validate(load_yaml(shown))
    assert study.words("adamw") == ["crammed", "model.layers=4", "optim.name=adamw"]


def test_a_study_runs_every_arm_and_goes_on(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", popen)
    study = load_study(write(tmp_path), corpus, BUDGET)
    out = tmp_path / "study"
    result = run_study(study, corpus, BUDGET, 2, out, 2, SILENT)
    for name in ("plain", "muon"):
        runs = result.arms[name].runs
        assert sorted(runs) == ["0", "1"]
        assert all(run.updates == 6 for run in runs.values()), runs
        assert len(set(result.arms[name].values_of("loss@0.15"))) == 2
    assert read_result(out) == result
    before = {f: f.stat().st_mtime_ns for f in out.glob("*/summary.json")}
    again = run_study(study, corpus, BUDGET, 2, out, 1, SILENT)
    assert again.arms == result.arms
    assert {f: f.stat().st_mtime_ns for f in out.glob("*/summary.json")} == before


def test_threads_that_are_asked_for_are_those_of_every_run(tmp_path: Path, corpus: Corpus) -> None:
    file = write(tmp_path, base=["crammed", *MODEL, "compute.threads=3"])
    study = load_study(file, corpus, BUDGET)
    for command in commands(study, corpus, BUDGET, tmp_path).values():
        assert [word for word in command if "threads=" in word] == ["compute.threads=3"]


def test_threads_of_a_recipe_are_those_of_every_run(tmp_path: Path, corpus: Corpus) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("extends: crammed\ncompute: {threads: 3}\n")
    arms = {"plain": [], "one": ["compute={threads: 1}"]}
    study = load_study(write(tmp_path, base=[str(recipe), *MODEL], arms=arms), corpus, BUDGET)
    made = commands(study, corpus, BUDGET, tmp_path)
    assert {arm: [w for w in words if w.startswith("compute")] for arm, words in made.items()} == {
        "plain": ["compute.threads=3"],
        "one": ["compute={threads: 1}"],
    }


def test_an_arm_may_set_a_whole_section(tmp_path: Path, corpus: Corpus) -> None:
    arms = {
        "plain": [],
        "adam": ["optim={name: adam, lr: 1e-4}"],
        "few": ["batch={rows: 4}", "optim.lr*=0.5"],
        "old": ["crammed", "optim={lr: 1e-4}", "batch.rows*=0.5"],
    }
    base = ["crammed", "model.max_length=32", "finetune.max_length=32"]
    study = load_study(write(tmp_path, base=base, arms=arms), corpus, BUDGET)
    found = {arm: config_of(study, arm, Corpora(corpus), BUDGET) for arm in arms}
    assert (found["adam"].optim.name, found["adam"].optim.lr) == ("adam", 1e-4)
    assert found["few"].batch.rows == 4
    assert found["few"].optim.lr == pytest.approx(0.5 * found["plain"].optim.lr)
    assert found["old"].optim.lr == 1e-4
    assert found["old"].batch.rows == found["plain"].batch.rows / 2


def test_runs_share_the_threads_that_the_environment_allows(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(workers, "_GROUPS", tmp_path / "cgroup")  # which allows a container less
    monkeypatch.setattr(workers, "_OWN_GROUPS", tmp_path / "self")
    study = load_study(write(tmp_path), corpus, BUDGET)
    for asked, threads in (("4", 2), ("1", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        command = commands(study, corpus, BUDGET, tmp_path, 2)["plain"]
        assert f"compute.threads={threads}" in command


def test_a_study_that_is_stopped_begins_no_more_runs(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    cancelled = threading.Event()

    def train(run: Any, *_: Any) -> Run:
        begun.append(run.arm)
        assert len(begun) == 1 or cancelled.wait(PATIENCE)
        return Run(failed="stopped")

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            cancelled.set()
            super().shutdown(wait=wait)

    class Stopped(BaseException):
        """As Ctrl-C is."""

    class Impatient(Progress):
        def task(self, *_: Any) -> Any:
            return nullcontext(Mock(update=Mock(side_effect=Stopped)))

    monkeypatch.setattr("crammed.study.running.runner._train", train)
    monkeypatch.setattr("crammed.study.running.runner.ThreadPoolExecutor", Pool)
    study = load_study(write(tmp_path), corpus, BUDGET)
    with pytest.raises(Stopped):
        run_study(study, corpus, BUDGET, 20, tmp_path / "out", 1, Impatient(None))
    assert len(begun) <= 2
    kept = json.loads((tmp_path / "out" / "study.json").read_text())["arms"]
    assert len(kept["plain"]["runs"]) == 1


def test_runs_end_with_their_study() -> None:
    processes = Processes(1)
    endless = ["-c", "import time; print(1, flush=True); time.sleep(1e6)"]
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(processes.run, endless)
        wait_for(lambda: processes._started)
        processes.stop()
        assert ended.result(PATIENCE)[0] == -signal.SIGTERM
        late = pool.submit(processes.run, endless)  # as if it was just being started
        assert late.result(PATIENCE)[0] == -signal.SIGTERM


def test_what_follows_from_the_budget_is_the_same_in_all_arms(corpus: Corpus) -> None:
    """More masked tokens cost more, which alone would change the size of the model."""
    small = ["model.head_dim=16", "model.max_length=32", "finetune.max_length=32"]
    read = with_words(read_study("masking"), ["crammed", *small])
    for budget in ("3e11flop", "1e13flop"):
        study = load_study("masking", corpus, Budget.parse(budget), read)
        shapes = {
            tuple(word for word in study.words(arm) if word.startswith(("model.layers", "batch")))
            for arm in study.arms
        }
        assert len(shapes) == 1


def test_arms_take_of_the_base_what_suits_them(corpus: Corpus, tmp_path: Path) -> None:
    arms = {
        "plain": [],
        "adamw": ["optim.name=adamw"],
        "narrow": ["model.width=96"],
        "own": ["model.width=128", "model.head_dim=8"],
        "sgd": ["optim.name=sgd"],
    }
    base = ["crammed", "model.layers=4", "model.width=192"]
    study = load_study(write(tmp_path, base=base, arms=arms), corpus, BUDGET)
    words = {arm: set(study.words(arm)) for arm in arms}
    assert "model.head_dim=64" in words["plain"] & words["adamw"]
    assert {"model.head_dim=48", "model.width=96"} <= words["narrow"]
    assert "model.head_dim=8" in words["own"]
    for arm, each in words.items():
        rates = {word.partition("=")[0] for word in each if "lr=" in word}
        own = {"adamw": {"optim.lr"}, "sgd": set()}  # whose rate would not suit
        assert rates == own.get(arm, {"optim.lr", "optim.matrix_lr"})
    for wrong in ("optim=3", "model=3", "model.width=wide", "optim.name=adamwe"):
        file = write(tmp_path, base=base, arms={"plain": [], "x": [wrong]})
        with pytest.raises(InputError, match=f"arm x: .*{wrong.partition('=')[0]}"):
            load_study(file, corpus, BUDGET)


@pytest.mark.parametrize("name", ["all", "ablation"])
def test_a_study_names_the_extra_that_it_lacks_before_it_begins(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(InputError, match=r"needs scipy: pip install 'crammed\[studies\]'$"):
        verb(name, corpus=corpus.path, budget=BUDGET, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("prepared", [True, False])
def test_an_arm_whose_tracker_is_missing_is_refused_before_anything_starts(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, prepared: bool
) -> None:
    monkeypatch.setattr(following, "find_spec", lambda _: None)
    arms = {"plain": [], "seen": ["compute.track=wandb", "optim.lr=2e-3"]}
    file = write(tmp_path, arms=arms, base=["crammed", *(MODEL if prepared else TINY)])
    text = write_jsonl(tmp_path / "text.jsonl", documents(300))
    given: dict[str, Any] = {"corpus": corpus.path} if prepared else {"data": [str(text)]}
    with pytest.raises(InputError, match=r"^arm seen: compute\.track=wandb needs wandb: "):
        verb(file, **given, budget=BUDGET, out=tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()


def test_a_failed_arm_ends_with_5_after_the_others(tmp_path: Path, corpus: Corpus) -> None:
    arms = {"plain": [], "bad": ["train.early_stop={after: 0.1, loss: 0.001}", "batch.rows=4"]}
    words = ["--corpus", str(corpus.path), "--budget", "6updates", "--seeds", "1"]
    file = write(tmp_path, arms=arms)
    done = crammed("study", file, *words, "--out", tmp_path / "out")
    assert done.returncode == 5, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: finished, but 1 of 2 runs failed: bad, seed 0;")
    kept = json.loads((tmp_path / "out" / "study.json").read_text())["arms"]
    assert kept["plain"]["runs"]["0"]["updates"] == 6
    assert f"bad, seed 0 failed: {kept['bad']['runs']['0']['failed']}" in done.stdout


def test_arms_that_come_out_the_same_are_trained_once(tmp_path: Path, corpus: Corpus) -> None:
    arms = {
        "plain": [],
        "own": ["optim.name=muon"],  # the recipe's own optimizer
        "decay": ["optim.weight_decay=0.5"],
        "again": ["optim.weight_decay=5e-1"],
        "threads": ["compute.threads=1"],  # at equal time, its speed counts
    }
    file = str(write(tmp_path, arms=arms))
    loaded = load_study(file, corpus, BUDGET)
    assert list(loaded.arms) == ["plain", "decay", "threads"]
    assert left_out(read_study(file), loaded) == ["own", "again"]
