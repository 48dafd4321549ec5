"""Runs and studies that began with a recipe as it was go on with it; new ones take today's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.cli import studies, training
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.writing import write_json
from crammed.planning.settling import settled
from crammed.rules.choosing import Asked
from crammed.rules.recipe import EARLIER, ask, formerly, recipe_names
from crammed.runs.directory import RunDir, read_config
from crammed.runs.resuming import as_begun, ask_in, default_out
from crammed.study.result import Run
from support.study import run_of
from support.text import MODEL

BUDGET = Budget.parse("6updates")
FIRST, LAST = EARLIER[0], EARLIER[-1]
BEFORE, TODAY = 0.25, 0.4
"""The mask rates of the recipe crammed, in the first version and today."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a command writes beside its result."""
    lines: list[str] = []
    monkeypatch.setattr(
        "crammed.terminal.progress.Progress.line", lambda _, text: lines.append(text)
    )
    return lines


def fixed(corpus: Corpus, budget: Budget = BUDGET) -> dict[str, Any]:
    return {**corpus.settings(), "budget": {"limit": budget}}


def asked(corpus: Corpus, *words: str, out: Path | None = None, recipe: str = "crammed") -> Asked:
    return ask_in(out, recipe, [*MODEL, *words], fixed(corpus))


def begun(
    out: Path, corpus: Corpus, *words: str, recipe: str = "crammed", version: str = FIRST
) -> RunConfig:
    """A run as an earlier version began it."""
    words = (*MODEL, *words)
    config = ask(formerly(recipe, version), words, fixed(corpus)).nominally(corpus.rows)
    with RunDir.open(out, config) as run:
        run.metrics({"update": 1})
    return config


def pretrained(corpus: Corpus, out: Path, *words: str) -> RunConfig:
    training.pretrain([*MODEL, *words], corpus.path, BUDGET, None, out, as_json=True)
    return read_config(out)


def gone_on(corpus: Corpus, out: Path, *words: str) -> RunConfig:
    """What `pretrain` would train in a folder, without training it."""
    wanted = as_begun(out, asked(corpus, *words, out=out))
    chosen = settled(wanted, out, corpus.rows, lambda _: pytest.fail("measured"))
    with RunDir.open(out, chosen.config, chosen.choice) as run:
        run.metrics({"update": 1})
        return run.config


def test_a_run_goes_on_with_the_recipe_that_it_began_with(
    tmp_path: Path, corpus: Corpus, said: list[str]
) -> None:
    before = begun(tmp_path / "old", corpus)
    assert before.masking.rate == BEFORE
    assert pretrained(corpus, tmp_path / "old") == before
    line = "recipe  continues with the recipe crammed as it was in an earlier version"
    assert said.count(line) == 1
    assert pretrained(corpus, tmp_path / "old") == before  # shown again
    assert said.count(line) == 2
    assert pretrained(corpus, tmp_path / "new").masking.rate == TODAY
    assert said.count(line) == 2


def test_there_are_several_earlier_versions(
    tmp_path: Path, corpus: Corpus, said: list[str]
) -> None:
    last = begun(tmp_path / "last", corpus, version=LAST)
    today = pretrained(corpus, tmp_path / "today")
    values = {
        (config.masking.rate, config.finetune.lr_width)
        for config in (begun(tmp_path / "first", corpus), last, today)
    }
    assert values == {(BEFORE, None), (TODAY, None), (TODAY, 768)}
    assert not said.count(
        "recipe  continues with the recipe crammed as it was in an earlier version"
    )
    assert pretrained(corpus, tmp_path / "last") == last
    assert said.count("recipe  continues with the recipe crammed as it was in an earlier version")
    for folder, version in (("first", FIRST), ("last", LAST), ("today", None), ("none", None)):
        assert as_begun(tmp_path / folder, asked(corpus)).earlier == version
    demo, now = (ask(recipe).config for recipe in (formerly("demo", LAST), "demo"))
    assert (demo.budget.most_epochs, demo.optim, demo.finetune) == (16.0, now.optim, now.finetune)


def test_what_the_budget_decided_then_stays(tmp_path: Path, corpus: Corpus) -> None:
    words = ["model.ffn_ratio=2.0"]
    then = ask(formerly("crammed", FIRST), words, fixed(corpus))
    assert not {"model.head_dim", "optim.matrix_lr"} & {*then.open}
    config = then.nominally(corpus.rows)
    with RunDir.open(tmp_path / "run", config) as run:
        run.metrics({"update": 1})
    wanted = as_begun(tmp_path / "run", ask_in(None, "crammed", words, fixed(corpus)))
    again = settled(wanted, tmp_path / "run", corpus.rows, lambda _: pytest.fail("measured"))
    assert again.config == config


