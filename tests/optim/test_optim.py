"""Muon against torch's, and which parameter goes to which optimizer."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crammed.config import ModelConfig, OptimConfig, RunConfig
from crammed.config.kinds import kinds_of
from crammed.model.blocks import Affine, Norm, Scales
from crammed.model.encoder import MaskedLM, initialise
from crammed.optim import muon
from crammed.optim.build import build_optimizer
from crammed.optim.muon import Muon, orthogonalise
from crammed.planning.oncard import MUON_LAUNCHES
from support.launches import Launches
from support.text import tiny
from support.variants import COMPUTED, random_model, some_ids


def gradients(shape: tuple[int, int], steps: int, seed: int = 0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw) for _ in range(steps)]


@given(st.integers(2, 40), st.integers(2, 40), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_the_iteration_makes_matrices_nearly_orthogonal(m: int, n: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    left, _ = torch.linalg.qr(torch.randn(m, m, generator=draw))
    right, _ = torch.linalg.qr(torch.randn(n, n, generator=draw))
    k = min(m, n)
    values = torch.linspace(1.0, 0.2, k)
    matrix = left[:, :k] @ torch.diag(values) @ right[:, :k].T
    result = orthogonalise(matrix[None], torch.float32)[0]
    singular = torch.linalg.svdvals(result)
    assert singular.min() > 0.6
    assert singular.max() < 1.3
    # Same singular vectors: what is left of the matrix is symmetric and positive.
    aligned = left[:, :k].T @ result @ right[:, :k]
    assert (aligned - torch.diag(aligned.diag())).abs().max() < 1e-4
    assert aligned.diag().min() > 0.6


@pytest.mark.parametrize("shape", [(12, 12), (24, 8), (8, 24)])
def test_muon_is_torchs_muon(shape: tuple[int, int]) -> None:
    ours, theirs = (torch.nn.Parameter(torch.ones(shape)) for _ in range(2))
    mine = Muon([{"params": [ours]}], lr=0.02, momentum=0.9, weight_decay=0.1)
    oracle = torch.optim.Muon(
        [theirs], lr=0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for gradient in gradients(shape, 6):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        oracle.step()
    moved = (theirs - 1).detach().norm()
    # Theirs computes in bfloat16.
    assert (ours - theirs).detach().norm() < 0.02 * moved


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_matrices_of_one_shape_go_together_and_change_nothing(shape: tuple[int, int]) -> None:
    together = [torch.nn.Parameter(torch.ones(shape)) for _ in range(3)]
    alone = [torch.nn.Parameter(torch.ones(shape)) for _ in range(3)]
    optimizers = [Muon([{"params": together}], 0.1), *(Muon([{"params": [p]}], 0.1) for p in alone)]
    for step in range(3):
        for number, (one, other) in enumerate(zip(together, alone, strict=True)):
            one.grad = other.grad = gradients(shape, 1, 10 * step + number)[0]
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other)


@given(st.integers(2, 40), st.integers(2, 40), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_the_iteration_is_that_of_the_formula(m: int, n: int, seed: int) -> None:
    matrix = torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    a, b, c = muon.COEFFICIENTS
    x = matrix / matrix.norm()
    for _ in range(muon.ITERATIONS):
        x = a * x + b * (x @ x.mT) @ x + c * (x @ x.mT) @ (x @ x.mT) @ x
    torch.testing.assert_close(orthogonalise(matrix[None], torch.float64)[0], x)


def test_the_launches_of_an_update_do_not_depend_on_the_number_of_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(muon, "native_half", lambda device: torch.bfloat16)
    monkeypatch.setattr(muon, "_batches", lambda entries, lanes: [entries])  # as on a GPU
    found = set()
    for layers in (1, 2, 12):
        stacks = [torch.nn.Parameter(torch.ones(24, 8)) for _ in range(layers)]
        gated = [torch.nn.Parameter(torch.ones(32, 8)) for _ in range(layers)]
        groups = [{"params": stacks, "parts": 3}, {"params": gated, "parts": 2}]
        optimizer = Muon(groups, 0.1)
        for _ in range(2):
            for parameter in (*stacks, *gated):
                parameter.grad = torch.randn_like(parameter)
            with Launches() as counted:
                optimizer.step()
        found.add(counted.number)
    assert found == {2 * MUON_LAUNCHES}


@pytest.mark.parametrize("half", [None, torch.bfloat16])
@pytest.mark.parametrize(("side", "batches"), [(4, [6]), (160, [3, 3])])
def test_small_matrices_on_a_cpu_go_together_and_large_ones_do_not(
    side: int, batches: list[int], half: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def seen(matrices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        sizes.append(len(matrices))
        return orthogonalise(matrices, dtype)

    monkeypatch.setattr(muon, "orthogonalise", seen)
    monkeypatch.setattr(muon, "native_half", lambda device: half)
    stacked = [torch.nn.Parameter(torch.ones(3 * side, side)) for _ in range(2)]
    for parameter in stacked:
        parameter.grad = torch.randn_like(parameter)
    Muon([{"params": stacked, "parts": 3}], 0.1).step()
    assert sizes == batches


def test_cautious_decay_is_for_weights_that_move_towards_zero() -> None:
    start = torch.tensor([[3.0, -3.0], [-3.0, 3.0]])
    moved = {}
    for decay, cautious in ((0.0, False), (0.5, False), (0.5, True)):
        weight = torch.nn.Parameter(start.clone())
        weight.grad = torch.tensor([[1.0, 1.0], [0.5, -1.0]])
        Muon([{"params": [weight]}], 0.1, 0.9, decay, cautious).step()
        moved[decay, cautious] = weight.detach()
    still = moved[0.0, False]
    inwards = (still - start) * start < 0
    assert set(inwards.flatten().tolist()) == {True, False}
    torch.testing.assert_close(moved[0.5, False], still - 0.05 * start)
    torch.testing.assert_close(moved[0.5, True], still - 0.05 * start * inwards)


def test_queries_keys_and_values_are_three_matrices() -> None:
    stacked = torch.nn.Parameter(torch.ones(12, 4))
    parts = [torch.nn.Parameter(torch.ones(4, 4)) for _ in range(3)]
    gradient = (
        gradients((12, 4), 1)[0] * torch.tensor([1.0, 100.0, 0.01]).repeat_interleave(4)[:, None]
    )
    stacked.grad = gradient
    for part, own in zip(parts, gradient.split(4), strict=True):
        part.grad = own.clone()
    Muon([{"params": [stacked], "parts": 3}], 0.1).step()
    Muon([{"params": parts}], 0.1).step()
    torch.testing.assert_close(stacked.detach(), torch.cat([p.detach() for p in parts]))
    # Each has its own scale: a large gradient of one does not still the others.
    moved = (stacked.detach() - 1).reshape(3, -1).norm(dim=1)
    assert moved.max() < 1.3 * moved.min()


OPTIMIZERS = list(kinds_of(RunConfig)["optim"].kinds)


@cache
def options_of(name: str) -> OptimConfig:
    return tiny("crammed", f"optim.name={name}", "optim.weight_decay=0.5").optim


@pytest.mark.parametrize("config", COMPUTED)
def test_every_parameter_is_trained_once_and_decays_as_it_should(config: ModelConfig) -> None:
    given = random_model(config, dtype=torch.float32)
    given(some_ids(4)).square().mean().backward()
    for n, parameter in given.named_parameters():
        assert parameter.grad is not None, f"{n} does nothing"
    for name in OPTIMIZERS:
        check_optimizer(name, given)


def check_optimizer(name: str, given: MaskedLM) -> None:
    """The optimizer of this name has each parameter once, and moves it by its gradient."""
    model = copy.deepcopy(given)  # without the gradients
    for parameter, its in zip(model.parameters(), given.parameters(), strict=True):
        assert its.grad is not None
        parameter.grad = its.grad.clone()
    optimizer = build_optimizer(model, options_of(name))
    names = {id(p): n for n, p in model.named_parameters()}
    where = [(names[id(p)], g) for g in optimizer.param_groups for p in g["params"]]
    assert sorted(n for n, _ in where) == sorted(names.values()), name
    groups = dict(where)
    for at, module in model.named_modules():
        for own, parameter in module.named_parameters(prefix=at, recurse=False):
            in_layer = own.startswith("encoder.layers.")
            matrix = parameter.ndim > 1
            kept = isinstance(module, Affine | Norm | Scales) or own.endswith("bias")
            assert groups[own]["weight_decay"] == (0.0 if kept else 0.5), (name, own)
            parted = name == "muon" and in_layer and matrix
            assert ("parts" in groups[own]) == parted, (name, own)
    for _ in range(2):  # SOAP moves nothing in its first step
        optimizer.step()
    before = dict(given.named_parameters())
    for own, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[own]), (name, own)


def test_zero_outputs_change_nothing_else() -> None:
    config = tiny("crammed", "model.zero_outputs=true").model
    model = MaskedLM(config, 256)
    initialise(model, 0.02, torch.Generator().manual_seed(0), zero_outputs=True)
    plain = MaskedLM(config, 256)
    initialise(plain, 0.02, torch.Generator().manual_seed(0))
    own = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        if name.endswith(("attention.out.weight", "ffn.down.weight")):
            assert not own[name].any()
            assert parameter.any()
        else:
            assert torch.equal(parameter, own[name]), name


@pytest.mark.parametrize("shape", [(24, 16), (16, 24)])
def test_a_batch_of_matrices_is_each_of_them(shape: tuple[int, int]) -> None:
    batch = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    together = orthogonalise(batch, torch.float32)
    for matrix, found in zip(batch, together, strict=True):
        alone = orthogonalise(matrix[None], torch.float32)[0]
        assert (found - alone).norm() <= 1e-5 * alone.norm()
