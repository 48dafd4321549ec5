"""Configurations that older versions saved are read as if this one had saved them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from crammed.config import RunConfig
from crammed.config.migration import migrate
from crammed.errors import InputError
from crammed.rules.recipe import load_config
from crammed.runs.directory import RunDir, read_config
from support.text import tiny


def as_saved_before(config: RunConfig) -> dict[str, Any]:
    """The configuration as it was saved when every optimizer had all options."""
    values = config.model_dump(mode="json")
    values["optim"] = {"matrix_lr": 0.01, "momentum": 0.95, **values["optim"]}
    return values


@pytest.mark.parametrize("name", ["adamw", "adam", "muon"])
def test_options_that_an_optimizer_does_not_read_are_dropped(name: str) -> None:
    config = load_config("crammed-2022", [f"optim.name={name}"])
    again = RunConfig.model_validate(migrate(as_saved_before(config)))
    assert again == config
    assert again.identity() == config.identity()


def test_a_run_with_the_former_kernels_is_read_and_the_word_is_refused() -> None:
    config = load_config("crammed-2022")
    values = config.model_dump(mode="json")
    values["compute"]["kernels"] = "triton"
    assert RunConfig.model_validate(migrate(values)) == config
    with pytest.raises(InputError, match=r"kernels: input should be 'auto' or 'compiler', not 't"):
        load_config("crammed-2022", ["compute.kernels=triton"])


def test_todays_configurations_stay_as_they_are() -> None:
    values = load_config("bert-original").model_dump(mode="json")
    before = json.dumps(values)
    assert json.dumps(migrate(values)) == before
    assert migrate({}) == {}
    assert json.dumps(values) == before  # what is given is not changed


def test_unknown_keys_are_still_refused() -> None:
    values = as_saved_before(load_config("crammed-2022"))
    values["optim"]["nesterov"] = True
    with pytest.raises(ValidationError, match="nesterov"):
        RunConfig.model_validate(migrate(values))


def test_a_run_of_an_older_version_is_opened_with_the_same_command(tmp_path: Path) -> None:
    config = tiny()
    path = tmp_path / "run"
    with RunDir.open(path, config):
        pass
    (path / "config.json").write_text(json.dumps(as_saved_before(config)))
    assert read_config(path) == config
    with RunDir.open(path, config):
        pass
    with pytest.raises(InputError, match="seed: 0 there, 1 here"):
        RunDir.open(path, tiny("crammed", "seed=1"))


@pytest.mark.parametrize("text", ["", "[1, 2]", '"words"', "{", "null"])
def test_what_is_no_configuration_is_no_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"is not a run: it has no readable config\.json"):
        read_config(tmp_path)


def test_recipes_are_not_migrated(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: crammed-2022\noptim: {momentum: 0.9}\n")
    with pytest.raises(InputError, match=r"optim\.momentum: no such key with optim\.name=adamw"):
        load_config(str(mine))
