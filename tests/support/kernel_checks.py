"""Tests of the Triton kernels against plain PyTorch in float64.

The kernels run on a GPU if there is one, and otherwise in Triton's interpreter, which must be
enabled before Triton is imported. So `test_kernels.py` runs this file in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from crammed.config import ModelConfig
from crammed.kernels import add_norm as add_norms
from crammed.kernels import cross_entropy as cross_entropies
from crammed.kernels import gate as gates
from crammed.kernels.add_norm import add_norm, add_norm_reference
from crammed.kernels.cross_entropy import cross_entropy, cross_entropy_reference
from crammed.kernels.encoder import fused
from crammed.kernels.gate import ACTIVATION_NAMES, gate, gate_reference
from crammed.kernels.jit import INTERPRETED
from crammed.model.encoder import MaskedLM, initialise
from crammed.training.precision import training_copy

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
LARGEST_ERROR = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
ROUNDING = 3.0 if INTERPRETED else 1.5
"""The most that a kernel's rounding error may be, relative to PyTorch's; the interpreter truncates
to bfloat16."""
BOTH = [torch.bfloat16, torch.float32]


@pytest.fixture(autouse=True)
def _same_inputs() -> None:
    """Every run draws the same numbers: a bound on rounding errors that holds, holds again."""
    torch.manual_seed(0)


def test_kernels_run_here() -> None:
    assert CUDA or INTERPRETED


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype).requires_grad_()


def assert_near(ours: Tensor, exact: Tensor, dtype: torch.dtype | None = None) -> None:
    assert ours.shape == exact.shape
    error = (ours.detach().double() - exact.detach()).norm() / exact.detach().norm()
    assert error < LARGEST_ERROR[dtype or ours.dtype]


def against_double(
    ours: Callable[..., tuple[Tensor, ...]],
    reference: Callable[..., tuple[Tensor, ...]],
    *inputs: Tensor,
    coarsest: torch.dtype,
) -> None:
    """Compare outputs, and gradients of a random combination of them, with float64."""
    exact = [each.detach().double().requires_grad_(each.requires_grad) for each in inputs]
    outputs, expected = ours(*inputs), reference(*exact)
    slopes = [torch.randn_like(each) for each in outputs]
    torch.autograd.backward(outputs, slopes)
    torch.autograd.backward(expected, [each.double() for each in slopes])
    for output, right in zip(outputs, expected, strict=True):
        assert_near(output, right, coarsest)
    for input, right in zip(inputs, exact, strict=True):
        if input.grad is not None:
            assert right.grad is not None
            assert input.grad.dtype == input.dtype
            assert_near(input.grad, right.grad, coarsest)
        else:
            assert right.grad is None


@pytest.mark.parametrize(("rows", "width"), [(37, 192), (3, 1000)])
@pytest.mark.parametrize("stream", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("biased", [True, False])
def test_add_norm(rows: int, width: int, stream: torch.dtype, biased: bool) -> None:
    for branch in dict.fromkeys((stream, torch.bfloat16)):
        inputs = [drawn(rows, width, dtype=stream), drawn(rows, width, dtype=branch)]
        inputs += [drawn(width) for _ in range(1 + biased)]

        def of(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, ...]]:
            return lambda x, b, w, bias=None: function(x, b, w, bias, 1e-12)

        total, normed = of(add_norm)(*inputs)
        assert (total.dtype, normed.dtype) == (stream, branch)
        against_double(of(add_norm), of(add_norm_reference), *inputs, coarsest=branch)


@pytest.mark.parametrize("used", [0, 1])
def test_add_norm_where_one_output_is_used(used: int) -> None:
    inputs = [drawn(2, 5, 64), drawn(2, 5, 64, dtype=torch.bfloat16), drawn(64)]
    against_double(
        lambda x, b, w: (add_norm(x, b, w, None, 1e-6)[used],),
        lambda x, b, w: (add_norm_reference(x, b, w, None, 1e-6)[used],),
        *inputs,
        coarsest=torch.bfloat16,
    )


def test_add_norm_of_parts_of_other_tensors() -> None:
    x, branch = drawn(6, 5, 64).transpose(0, 1), drawn(5, 6, 128)[..., ::2]
    total, normed = add_norm(x, branch, torch.ones(64, device=DEVICE), None, 1e-6)
    assert_near(total, (x + branch).double())
    assert_near(normed, F.layer_norm((x + branch).double(), (64,), eps=1e-6))


def test_the_norm_is_that_of_the_stored_total() -> None:
    """A total far from zero loses its last bits to bfloat16; backward must see what forward saw."""
    x, branch = drawn(8, 64, dtype=torch.bfloat16), drawn(8, 64, dtype=torch.bfloat16)
    total, normed = add_norm(x + 100, branch, torch.ones(64, device=DEVICE), None, 1e-6)
    assert_near(normed, F.layer_norm(total.double(), (64,), eps=1e-6))


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
@pytest.mark.parametrize(("rows", "hidden", "dtype"), [(37, 96, BOTH[0]), (3, 1000, BOTH[1])])
def test_gate(activation: str, rows: int, hidden: int, dtype: torch.dtype) -> None:
    up = (2 * drawn(rows, 2 * hidden).detach()).to(dtype).requires_grad_()
    against_double(
        lambda x: (gate(x, activation),),
        lambda x: (gate_reference(x, activation),),
        up,
        coarsest=dtype,
    )


def test_gate_of_large_values() -> None:
    """No NaN where an exponential overflows, in value or slope."""
    for activation in ACTIVATION_NAMES:
        up = torch.tensor([[-1e4, -90.0, 90.0, 1e4] + [1.0] * 4], device=DEVICE, requires_grad=True)
        against_double(
            lambda x, name=activation: (gate(x, name),),
            lambda x, name=activation: (gate_reference(x, name),),
            up,
            coarsest=torch.float32,
        )


@pytest.mark.parametrize(("rows", "vocab"), [(1, 64), (7, 1000), (3, 20011)])
@pytest.mark.parametrize("dtype", BOTH)
def test_cross_entropy(rows: int, vocab: int, dtype: torch.dtype) -> None:
    logits = (5 * drawn(rows, vocab).detach()).to(dtype).requires_grad_()
    labels = torch.randint(vocab, (rows,), device=DEVICE)
    labels[rows // 2 + 1 :: 2] = -100
    ours, exact = cross_entropy(logits, labels), logits.detach().double().requires_grad_()
    right = cross_entropy_reference(exact, labels)
    assert ours.dtype == torch.float32
    assert_near(ours, right)
    (0.37 * ours).backward()
    (0.37 * right).backward()
    assert logits.grad is not None
    assert exact.grad is not None
    assert_near(logits.grad, exact.grad)


def test_cross_entropy_of_large_logits() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], device=DEVICE)
    losses = cross_entropy(logits, torch.tensor([1, 2], device=DEVICE))
    assert losses.item() == pytest.approx(2e4 + torch.tensor(3.0).log().item())


def test_torch_s_own_checks_of_the_operators() -> None:
    """Schema, autograd registration, shapes of the fakes, and agreement under AOTAutograd."""
    x, branch, up = drawn(5, 32), drawn(5, 32, dtype=torch.bfloat16), drawn(5, 32)
    labels = torch.randint(32, (5,), device=DEVICE)
    for bias in (None, drawn(32)):
        torch.library.opcheck(add_norms._add_norm, (x, branch, drawn(32), bias, 1e-6))
    torch.library.opcheck(gates._gate, (up, "silu"))
    torch.library.opcheck(cross_entropies._cross_entropy, (up, labels))


SHAPE: dict[str, Any] = {
    "layers": 2,
    "width": 48,
    "head_dim": 16,
    "max_length": 16,
    "init_std": 0.3,
}
MODELS: list[dict[str, Any]] = [
    {"positions": "scaled-sinusoidal"},
    {"norm_bias": False, "first_attention_norm": False, "activation": "gelu_tanh"},
    {"gated": False, "final_norm": False, "activation": "relu2", "linear_bias": True},
]


def loss_and_gradients(
    model: MaskedLM, loss: Callable[[Tensor, Tensor], Tensor], backend: str | None, half: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(64, (3, 16), generator=draw).to(DEVICE)
    labels = torch.randint(64, (3, 4), generator=draw).to(DEVICE)
    places = torch.arange(4, device=DEVICE).expand(3, 4)

    def step() -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, half):
            logits = model(ids, places)
        return loss(logits.flatten(0, 1), labels.flatten())

    if backend is not None:
        torch._dynamo.reset()
        step = torch.compile(step, fullgraph=True, dynamic=False, backend=backend)
    value = step()
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(value, parameters)
    return value.detach(), dict(zip(names, gradients, strict=True))


def error(gradients: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """The relative error of the gradients of all parameters together."""
    ours, right = (torch.cat([each[n].flatten() for n in exact]) for each in (gradients, exact))
    return float((ours - right).norm() / right.norm())


@pytest.mark.parametrize("fields", MODELS, ids=str)
@pytest.mark.parametrize("backend", [None, "aot_eager", *(["inductor"] if CUDA else [])])
def test_a_fused_model_learns_as_the_plain_one(fields: dict[str, Any], backend: str | None) -> None:
    model = MaskedLM(ModelConfig.model_validate({**SHAPE, **fields}), 64)
    initialise(model, 0.1)
    model.to(DEVICE)
    loss, gradients = loss_and_gradients(model, cross_entropy_reference, None, half=False)
    fast, reason = fused(model)
    assert reason.startswith("fused kernels on"), reason
    fast_loss, fast_gradients = loss_and_gradients(fast, cross_entropy, backend, half=False)
    assert (fast_loss - loss).abs() / loss < 1e-5
    assert fast_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert error({name: fast_gradients[name]}, {name: gradient}) < 1e-3, name
    # With 16-bit products both models differ from float32; ours may hardly differ more.
    half_loss, half_gradients = loss_and_gradients(model, cross_entropy_reference, None, half=True)
    fast_loss, fast_gradients = loss_and_gradients(fast, cross_entropy, backend, half=True)
    assert (fast_loss - half_loss).abs() / loss < 0.01
    coarse, fine = error(fast_gradients, gradients), error(half_gradients, gradients)
    assert coarse < ROUNDING * fine


def test_the_training_copy_in_bfloat16() -> None:
    model = MaskedLM(ModelConfig.model_validate({**SHAPE, **MODELS[1]}), 64)
    initialise(model, 0.1)
    fast = training_copy(fused(model.to(DEVICE))[0], torch.bfloat16)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    renamed = {name: names[id(parameter)] for name, parameter in fast.named_parameters()}
    _, gradients = loss_and_gradients(model, cross_entropy_reference, None, half=False)
    _, half_gradients = loss_and_gradients(model, cross_entropy_reference, None, half=True)
    _, fast_gradients = loss_and_gradients(fast, cross_entropy, "aot_eager", half=False)
    fast_gradients = {renamed[name]: gradient for name, gradient in fast_gradients.items()}
    coarse, fine = error(fast_gradients, gradients), error(half_gradients, gradients)
    assert fine < coarse < 3 * ROUNDING * fine  # another format, and no other model


def test_the_same_bits_each_time() -> None:
    x, branch, weight, bias = drawn(500, 64), drawn(500, 64), drawn(64), drawn(64)
    grad = torch.randn(500, 64, device=DEVICE)
    first, second = (
        torch.autograd.grad(add_norm(x, branch, weight, bias, 1e-6)[1], (x, weight, bias), grad)
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
