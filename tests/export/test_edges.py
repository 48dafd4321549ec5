"""Exports hold where people use them otherwise than we do."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from crammed.errors import CrammedError, InputError
from crammed.export import onnx
from crammed.export.huggingface import export
from support.models import from_auto, untrained, word_pieces
from support.variants import configuration

RECIPES = ("crammed", "bert-base", "crammed-2022", "izsak")


def exported(folder: Path, recipe: str, **fields: Any) -> Path:
    final = untrained(word_pieces(), configuration(recipe, dropout=0.0, **fields))
    return export(final, folder / f"{recipe}-export").path


@pytest.mark.parametrize("recipe", RECIPES)
def test_only_the_classifier_of_a_loaded_model_is_random(tmp_path: Path, recipe: str) -> None:
    """So adapters such as LoRA, which save it and themselves, find the rest again."""
    folder, again = exported(tmp_path, recipe), exported(tmp_path / "again", recipe)
    saved = "model.safetensors"
    assert (folder / saved).read_bytes() == (again / saved).read_bytes()
    first, second = (
        from_auto(folder, "ModelForSequenceClassification", seed).state_dict() for seed in (1, 2)
    )
    differing = {name for name, weight in first.items() if not torch.equal(weight, second[name])}
    assert differing == {"classifier.weight"}
    poolers = [weight for name, weight in first.items() if "pooler" in name and weight.ndim > 1]
    assert len(poolers) == (recipe != "crammed")
    for weight in poolers:
        assert weight.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("recipe", ["crammed-2022", "izsak"])
@pytest.mark.parametrize("head", ["Model", "ModelForMaskedLM", "ModelForTokenClassification"])
def test_custom_code_reports_no_weights_that_a_class_has_no_use_for(
    tmp_path: Path, recipe: str, head: str
) -> None:
    folder = exported(tmp_path, recipe)
    _, info = from_auto(folder, head, output_loading_info=True)
    assert not info["unexpected_keys"]
    assert all(name.startswith("classifier.") for name in info["missing_keys"])


@pytest.mark.parametrize("recipe", ["bert-base", "crammed-2022"])
def test_pairs_of_texts_do_without_types_where_there_is_only_one(
    tmp_path: Path, recipe: str
) -> None:
    folder = exported(tmp_path, recipe, token_types=1)
    pair = from_auto(folder, "Tokenizer")("The red fox", "counts", return_tensors="pt")
    assert pair.keys() == {"input_ids", "attention_mask"}
    assert from_auto(folder, "Model")(**pair)[0].isfinite().all()


QUANTISED = pytest.mark.filterwarnings("ignore:torch.(ao.quantization|quantize_per_tensor)")


@QUANTISED
@pytest.mark.parametrize("recipe", ["crammed-2022", "izsak"])
def test_every_matrix_product_can_be_quantised(tmp_path: Path, recipe: str) -> None:
    model = from_auto(exported(tmp_path, recipe), "ModelForSequenceClassification").eval()
    products = sum(isinstance(part, torch.nn.Linear) for part in model.modules())
    quantised = torch.ao.quantization.quantize_dynamic(model, dtype=torch.qint8)
    left = sum(isinstance(part, torch.nn.Linear) for part in quantised.modules())
    assert products > 8
    assert left == 0
    ids = torch.randint(5, 100, (64, 9), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        exact, rounded = model(ids).logits, quantised(ids).logits
    assert not torch.equal(rounded, exact)
    assert torch.corrcoef(torch.stack((rounded.flatten(), exact.flatten())))[0, 1] > 0.99


@QUANTISED
def test_the_decoder_of_narrow_embeddings_survives_quantisation(tmp_path: Path) -> None:
    folder = exported(tmp_path, "bert-base", embedding_width=8)
    model = from_auto(folder, "ModelForMaskedLM").eval()
    quantised = torch.ao.quantization.quantize_dynamic(model, dtype=torch.qint8)
    ids = torch.randint(5, 100, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        exact, rounded = model(ids).logits, quantised(ids).logits
    assert not torch.equal(rounded, exact)
    assert torch.corrcoef(torch.stack((rounded.flatten(), exact.flatten())))[0, 1] > 0.99


@pytest.mark.parametrize(
    "fields",
    [
        {"pooling": "mean"},
        {"pooling": "max", "weighing": "relu"},
        {"mixer": "fourier"},
        {"mixer": "gated-attention"},
        {"layers": 3, "pool_at": (1,), "unpooled_layers": 1},
    ],
    ids=str,
)
def test_a_row_that_is_all_padding_is_read_as_text(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Batches of a fixed size are filled with such rows, and a NaN would reach gradients."""
    folder = exported(tmp_path, "crammed-2022", **fields)
    model = from_auto(folder, "ModelForSequenceClassification").eval()
    ids = torch.randint(5, 100, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1] = 0
    with torch.inference_mode():
        torch.testing.assert_close(model(ids, mask).logits, model(ids).logits)


def test_model_onnx_needs_its_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setitem(sys.modules, "onnx", ModuleType("onnx"))
    needed = r"^--onnx needs onnxscript: pip install 'crammed\[onnx\]'$"
    final = untrained(word_pieces(), configuration())
    with pytest.raises(InputError, match=needed):
        export(final, tmp_path / "export", onnx="float32")
    assert not (tmp_path / "export").exists()


def test_model_onnx_is_kept_only_if_it_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'crammed[exports]', or make test-all")
    final = untrained(word_pieces(), configuration())
    done = export(final, tmp_path / "good", onnx="float32")
    assert done.onnx is not None
    assert (done.path / onnx.FILE).exists()
    monkeypatch.setattr(onnx, "TOLERANCE", -1.0)
    with pytest.raises(CrammedError, match="onnxruntime's logits differ from the model's by"):
        export(final, tmp_path / "bad", onnx="float32")
    assert not (tmp_path / "bad").exists()


def test_a_model_that_cannot_become_onnx_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise torch.onnx.OnnxExporterError("first line\nand a hundred others")

    monkeypatch.setattr("crammed.export.huggingface.check_onnx", lambda: None)
    monkeypatch.setattr(torch.onnx, "export", failing)
    final = untrained(word_pieces(), configuration())
    said = (
        r"^PyTorch cannot write this model as model\.onnx \(OnnxExporterError\): leave out --onnx$"
    )
    with pytest.raises(CrammedError, match=said):
        export(final, tmp_path / "export", onnx="float32")
    assert not (tmp_path / "export").exists()


def test_an_export_that_transformers_cannot_load_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise ValueError("model type is not known\nand a hundred others")

    monkeypatch.setattr("crammed.export.huggingface.load_exported", failing)
    said = (
        r"^transformers \S+ cannot load the export \(model type is not known\): "
        r"pip install --upgrade transformers, then repeat the command$"
    )
    with pytest.raises(InputError, match=said):
        export(untrained(word_pieces(), configuration()), tmp_path / "export")
    assert not (tmp_path / "export").exists()
