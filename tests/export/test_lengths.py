"""Exports under padding on the left, with positions of one's own, and with inputs that are long."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from crammed.export.huggingface import export
from crammed.model.classifiers import SequenceClassifier
from crammed.model.trained import TrainedModel
from support.models import HEADS, from_auto, untrained, word_pieces
from support.variants import CHOICES, configuration

TEXT = torch.randint(5, 60, (1, 9), generator=torch.Generator().manual_seed(0))
PADDED = {"left": (5, 0), "right": (0, 5), "both": (2, 3)}
POOLING = ("ModelForSequenceClassification", "ModelForMultipleChoice")
"""Those of `HEADS` that read `model.pooling`."""
CUSTOM: dict[str, Any] = {"norm": "post", "final_norm": False}
"""What makes custom code of a model with any positions."""


def padded(side: str) -> dict[str, Tensor]:
    """The text with padding, whose ids are those of words: they must not matter."""
    left, right = PADDED[side]
    mask = torch.cat([torch.zeros(left), torch.ones(9), torch.zeros(right)])[None].long()
    ids = torch.nn.functional.pad(TEXT, PADDED[side], value=7)
    return {"input_ids": ids, "attention_mask": mask}


def outputs(model: Any, given: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """What a model gives for the tokens of the text, or for the text."""
    rows = dict(given)
    several = "MultipleChoice" in type(model).__name__
    if several:
        rows = {name: each[:, None] for name, each in rows.items()}
    with torch.inference_mode():
        found = model(**rows).to_tuple()
    kept = given.get("attention_mask", torch.ones_like(given["input_ids"])).bool()
    return tuple(each[kept] if each.shape[:2] == kept.shape else each for each in found)


@pytest.mark.parametrize("pooling", CHOICES["pooling"])
@pytest.mark.parametrize("positions", CHOICES["positions"])
def test_custom_code_does_not_care_where_padding_is(
    tmp_path: Path, positions: str, pooling: str
) -> None:
    config = configuration(dropout=0.0, positions=positions, pooling=pooling, **CUSTOM)
    folder = export(untrained(word_pieces(), config), tmp_path / "export", "custom").path
    for head in HEADS if pooling == "first" else POOLING:
        model = from_auto(folder, head)
        expected = outputs(model, {"input_ids": TEXT})
        for side in PADDED:
            torch.testing.assert_close(outputs(model, padded(side)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", CHOICES["positions"])
def test_funnels_pair_tokens_from_where_a_text_begins(tmp_path: Path, positions: str) -> None:
    shape = {"layers": 5, "pool_at": (1, 2), "embedding_width": None, **CUSTOM}
    config = configuration(dropout=0.0, positions=positions, **shape)
    folder = export(untrained(word_pieces(), config), tmp_path / "export").path
    for head in ("ModelForMaskedLM", "ModelForSequenceClassification"):
        model = from_auto(folder, head, dropout=0.0).double()  # float32 rounds by up to 4e-5
        expected = outputs(model, {"input_ids": TEXT})
        for side in PADDED:
            torch.testing.assert_close(outputs(model, padded(side)), expected, rtol=1e-9, atol=1e-9)
    with torch.inference_mode():
        found = model(TEXT, output_hidden_states=True, output_attentions=True)
    assert [each.shape for each in found.hidden_states] == [(1, 9, config.width)] * 5
    assert [each.shape for each in found.attentions] == [(1, config.heads, 9, 9)] * 3
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()(TEXT, labels=torch.tensor([1])).loss.backward()
    slopes = {name: p.grad for name, p in model.named_parameters()}
    model.gradient_checkpointing_disable()
    model.zero_grad()
    model(TEXT, labels=torch.tensor([1])).loss.backward()
    assert all(torch.equal(slopes[name], p.grad) for name, p in model.named_parameters())


@pytest.mark.parametrize("positions", CHOICES["positions"])
def test_positions_are_those_given(tmp_path: Path, positions: str) -> None:
    """A text in another order, with the positions of the first, is the same set of tokens."""
    config = configuration(dropout=0.0, positions=positions, **CUSTOM)
    folder = export(untrained(word_pieces(), config), tmp_path / "export", "custom").path
    order = torch.randperm(9, generator=torch.Generator().manual_seed(2))
    model = from_auto(folder, "ModelForMaskedLM")
    shuffled = {"input_ids": TEXT[:, order]}
    (expected,) = outputs(model, {"input_ids": TEXT})
    (found,) = outputs(model, {**shuffled, "position_ids": order[None]})
    torch.testing.assert_close(found, expected[order], rtol=1e-4, atol=1e-5)
    (without,) = outputs(model, shuffled)
    assert torch.allclose(without, expected[order], atol=1e-3) == (positions == "none")


@pytest.mark.parametrize("recipe", ["crammed", "bert-base"])
def test_what_built_in_classes_make_of_padding_on_the_left(tmp_path: Path, recipe: str) -> None:
    """As docs/evaluation.md says: a BERT needs `position_ids`, and a ModernBERT does not."""
    final = untrained(word_pieces(), configuration(recipe, dropout=0.0))
    model = from_auto(export(final, tmp_path / "export").path, "ModelForMaskedLM")
    expected = outputs(model, {"input_ids": TEXT})
    given = padded("left")
    if recipe == "bert-base":
        with pytest.raises(AssertionError):
            torch.testing.assert_close(outputs(model, given), expected, rtol=1e-4, atol=1e-5)
        given["position_ids"] = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
    torch.testing.assert_close(outputs(model, given), expected, rtol=1e-4, atol=1e-5)


def test_our_classifiers_read_the_first_token_of_the_text() -> None:
    config = configuration(dropout=0.0, pooling="first")
    torch.manual_seed(0)
    model = SequenceClassifier(config, 64, 3).eval()
    hidden = torch.randn(2, 5, config.width)
    mask = torch.tensor([[False, False, True, True, False], [True, True, True, True, True]])
    expected = torch.stack([hidden[0, 2], hidden[1, 0]])
    assert torch.equal(model.pooled(hidden, mask), expected)
    assert torch.equal(model.pooled(hidden, None), hidden[:, 0])


def exported(folder: Path, recipe: str, **fields: Any) -> tuple[Path, TrainedModel]:
    """An export of a model that could take 32 tokens and was trained on 12."""
    config = configuration(recipe, dropout=0.0, max_length=32, **fields)
    final = replace(untrained(word_pieces(), config), row_length=12)
    done = export(final, folder / "export")
    assert done.difference is not None
    assert done.difference < 1e-5
    return done.path, final


@pytest.mark.parametrize("recipe", ["crammed", "bert-base", "crammed-2022", "izsak"])
def test_an_export_is_as_long_as_the_rows_of_training(tmp_path: Path, recipe: str) -> None:
    from transformers import AutoTokenizer

    folder, final = exported(tmp_path, recipe)
    model = from_auto(folder, "ModelForMaskedLM")
    assert model.config.max_position_embeddings == 12
    assert AutoTokenizer.from_pretrained(folder).model_max_length == 12
    tables = [p for name, p in model.named_parameters() if re.search("positions?_?.*weight", name)]
    assert [len(table) for table in tables] == [12] * (recipe in ("bert-base", "izsak"))
    ids = torch.randint(5, 60, (2, 12))
    with torch.inference_mode():
        ours = final.masked_lm(torch.device("cpu"))(ids)
        torch.testing.assert_close(model(ids).logits, ours, rtol=1e-5, atol=1e-5)


def test_custom_code_refuses_inputs_without_positions_and_warns_of_others(tmp_path: Path) -> None:
    fault = "an input has 13 tokens, and the model was trained on at most 12: shorten it"
    ids = torch.full((1, 13), 7)
    bounded = from_auto(exported(tmp_path / "one", "izsak")[0], "Model")
    with pytest.raises(ValueError, match=fault):
        bounded(ids)
    bounded(ids, position_ids=torch.arange(13)[None] // 2)
    computed = from_auto(exported(tmp_path / "two", "izsak", positions="rotary")[0], "Model")
    with pytest.warns(UserWarning, match=fault):
        (expected,) = computed(ids, return_dict=False)
    compiled: Any = torch.compile(computed, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids, return_dict=False)[0], expected)
