from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from conftest import tiny
from crammed.config import ModelConfig, recipe_names
from crammed.data.corpus import Corpus
from crammed.device import Device
from crammed.errors import CrammedError, InputError
from crammed.export import native
from crammed.export.huggingface import export
from crammed.model.encoder import MaskedLM, SequenceClassifier, initialise
from crammed.model.final import FinalModel, final_model, load_final
from crammed.progress import SILENT
from crammed.rundir import RunDir
from crammed.train.loop import pretrain

FORMATS = {
    "crammed": "modernbert",
    "demo": "modernbert",
    "bert-base": "bert",
    "bert-original": "bert",
    "crammed-2022": "custom",
    "crammed-2022-v1": "custom",
    "izsak": "custom",
}


def untrained(tokenizer: Tokenizer, config: ModelConfig, seed: int = 0) -> FinalModel:
    """A model with weights far from their initial values."""
    model = MaskedLM(config, tokenizer.get_vocab_size())
    draw = torch.Generator().manual_seed(seed)
    initialise(model, 0.2, draw)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return final_model(model, config, 32, tokenizer)


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_trains_and_exports_with_equal_logits(
    tmp_path: Path, corpus: Corpus, cpu: Device, recipe: str
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    config = tiny(recipe, budget={"limit": "4updates"})
    with RunDir.open(tmp_path / "run", config) as run:
        trained = pretrain(config, corpus, run, cpu, SILENT)
    final = final_model(trained.model, config.model, 32, corpus.tokenizer)
    done = export(final, tmp_path / "export")
    assert done.format == FORMATS[recipe]
    assert done.difference is not None
    assert done.difference < 1e-5

    trust = done.format == "custom"
    tokenizer = AutoTokenizer.from_pretrained(done.path)
    model, info = AutoModelForMaskedLM.from_pretrained(
        done.path, trust_remote_code=trust, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    batch = tokenizer(
        ["The red fox counts [MASK] lanterns.", "at night"], return_tensors="pt", padding=True
    )
    assert ("token_type_ids" in batch) == (config.model.token_types > 0)
    ours_tokens = corpus.tokenizer.encode("The red fox counts [MASK] lanterns.")
    assert batch["input_ids"][0].tolist() == ours_tokens.ids
    with torch.inference_mode():
        theirs = model.eval()(**batch).logits
        ours = trained.model.eval()(batch["input_ids"], mask=batch["attention_mask"].bool())
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(theirs[mask], ours[mask], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("recipe", ["crammed", "bert-base", "crammed-2022"])
def test_classifiers_are_those_of_the_exported_class(
    tmp_path: Path, corpus: Corpus, recipe: str
) -> None:
    """Fine-tuning here and in transformers is of the same function, head and all."""
    from transformers import AutoModelForSequenceClassification

    config = tiny(recipe).model
    final = untrained(corpus.tokenizer, config)
    done = export(final, tmp_path / "export")
    theirs = AutoModelForSequenceClassification.from_pretrained(
        done.path, num_labels=3, trust_remote_code=done.format == "custom"
    ).eval()
    ours = SequenceClassifier(config, final.vocab_size, 3).eval()
    own = ours.state_dict().keys()
    ours.load_state_dict({n: w for n, w in final.weights.items() if n in own}, strict=False)
    pooler = theirs.bert.pooler.dense if recipe == "bert-base" else getattr(theirs, "pooler", None)
    with torch.no_grad():
        ours.classifier.weight.copy_(theirs.classifier.weight)
        ours.classifier.bias.copy_(theirs.classifier.bias)
        if pooler is not None:
            ours.pooler.weight.copy_(pooler.weight)
            ours.pooler.bias.copy_(pooler.bias)
    ids = torch.randint(5, final.vocab_size, (3, 20))
    mask = torch.arange(20).expand(3, 20) < torch.tensor([[20], [11], [4]])
    types = (torch.arange(20).expand(3, 20) >= 10).long() * (config.token_types > 0)
    extra: dict[str, Any] = {"token_type_ids": types} if config.token_types else {}
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=mask.long(), **extra).logits
        torch.testing.assert_close(ours(ids, mask, types), expected, rtol=1e-5, atol=1e-5)


def test_fill_mask_pipeline_and_base_model(tmp_path: Path, corpus: Corpus) -> None:
    from transformers import AutoModel, pipeline

    for recipe in ("crammed", "crammed-2022"):
        final = untrained(corpus.tokenizer, tiny(recipe).model)
        done = export(final, tmp_path / recipe)
        trust = done.format == "custom"
        fill = pipeline("fill-mask", str(done.path), trust_remote_code=trust)
        assert len(fill("two [MASK] at night", top_k=3)) == 3
        hidden = AutoModel.from_pretrained(done.path, trust_remote_code=trust).eval()(
            input_ids=torch.arange(5, 15)[None]
        )
        ours = final.masked_lm(torch.device("cpu")).encoder(torch.arange(5, 15)[None])
        torch.testing.assert_close(hidden.last_hidden_state, ours, rtol=1e-5, atol=1e-5)


def test_exported_configurations_carry_dropout_for_fine_tuning(
    tmp_path: Path, corpus: Corpus
) -> None:
    keys = {"crammed": "mlp_dropout", "bert-base": "hidden_dropout_prob", "crammed-2022": "dropout"}
    for recipe, name in keys.items():
        done = export(untrained(corpus.tokenizer, tiny(recipe).model), tmp_path / recipe)
        assert json.loads((done.path / "config.json").read_text())[name] == 0.1


def test_a_format_that_cannot_hold_the_model_is_refused(tmp_path: Path, corpus: Corpus) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed-2022").model)
    with pytest.raises(InputError, match=r"modernbert cannot hold.*positions is scaled-sinusoidal"):
        export(final, tmp_path / "out", "modernbert")
    assert not (tmp_path / "out").exists()
    done = export(final, tmp_path / "out")
    assert any("positions" in reason for reason in done.reasons)
    with pytest.raises(InputError, match="exists already"):
        export(final, tmp_path / "out")


def test_a_wrong_export_is_not_left_behind(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    original = native.modernbert_config

    def wrong(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
        return {**original(config, vocab_size), "hidden_activation": "relu"}

    monkeypatch.setattr(native, "modernbert_config", wrong)
    with pytest.raises(CrammedError, match="logits differ"):
        export(final, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_without_transformers_the_export_is_made_and_said_to_be_unchecked(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = export(untrained(corpus.tokenizer, tiny("crammed").model), tmp_path / "out")
    assert done.difference is None
    assert (done.path / "model.safetensors").exists()


def test_final_models_round_trip(tmp_path: Path, corpus: Corpus) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed-2022").model)
    final.save(tmp_path / "final")
    again = load_final(tmp_path)
    assert again.config == final.config
    assert again.weights.keys() == final.weights.keys()
    assert all(torch.equal(again.weights[n], w) for n, w in final.weights.items())
    with pytest.raises(InputError, match="no trained model"):
        load_final(tmp_path / "nowhere")
