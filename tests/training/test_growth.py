"""Depth and layer drop that grow: what is copied, what it costs, that it survives a stop."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from crammed.budget import Ledger, Work
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.machine.device import Device
from crammed.model.count import train_flops_per_token
from crammed.runs.directory import RunDir
from crammed.training.checkpoint import Checkpoints, load_checkpoint
from crammed.training.distributed import Group, _gradients
from crammed.training.plan import Planner
from crammed.training.session import Session
from crammed.training.signals import UpdateLeft
from crammed.training.update.build import build
from crammed.training.update.growth import Growth
from crammed.training.update.step import TrainStep
from support.steps import SPECIALS, needs_compiler, rows_of, same, update_of
from support.text import tiny
from support.training import train

GROWING = ("model.layers=4", "train.grow_at=[0.5]", "model.value_embeddings=false")


def trained(step: TrainStep, numbers: range, layers: int | None = None) -> None:
    for number in numbers:
        step.gradients(rows_of(8, number), replace(update_of(8, number), layers=layers))
        step.apply(1.0)


CHOSEN = ["adamw", "muon", "adafactor", "lion", "sgd", "sgd optim.momentum=0.0"]


@pytest.mark.parametrize("name", CHOSEN)
def test_it_trains_a_shallow_model_and_then_the_same_twice_over(cpu: Device, name: str) -> None:
    words = ("model.value_embeddings=false", *f"optim.name={name}".split(), "train.average=0.9")
    shallow = build(tiny("crammed", *words, "model.layers=2"), 256, SPECIALS, cpu)
    deep = build(tiny("crammed", *words, "model.layers=4"), 256, SPECIALS, cpu)
    grown = build(tiny("crammed", *words, *GROWING), 256, SPECIALS, cpu)
    lower = dict(shallow.model.named_parameters())
    found = dict(grown.model.named_parameters())
    for name, parameter in lower.items():  # the rule of `matrix_start` may depend on the depth
        parameter.data.copy_(found[name])
    trained(shallow, range(3))
    trained(grown, range(3), 2)
    assert all(torch.equal(found[name], parameter) for name, parameter in lower.items())
    for name, parameter in deep.model.named_parameters():  # by hand what growing does
        at = name.replace("layers.2.", "layers.0.").replace("layers.3.", "layers.1.")
        if at not in lower:  # the first layer of this recipe has no norm there
            parameter.data.copy_(found[name])
            continue
        parameter.data.copy_(lower[at])
        state = shallow.optimizer.state[lower[at]]
        deep.optimizer.restore(parameter, {key: value.clone() for key, value in state.items()})
    trained(deep, range(3, 6))
    trained(grown, range(3, 6), 4)
    for name, parameter in deep.model.named_parameters():
        assert torch.equal(found[name], parameter), name
        ours, theirs = (s.optimizer.state for s in (grown, deep))
        assert all(torch.equal(ours[found[name]][k], v) for k, v in theirs[parameter].items())


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_weights_that_no_layer_read_yet_are_trained_and_averaged_from_then_on(
    cpu: Device, name: str
) -> None:
    """Only odd layers read embeddings as values."""
    words = ("train.grow_at=[0.5]", "model.value_embeddings=true", "train.average=0.9")
    config = tiny("crammed", *words, f"optim.name={name}")
    step = build(config, 256, SPECIALS, cpu)
    values = step.model.get_parameter("encoder.values.weight")
    begun = values.detach().clone()
    trained(step, range(2), 1)
    assert torch.equal(values, begun)
    trained(step, range(2, 4), 2)
    assert not torch.equal(values, begun)
    assert step.average is not None
    now = values.detach().clone()
    with step.average.shown():
        assert not any(torch.equal(values, other) for other in (begun, now))


@pytest.mark.parametrize("layers", [2, 4])
def test_layers_to_come_have_no_gradients_in_a_group_either(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    """Steps of AGD depend on how many parameters have one."""
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, how: tensor)
    config = tiny("crammed", *GROWING, "optim.name=agd")
    alone, member = (build(config, 256, SPECIALS, cpu) for _ in range(2))
    trained(alone, range(1), layers)
    update = replace(update_of(8), layers=layers)
    _gradients(member, rows_of(8), update, Group(rank=0, size=1))
    member.apply(1.0)
    for one, other in zip(alone.parameters, member.parameters, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("average", ["train.average=null", "train.average=0.9"])
def test_it_goes_on_from_a_checkpoint_with_the_same_bits(
    cpu: Device, tmp_path: Path, average: str
) -> None:
    config = tiny("crammed", *GROWING, "model.layers=8", "train.grow_at=[0.2,0.6]", average)
    whole, first = (build(config, 256, SPECIALS, cpu) for _ in range(2))
    depths = {range(2): 2, range(2, 4): 4, range(4, 6): 8}
    with RunDir.open(tmp_path / "run", config) as run:
        checkpoints = Checkpoints(Session.untimed(run, first, corpus_sha256="corpus"))
        for numbers, layers in depths.items():
            trained(whole, numbers, layers)
            trained(first, numbers, layers)
            checkpoints.save(Work(updates=numbers.stop))
            first = build(config, 256, SPECIALS, cpu)
            checkpoints = Checkpoints(Session.untimed(run, first, corpus_sha256="corpus"))
            load_checkpoint(run.checkpoints, first, "corpus")
            assert first.growth.layers == first.model.encoder.depth == layers
            if first.average is not None:
                with first.average.shown():
                    first.growth.reach(min(8, 2 * layers))  # as before an update that is skipped
    assert same(whole.parameters, first.parameters)


def test_updates_cost_what_their_layers_cost() -> None:
    config = tiny("crammed", *GROWING, "optim.name=adamw", "budget.limit=8updates", "batch.ramp=0")
    planner, work, seen = Planner(config, 256, None, Ledger(())), Work(), []
    while (update := planner.next(work)) is not None:
        seen.append(update.layers)
        model = config.model.model_copy(update={"layers": update.layers})
        length, count = config.data.row_length, round(update.mask_rate * config.data.row_length)
        flops = update.rows * length * train_flops_per_token(model, 256, length, count)
        assert update.cost.flops == pytest.approx(flops)
        work += update.cost
    assert seen == [2] * 4 + [4] * 4


@pytest.mark.parametrize("points", ["[0.4]", "[0.9]"])
def test_a_run_ends_with_all_layers(
    corpus: Corpus, cpu: Device, tmp_path: Path, points: str
) -> None:
    """Even if it ends before the time to grow: the new layers are then copies."""
    words = (f"train.grow_at={points}", "budget.limit=4updates")
    model = train(tiny("crammed", *GROWING, *words), corpus, tmp_path / "run", cpu).model
    again = train(tiny("crammed", *GROWING, *words), corpus, tmp_path / "run", cpu).model
    assert again.encoder.depth == model.encoder.depth == 4
    layers = [
        torch.cat([p.flatten() for p in each.ffn.parameters()]) for each in model.encoder.layers
    ]
    assert torch.equal(layers[0], layers[2]) == (points == "[0.9]")


@pytest.mark.long
@needs_compiler
def test_every_depth_is_compiled_before_the_first_update(cpu: Device) -> None:
    config = tiny("crammed", *GROWING, "model.layers=2")
    step = build(config, 256, SPECIALS, replace(cpu, compile=True, microbatch_rows=8))
    step.prepare([8], [0.25])
    assert step.growth.layers == 1
    step._loss = torch.compiler.set_stance("fail_on_recompile")(step._loss)
    trained(step, range(1), 1)
    trained(step, range(1, 2), 2)


def test_a_signal_while_shapes_are_compiled_leaves_the_depth_as_it_was(cpu: Device) -> None:
    """A run that goes back after divergence saves it before its first update."""

    def leave() -> None:
        raise UpdateLeft

    config = tiny("crammed", *GROWING, "model.layers=2")
    step = build(config, 256, SPECIALS, replace(cpu, compile=True, microbatch_rows=8))
    step.before_shape = leave
    with pytest.raises(UpdateLeft):
        step.prepare([8], [0.25])
    assert step.growth.layers == 1


RISING = ("model.layer_drop=0.8", "train.layer_drop_rises=true", "model.layers=4")


def test_layers_are_dropped_more_often_later_and_higher_up(cpu: Device) -> None:
    config = tiny("crammed", *RISING)
    step = build(config, 256, SPECIALS, cpu)
    plain = build(tiny("crammed", "model.layers=4"), 256, SPECIALS, cpu)
    loss = step.gradients(rows_of(8), replace(update_of(8), dropped=0.0))
    assert torch.equal(loss, plain.gradients(rows_of(8), update_of(8)))
    step.gradients(rows_of(8), replace(update_of(8), dropped=0.5))
    drops = [float(layer.drop) for layer in step.objective.copy.encoder.layers]  # type: ignore[attr-defined]
    assert drops == pytest.approx([0.1, 0.2, 0.3, 0.4])
    u = [0.0, 0.01, 0.5]
    assert [config.dropped_at(at) for at in u] == pytest.approx([0.0, 1 - math.exp(-1), 1.0])
    assert tiny("crammed").dropped_at(0.0) == 1.0
    with pytest.raises(InputError, match="needs a model from scratch"):
        tiny("crammed", "train.layer_drop_rises=true")


def test_the_share_of_dropped_layers_rises_in_a_run(
    corpus: Corpus, cpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    drop = Growth.drop

    def noted(self: Growth, share: float) -> None:
        seen.append(share)
        drop(self, share)

    monkeypatch.setattr(Growth, "drop", noted)
    train(tiny("crammed", *RISING, "budget.limit=4updates"), corpus, tmp_path / "run", cpu)
    assert seen == pytest.approx([0.0, *[1 - math.exp(-100 * n / 4) for n in (1, 2, 3)]])
