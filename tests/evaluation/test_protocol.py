"""Tests of protocols of fine-tuning: their files, and what follows from a model's width."""

from __future__ import annotations

from pathlib import Path

import pytest

from crammed.config import Protocol
from crammed.config.finetuning import dropout_at
from crammed.errors import InputError
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.protocol import load_protocol
from crammed.files.writing import write_json
from crammed.rules.recipe import load_config
from crammed.terminal.progress import SILENT
from support.evaluation import Ask
from support.tasks import write_task
from support.text import tiny


def test_protocols_are_files_of_one_form(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="glue-long, knn-probe, linear-probe, small, superglue"):
        load_protocol("none")
    paper, bert = load_protocol("cramming"), load_protocol("bert-base")
    assert (paper.epochs, paper.batch, paper.lr, paper.seeds) == (5, 16, 4e-5, 5)
    assert (paper.warmup, paper.schedule, paper.max_length) == (0.1, "cosine", 128)
    assert paper.at_width(768) == Protocol()  # to which published scores are comparable
    assert (bert.lr, bert.batch, bert.epochs) == (2e-5, 32, 5)
    own = tmp_path / "own.yaml"
    own.write_text("{lr: 1e-4, epoch: 3}")
    with pytest.raises(InputError, match="epoch: no such key; did you mean epochs"):
        load_protocol(str(own))
    own.write_text("max_length: 4")  # which special tokens alone may fill
    with pytest.raises(InputError, match=r"max_length: .* greater than or equal to 8, not 4"):
        load_protocol(str(own))


def test_narrow_models_learn_faster_where_the_protocol_says_so(tmp_path: Path, ask: Ask) -> None:
    """The same by a run's own protocol as by one that is named."""
    write_task(tmp_path, "cola", rows=40)
    file, config = tmp_path / "model" / "config.json", tiny("crammed")
    named = evaluate(ask(protocol="cramming", seeds=1, untrained=False), SILENT)
    finetune = config.finetune.model_copy(update={"epochs": 5})
    values = config.model_copy(update={"finetune": finetune}).model_dump(mode="json")
    write_json(file, {**values, "finetune": {**values["finetune"], "lr_width": 768}})
    request = ask(protocol=None, into=tmp_path / "own", seeds=1, untrained=False)
    own = evaluate(request, SILENT)
    width = config.model.width
    assert named["protocol"]["lr"] == load_protocol("cramming").at_width(width).lr > 4e-5
    assert own["protocol"]["lr"] == config.finetune.at_width(width).lr
    assert load_protocol("bert-base").at_width(width).lr == 2e-5
    assert load_protocol("cramming").at_width(None).lr == 4e-5
    assert load_protocol("cramming").at_width(1024).lr == 4e-5


def test_the_rate_follows_the_width(tmp_path: Path) -> None:
    at = load_protocol("cramming").at_width
    for width, rate in ((64, 1.732e-3), (128, 1.225e-3), (192, 1e-3), (256, 2.078e-4)):
        assert at(width).lr == pytest.approx(rate, rel=1e-3)
    own = tmp_path / "own.yaml"
    own.write_text("{lr: 8e-5, lr_width: 768, lr_power: by-width}")
    assert load_protocol(str(own)).at_width(192).lr == pytest.approx(2e-3)
    for meant in ("null", "64"):
        own.write_text(f"{{lr: 1e-3, lr_width: {meant}, lr_power: by-width}}")
        assert load_protocol(str(own)).at_width(128).lr == 1e-3
    own.write_text("{lr: 1e-3, lr_width: 768, lr_power: 1000}")
    with pytest.raises(InputError, match="lr_power: input should be less than or equal to 10"):
        load_protocol(str(own))
    own.write_text("{lr: 1e-3, lr_width: 768}")
    assert load_protocol(str(own)).at_width(64).lr == pytest.approx(0.012)


def test_narrow_models_of_the_default_recipe_read_two_texts_apart_and_have_no_dropout() -> None:
    own = load_config("crammed").finetune
    widths = (64, 255, 256, 768, None)
    assert [own.at_width(width).pairs for width in widths] == ["apart"] * 2 + ["joint"] * 3
    assert [own.at_width(width).dropout for width in widths] == [0.0] * 2 + [0.1] * 3
    assert [dropout_at(width) for width in widths] == [0.0] * 2 + [0.1] * 3
    assert own.at_width(64).hyperparameters()["pairs"] == "apart"
    assert own.at_width(64).hyperparameters()["dropout"] == 0.0
    assert load_config("crammed-2022").finetune.at_width(64).dropout == 0.1
    assert load_config("crammed", ["finetune.dropout=0.2"]).finetune.at_width(64).dropout == 0.2
    assert load_config("crammed-2022").finetune.at_width(64).pairs == "joint"
    assert load_protocol("small").at_width(768).pairs == "apart"  # named, so for all alike
