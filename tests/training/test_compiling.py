"""How the loss is compiled: what the pass for GPUs changes, and that it changes no number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from crammed.training.update.compiling import Apart

CAT = torch.ops.aten.cat.default


def gate_gradients(x: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    active, gate = F.linear(x, weight).chunk(2, dim=-1)
    return torch.autograd.grad(F.gelu(active) * gate, (x, weight), gradient)


def passed(function: Callable[..., Any], *inputs: Tensor) -> tuple[list[int], Any]:
    """How many parts each concatenation has after the pass, and what the changed graph computes."""
    traced = make_fx(function, tracing_mode="fake")(*inputs)
    Apart()(traced.graph)
    traced.graph.lint()
    traced.recompile()
    found = traced.graph.find_nodes(op="call_function", target=CAT)
    return [len(node.args[0]) for node in found], traced(*inputs)


def test_the_halves_of_a_gate_s_gradient_are_more_parts_than_one_pass_takes() -> None:
    x, weight = torch.randn(2, 5, 8, requires_grad=True), torch.randn(12, 8, requires_grad=True)
    inputs = x, weight, torch.randn(2, 5, 6)
    parts, gradients = passed(gate_gradients, *inputs)
    assert parts == [9]
    expected = gate_gradients(*inputs)
    assert all(torch.equal(*both) for both in zip(gradients, expected, strict=True))


def test_what_others_than_products_read_stays_in_their_pass() -> None:
    a, b, weight = torch.randn(4, 3), torch.randn(4, 3), torch.randn(6, 2)

    def rotated(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat((-a, b), 1) * 2.0

    def both(a: Tensor, b: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat((-a, b), 1)
        return joined @ weight, joined.view(2, 12).abs()

    assert passed(rotated, a, b)[0] == [2]
    assert passed(both, a, b, weight)[0] == [2]
    assert passed(lambda a, b: torch.cat((-a, b)).t() @ torch.cat((b, a)), a, b)[0] == [9, 9]