@pytest.mark.parametrize("name", ["demo", "mine.yaml"])
def test_recipes_that_extend_one_that_changed(tmp_path: Path, corpus: Corpus, name: str) -> None:
    if name == "mine.yaml":
        name = str(tmp_path / name)
        Path(name).write_text("extends: crammed\nmasking: {rate: 0.3}\n")
    before = begun(tmp_path / "old", corpus, recipe=name)
    wanted = as_begun(tmp_path / "old", asked(corpus, recipe=name))
    assert (before.optim.name, wanted.earlier) == ("adamw", FIRST)
    assert wanted.config.identity() == before.identity()
    assert not as_begun(tmp_path / "new", asked(corpus, recipe=name)).earlier


def test_a_run_without_a_folder_named_is_found_again(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = default_out(asked(corpus), "my.txt", "summary.json")
    begun(path, corpus)
    assert default_out(asked(corpus), "my.txt", "summary.json") == path
    other = default_out(asked(corpus, "seed=1"), "my.txt", "summary.json")
    assert other != path
    assert not as_begun(other, asked(corpus, "seed=1")).earlier


def test_other_words_differ_from_the_nearer_recipe(tmp_path: Path, corpus: Corpus) -> None:
    begun(tmp_path / "old", corpus)
    gone_on(corpus, tmp_path / "new")
    for name, rate in (("old", BEFORE), ("new", TODAY)):
        with pytest.raises(InputError, match=r"configuration \(seed: 0 there, 1 here\)"):
            gone_on(corpus, tmp_path / name, "seed=1")
        assert read_config(tmp_path / name).masking.rate == rate


def test_words_that_only_the_former_recipe_takes(tmp_path: Path, corpus: Corpus) -> None:
    word = "schedule.start=0.5"
    config = begun(tmp_path / "old", corpus, word)
    assert gone_on(corpus, tmp_path / "old", word) == config
    for out in (None, tmp_path / "new"):
        with pytest.raises(InputError, match=r"schedule\.start"):
            asked(corpus, word, out=out)


def test_a_folder_without_training_becomes_a_run_of_today(tmp_path: Path, corpus: Corpus) -> None:
    out, words = tmp_path / "run", ["data.sources=[text.jsonl]"]
    config = ask(formerly("crammed", FIRST), words).nominally(corpus.rows)
    with RunDir.open(out, config):
        (out / "corpus").mkdir()
        write_json(out / "corpus" / "manifest.json", {})
    assert as_begun(out, ask_in(out, "crammed", words, {})).earlier
    assert not as_begun(out, ask_in(out, "crammed", [*words, "seed=1"], {})).earlier


def test_a_recipe_that_has_not_changed_is_one() -> None:
    assert ask_in(None, "izsak", [], {}).former == ()
    assert not any("former" in name for name in recipe_names())


Study = Callable[..., tuple[dict[str, Any], dict[str, list[str]]]]


@pytest.fixture
def study(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Runs a study in a folder without training; gives its result and the command of each run."""
    arms = {"plain": [], "higher": ["masking.rate=0.5"]}
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps({"base": ["crammed", *MODEL], "baseline": "plain", "arms": arms}))
    commands: dict[str, list[str]] = {}

    def train(run: Any, command: list[str], *_: Any) -> Run:
        commands[f"{run.arm}-{run.seed}"] = command
        return run_of(4.0 + run.seed * len(run.arm))

    monkeypatch.setattr("crammed.study.runner._train", train)

    def study_it(out: str, *words: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
        commands.clear()
        studies.study(str(file), [*words], corpus.path, BUDGET, 2, tmp_path / out, 1, True)
        return json.loads((tmp_path / out / "study.json").read_text()), commands

    return study_it


def test_a_study_goes_on_with_the_recipe_that_it_began_with(
    tmp_path: Path, corpus: Corpus, study: Study, said: list[str]
) -> None:
    _, commands = study("new")
    assert not any(word.startswith("former") for run in commands.values() for word in run)
    line = "study  continues with its recipes as they were in an earlier version"
    assert line not in said
    begun(tmp_path / "old" / "plain-0", corpus)
    for times in (1, 2):
        old, commands = study("old")
        assert set(commands) == {"plain-0", "plain-1", "higher-0", "higher-1"}
        assert all(formerly("crammed", FIRST) in command for command in commands.values())
        assert said.count(line) == times
        assert all(arm["words"][0] == "crammed" for arm in old["arms"].values())
    with pytest.raises(InputError, match=r"another study \(arm plain, schedule.falling: 0\.25 th"):
        study("old", "schedule.falling=0.4")
