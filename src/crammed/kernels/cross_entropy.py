"""Cross-entropy over a large vocabulary, in float32 arithmetic on logits of any format.

Forward reads the logits once (online softmax, Milakov and Gimelshein 2018) and keeps one number per
row; backward reads them once more and writes their gradient to a new tensor, after which the logits
are freed. Forward could overwrite the logits with the gradient only if it knew the factor that
backward will apply (scaling later costs the pass that was saved). Backward could do so only outside
torch.compile, which copies what a backward pass would modify.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crammed.errors import InputError
from crammed.kernels.jit import jit, power_of_two, runs_on, tl

_BLOCK = 8192
_WARPS = 8


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the rows' losses, a scalar; float32 unless the logits are float64.

    Args:
        logits: [N, V].
        labels: [N] int64, from 0 to V - 1; rows with -100 are ignored.

    Raises:
        InputError: the shapes do not fit together.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise InputError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} do not fit: "
            "one row of logits a label"
        )
    if runs_on(logits):
        losses, _ = _cross_entropy(logits, labels)
        total: Tensor = losses.sum()
        return total
    return cross_entropy_reference(logits, labels)


def cross_entropy_reference(logits: Tensor, labels: Tensor) -> Tensor:
    """`cross_entropy` in plain PyTorch."""
    precise = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(precise), labels, reduction="sum")


@jit
def _cross_entropy_forward_kernel(
    logits: tl.tensor,
    labels: tl.tensor,
    losses: tl.tensor,
    normalisers: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * VOCAB
    greatest = -float("inf")
    total = 0.0
    for first in range(0, VOCAB, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(logits + column, mask=column < VOCAB, other=-float("inf")).to(tl.float32)
        raised = tl.maximum(greatest, tl.max(x, axis=0))
        total = total * tl.exp(greatest - raised) + tl.sum(tl.exp(x - raised), axis=0)
        greatest = raised
    normaliser = greatest + tl.log(total)
    label = tl.load(labels + row)
    counts = label != -100
    target = tl.load(logits + label, mask=counts, other=0.0).to(tl.float32)
    tl.store(losses + row, tl.where(counts, normaliser - target, 0.0))
    tl.store(normalisers + row, normaliser)


@jit
def _cross_entropy_backward_kernel(
    d_losses: tl.tensor,
    logits: tl.tensor,
    labels: tl.tensor,
    normalisers: tl.tensor,
    d_logits: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = row * VOCAB + column
    label = tl.load(labels + row)
    scale = tl.where(label != -100, tl.load(d_losses + row), 0.0)
    x = tl.load(logits + at, mask=column < VOCAB, other=0.0).to(tl.float32)
    result = tl.exp(x - tl.load(normalisers + row))
    result = scale * tl.where(column == label, result - 1.0, result)
    tl.store(d_logits + at, result.to(d_logits.dtype.element_ty), mask=column < VOCAB)


@torch.library.custom_op(
    "crammed::cross_entropy",
    mutates_args=(),
    schema="(Tensor logits, Tensor labels) -> (Tensor, Tensor)",
)
def _cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Losses, and logarithms of the softmax denominators, [N] float32."""
    logits, labels = logits.contiguous(), labels.contiguous()
    rows, vocab = logits.shape
    losses = logits.new_empty(rows, dtype=torch.float32)
    normalisers = torch.empty_like(losses)
    block = min(_BLOCK, power_of_two(vocab))
    if rows:
        _cross_entropy_forward_kernel[(rows,)](
            logits, labels, losses, normalisers, VOCAB=vocab, BLOCK=block, num_warps=_WARPS
        )
    return losses, normalisers


@_cross_entropy.register_fake
def _(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    losses = logits.new_empty(logits.shape[0], dtype=torch.float32)
    return losses, torch.empty_like(losses)


@torch.library.custom_op(
    "crammed::cross_entropy_backward",
    mutates_args=(),
    schema="(Tensor d_losses, Tensor logits, Tensor labels, Tensor normalisers) -> Tensor",
)
def _cross_entropy_backward(
    d_losses: Tensor, logits: Tensor, labels: Tensor, normalisers: Tensor
) -> Tensor:
    d_losses, logits, labels = d_losses.contiguous(), logits.contiguous(), labels.contiguous()
    rows, vocab = logits.shape
    d_logits = torch.empty_like(logits)
    block = min(_BLOCK // 2, power_of_two(vocab))
    if rows:
        _cross_entropy_backward_kernel[(rows, -(-vocab // block))](
            d_losses,
            logits,
            labels,
            normalisers,
            d_logits,
            VOCAB=vocab,
            BLOCK=block,
            num_warps=_WARPS,
        )
    return d_logits


@_cross_entropy_backward.register_fake
def _(d_losses: Tensor, logits: Tensor, labels: Tensor, normalisers: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, d_losses: Tensor, _: Tensor) -> tuple[Tensor, None]:
    return _cross_entropy_backward(d_losses, *ctx.saved_tensors), None


_cross_entropy.register_autograd(_backward, setup_context=_save)
