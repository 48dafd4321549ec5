"""What training would reach on a card that this machine lacks: counted, not measured.

Memory is what an uncompiled microbatch of tensors without storage would allocate, and the rows of a
microbatch follow from it as on a real card. Time is FLOPs at a share of the peak, plus the fewest
bytes that `crammed.model.traffic` counts at a share of the bandwidth. The shares are what single
operations reached on one H200. No part is faster than its kernel launches, which dominate in tiny
models. Gaps between kernels, clocks that drop under load, compiling and reading are not counted: on
that H200, a plain compiled loop of the paper's shape under autocast took 1.3 times its count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crammed.config import ComputeConfig, RunConfig
from crammed.config.optim import LibraryConfig
from crammed.data.masking import predicted_positions
from crammed.errors import InputError
from crammed.machine.cards import GIB, Card
from crammed.machine.device import Device
from crammed.model.count import parameters, run_flops_per_token, train_flops_per_token
from crammed.model.electra import model_in_training
from crammed.model.traffic import attention_bytes, attention_flops, traffic
from crammed.optim.muon import orthogonalisation_flops
from crammed.planning.parts import FIRST_IDS, PartTimes
from crammed.rules.choosing import Measure
from crammed.rules.sizing import flops_per_token
from crammed.training.update.build import step_of
from crammed.training.update.memory import allocated, bytes_per_parameter, refuse_larger
from crammed.training.update.step import TrainStep

PRODUCTS = 0.725
"""Share of the peak that matrix products reach: those of the paper's step 717 of 989 TFLOP/s."""
ATTENTION = 0.35
"""Share of the peak that attention reaches if it is not bound by its bytes (assumed)."""
BANDWIDTH = 0.9
"""Share of the bandwidth that a copy reaches: 4.3 of 4.8 TB/s."""
LAUNCH = 2e-6
"""Seconds that any launch takes (assumed)."""
MICROBATCH_LAUNCHES, LAYER_LAUNCHES = 40, 30
"""Launches of a compiled microbatch, and those that each layer adds, to within a tenth of what
``tools/step_on_paper.py`` counts."""
ADAMW_LAUNCHES, MUON_LAUNCHES = 12, 36
"""Launches of clipping and AdamW in an update, and of Muon for each shape of its matrices, without
the further ones of a large model whose lists of tensors do not fit into a single launch."""
RESERVED = GIB
"""Memory for the driver, CUDA's context and its libraries."""
UPDATE_BYTES = 18
"""Moved once per update for each parameter: weight read and written, gradient read; then the weight
read again, and written in 16 bits."""
KEPT_BYTES = 8
"""Moved in addition for each number that the optimizer keeps for a parameter: read and written."""
RECOMPUTED = 4 / 3
"""The factor on the time of a microbatch whose layers compute their activations twice."""


def counted_measure(card: Card) -> Measure:
    """A function that counts what `crammed.planning.settling.Measuring` measures: FLOP/s."""

    def measure(config: RunConfig) -> float:
        rows, vocab = config.batch.rows, config.tokenizer.vocab_size
        length = config.data.row_length
        predicted = predicted_positions(config.masking.rate, length)
        seconds = counted_speed(config, vocab, card).seconds(rows, predicted)
        return flops_per_token(config) * rows * length / seconds

    return measure


Taken = dict[tuple[str, bool, int], int]
"""Bytes that a microbatch takes, by its format, whether layers recompute, and its rows."""


def counted_speed(
    config: RunConfig, vocab_size: int, card: Card, known: Taken | None = None
) -> PartTimes:
    """The parts of what `crammed.planning.parts.measure_speed` measures that can be counted.

    Args:
        known: what was counted for other cards with this configuration; what is counted is added.

    Raises:
        InputError: the number format is not the one that is counted, or memory is too small.
    """
    known = {} if known is None else known
    step = _fitted(config, vocab_size, card, known)
    rows = min(step.microbatch_rows, config.batch.rows)
    size = parameters(config.model, vocab_size, config.generator())
    held = bytes_per_parameter(config) * size + step.leaves.cast_bytes
    most = card.memory - RESERVED
    while (memory := held + _taken(step, rows, card, known)) > most and rows > 1:
        rows //= 2  # as training does if memory runs out nevertheless
    if memory > most:
        raise InputError(
            f"not even one row of {config.data.row_length} tokens fits into the memory of the "
            f"{card.name}: train a smaller model (model.layers, model.width)"
        )
    rates = config.masking.rate, config.mask_rates()[-1]
    few, many = sorted(predicted_positions(rate, config.data.row_length) for rate in rates)
    less, more = (
        _microbatch_seconds(config, vocab_size, card, rows, count, step.recomputes) / rows
        for count in (few, many)
    )
    prediction = (more - less) / (many - few) if few < many else 0.0
    return PartTimes(
        update=_update_seconds(step, card, config.state_per_parameter()),
        row=less - few * prediction,
        prediction=prediction,
        compile=0.0,
        memory=memory,
        microbatch_rows=rows,
    )


