from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crammed.config import ComputeConfig, ModelConfig, RunConfig
from crammed.config.optim import SGDConfig
from crammed.errors import InputError
from crammed.machine import speed
from crammed.machine.workers import cores
from crammed.model.count import block_matrix_parameters
from crammed.rules import sizing
from crammed.rules.rates import far_too_high
from crammed.rules.recipe import load_config
from crammed.rules.sizing import (
    FOLLOWERS,
    MOST_EPOCHS,
    SHAPES,
    Candidate,
    batch_tokens,
    best_of,
    expected_seconds,
    follow_budget,
    head_dim,
    seconds_a_shape,
    tokens,
    tokens_per_parameter,
    with_values,
)

LAPTOP, CARD = 1.6e11, 5e14


def of(limit: str) -> RunConfig:
    return with_values(RunConfig(recipe="any"), {"budget.limit": limit})


@pytest.fixture(autouse=True)
def nominal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crammed.rules.choosing.nominal_speed", lambda compute: LAPTOP)


def test_more_budget_or_a_faster_device_never_gives_less() -> None:
    for speeds in ((LAPTOP, LAPTOP), (LAPTOP, CARD)):
        for few, many in pairwise(("1m", "10m", "1h", "24h", "7d")):
            less = follow_budget(of(few), FOLLOWERS, speeds[0])
            more = follow_budget(of(many), FOLLOWERS, speeds[1])
            assert block_matrix_parameters(less.model) <= block_matrix_parameters(more.model)
            assert less.batch.rows <= more.batch.rows
            assert less.tokenizer.vocab_size <= more.tokenizer.vocab_size


def _shape(layers: int, width: int) -> dict[str, int]:
    return {"model.layers": layers, "model.width": width, "model.head_dim": head_dim(width)}


def test_the_largest_size_is_taken_that_gets_its_tokens() -> None:
    config = follow_budget(of("1h"), FOLLOWERS, LAPTOP)

    def wanted(model: ModelConfig) -> float:
        weights = block_matrix_parameters(model)
        return tokens_per_parameter(weights) * weights

    assert tokens(config, LAPTOP) >= wanted(config.model)
    place = SHAPES.index((config.model.layers, config.model.width))
    larger = with_values(config, _shape(*SHAPES[place + 1]))
    assert tokens(larger, LAPTOP) < wanted(larger.model)


def test_small_models_need_fewer_tokens_for_a_parameter() -> None:
    """As was measured up to 4 x 128; nothing larger was compared."""
    small = [layers * width**2 <= 4 * 128**2 for layers, width in SHAPES]
    weights = [
        block_matrix_parameters(with_values(RunConfig(recipe="any"), _shape(layers, width)).model)
        for layers, width in SHAPES
    ]
    assert [tokens_per_parameter(n) for n in weights] == [10.0 if each else 20.0 for each in small]


def test_a_budget_too_small_for_any_size_gets_the_smallest() -> None:
    config = follow_budget(of("1s"), FOLLOWERS, 1e6)
    assert (config.model.layers, config.model.width) == SHAPES[0]
    assert config.batch.rows * config.data.row_length >= sizing.SMALLEST_BATCH


