"""What a model takes from its corpus before it learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.machine.device import Device
from crammed.model.encoder import products_of
from crammed.runs.directory import RunDir
from crammed.terminal.progress import SILENT
from crammed.training.loop import pretrain
from crammed.training.update.build import build_for, new_model
from support.text import tiny


def begun(cpu: Device, recipe: str, *words: str) -> dict[str, Tensor]:
    """The weights of a new model."""
    return dict(new_model(tiny(recipe, *words), 256, cpu.torch).named_parameters())


def test_biases_may_begin_at_the_frequencies_of_the_corpus(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    words = ("optim.name=adamw", "optim.lr=1e-30", "optim.clip=null", "optim.weight_decay=0.0")
    config = tiny(
        "crammed",
        *words,
        "model.decoder_bias_start=log-frequency",
        "model.embedding_start=random",
        budget={"limit": "1updates"},
    )
    with RunDir.open(tmp_path / "run", config) as run:
        found = dict(pretrain(config, corpus, run, cpu, SILENT).model.named_parameters())
    bias = found.pop("decoder_bias").detach().double()
    assert bias.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    rows = corpus.read(np.arange(corpus.rows))
    for token in (int(rows[0, 5]), int(rows[3, 0]), 4):  # the last is [MASK], which no text holds
        share = (np.count_nonzero(rows == token) + 1) / (rows.size + corpus.vocab_size)
        assert bias[token].item() == pytest.approx(np.log(share), abs=1e-5)
    usual = dict(new_model(config, corpus.vocab_size, cpu.torch).named_parameters())
    assert usual.pop("decoder_bias").count_nonzero() == 0
    for name, parameter in usual.items():  # random draws are those of any other model
        torch.testing.assert_close(found[name], parameter, rtol=0.0, atol=1e-20)


def test_a_balanced_loss_takes_its_weights_from_the_corpus(corpus: Corpus, cpu: Device) -> None:
    step = build_for(tiny("crammed", "loss.name=balanced", "loss.power=0.25"), corpus, cpu)
    weights = step.objective.weights
    assert weights is not None
    counts = torch.from_numpy(corpus.token_counts())
    frequent, rare = int(counts.argmax()), int(counts.argmin())
    expected = ((counts[frequent] + 1) / (counts[rare] + 1)) ** 0.25
    assert (weights[rare] / weights[frequent]).item() == pytest.approx(expected.item(), rel=1e-4)
    assert build_for(tiny("crammed"), corpus, cpu).objective.weights is None


@pytest.mark.parametrize("recipe", ["crammed", "crammed-2022"])
def test_token_embeddings_may_begin_at_a_scale_of_their_own(recipe: str, cpu: Device) -> None:
    words = ("model.embedding_start=random", "model.init_std=0.02")
    usual, wide = (
        begun(cpu, recipe, *words, f"model.embedding_std={std}") for std in ("null", "0.3")
    )
    table, wider = usual.pop("encoder.tokens.weight"), wide.pop("encoder.tokens.weight")
    assert table.square().mean().sqrt().item() == pytest.approx(0.02, rel=0.05)
    torch.testing.assert_close(wider, 15.0 * table)
    assert all(torch.equal(wide[name], parameter) for name, parameter in usual.items())


def test_a_model_without_biases_cannot_begin_with_them() -> None:
    with pytest.raises(InputError, match=r"log-frequency needs model\.decoder_bias=true"):
        tiny("crammed-2022", "model.decoder_bias_start=log-frequency")


@pytest.mark.parametrize(
    ("rule", "passes", "inner", "output"),
    [
        ("small", 1, (2 / (5 * 64)) ** 0.5, (2 / (5 * 64)) ** 0.5),
        ("megatron", 1, 0.03, 0.03 / 6**0.5),
        ("megatron", 4, 0.03, 0.03 / 24**0.5),  # to which each layer adds four times
        ("wang", 1, (2 / (5 * 64)) ** 0.5, 2 / (3 * 8)),
        ("wang", 4, (2 / (5 * 64)) ** 0.5, 2 / (12 * 8)),
    ],
)
def test_a_rule_gives_matrices_their_scale_and_changes_no_draw(
    rule: str, passes: int, inner: float, output: float, cpu: Device
) -> None:
    words = ["model.layers=3", "model.width=64", "model.init_std=0.03", f"model.passes={passes}"]
    words.append("model.first_attention_norm=true")
    usual, ruled = (
        begun(cpu, "crammed", *words, f"model.matrix_start={start}") for start in ("normal", rule)
    )
    for name, parameter in usual.items():
        scale = 1.0
        if ".layers." in name and parameter.ndim > 1:
            scale = (output if ".out." in name or ".down." in name else inner) / 0.03
        torch.testing.assert_close(ruled[name], scale * parameter, msg=name)


def test_deepnorm_has_smaller_matrices_except_for_queries_and_keys(cpu: Device) -> None:
    shape = ("model.layers=3", "model.width=64", "model.passes=2")
    norms = ("model.norm=deepnorm", "model.final_norm=false", "model.first_attention_norm=true")
    config = tiny("crammed", *shape, *norms, "model.matrix_start=deepnorm")
    model = new_model(config, 256, cpu.torch)
    small = (8 * 6) ** -0.25
    for product in products_of(model):
        for part, matrix in enumerate(product.linear.weight.detach().chunk(product.matrices)):
            gain = 1.0 if product.name.endswith("qkv") and part < 2 else small
            expected = gain * (2 / sum(matrix.shape)) ** 0.5
            assert matrix.std().item() == pytest.approx(expected, rel=0.05)
    assert {layer.residual for layer in model.encoder.in_turn()} == {12**0.25}


def test_matrices_may_begin_orthogonal(cpu: Device) -> None:
    config = tiny("crammed", "model.width=64", "model.matrix_start=orthogonal")
    model = new_model(config, 256, cpu.torch)
    for product in products_of(model):
        for matrix in product.linear.weight.detach().chunk(product.matrices):
            outputs, inputs = matrix.shape
            found = torch.linalg.svdvals(matrix)
            torch.testing.assert_close(found, torch.full_like(found, (outputs / inputs) ** 0.5))
    deviation = model.encoder.tokens.weight.std().item()
    assert deviation == pytest.approx(config.model.first_embedding_std, rel=0.05)
    with pytest.raises(InputError, match=r"zero_outputs needs a model\.matrix_start other than"):
        tiny("crammed", "model.zero_outputs=true", "model.matrix_start=orthogonal")
