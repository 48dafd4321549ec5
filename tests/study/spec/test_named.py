"""The built-in studies: that they can be run, at any budget, and go on where they began."""

from __future__ import annotations

from typing import Any

import pytest

from crammed.budget import Budget
from crammed.config import RunConfig
from crammed.rules.recipe import load_config
from crammed.study.running.preparing import PlannedCorpora
from crammed.study.spec.arms import (
    Study,
    load_study,
    read_study,
    study_names,
    with_words,
)

SMALL = ["model.max_length=32", "finetune.max_length=32"]


def loaded(name: str, budget: str) -> Study:
    """A built-in study as a call with this budget would run it on a text of its own."""
    parsed = Budget.parse(budget)
    planned = PlannedCorpora(with_words(read_study(name), []), ["text.jsonl"], parsed)
    return load_study(name, planned, parsed)


def config_of(study: Study, arm: str) -> RunConfig:
    recipe, *own = study.words(arm)
    return load_config(recipe, own)


def shape(study: Study, arm: str) -> tuple[str, ...]:
    words = dict(word.split("=", 1) for word in study.words(arm)[1:])
    return tuple(words[key] for key in ("model.layers", "model.width", "batch.rows"))


@pytest.mark.parametrize("name", study_names())
@pytest.mark.parametrize("budget", ["3e6tok", "1e12tok"])
def test_every_study_is_valid_small_and_in_full(name: str, budget: str) -> None:
    read, study = read_study(name), loaded(name, budget)
    assert read.usual_budget is not None
    assert read.usual_budget.kind == "flops"
    same = name == "architecture"  # of two arms one is the baseline, small or in full
    assert len(study.arms) == (len(read.arms) - same) * max(1, len(read.budgets))
    layers, width, rows = shape(study, study.baseline)
    assert (layers, width) == (("2", "64") if budget == "3e6tok" else ("16", "768"))
    assert (int(rows) < 100) == (budget == "3e6tok")
    assert not any("*" in word for arm in study.arms for word in study.words(arm))
    assert not any(word.endswith("=None") for arm in study.arms for word in study.words(arm))
    arms: dict[str, list[str]] = {}
    for arm in study.arms:
        arms.setdefault(config_of(study, arm).identity(), []).append(arm)
    assert not [same for same in arms.values() if len(same) > 1]


@pytest.mark.parametrize("budget", ["1e6tok", "1e12tok"])
def test_layers_that_share_weights_make_models_as_deep_as_the_baseline(budget: str) -> None:
    study = loaded("architecture", budget)
    models = {arm: config_of(study, arm).model for arm in study.arms}
    shared = {arm: model.depth for arm, model in models.items() if model.passes > 1}
    assert shared == {"half-the-layers-twice": models[study.baseline].depth}


def corpora(name: str) -> list[dict[str, Any]]:
    """The settings of the corpora of a built-in study with little to spend, arm by arm."""
    study, budget = read_study(name), Budget.parse("1e6tok")
    planned = PlannedCorpora(study, ["text.jsonl"], budget)
    return [planned.fixed(study.words(arm), budget) for arm in study.arms]


def test_filters_count_the_tokens_of_the_papers_vocabulary() -> None:
    """With a fourth of it, a threshold keeps next to nothing."""
    assert {made["tokenizer"]["vocab_size"] for made in corpora("data")} == {32768}


def test_all_vocabularies_read_the_same_text() -> None:
    cleaned = [made["data"] for made in corpora("vocabulary")]
    assert all(each == cleaned[0] for each in cleaned)
    assert cleaned[0]["clean"]["max_tokens_per_character"] is None


@pytest.mark.parametrize("name", study_names())
def test_the_baseline_of_every_study_is_its_base(name: str) -> None:
    study = read_study(name)
    recipe, *base = study.base
    _, *own = study.words(study.baseline)
    assert load_config(recipe, own).identity() == load_config(recipe, base).identity()


@pytest.mark.parametrize("name", study_names())
def test_every_study_says_where_the_paper_has_it(name: str) -> None:
    described = read_study(name).description
    assert any(word in described for word in ("section", "table", "figure")), described