@pytest.mark.parametrize(
    ("text_tokens", "budget", "flops"),
    [(309_000, "60s", LAPTOP), (625_000, "1h", 4 * speed.CORE), (625_000, "30d", CARD)],
)
def test_little_text_gets_the_smallest_model(text_tokens: int, budget: str, flops: float) -> None:
    config = follow_budget(of(budget), FOLLOWERS, flops, rows=text_tokens // 128)
    assert (config.model.layers, config.model.width) == SHAPES[0]


def test_text_without_end_changes_nothing() -> None:
    free = follow_budget(of("1h"), FOLLOWERS, LAPTOP)
    assert follow_budget(of("1h"), FOLLOWERS, LAPTOP, rows=10**9) == free


@given(
    flops=st.floats(8, 24),
    more=st.floats(1, 1e6),
    text=st.one_of(st.none(), st.floats(2, 13).map(lambda power: 10**power)),
)
def test_more_budget_never_chooses_a_smaller_size_nor_one_too_large_for_the_text(
    flops: float, more: float, text: float | None
) -> None:
    parameters = [5e5 * 1.6**n for n in range(14)]

    def sizes(compute: float) -> list[Candidate]:
        tokens = [compute / 6 / size for size in parameters]
        return [
            Candidate(int(size), read, None if text is None else read / text)
            for size, read in zip(parameters, tokens, strict=True)
        ]

    less, _ = best_of(sizes(10**flops))
    place, why = best_of(sizes(10**flops * more))
    assert less <= place
    richer = sizes(10**flops * more)
    needed = [tokens_per_parameter(size.parameters) * size.parameters for size in richer]
    if text is not None and place > 0:
        assert needed[place] <= MOST_EPOCHS * text * 1.0001
    if place > 0:
        assert needed[place] <= richer[place].tokens * 1.0001
    assert (f"at most {MOST_EPOCHS:g} times" in why) == any(
        size.tokens >= needed[n] for n, size in enumerate(richer) if n > place
    )


@pytest.mark.parametrize(
    "override", ["model.head_dim=128", "model.head_dim=96", "model.ffn_ratio=2.65625"]
)
def test_shapes_that_do_not_suit_the_rest_are_passed_over(override: str) -> None:
    config = load_config("crammed", [override], {"budget": {"limit": "1h"}}, speed=CARD)
    assert (config.model.layers, config.model.width) in SHAPES
    odd = with_values(of("1h"), {"model.head_dim": 56, "model.width": 56})
    with pytest.raises(InputError, match=r"no width .* model\.head_dim=56 .*: set model\.layers"):
        follow_budget(odd, set(FOLLOWERS) - {"model.head_dim"}, CARD)


def test_a_set_value_that_contradicts_what_follows_is_one_line() -> None:
    words = ["batch.adaptive.test=norm", "batch.quantum=256"]
    with pytest.raises(InputError, match=r"^batch\.rows=\d+: batch: adaptive adds .*or to less$"):
        load_config("crammed", words, {"budget": {"limit": "10m"}})


@given(st.integers(1, 4096))
def test_heads_divide_the_width_and_suit_rotary(width: int) -> None:
    size = head_dim(width)
    assert width % size == 0
    assert size == width or (size % 2 == 0 and size <= 64 and width // size >= 2)


@pytest.mark.parametrize(("width", "size"), [(96, 48), (100, 50), (320, 64)])
def test_a_width_that_is_typed_gets_heads_that_suit_it(width: int, size: int) -> None:
    config = load_config("crammed", [f"model.width={width}", "budget.limit=1h"], speed=CARD)
    assert (config.model.width, config.model.head_dim) == (width, size)


def test_only_muon_has_a_rate_for_matrices() -> None:
    ours = load_config("crammed", ["model.width=128", "model.layers=2"])
    assert ours.optim.name == "muon"
    assert ours.optim.matrix_lr == pytest.approx(sizing.MATRIX_RATE * ours.optim.lr)
    assert load_config("crammed", ["optim.name=adamw"]).optim.name == "adamw"


def test_the_rule_for_rates_is_for_relatives_of_adam() -> None:
    adam, radam, sgd = (
        load_config("crammed", [f"optim.name={name}", "model.width=128"]).optim
        for name in ("adamw", "radam", "sgd")
    )
    assert adam.lr == radam.lr == pytest.approx(1e-3 * 6**0.5)
    assert sgd.lr == SGDConfig().lr


@pytest.mark.parametrize("name", ["lamb", "adamw-scale"])
@pytest.mark.parametrize("recipe", ["crammed", "crammed-2022"])
def test_steps_relative_to_the_weights_have_a_rate_of_their_own(recipe: str, name: str) -> None:
    config = load_config(recipe, [f"optim.name={name}", "model.width=768"])
    assert config.optim.lr == type(config.optim).model_fields["lr"].default
    assert far_too_high(config) is None


def test_what_is_set_stays() -> None:
    config = follow_budget(of("1h"), ["batch.rows", "model.layers"], LAPTOP)
    assert config.model.width == RunConfig(recipe="any").model.width
    assert config.optim == RunConfig(recipe="any").optim


@given(st.floats(1e3, 1e12))
def test_updates_are_the_tokens_in_batches(count: float) -> None:
    """A budget in updates means as many tokens as its batches hold, where no bound cuts them."""
    updates = max(1, round(count / (sizing.BATCH_TOKENS * (count / 1e6) ** sizing.BATCH_POWER)))
    meant = tokens(of(f"{updates}updates"), LAPTOP)
    batch = sizing.BATCH_TOKENS * (meant / sizing.BATCH_AT) ** sizing.BATCH_POWER
    assert updates * batch == pytest.approx(meant, rel=1e-6)
    assert sizing.SMALLEST_BATCH <= batch_tokens(meant) <= sizing.LARGEST_BATCH


def test_a_key_without_a_rule_is_refused() -> None:
    with pytest.raises(InputError, match=r"no rule for optim\.beta1"):
        follow_budget(of("1h"), ["optim.beta1"], LAPTOP)


def test_the_default_recipe_follows_and_overrides_win() -> None:
    free = load_config("crammed", (), {"budget": {"limit": "10m"}})
    assert (free.model.layers, free.model.width) in SHAPES
    fixed = load_config("crammed", ["model.layers=3", "batch.rows=24", "optim.lr=5e-4"])
    assert (fixed.model.layers, fixed.batch.rows, fixed.optim.lr) == (3, 24, 5e-4)


def test_recipes_of_the_paper_do_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "crammed.rules.choosing.nominal_speed", lambda compute: pytest.fail("asked")
    )
    assert load_config("crammed-2022", ["budget.limit=1m"]).model.width == 768
    load_config("demo")


def test_the_nominal_speed_of_a_processor_is_that_of_its_cores() -> None:
    one = speed.nominal_speed(ComputeConfig(device="cpu", threads=1))
    assert speed.nominal_speed(ComputeConfig(device="cpu")) == cores() * one


def test_the_expected_time_is_that_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "nominal_speed", lambda compute: LAPTOP)
    assert expected_seconds(of("1h")) == 3600
    assert expected_seconds(of("1.6e15flops")) == pytest.approx(1e4)
    read = tokens(of("1h"), LAPTOP)  # what an hour reads takes an hour
    assert expected_seconds(of(f"{read}tok")) == pytest.approx(3600)
    config = of("100updates")
    tokens_read = 100 * config.batch.rows * config.data.row_length
    assert expected_seconds(config) == pytest.approx(3600 * tokens_read / read)


def test_what_grows_has_many_shapes() -> None:
    def shared(**values: object) -> float:
        return seconds_a_shape(with_values(of("1h"), {"batch.ramp": 0.0, **values}))

    assert shared() == 3600
    assert shared(**{"masking.final_rate": 0.1, "masking.stages": 3}) == 1200
    growing = {"batch.ramp": 0.5, "batch.rows": 64, "batch.quantum": 8}
    assert shared(**growing) == 3600 / 8
