"""Encoders of others in our engine: the updates are those of transformers, or it leaves them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from crammed.adaptation.adapting import Adaptation, ask_for
from crammed.adaptation.objective import step_of
from crammed.adaptation.original import Original
from crammed.adaptation.ours import give_back
from crammed.adaptation.shape import outline
from crammed.budget import Work
from crammed.data.corpus import Corpus
from crammed.data.preparing.driver import prepare
from crammed.errors import InputError
from crammed.export.huggingface import export
from crammed.interface.lines import next_line
from crammed.machine.device import Device
from crammed.model.encoder import MaskedLM
from crammed.rules.sizing import with_values
from crammed.terminal.progress import SILENT
from crammed.training.update.planned import Update
from support.adapting import SMALL, adapt, save_family
from support.models import save_model, untrained
from support.text import documents, tiny, write_rows


def saved(folder: Path, kind: str, corpus: Corpus) -> Path:
    """A small model that our engine holds: a BERT, a ModernBERT, or one with code of our own."""
    if kind == "bert":
        return save_family(folder, kind)
    shape = tiny(kind).model
    if kind == "crammed":  # without, ModernBERT has biases that ours has not, which begin at 0
        shape = shape.model_copy(update={"linear_bias": True})
    return export(untrained(corpus.tokenizer, shape), folder, "auto").path


def changed(folder: Path, **values: Any) -> Original:
    """The model in a folder with other values in its config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    return Original.find(str(folder))


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("bert", "cross-entropy"),
        ("bert", "balanced"),
        ("crammed", "cross-entropy"),
        ("crammed-2022", "cross-entropy"),
    ],
)
def test_an_update_is_that_of_the_model_of_transformers(
    tmp_path: Path, text_file: Path, corpus: Corpus, cpu: Device, kind: str, loss: str
) -> None:
    original = Original.find(str(saved(tmp_path / "model", kind, corpus)))
    fixed = {"data": {"sources": [str(text_file)]}}
    words = [*SMALL, "model.dropout=0", "optim.lr=1e-3", f"loss.name={loss}"]
    config = ask_for(original, words, fixed).config
    tokenizer = original.tokenizer_config(tmp_path / "tokenizer", config.tokenizer)
    text = prepare(config.data, tokenizer, tmp_path / "corpus", SILENT)
    parts = dataclasses.replace(cpu, microbatch_rows=3)  # updates of two unequal parts
    ours = Adaptation(original).build(config, text, parts)
    assert isinstance(ours.model, MaskedLM)
    theirs = step_of(original.model(config), config, text, parts)
    for step in (ours, theirs):
        assert (step.objective.weights is None) == (loss != "balanced")
    rows = torch.from_numpy(text.read(torch.arange(4).numpy()))
    for number in range(2):
        for step in (ours, theirs):
            step.gradients(rows, Update(number, 4 * number, 4, 0.5, 0.15, Work()))
            step.apply(0.5)
    expected = {name: p.detach().clone() for name, p in theirs.model.model.named_parameters()}
    before = original.model(config)
    began = {name: p.detach().clone() for name, p in before.model.named_parameters()}
    give_back(ours.model, config.model, before)
    for name, parameter in before.model.named_parameters():
        torch.testing.assert_close(parameter, expected[name], rtol=1e-4, atol=1e-5, msg=name)
    assert sum(not torch.equal(began[n], p) for n, p in before.model.named_parameters()) > 10


def test_a_run_ends_in_the_class_that_it_began_with(
    tmp_path: Path, text_file: Path, corpus: Corpus
) -> None:
    folder = saved(tmp_path / "model", "crammed", corpus)
    result = adapt(folder, text_file, tmp_path / "run", budget="2updates")
    assert result["export"]["format"] == "ModernBertForMaskedLM"
    assert result["export"]["logit_difference"] < 1e-5
    one, other = (
        load_file(each / "model.safetensors") for each in (folder, tmp_path / "run" / "export")
    )
    assert one.keys() == other.keys()
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert Original.find(str(tmp_path / "run")).exact is not None


def test_other_architectures_are_left_to_transformers(tmp_path: Path, corpus: Corpus) -> None:
    for family in ("modernbert", "distilbert", "deberta"):  # the first with attention to neighbours
        assert Original.find(str(save_family(tmp_path / family, family))).exact is None
    bert = save_family(tmp_path / "bert", "bert")
    assert Original.find(str(bert)).exact is not None
    assert changed(bert, attention_probs_dropout_prob=0.2).exact is None
    assert changed(bert, attention_probs_dropout_prob=0.1).exact is not None
    assert changed(bert, hidden_act="tanh").exact is None
    assert changed(bert, hidden_act="gelu", tie_word_embeddings=False).exact is None

    shape = tiny("crammed").model
    ours = export(untrained(corpus.tokenizer, shape), tmp_path / "ours", "auto").path
    assert changed(ours, initializer_cutoff_factor=3.0).exact is not None
    weights = load_file(ours / "model.safetensors")
    weights["model.layers.0.attn.Wo.bias"] += 1.0  # ours has no such parameter
    save_file(weights, ours / "model.safetensors", metadata={"format": "pt"})
    assert Original.find(str(ours)).exact is None


def test_a_run_that_began_with_the_model_of_transformers_goes_on_with_it(tmp_path: Path) -> None:
    original = Original.find(str(save_model(tmp_path / "bert", "bert")))
    config = ask_for(original, list(SMALL), {}).config
    assert isinstance(original.own(config), MaskedLM)
    backbone = original.backbone
    before = outline(backbone.outline(), backbone.config, backbone.max_length, 0.1)
    fresh = {f"model.{k}": v for k, v in tiny("bert-base").model.model_dump(mode="json").items()}
    older = with_values(config, {**fresh, "model.token_types": 0, **before})
    assert original.own(older) is None
    assert not original.is_ours(older)


def write_order(folder: Path) -> None:
    """A task like one that runs make themselves, of fewer rows."""
    rows = [{"text": text[:30], "label": n % 2} for n, text in enumerate(documents(40))]
    for split in ("train", "validation"):
        write_rows(folder / "docs-order" / f"{split}.jsonl", rows)


def test_our_own_models_need_no_trust_and_altered_code_is_refused(
    tmp_path: Path, corpus: Corpus, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crammed.pipeline.write_tasks", write_order)
    tasks = ("finetune.tasks=[docs-order]", "finetune.seeds=1", "finetune.epochs=1")
    folder = saved(tmp_path / "ours", "crammed-2022", corpus)
    result = adapt(folder, text_file, tmp_path / "run", *tasks, budget="2updates")
    assert result["export"]["format"] == "CrammedForMaskedLM"
    assert result["export"]["logit_difference"] < 1e-5
    assert 0.0 <= result["tasks"]["docs-order"]["median"] <= 100.0  # it has no score if it failed
    assert "trust_remote_code=True" in next_line(result)[1]
    assert Original.find(str(tmp_path / "run")).ours
    one, other = (
        load_file(each / "model.safetensors") for each in (folder, tmp_path / "run" / "export")
    )
    assert one.keys() == other.keys()
    assert torch.equal(other["pooler.weight"], one["pooler.weight"])
    with (folder / "encoder.py").open("a") as file:
        file.write("print('altered')\n")
    with pytest.raises(InputError, match=r"Python code.* which adapt and decide never do"):
        Original.find(str(folder))
