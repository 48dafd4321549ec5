"""What a recipe leaves open follows from the speed of the device, measured where it is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crammed.config import RunConfig
from crammed.errors import InputError
from crammed.rules import choosing
from crammed.rules.choosing import Asked, choose, reasons, shape_of, why_size
from crammed.rules.recipe import ask
from crammed.rules.sizing import FOLLOWERS, SHAPES, follow_budget, with_values

LAPTOP = 1.6e11


@pytest.fixture(autouse=True)
def nominal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "nominal_speed", lambda compute: LAPTOP)


def asked(limit: str = "1h") -> Asked:
    return Asked(with_values(RunConfig(recipe="any"), {"budget.limit": limit}), FOLLOWERS)


def place(config: RunConfig) -> int:
    return SHAPES.index(shape_of(config))


class Device:
    """One whose speed depends on the place of the size in the list; remembers what is asked."""

    def __init__(self, speed: Callable[[int], float]) -> None:
        self.speed = speed
        self.measured: list[int] = []

    def __call__(self, config: RunConfig) -> float:
        self.measured.append(place(config))
        return self.speed(place(config))


def test_a_loaded_machine_gets_a_smaller_model() -> None:
    idle, loaded = Device(lambda _: LAPTOP), Device(lambda _: LAPTOP / 8)
    free, busy = choose(asked(), None, idle), choose(asked(), None, loaded)
    assert place(busy.config) < place(free.config)
    assert busy.config.batch.rows <= free.config.batch.rows
    for chosen, device, speed in ((free, idle, LAPTOP), (busy, loaded, LAPTOP / 8)):
        assert chosen.choice.flops_per_second == speed
        assert chosen.choice.follows == FOLLOWERS
        assert chosen.config == follow_budget(asked().config, FOLLOWERS, speed)
        assert device.measured[-1] == place(chosen.config)  # at the size that is trained
    assert len(idle.measured) == 1
    assert len(loaded.measured) == 2


def test_of_two_sizes_that_choose_each_other_the_smaller_is_taken() -> None:
    first = place(choose(asked(), None, Device(lambda _: LAPTOP)).config)
    larger_is_slower = Device(lambda n: LAPTOP / 8 if n >= first else 2 * LAPTOP)
    chosen = choose(asked(), None, larger_is_slower)
    assert place(chosen.config) == min(larger_is_slower.measured)
    assert chosen.choice.flops_per_second == LAPTOP / 8
    larger_is_faster = Device(lambda n: 8 * LAPTOP if n <= first else LAPTOP)
    assert place(choose(asked(), None, larger_is_faster).config) == first


@given(st.lists(st.floats(8, 16), min_size=len(SHAPES), max_size=len(SHAPES)))
def test_measuring_ends_whatever_it_finds(powers: list[float]) -> None:
    device = Device(lambda n: 10 ** powers[n])
    chosen = choose(asked(), None, device)
    assert 1 <= len(device.measured) <= choosing.MOST_MEASURED
    assert len({*device.measured}) == len(device.measured)
    assert chosen.choice.flops_per_second in [10 ** powers[n] for n in device.measured]


@pytest.mark.parametrize("limit", ["3e7tok", "1e15flop", "500updates"])
def test_budgets_of_work_measure_nothing(limit: str) -> None:
    def never(config: RunConfig) -> float:
        pytest.fail("measured")

    chosen = choose(asked(limit), None, never)
    assert chosen.config == follow_budget(asked(limit).config, FOLLOWERS, 1.0)
    assert chosen.choice.flops_per_second is None
    fixed = Asked(asked("1h").config)
    assert choose(fixed, None, never).config == fixed.config


def test_updates_of_a_batch_that_is_typed_count_as_its_tokens() -> None:
    few, many = (
        choose(ask("crammed", words, {"budget": {"limit": limit}}), None, lambda config: LAPTOP)
        for words, limit in ((["batch.rows=512"], "500updates"), ([], f"{500 * 512 * 128}tok"))
    )
    assert shape_of(few.config) == shape_of(many.config) != SHAPES[0]
    assert why_size(few, None) == why_size(many, None)
    free = choose(asked("500updates"), None, lambda config: LAPTOP)  # whose batch is small
    assert shape_of(free.config) == SHAPES[0]
    for chosen in (few, free):
        assert reasons(chosen.config, chosen.choice, None).startswith(why_size(chosen, None))
    layers, width = shape_of(few.config)
    typed = ["batch.rows=512", f"model.layers={layers}", f"model.width={width}"]
    set_so = choose(ask("crammed", typed, {"budget": {"limit": "500updates"}}), None, lambda _: 1.0)
    assert "as set" not in reasons(set_so.config, set_so.choice, None)


@pytest.mark.parametrize("limit", ["1h", "1e14flop"])
def test_a_corpus_is_counted_with_its_own_vocabulary(limit: str) -> None:
    """What is saved is the vocabulary that was asked for."""
    follows = tuple(key for key in FOLLOWERS if key != "tokenizer.vocab_size")
    wide = replace(asked(limit), open=follows)
    narrow = replace(wide, config=with_values(wide.config, {"tokenizer.vocab_size": 100}))
    speed = LAPTOP / 8
    for rows in (None, 3000):
        chosen = choose(wide.of_corpus(100), rows, lambda _: speed)
        expected = choose(narrow, rows, lambda config: speed)
        assert chosen.config.tokenizer == wide.config.tokenizer
        assert chosen.choice == expected.choice
        assert chosen.values == expected.values
        assert wide.of_corpus(100).nominally(rows, speed) == chosen.config
    assert (
        choose(wide, None, lambda _: speed).values != choose(narrow, None, lambda _: speed).values
    )


def test_a_recipe_that_sets_its_size_is_fitted_if_that_is_asked_for() -> None:
    hour = {"budget": {"limit": "1h"}}
    plain = ask("crammed-2022", [], hour)
    assert not plain.open
    words = ["optim.lr=5e-4", "model.head_dim=32"]
    fitted = choose(ask("crammed-2022", words, hour, fit=True), None, lambda config: LAPTOP)
    assert "optim.lr" not in fitted.choice.follows
    assert fitted.config.optim.lr == 5e-4
    assert fitted.config.model.width < plain.config.model.width
    assert fitted.config.tokenizer.vocab_size < plain.config.tokenizer.vocab_size
    assert fitted.config.model.positions == plain.config.model.positions


def test_keys_that_are_typed_follow_also_where_the_recipe_sets_them() -> None:
    hour = {"budget": {"limit": "1e15flop"}}
    few = ask("crammed-2022", ["follows_budget=[batch.rows, optim.lr]"], hour)
    whole = ask("crammed-2022", [], hour, fit=True)
    assert few.open == ("batch.rows", "optim.lr")
    assert few.nominally().batch.rows < few.config.batch.rows
    assert shape_of(few.nominally()) == shape_of(few.config) != shape_of(whole.nominally())
    typed = ["follows_budget=[batch.rows, optim.lr, batch.rows]", "optim.lr=1e-4"]
    assert ask("crammed-2022", typed, hour).open == ("batch.rows",)
    names = "follows_budget=[model.layers, model.width, model.head_dim, tokenizer.vocab_size]"
    rest = ["batch.rows=8", "optim.lr=1e-3", "optim.matrix_lr=2e-3"]
    default = ask("crammed", [names, *rest], hour).nominally()
    assert default.model == ask("crammed", [], hour).nominally().model


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["follows_budget=[model.width]"], "leaves model.layers, model.head_dim, tokenizer.vocab"),
        (["follows_budget=[]", "model.width=64"], "leaves model.layers, .* without a value: list"),
        (["follows_budget=[budget.limit]"], "there is no rule for budget.limit; the keys with"),
        (["follows_budget=[optim.lr]", "optim.name=sgd"], "there is no rule for optim.lr of sgd"),
        (["follows_budget=[optim.matrix_lr]", "optim.name=adamw"], "optim.matrix_lr of adamw"),
        (["follows_budget=5"], "must be a list of keys"),
    ],
)
def test_no_key_is_left_without_a_rule_or_a_value(words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ask("crammed", words, {"budget": {"limit": "1h"}})


def test_heads_of_the_size_that_was_chosen_rule_out_no_other() -> None:
    """Heads of a model of width 192 fit hardly another width."""
    wanted = ask("crammed", [], {"budget": {"limit": "5e14flop"}})
    chosen = choose(wanted, None, lambda config: pytest.fail("measured"))
    assert (shape_of(chosen.config), chosen.config.model.head_dim) == ((4, 192), 64)
    limit = {"budget": {"limit": "1e14flop"}}  # of which a narrower model is the largest
    poorer = ask("crammed", ["model.layers=4", "model.width=192"], limit)
    set_so = choose(poorer, None, lambda config: pytest.fail("measured"))
    said = reasons(set_so.config, set_so.choice, None)
    assert "as set; the rule would take 4 x 128: the largest that gets 10 tokens" in said
    less = chosen.config.model_copy(update={"budget": set_so.config.budget})
    assert "no size" not in why_size(type(chosen)(less, chosen.choice), None)
    assert "as chosen when the run began" in reasons(less, chosen.choice, None)