def _update_seconds(step: TrainStep, card: Card, kept: int) -> float:
    """Seconds of an update besides its microbatches.

    Args:
        kept: numbers that the optimizer keeps for each parameter.
    """
    moved = (UPDATE_BYTES + KEPT_BYTES * kept) * sum(each.numel() for each in step.parameters)
    shapes: Counter[tuple[int, int]] = Counter()
    for group in step.optimizer.param_groups:
        if "parts" in group:  # one of Muon's
            for each in group["params"]:
                shapes[len(each) // group["parts"], each.shape[1]] += group["parts"]
    flops = sum(count * orthogonalisation_flops(*shape) for shape, count in shapes.items())
    launches = ADAMW_LAUNCHES + MUON_LAUNCHES * len(shapes)
    seconds = moved / (BANDWIDTH * card.bandwidth) + flops / (PRODUCTS * card.peak)
    return max(seconds, launches * LAUNCH)


def _microbatch_seconds(
    config: RunConfig, vocab_size: int, card: Card, rows: int, predicted: int, recomputes: bool
) -> float:
    model, length = config.model, config.data.row_length
    tokens = rows * length
    of_attention = attention_flops(model, tokens, length)
    once = train_flops_per_token(model, vocab_size, length, predicted)
    products = tokens * once - of_attention
    bandwidth = BANDWIDTH * card.bandwidth
    moved = sum(traffic(model, vocab_size, tokens, rows * predicted, 2, 2).values())
    seconds = products / (PRODUCTS * card.peak) + moved / bandwidth
    seconds += max(
        of_attention / (ATTENTION * card.peak), attention_bytes(model, tokens, 2) / bandwidth
    )
    launches = MICROBATCH_LAUNCHES + LAYER_LAUNCHES * model.depth
    seconds = max(seconds, launches * LAUNCH) * (RECOMPUTED if recomputes else 1.0)
    return seconds * run_flops_per_token(config, vocab_size, predicted) / once


def _fitted(config: RunConfig, vocab_size: int, card: Card, known: Taken) -> TrainStep:
    """The training step on the card, without storage, with microbatches that fit its memory."""
    if isinstance(optim := config.optim, LibraryConfig) and optim.curvature_every is not None:
        raise InputError(
            f"--device {card.name} counts products in {card.half}, but optim.of={optim.of} needs "
            "float32: plan on a machine that has the card, without --device"
        )
    device, free = _device(config.compute, card), card.memory - RESERVED
    refuse_larger(config, vocab_size, free, f"the {card.name}, less 1 GiB for CUDA,")
    with torch.device("meta"):
        model = model_in_training(config.model, vocab_size, config.generator())
    step = step_of(model, config.grown(), FIRST_IDS, device)
    if device.fits_microbatch:
        weights = sum(each.nbytes for each in step.parameters) + step.leaves.cast_bytes
        step.fit(free - weights, lambda rows: _taken(step, rows, card, known))
    return step


def _taken(step: TrainStep, rows: int, card: Card, known: Taken) -> int:
    kind = (card.half, step.recomputes, rows)
    if kind not in known:
        with _one_kernel_attention():
            known[kind] = allocated(lambda: step.try_rows(rows))
    return known[kind]


def _device(config: ComputeConfig, card: Card) -> Device:
    """The card as `crammed.machine.device.choose_device` would describe it on its own machine."""
    native: torch.dtype = getattr(torch, card.half)
    if config.fp8 == "on" or config.dtype not in ("auto", card.half):
        raise InputError(
            f"--device {card.name} counts products in {card.half}: leave out compute.fp8 and "
            "compute.dtype"
        )
    return Device(
        torch=torch.device("meta"),
        name=card.name,
        dtype=native,
        tuning_dtype=torch.float32 if native == torch.float16 else native,
        fp8=False,
        kernels=config.kernels,
        compile=False,
        recomputes=None if config.recompute == "auto" else config.recompute == "on",
        microbatch_rows=config.microbatch_rows or 256,
        fits_microbatch=config.microbatch_rows is None,
        peak=card.peak,
        peak_source="table",
        reasons=(),
    )


@contextmanager
def _one_kernel_attention() -> Iterator[None]:
    """Attention in one kernel, as on a card; without one, PyTorch keeps all scores in memory."""
    functional: Any = F  # patched in the module, where layers recomputed in backward find it
    usual = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = _attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = usual


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    bias = None
    if attn_mask is not None:
        bias = torch.zeros_like(attn_mask, dtype=query.dtype)
        if attn_mask.dtype == torch.bool:
            bias = bias.masked_fill(~attn_mask, -float("inf"))
        bias = bias.expand(*query.shape[:-1], key.shape[-2])
    operator = torch.ops.aten._scaled_dot_product_efficient_attention
    output: Tensor = operator(query, key, value, bias, True, dropout_p)[0]
    return output
