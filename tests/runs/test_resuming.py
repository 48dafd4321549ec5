"""A command goes on with a run whose values it types; what it does not type is the run's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.cli import studies, training
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.writing import write_json
from crammed.rules.choosing import Asked
from crammed.rules.recipe import ask
from crammed.rules.sizing import with_values
from crammed.runs.directory import RunDir, read_config
from crammed.runs.resuming import as_begun, asked_in, default_out
from crammed.study.result import Run
from crammed.study.running.folder import Left
from support.settled import settled
from support.study import run_of, write_study
from support.text import MODEL

BUDGET = Budget.parse("6updates")
SHORT = ["model.max_length=32", "finetune.max_length=32"]
BEFORE, TODAY = "masking: {rate: 0.25}", "masking: {rate: 0.3}"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a command writes beside its result."""
    lines: list[str] = []
    monkeypatch.setattr(
        "crammed.terminal.progress.Progress.line", lambda _, text: lines.append(text)
    )
    return lines


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe, to be changed by `changed`."""
    file = tmp_path / "mine.yaml"
    file.write_text(f"extends: crammed\n{BEFORE}\n")
    return file


def changed(recipe: Path, *, to: str = TODAY) -> None:
    recipe.write_text(f"extends: crammed\n{to}\n")


def fixed(corpus: Corpus) -> dict[str, Any]:
    return {**corpus.settings(), "budget": {"limit": BUDGET}}


def asked(corpus: Corpus, recipe: Path | None, *words: str, out: Path | None = None) -> Asked:
    named = None if recipe is None else str(recipe)
    overrides = {word.partition("=")[0]: word for word in (*MODEL, *words)}
    return asked_in(out, named, list(overrides.values()), fixed(corpus))


def trains(corpus: Corpus, recipe: Path | None, out: Path, *words: str) -> RunConfig:
    """What `pretrain` trains in a folder, without more than its first update."""
    chosen = settled(
        asked(corpus, recipe, *words, out=out), corpus.rows, lambda _: pytest.fail("measured")
    )
    with RunDir.open(out, chosen.config, chosen.choice) as run:
        run.metrics({"update": 1})
        return run.config


def pretrained(corpus: Corpus, recipe: Path, out: Path, *words: str) -> RunConfig:
    training.pretrain([str(recipe), *MODEL, *words], corpus.path, BUDGET, None, out, as_json=True)
    return read_config(out)


def test_a_run_goes_on_although_its_recipe_has_changed(
    tmp_path: Path, corpus: Corpus, recipe: Path, said: list[str]
) -> None:
    before = trains(corpus, recipe, tmp_path / "old")
    assert pretrained(corpus, recipe, tmp_path / "old") == before
    assert not any("changed" in line for line in said)
    changed(recipe)
    line = (
        "recipe  mine has changed since this run began (masking.rate 0.25 -> 0.3): the run "
        "continues as it began"
    )
    for times in (1, 2):  # it is finished the second time
        assert pretrained(corpus, recipe, tmp_path / "old") == before
        assert said.count(line) == times
    assert pretrained(corpus, recipe, tmp_path / "new").masking.rate == 0.3
    assert said.count(line) == 2


def test_what_is_not_typed_is_the_runs_own(
    tmp_path: Path, corpus: Corpus, recipe: Path, said: list[str]
) -> None:
    words = ["seed=3", "train.log_seconds=1.0", "compute.threads=1"]
    before = trains(corpus, recipe, tmp_path / "run", *words)
    for fewer in ([], words[:2], ["optim.clip=5e-1", "masking.rate=0.250", *words[:1]]):
        assert trains(corpus, recipe, tmp_path / "run", *fewer) == before
    assert trains(corpus, None, tmp_path / "run") == before
    assert not asked(corpus, recipe, out=tmp_path / "run").changed  # what was typed is no change
    other = trains(corpus, recipe, tmp_path / "run", "compute.threads=2")
    assert other.identity() == before.identity()
    assert other.compute.threads == 2


@pytest.mark.parametrize(
    ("words", "difference"),
    [
        (["seed=1"], r"\(seed: 0 there, 1 here\)"),
        (["masking.rate=0.3"], r"\(masking\.rate: 0\.25 there, 0\.3 here\)"),
        (["schedule.start=0.5"], r"\(schedule\.start: None there, 0\.5 here\)"),
        (["recipe=other"], r"\(recipe: mine there, other here\)"),
    ],
)
def test_words_that_differ_are_named_and_nothing_else(
    tmp_path: Path, corpus: Corpus, recipe: Path, words: list[str], difference: str
) -> None:
    before = trains(corpus, recipe, tmp_path / "run")
    changed(recipe, to="masking: {rate: 0.3}\nschedule: {shape: triangle}")
    with pytest.raises(
        InputError, match=rf"run holds a run with another conf.*{difference}.*another --out"
    ):
        trains(corpus, recipe, tmp_path / "run", *words)
    assert read_config(tmp_path / "run") == before


def test_the_same_budget_may_be_written_otherwise(tmp_path: Path, corpus: Corpus) -> None:
    def begun(text: str) -> RunConfig:
        given = {**corpus.settings(), "budget": {"limit": Budget.parse(text)}}
        own = asked_in(tmp_path / "run", None, MODEL, given)
        with RunDir.open(tmp_path / "run", own.nominally(corpus.rows), own.choice) as run:
            run.metrics({"update": 1})
            return run.config

    before = begun("1h")
    assert begun("60m") == before
    assert begun("60m").budget.limit.text == "1h"
    with pytest.raises(InputError, match=r"\(budget\.limit: 1h there, 61m here\)"):
        begun("61m")


def test_what_is_said_to_follow_the_budget_must_have_done_so(
    tmp_path: Path, corpus: Corpus, recipe: Path
) -> None:
    def begin(out: str, *words: str, fit: bool) -> Asked:
        own = [word for word in MODEL if not word.startswith("batch.rows")]
        return asked_in(tmp_path / out, str(recipe), [*own, *words], fixed(corpus), fit=fit)

    for name, fit in (("fit", True), ("set", False)):
        chosen = settled(begin(name, "batch.rows=4", fit=fit), corpus.rows, lambda _: 1e9)
        with RunDir.open(tmp_path / name, chosen.config, chosen.choice) as run:
            run.metrics({"update": 1})
    for fit in (True, False):
        assert not begin("fit", "batch.rows=4", fit=fit).open
    assert not begin("set", "batch.rows=4", fit=True).open  # all else has followed here, too
    with pytest.raises(
        InputError, match=r"\(follows_budget: optim\.matrix_lr there, batch\.rows, op"
    ):
        begin("set", fit=True)


def test_words_that_only_the_former_recipe_takes(
    tmp_path: Path, corpus: Corpus, recipe: Path
) -> None:
    word, out = "schedule.start=0.5", tmp_path / "old"
    changed(recipe, to="schedule: {shape: triangle}")
    before = trains(corpus, recipe, out, word)
    changed(recipe)
    assert trains(corpus, recipe, out, word) == before
    for words in ([word, "seed=1"], ["schedule.start=0.4"]):
        with pytest.raises(InputError, match=r"schedule\.start"):
            asked(corpus, recipe, *words, out=out)
    for place in (None, tmp_path / "new"):
        with pytest.raises(InputError, match=r"schedule\.start"):
            asked(corpus, recipe, word, out=place)


def test_a_run_goes_on_with_a_schedule_that_no_run_may_begin_with(
    tmp_path: Path, corpus: Corpus, recipe: Path
) -> None:
    word, out = "schedule.warmup=0.6", tmp_path / "old"
    before = with_values(asked(corpus, recipe).config, {"schedule.warmup": 0.6})
    with RunDir.open(out, before) as run:
        run.metrics({"update": 1})
    assert trains(corpus, recipe, out, word) == trains(corpus, recipe, out) == before
    with pytest.raises(InputError, match=r"schedule\.falling 0\.5 are more than the whole"):
        asked(corpus, recipe, word, out=tmp_path / "new")


def test_a_folder_with_no_more_than_a_corpus_becomes_another_run(
    tmp_path: Path, corpus: Corpus, recipe: Path
) -> None:
    out, sources = tmp_path / "run", ["data.sources=[text.jsonl]"]
    with RunDir.open(out, ask(str(recipe), sources).nominally(corpus.rows)):
        (out / "corpus").mkdir()
        write_json(out / "corpus" / "manifest.json", {})
    before = read_config(out)
    changed(recipe)
    assert asked_in(out, str(recipe), sources, {}).config == before
    other = asked_in(out, str(recipe), [*sources, "seed=1"], {})
    assert (other.config.seed, other.config.masking.rate) == (1, 0.3)
    assert other.config.tokenizer == before.tokenizer
    with pytest.raises(InputError, match=r"data\.sources"):
        asked_in(out, str(recipe), ["data.sources=[other.jsonl]"], {})


def test_a_run_without_a_folder_named_is_found_again(
    tmp_path: Path, corpus: Corpus, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def out(*words: str) -> Path:
        return default_out(asked(corpus, recipe, *words), "my.txt", "summary.json")

    path = out("seed=1")
    trains(corpus, recipe, path, "seed=1")
    other = out()
    assert other != path  # these words begin a run with another seed
    trains(corpus, recipe, other)
    changed(recipe)
    assert (out("seed=1"), out()) == (path, other)
    assert out("seed=2") not in (path, other)


@pytest.mark.parametrize("word", ["train.grow_at=[0.25,0.5]", "model.head_dim=48"])
def test_words_that_contradict_an_unfinished_run_begin_another(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.chdir(tmp_path)

    def out(*words: str) -> Path:
        wanted = asked_in(None, None, [*SHORT, *words], fixed(corpus))
        return default_out(wanted, "my.txt", "summary.json")

    path, wanted = out(), asked_in(None, None, SHORT, fixed(corpus))
    chosen = settled(wanted, corpus.rows, lambda _: pytest.fail("measured"))
    assert (chosen.config.model.layers, chosen.config.model.width) == (2, 64)
    with RunDir.open(path, chosen.config, chosen.choice):
        pass  # it begins
    assert out() == path
    assert out(word) != path


def test_what_would_be_chosen_again_may_contradict_the_run(tmp_path: Path, corpus: Corpus) -> None:
    """It is another run, as any other difference makes it."""
    out = tmp_path / "run"
    chosen = settled(asked_in(None, None, SHORT, fixed(corpus)), corpus.rows, lambda _: 1e9)
    busy = chosen.choice.model_copy(update={"busy": True})
    with RunDir.open(out, chosen.config, busy):
        pass  # it begins
    with pytest.raises(InputError, match="run holds a run with another configuration"):
        asked_in(out, None, [*SHORT, "train.grow_at=[0.25,0.5]"], fixed(corpus))


def test_a_run_of_a_prepared_corpus_needs_it(tmp_path: Path, corpus: Corpus, recipe: Path) -> None:
    trains(corpus, recipe, tmp_path / "run")
    with pytest.raises(InputError, match="run was begun with a prepared corpus: name it"):
        training.run(out=tmp_path / "run")


def test_a_folder_without_a_run_changes_nothing(tmp_path: Path, corpus: Corpus) -> None:
    wanted = asked(corpus, None)
    assert as_begun(tmp_path / "new", wanted) is wanted


def test_a_study_goes_on_and_begins_no_run_with_a_recipe_that_has_changed(
    tmp_path: Path, corpus: Corpus, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {"plain": [], "higher": ["masking.rate=0.5"]}
    file, trained = write_study(tmp_path, arms, [str(recipe), *MODEL]), list[str]()

    def train(run: Left, command: list[str], *_: Any) -> Run:
        recipe, *overrides = command[3:-8]
        wanted = asked_in(run.folder, recipe, overrides, {**fixed(corpus), "seed": run.seed})
        with RunDir.open(run.folder, wanted.config) as folder:
            write_json(folder.path / "summary.json", {})
        trained.append(f"{run.arm}-{run.seed}, masking {wanted.config.masking.rate:g}")
        return run_of()

    def study(seeds: int, *words: str) -> Any:
        studies.study(file, [*words], corpus.path, BUDGET, seeds, tmp_path / "out", 1, True)
        return json.loads((tmp_path / "out" / "study.json").read_text())["arms"]

    monkeypatch.setattr("crammed.study.running.runner._train", train)
    begun = study(1)
    changed(recipe)
    assert study(1) == begun
    with pytest.raises(
        InputError, match=r"begun \(masking\.rate 0\.25 -> 0\.3\), and runs have yet to start"
    ):
        study(2)
    study(2, "masking.rate=0.25")
    assert trained == [
        f"{arm}-{seed}, masking {rate}"
        for seed in (0, 1)
        for arm, rate in (("plain", 0.25), ("higher", 0.5))
    ]
    with pytest.raises(InputError, match=r"another study \(arm plain, batch\.rows: . there, 2 her"):
        study(2, "batch.rows=2")
