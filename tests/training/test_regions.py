"""Layers that are compiled once for all of them: one region, the same numbers."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from crammed.config import ModelConfig
from crammed.machine.device import COMPARES_8_BITS, Device
from crammed.model.attention import Attention
from crammed.model.encoder import MaskedLM, initialise
from crammed.training.update.objective import MaskedTokens
from crammed.training.update.precision import training_copy
from crammed.training.update.regions import RegionalEncoder
from support.steps import check_compiled, step_with
from support.text import tiny
from support.variants import COMPUTED, VOCAB, some_ids


@pytest.mark.parametrize(
    ("recipe", "layers", "alike", "changes", "tolerance"),
    [
        ("crammed-2022", 3, 2, {}, 1e-5),
        ("crammed", 4, 3, {}, 1e-5),
        ("crammed-2022", 3, 2, {"dtype": torch.bfloat16, "fp8": True}, 0.02),
    ],
)
def test_all_layers_that_are_alike_share_one_region(
    cpu: Device,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    layers: int,
    alike: int,
    changes: dict[str, Any],
    tolerance: float,
) -> None:
    """One leads from each layer to the next, even from a first one without a norm."""
    if changes.get("fp8") and TorchVersion(torch.__version__) < COMPARES_8_BITS:
        pytest.skip(f"PyTorch {torch.__version__} cannot compare regions with 8-bit products")
    found: list[tuple[int, int]] = []
    trace = torch._dynamo.lookup_backend("aot_eager")

    def note(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        calls = [node for node in graph.graph.nodes if "invoke_subgraph" in str(node.target)]
        found.append((len({str(node.args[0].target) for node in calls}), len(calls)))
        return trace(graph, inputs)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=note))
    monkeypatch.setattr(Device, "regional", property(lambda device: device.compile))
    torch._dynamo.reset()
    config = tiny(recipe, f"model.layers={layers}", "model.dropout=0.0")
    check_compiled(config, dataclasses.replace(cpu, **changes), error=tolerance)
    assert found == [(1, alike)]


@pytest.mark.parametrize("config", COMPUTED)
def test_every_model_computes_the_same_to_the_bit(config: ModelConfig) -> None:
    model = MaskedLM(config, VOCAB)
    initialise(model, 0.1, torch.Generator().manual_seed(0))
    usual, regional = (training_copy(model, torch.float32, regional=on) for on in (False, True))
    plain = config.norm == "pre" and not config.value_embeddings and not config.residual_scalars
    plain = plain and config.mixer == "attention" and not config.dropout
    plain = plain and config.blocks == "serial" and config.ffn_every == 1
    plain = plain and not config.pool_at
    assert isinstance(regional.encoder, RegionalEncoder) == plain
    ids = some_ids(8)
    torch.manual_seed(0)
    expected = usual(ids)
    torch.manual_seed(0)
    assert torch.equal(regional(ids), expected)


def test_runs_on_a_cpu_are_compiled_as_they_always_were(cpu: Device) -> None:
    step, _ = step_with(cpu, tiny("crammed", "model.layers=1"), compile=True)
    assert isinstance(step.objective, MaskedTokens)
    assert not any(isinstance(each, RegionalEncoder) for each in step.objective.copy.modules())


def test_an_encoder_with_another_mixer_compiles_as_a_whole() -> None:
    """Regions begin within attention, where another mixer may have nothing of the kind."""

    class Mixer(Attention):
        pass

    model = MaskedLM(tiny("crammed").model, VOCAB)
    plain = training_copy(model, torch.float32, regional=True)
    assert isinstance(plain.encoder, RegionalEncoder)
    for layer in model.encoder.layers:
        layer.attention.__class__ = Mixer
    other = training_copy(model, torch.float32, regional=True)
    assert not isinstance(other.encoder, RegionalEncoder)
