"""ELECTRA: a slow twin, the generator and the detector beside the model, and that they go away."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from crammed.budget import Ledger, Work
from crammed.config import RunConfig
from crammed.data.masking import MaskedRows, Masker, keyed_bits
from crammed.keys import key
from crammed.machine.device import Device
from crammed.model.blocks import Linear
from crammed.model.count import parameters
from crammed.model.electra import Electra, lasting
from crammed.model.encoder import MaskedLM
from crammed.optim.build import update_flops
from crammed.training.plan import Planner
from crammed.training.update.build import build
from crammed.training.update.step import TrainStep
from support.steps import SPECIALS, check_resumed, rows_of, update_of
from support.text import tiny

ELECTRA = "objective.name=electra"
PLAIN = ("model.attention_start=random", "model.embedding_std=null")


def electra_of(step: TrainStep) -> Electra:
    assert isinstance(step.model, Electra)
    return step.model


@pytest.mark.parametrize("more", ["objective.weight=50.0", "model.tied_decoder=false"])
def test_it_equals_its_twin(cpu: Device, more: str) -> None:
    config = tiny("crammed", ELECTRA, *PLAIN, more, "model.init_std=0.3")
    step, rows = build(config, 256, SPECIALS, cpu), rows_of(5)
    loss = step.gradients(rows, update_of(5))
    model = deepcopy(electra_of(step)).double()
    masked = Masker(config.seed, "80-10-10", 4, range(5), 256)(rows, torch.arange(5), 8)
    logits = model.generator(masked.ids, masked.positions)
    first = F.cross_entropy(logits.flatten(0, 1), masked.labels.flatten())
    filled = _filled(config.seed, masked, logits.softmax(-1))
    hidden = model.encoder(filled)
    dense, score = model.detector.dense, model.detector.score
    odds = F.gelu(hidden @ dense.weight.T + dense.bias) @ score.weight[0] + score.bias
    weight = 50.0 / (5 * 30)
    for row in range(5):
        for n, place in enumerate(masked.positions[row, :2].tolist()):
            assert filled[row, place] == 4
            own = model.decode(hidden[row, place]).log_softmax(-1)[masked.labels[row, n]]
            first = first - own / (5 * 8)
        for place in set(range(32)) - set(masked.positions[row, :2].tolist()):
            replaced = filled[row, place] != rows[row, place]
            right = odds[row, place] if replaced else -odds[row, place]
            first = first - weight * right.sigmoid().log()
    assert loss.item() == pytest.approx(first.item(), rel=1e-5)
    first.backward()
    for one, other in zip(step.parameters, model.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-3, atol=1e-5)


def _filled(seed: int, masked: MaskedRows, shares: torch.Tensor) -> torch.Tensor:
    """Rows whose chosen tokens, but for the first two, are drawn with these probabilities."""
    filled = masked.ids.clone()
    draws = keyed_bits(key(seed, "generator"), torch.arange(len(filled)), 8) / 2**32
    for row, places in enumerate(masked.positions.tolist()):
        for n in range(2, 8):
            guess, total = 0, shares[row, n, 0].item()
            while total <= draws[row, n]:
                guess += 1
                total += shares[row, n, guess].item()
            filled[row, places[n]] = guess
    return filled


def test_a_model_begins_with_the_weights_that_it_has_without_a_generator(cpu: Device) -> None:
    plain = build(tiny("crammed"), 256, SPECIALS, cpu).model
    model = electra_of(build(tiny("crammed", ELECTRA), 256, SPECIALS, cpu))
    assert model.generator.encoder.tokens is model.encoder.tokens
    found = lasting(model)
    assert found.keys() == dict(plain.named_parameters()).keys()
    assert all(torch.equal(found[name], p) for name, p in plain.named_parameters())


@pytest.mark.parametrize(
    ("words", "width", "head_dim"),
    [
        ((), 192, 64),
        (("objective.generator=0.3334",), 256, 64),
        (("objective.generator=1.0",), 768, 64),
        (("model.width=128",), 32, 32),
        (("model.width=64", "objective.generator=0.01"), 8, 8),
    ],
)
def test_the_generator_is_narrower_and_as_deep(
    words: tuple[str, ...], width: int, head_dim: int
) -> None:
    small = ("model.head_dim=64", "model.layers=3", "model.width=768")
    config = tiny("crammed", ELECTRA, *small, *words)
    generator = config.generator()
    assert generator is not None
    assert (generator.width, generator.head_dim, generator.layers) == (width, head_dim, 3)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_all_that_is_trained_is_counted(cpu: Device, optimizer: str) -> None:
    config = tiny("crammed", ELECTRA, f"optim.name={optimizer}")
    step = build(config, 256, SPECIALS, cpu)
    generator = config.generator()
    count = sum(p.numel() for p in step.parameters)
    assert parameters(config.model, 256, generator) == count
    assert parameters(config.model, 256) == sum(p.numel() for p in lasting(step.model).values())
    own = update_flops(config.model, 256, config.optim, generator=generator)
    more = own - update_flops(config.model, 256, config.optim)
    assert more > 0 if optimizer == "muon" else more == 0
    plain = tiny("crammed", f"optim.name={optimizer}")
    costs = [_first_flops(each) for each in (plain, config)]
    assert costs[1] > costs[0] + more


def _first_flops(config: RunConfig) -> float:
    update = Planner(config, 256, None, Ledger(())).next(Work())
    assert update is not None
    return update.cost.flops


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_generator_and_the_detector_compute_in_16_bits(cpu: Device, dtype: torch.dtype) -> None:
    config = tiny("crammed", ELECTRA, "model.norm_kind=layer")
    step = build(config, 256, SPECIALS, replace(cpu, dtype=dtype))
    copy = step.objective.copy  # type: ignore[attr-defined]
    assert isinstance(copy, Electra)
    wide = copy.generator.encoder.widen
    linears = [each for each in copy.modules() if isinstance(each, Linear) and each is not wide]
    assert {each.weight.dtype for each in linears} == {dtype}
    exact = build(config, 256, SPECIALS, cpu)
    losses = [each.gradients(rows_of(8), update_of(8)).item() for each in (step, exact)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in step.parameters)


@pytest.mark.parametrize("more", ["train.average=0.9", "train.grow_at=[0.5]"])
def test_it_goes_on_from_a_checkpoint_with_the_same_bits(
    cpu: Device, tmp_path: Path, more: str
) -> None:
    config = tiny("crammed", ELECTRA, more)
    check_resumed(config, cpu, tmp_path / "run", _train)


def _train(step: TrainStep, numbers: range) -> None:
    for number in numbers:
        layers = 2 if number >= 2 else step.growth.layers
        step.gradients(rows_of(8, number), replace(update_of(8, number), layers=layers))
        step.apply(1.0)


def test_the_generator_grows_as_the_model_does(cpu: Device) -> None:
    step = build(tiny("crammed", ELECTRA, "train.grow_at=[0.5]"), 256, SPECIALS, cpu)
    _train(step, range(2))
    step.growth.reach(2)
    generator = electra_of(step).generator.encoder
    assert generator.depth == 2
    lower, upper = (dict(layer.named_parameters()) for layer in generator.layers)
    for name, parameter in lower.items():
        assert torch.equal(parameter, upper[name])


def test_held_out_losses_are_those_of_the_model(cpu: Device) -> None:
    model = electra_of(build(tiny("crammed", ELECTRA), 256, SPECIALS, cpu))
    alone = MaskedLM(model.encoder.config, 256)
    alone.load_state_dict({name: p.detach() for name, p in lasting(model).items()})
    assert torch.equal(model(rows_of(2)), alone(rows_of(2)))


def test_it_is_compiled_without_a_break(cpu: Device) -> None:
    objective = build(tiny("crammed", ELECTRA), 256, SPECIALS, cpu).objective
    whole = torch.compile(objective.loss, fullgraph=True, dynamic=False, backend="eager")
    given = rows_of(4), torch.arange(4), 8
    torch.testing.assert_close(whole(*given), objective.loss(*given))


def test_it_learns_to_tell_what_was_replaced(cpu: Device) -> None:
    """Rows count upwards, so a wrong token can be told from its neighbours."""
    config = tiny("crammed", ELECTRA, "optim.lr=3e-3", "model.embedding_start=random")
    step = build(config, 256, SPECIALS, cpu)
    for number in range(40):
        step.gradients(_counting(16, number), update_of(16, number))
        step.apply(1.0)
    rows = _counting(64, 1000)
    wrong = rows.clone()
    wrong[:, 16] = 5 + (rows[:, 16] + 100) % 250
    model = electra_of(step)
    with torch.no_grad():
        odds = model.detector(model.encoder(wrong))
    others = torch.cat((odds[:, :14], odds[:, 19:]), 1)
    assert odds[:, 16].mean() > others.mean() + 1.0


def _counting(count: int, seed: int) -> torch.Tensor:
    first = torch.randint(0, 10, (count, 1), generator=torch.Generator().manual_seed(seed))
    return 5 + 20 * first + torch.arange(32) % 20
