"""Sections that come in several kinds: what another kind keeps, and how faults are explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from crammed.config import RunConfig
from crammed.config.kinds import kinds_of
from crammed.config.optim import AdafactorConfig, AdamConfig, AdamWConfig, MuonConfig, SGDConfig
from crammed.errors import InputError
from crammed.rules.recipe import load_config
from crammed.schedule import Cosine, Triangle

OPTIMIZERS = ", ".join(f"'{name}'" for name in kinds_of(RunConfig)["optim"].kinds)


def refused(*overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_config("crammed-2022", overrides)
    return str(caught.value)


def test_the_choices_of_a_run() -> None:
    choices = kinds_of(RunConfig)
    assert set(choices) == {"loss", "objective", "optim", "schedule"}
    assert (choices["optim"].default, choices["schedule"].default) == ("adamw", "triangle")
    assert choices["optim"].kinds["muon"] is MuonConfig
    assert choices["schedule"].kinds["cosine"] is Cosine
    for name, choice in choices.items():
        assert set(choice.kinds.values()) == set(get_args(RunConfig.model_fields[name].annotation))


def test_another_optimizer_keeps_what_both_have() -> None:
    base = load_config("crammed-2022").optim
    assert isinstance(base, AdamWConfig)
    muon = load_config("crammed-2022", ["optim.name=muon"]).optim
    assert muon == MuonConfig(lr=base.lr, beta2=base.beta2, eps=base.eps, clip=base.clip)
    faster = load_config("crammed-2022", ["optim.name=muon", "optim.momentum=0.5"]).optim
    assert isinstance(faster, MuonConfig)
    assert faster.momentum == 0.5
    original = load_config("bert-original").optim  # which extends bert-base, with AdamW
    assert original == AdamConfig(lr=1e-4, beta2=0.999, eps=1e-8, clip=None)


@pytest.mark.parametrize("kind", [SGDConfig, AdafactorConfig])
def test_a_rate_is_kept_where_it_means_the_same(kind: type[AdafactorConfig | SGDConfig]) -> None:
    name = kind().name
    assert load_config("crammed-2022", ["optim.name=radam"]).optim.lr == 1e-3
    other = load_config("crammed-2022", [f"optim.name={name}", "optim.clip=0.25"]).optim
    assert other == kind(clip=0.25)
    # Their rates are larger, and a decay is multiplied with the rate.
    assert (load_config("crammed-2022").optim.weight_decay, other.weight_decay) == (0.01, 0.0)
    set_ = load_config("crammed-2022", [f"optim.name={name}", "optim.lr=0.125"]).optim
    assert set_ == kind(lr=0.125)
    # Momentum of gradient descent is not that of Muon's averages.
    muon = load_config("crammed", [f"optim.name={name}", "budget.limit=1e6tok"]).optim
    assert muon == kind()


def test_options_that_the_new_optimizer_lacks_are_dropped(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: crammed-2022\noptim: {name: muon, matrix_lr: 0.5, lr: 3e-3}\n")
    back = load_config(str(mine), ["optim.name=adamw"]).optim
    assert back == AdamWConfig(lr=3e-3)


def test_a_section_that_does_not_name_its_kind_has_that_of_the_default(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("optim: {lr: 3e-3}\nschedule: {start: 0.5}\n")
    config = load_config(str(mine))
    assert config.optim == AdamWConfig(lr=3e-3)
    assert config.schedule == Triangle(start=0.5)
    assert load_config(str(mine), ["schedule.shape=triangle"]).schedule == Triangle(start=0.5)
    assert load_config(str(mine), ["schedule.shape=cosine"]).schedule == Cosine()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "optim.momentum=0.5",
            "optim.momentum: no such key with optim.name=adamw; "
            "keys here: beta1, beta2, clip, embedding_lr, eps, lr, name, weight_decay",
        ),
        (
            "optim.weightdecay=0.5",
            "optim.weightdecay: no such key with optim.name=adamw; "
            "did you mean optim.weight_decay? "
            "keys here: beta1, beta2, clip, embedding_lr, eps, lr, name, weight_decay",
        ),
        ("optim.name=shampoo", f"optim.name: must be one of {OPTIMIZERS}, not 'shampoo'"),
        ("optim.name=[1]", f"optim.name: must be one of {OPTIMIZERS}, not '[1]'"),
        ("optim=3", "optim: must be a section of keys, not 3"),
        ("optim.beta1=1.5", "optim.beta1: input should be less than 1, not 1.5"),
        (
            "schedule.strat=0.5",
            "schedule.strat: no such key with schedule.shape=triangle; "
            "did you mean schedule.start? keys here: falling, shape, start",
        ),
        ("schedule.start=x", "schedule.start: input should be a valid number, not 'x'"),
    ],
)
def test_faults_name_the_kind_and_its_keys(override: str, message: str) -> None:
    assert refused(override) == f"recipe crammed-2022: {message}"


def test_a_fault_of_a_whole_section_names_the_section() -> None:
    words = ("schedule.shape=constant", "schedule.warmup=0.6", "schedule.cooldown=0.6")
    assert "schedule: warmup + cooldown is more" in refused(*words)


def test_optim_is_what_its_kind_reads_and_nothing_else() -> None:
    saved: dict[str, Any] = load_config("crammed-2022").model_dump(mode="json")
    assert saved["optim"] == {
        **{"name": "adamw", "lr": 1e-3, "embedding_lr": None, "weight_decay": 0.01, "clip": 0.5},
        **{"beta1": 0.9, "beta2": 0.98, "eps": 1e-12},
    }
