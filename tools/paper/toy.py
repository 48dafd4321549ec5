"""A norm and a GELU, forward and backward, and their traffic as counted by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from paper.compiler import paper
from paper.launches import Launch, Noted

ROWS, WIDTH = 65_536, 768


def by_hand() -> list[tuple[int, int]]:
    """Bytes that each kernel reads and writes."""
    half, full, vector = 2 * ROWS * WIDTH, 4 * ROWS * WIDTH, 4 * WIDTH
    statistics = 2 * 4 * ROWS  # mean and reciprocal deviation
    partial = 2 * vector * (ROWS // 32)  # sums for weight and bias, of 32 rows each
    return [
        # Forward: x, weight and bias; y and the statistics.
        (half + 2 * vector, half + statistics),
        # Backward recomputes the norm in float32: x, statistics, weight and bias.
        (half + statistics + 2 * vector, full),
        # The gradient of y, that norm, x, statistics, weight; the gradient of x, and column sums.
        (half + full + half + statistics + vector, half + partial),
    ]


def on_paper(noted: Noted) -> list[Launch]:
    """The launches of the generated kernels of the same step, counted."""

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.gelu(F.layer_norm(x.float(), (WIDTH,), weight, bias)).to(torch.bfloat16)

    with paper(noted):
        x = torch.empty(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        vectors = [torch.empty(WIDTH, device="cuda", requires_grad=True) for _ in range(2)]
        compiled = torch.compile(function, fullgraph=True, dynamic=False)
        with noted.listening() as launches:
            y = compiled(x, *vectors)
            y.backward(torch.empty_like(y))
    return [launch for launch in launches if launch.where != "operator"]
