"""Studies at any budget: recipes in proportion, factors of values, several budgets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.rules.choosing import Asked
from crammed.rules.recipe import ask, load_config
from crammed.rules.sizing import rates_of_width, with_values
from crammed.study.spec.arms import Study, left_out, load_study, read_study
from crammed.study.spec.small import in_proportion, resolved, scaled_down

LITTLE, MUCH = Budget.parse("3e6tok"), Budget.parse("1e12tok")
SHORT = ["finetune.max_length=32"]
ARMS = {"plain": [], "half": ["batch.rows*=0.5"], "narrow": ["model.width*=0.75"]}


def loaded(
    tmp_path: Path, corpus: Corpus, budget: Budget = LITTLE, endless: bool = False, **values: Any
) -> Study:
    study = {"base": ["crammed-2022", *SHORT], "baseline": "plain", "arms": ARMS, "small": []}
    (tmp_path / "s.yaml").write_text(json.dumps({**study, **values}))

    def choose(_: str, asked: Asked, rows: int | None) -> RunConfig:
        return asked.nominally(None if endless else rows)

    return load_study(str(tmp_path / "s.yaml"), corpus, budget, choose=choose)


def values(study: Study, arm: str) -> dict[str, str]:
    return dict(word.split("=") for word in study.words(arm)[1:])


def config(recipe: str, *words: str) -> RunConfig:
    return load_config(recipe, words, speed=1e9, rows=10_000)


def small(recipe: str, **changed: Any) -> RunConfig:
    fitted = ask(recipe, ["budget.limit=3e6tok"], fit=True).nominally(None)
    return scaled_down(config(recipe), fitted, changed)


def test_a_recipe_is_made_smaller_in_proportion() -> None:
    full, little = config("crammed-2022"), small("crammed-2022")
    narrower = full.model.width / little.model.width
    assert (little.model.layers, little.model.width, narrower) == (2, 64, 12)
    assert little.optim.lr == pytest.approx(full.optim.lr * narrower**0.5)
    assert little.model.init_std == full.model.init_std
    assert little.batch.rows < 64 < full.batch.rows
    assert (little.masking, little.schedule) == (full.masking, full.schedule)


@pytest.mark.parametrize(
    ("recipe", "shape", "rate", "rows"),
    [
        ("bert-base", (2, 64), 5e-4 * 12**0.5, 3 / 16),
        ("izsak", (3, 88), 2e-3 * (1024 / 88) ** 0.5, 1 / 2),
        ("crammed-2022-v1", (2, 64), 1e-3 * 12**0.5, 1 / 2),
    ],
)
def test_other_recipes_keep_their_proportions(
    recipe: str, shape: tuple[int, int], rate: float, rows: float
) -> None:
    full, little = config("crammed-2022"), small("crammed-2022")
    other = in_proportion(config(recipe), full, little)
    assert (other.model.layers, other.model.width) == shape
    assert other.optim.lr == pytest.approx(rate, rel=1e-5)
    assert other.batch.rows == round(rows * little.batch.rows)
    assert other.model.width % other.model.head_dim == 0
    assert other.optim.model_copy(update={"lr": config(recipe).optim.lr}) == config(recipe).optim
    assert in_proportion(config(recipe), full, full) == config(recipe)


@pytest.mark.parametrize("name", ["sgd", "adafactor"])
def test_only_rates_that_follow_the_width_are_in_proportion(name: str) -> None:
    full, little = config("crammed-2022"), small("crammed-2022")
    other = config("crammed-2022", f"optim.name={name}", "optim.lr=0.125")
    assert rates_of_width(other) == ()
    assert in_proportion(other, full, little).optim == other.optim
    base = config("crammed-2022", f"optim.name={name}")
    assert not any("lr=" in word for word in resolved(["model.width*=0.25"], base, True))


def test_both_rates_of_muon_follow_the_width() -> None:
    base = config("crammed-2022", "optim.name=muon", "optim.lr=1e-3", "optim.matrix_lr=2e-3")
    assert rates_of_width(base) == ("optim.lr", "optim.matrix_lr")
    words = resolved(["model.width*=0.25"], base, True)
    assert {"optim.lr=0.002", "optim.matrix_lr=0.004"} <= set(words)


def test_what_is_typed_stays_and_a_fed_recipe_is_as_it_is() -> None:
    little = ask("crammed-2022", ["budget.limit=3e6tok", "optim.lr=0.01"], fit=True)
    kept = scaled_down(config("crammed-2022"), little.nominally(None), ["optim.lr"])
    assert kept.optim.lr == 0.01
    full = config("crammed-2022", "budget.limit=24h")
    large = ask("crammed-2022", ["budget.limit=1e12tok"], fit=True).nominally(None)
    assert large.model.width > full.model.width
    assert scaled_down(full, large, ()) == full


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("batch.rows*=0.1875", 3),
        ("batch.rows*=0.001", 1),
        ("model.layers*=1.5", 3),
        ("optim.lr*=0.5", 0.0005),
        ("model.init_std*=2", 0.04),
        ("model.ffn_ratio*=0.5", 2.0),
    ],
)
def test_factors_multiply(word: str, value: float) -> None:
    base = with_values(config("crammed-2022"), {"model.layers": 2, "batch.rows": 16})
    assert resolved([word], base, True) == (f"{word.partition('*')[0]}={value}",)


@pytest.mark.parametrize(
    ("optimizer", "rates"),
    [
        ("sgd", {}),
        ("adafactor", {}),
        ("radam", {"optim.lr": "0.002"}),
        ("muon", {"optim.lr": "0.002", "optim.matrix_lr": "0.0032"}),
    ],
)
def test_rates_in_another_width_are_those_of_the_optimizer_of_the_arm(
    optimizer: str, rates: dict[str, str]
) -> None:
    own = [f"optim.name={optimizer}", "model.width*=0.25"]
    words = dict(word.split("=") for word in resolved(own, config("crammed-2022"), True))
    assert {key: value for key, value in words.items() if key.endswith("lr")} == rates


def test_a_factor_multiplies_the_rate_of_the_optimizer_of_the_arm() -> None:
    own = ["optim.name=adafactor", "optim.lr*=0.5"]
    assert resolved(own, config("crammed-2022"), True)[1] == "optim.lr=0.025"


def test_a_width_brings_what_is_in_proportion_to_it() -> None:
    base = config("crammed-2022")
    words = dict(word.split("=") for word in resolved(["model.width*=0.25"], base, True))
    assert words == {
        "model.width": "192",
        "model.head_dim": "48",
        "optim.lr": "0.002",
    }
    own = resolved(["optim.lr=1e-4", "model.width*=0.25"], base, True)
    assert [word for word in own if word.startswith("optim.lr")] == ["optim.lr=1e-4"]
    assert resolved(["model.width*=0.25"], base, False) == ("model.width=192",)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("optim.lr*=half", r"optim\.lr\*=half: a factor is a number above 0"),
        ("optim.lr*=-1", "a factor is a number above 0"),
        ("optim.lr*=nan", "a factor is a number above 0"),
        ("model.gated*=2", r"arm x: model\.gated\*=2: there is no number to multiply"),
        ("optim.clips*=2", "there is no number to multiply"),
        ("nothing*=2", "there is no number to multiply"),
        ("model.layers*=1e308", r"model\.layers\*=1e308: 2 times that is too large"),
    ],
)
def test_a_factor_that_makes_no_sense_is_refused(
    tmp_path: Path, corpus: Corpus, word: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        loaded(tmp_path, corpus, arms={"plain": [], "x": [word]})


def test_a_value_is_not_set_and_multiplied(tmp_path: Path, corpus: Corpus) -> None:
    both = ["batch.rows=4", "batch.rows*=2"]
    with pytest.raises(InputError, match=r"arm x: batch\.rows\*=2: batch\.rows is set as well"):
        loaded(tmp_path, corpus, arms={"plain": [], "x": both})


def test_a_study_is_scaled_where_the_budget_is_small(tmp_path: Path, corpus: Corpus) -> None:
    arms = {**ARMS, "izsak": ["izsak", *SHORT], "own": ["crammed", *SHORT]}
    study = loaded(tmp_path, corpus, arms=arms)
    plain, half, izsak = (values(study, arm) for arm in ("plain", "half", "izsak"))
    assert (plain["model.layers"], plain["model.width"]) == ("2", "64")
    assert float(plain["optim.lr"]) == pytest.approx(1e-3 * 12**0.5, rel=1e-5)
    assert int(half["batch.rows"]) * 2 == int(plain["batch.rows"])
    assert values(study, "narrow")["model.width"] == "48"
    assert (izsak["model.layers"], izsak["model.width"]) == ("3", "88")
    assert "optim.matrix_lr" in values(study, "own")  # which follows the budget by itself
    assert study.words("izsak")[0] == "izsak"


def test_what_contradicts_scaled_values_is_refused_unless_the_arm_sets_them(
    tmp_path: Path, corpus: Corpus
) -> None:
    def arm(*words: str) -> dict[str, str]:
        pooled = ["bert-base", *SHORT, "model.pool_at=[6]", *words]
        return values(loaded(tmp_path, corpus, arms={"plain": [], "pooled": pooled}), "pooled")

    with pytest.raises(InputError, match=r"arm pooled: recipe bert-base: model\.pool_at needs"):
        arm()
    assert arm("model.layers=12")["model.layers"] == "12"


def test_a_recipe_that_follows_its_own_rules_is_not_scaled_again(
    tmp_path: Path, corpus: Corpus
) -> None:
    own = ["crammed", "model.width=128", *SHORT]
    found = values(loaded(tmp_path, corpus, arms={"plain": [], "own": own}), "own")
    assert float(found["model.layers"]) > 1
    assert float(found["model.head_dim"]) >= 32
    assert float(found["batch.rows"]) > 1


def test_an_arm_may_name_the_recipe_of_the_base(tmp_path: Path, corpus: Corpus) -> None:
    arms = {"plain": [], "short": ["masking.rate=0.3"]}
    named = {"plain": [], "short": ["crammed-2022", "masking.rate=0.3"]}
    first, second = (loaded(tmp_path, corpus, arms=each).arms["short"] for each in (arms, named))
    assert [word for word in second if "=" in word] == list(first)


def test_a_study_with_budget_enough_is_the_papers(tmp_path: Path, corpus: Corpus) -> None:
    study = loaded(tmp_path, corpus, MUCH, arms={**ARMS, "izsak": ["izsak", *SHORT]}, endless=True)
    assert values(study, "plain")["model.width"] == "768"
    assert values(study, "half")["batch.rows"] == "4096"
    assert study.words("izsak") == ["izsak", *SHORT]


def test_arms_that_a_small_batch_rounds_to_the_same_are_trained_once(
    tmp_path: Path, corpus: Corpus
) -> None:
    """The first of them, and the baseline if it is one of them."""
    arms = {
        "all": ["batch.rows*=0.9999"],
        **ARMS,
        "some": ["batch.rows*=0.01"],
        "few": ["batch.rows*=0.02"],
    }
    study = loaded(tmp_path, corpus, arms=arms)
    assert sorted(study.arms) == ["half", "narrow", "plain", "some"]
    assert left_out(read_study(str(tmp_path / "s.yaml")), study) == ["all", "few"]
    full = loaded(tmp_path, corpus, MUCH, arms=arms, endless=True)
    assert left_out(read_study(str(tmp_path / "s.yaml")), full) == []


def test_a_small_form_changes_what_nobody_typed(tmp_path: Path, corpus: Corpus) -> None:
    arms = {**ARMS, "rotary": ["model.positions=rotary"], "izsak": ["izsak", *SHORT]}
    learned = {**arms, "learned": ["model.positions=learned"]}
    changed: Any = {"small": ["model.positions=rotary", "masking.rate=0.4"]}
    study = loaded(tmp_path, corpus, arms=learned, **changed)
    assert sorted(study.arms) == ["half", "izsak", "learned", "narrow", "plain"]  # rotary is plain
    for arm, positions in (("plain", "rotary"), ("izsak", "rotary"), ("learned", "learned")):
        assert values(study, arm)["model.positions"] == positions
        assert values(study, arm)["masking.rate"] == "0.4"
    base = ["crammed-2022", *SHORT, "masking.rate=0.2"]
    typed = loaded(tmp_path, corpus, base=base, arms=arms, **changed)
    assert values(typed, "plain")["masking.rate"] == "0.2"
    full = loaded(tmp_path, corpus, MUCH, arms=arms, endless=True, **changed)
    assert sorted(full.arms) == sorted(arms)
    assert "masking.rate" not in values(full, "plain")
