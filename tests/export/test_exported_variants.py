"""Every value of the configuration's choices is exported, natively or with custom code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import create_model
from tokenizers import Tokenizer

from crammed.config import ModelConfig
from crammed.export import native
from crammed.export.huggingface import export
from crammed.model.trained import load_trained
from support.models import untrained, word_pieces
from support.variants import CHOICES, configuration, variants

TABLES = {"modernbert": native.MODERNBERT, "bert": native.BERT}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return word_pieces()


@pytest.mark.parametrize("config", [*variants("crammed"), *variants("bert-base")])
def test_exports_compute_the_same_and_models_come_back(
    tmp_path: Path, tokenizer: Tokenizer, config: ModelConfig
) -> None:
    untrained(tokenizer, config).save(tmp_path / "run" / "final")
    final = load_trained(tmp_path / "run")
    assert final.config == config
    done = export(final, tmp_path / "export")
    assert done.difference is not None
    assert done.difference < 1e-5
    if done.format == "custom":
        assert [reason.split(":")[0] for reason in done.reasons] == ["not modernbert", "not bert"]


@pytest.mark.parametrize("table", TABLES)
def test_choices_are_held_value_by_value(table: str) -> None:
    """Any number may be held, but a value that someone adds to a choice is not held by itself."""
    for name, values in CHOICES.items():
        held = TABLES[table].get(name)
        assert held is None or set(held) <= set(values)
    assert TABLES[table].keys() <= ModelConfig.model_fields.keys()


def test_what_nobody_has_thought_of_is_not_exported_natively(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for recipe, table in (("crammed", native.MODERNBERT), ("bert-base", native.BERT)):
        fields: dict[str, Any] = {
            "flavour": (Literal["plain", "new"], "plain"),
            "slope": (float, 1),
        }
        extended = create_model("ModelConfig", __base__=ModelConfig, **fields)
        monkeypatch.setattr(native, "ModelConfig", extended)
        base = configuration(recipe).model_dump()
        for new, reason in (
            ({}, []),
            ({"flavour": "new"}, ["model.flavour is new, not plain"]),
            ({"slope": 2.0}, ["model.slope is 2.0, not 1"]),
            ({"activation": "relu2", "slope": 2.0}, ["model.slope is 2.0, not 1"]),
        ):
            assert native._unmet(extended.model_validate({**base, **new}), table) == reason


CODE = Path(native.__file__).parents[1]


def imports_of(file: Path) -> set[str]:
    return set(re.findall(r"^from \.(\w+) import", file.read_text("utf-8"), re.MULTILINE))


def test_the_copied_code_is_complete_and_needs_nothing_else(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    done = export(untrained(tokenizer, configuration("crammed-2022")), tmp_path / "export")
    files = {file.stem: file for file in done.path.glob("*.py")}
    needed = set().union(*map(imports_of, files.values()))
    assert files.keys() == needed | {"modeling_crammed"}
    # What old versions of transformers copy into their cache.
    assert imports_of(files["modeling_crammed"]) == needed
    for name in needed:
        text = files[name].read_text("utf-8")
        assert text == (CODE / "model" / f"{name}.py").read_text("utf-8")
        outside = set(re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE))
        library = {"__future__", "collections", "dataclasses", "itertools", "math", "typing"}
        assert outside <= {*library, "torch"}


def test_custom_models_start_as_ours_do(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Where transformers makes a new model, as for training from scratch."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    config = configuration("izsak", positions="scaled-sinusoidal")
    done = export(untrained(tokenizer, config), tmp_path / "export")
    made = AutoModelForMaskedLM.from_config(
        AutoConfig.from_pretrained(done.path, trust_remote_code=True), trust_remote_code=True
    )
    for name, parameter in made.named_parameters():
        if "norm" in name and name.endswith("weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif name.endswith("position_scale"):
            assert parameter.item() == pytest.approx(config.width**-0.5)
        else:
            assert parameter.std().item() == pytest.approx(config.init_std, rel=0.2), name


def test_native_configurations_stay_as_they_are(tmp_path: Path, tokenizer: Tokenizer) -> None:
    kept = json.loads((Path(__file__).parent / "native_configs.json").read_text("utf-8"))
    for recipe, expected in kept.items():
        done = export(untrained(tokenizer, configuration(recipe)), tmp_path / recipe)
        assert json.loads((done.path / "config.json").read_text("utf-8")) == expected
