"""Held-out masked-language-model loss on fixed rows with fixed masks.

Exactly round(rate x length) positions of a row are replaced by `[MASK]`, at rates of 15 % and 25 %.
Loss is in nats per masked token; bits per character compare models with different tokenizers.
`crammed.data.heldout` cuts the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crammed.data.heldout import HeldoutRows
from crammed.device import is_out_of_memory

RATES = (0.15, 0.25)
_TOKENS = 8192
"""Tokens of one forward pass."""

SparseLogits = Callable[[Tensor, Tensor], Tensor]
"""(ids [B, S], positions [B, N]) -> logits [B, N, V]."""


def heldout_loss(
    logits: SparseLogits, rows: HeldoutRows, mask_id: int, device: torch.device
) -> dict[str, float]:
    """Measure loss and bits per character at each rate, as ``loss@0.15`` and so on.

    When memory runs out, a rate starts again with half as many rows at a time.
    """
    result: dict[str, float] = {}
    count_rows, length = rows.ids.shape
    batch = max(1, _TOKENS // length)
    for rate in RATES:
        count = round(rate * length)
        draw = np.random.default_rng(1).random(rows.ids.shape)
        positions = np.argsort(draw, axis=1)[:, :count]
        while (total := _summed(logits, rows.ids, positions, mask_id, device, batch)) is None:
            batch //= 2
        loss = total / (count_rows * count)
        result[f"loss@{rate}"] = loss
        result[f"bits_per_character@{rate}"] = loss * rows.tokens_per_character / math.log(2)
    return result


def _summed(
    logits: SparseLogits,
    ids: NDArray[np.int64],
    positions: NDArray[np.int64],
    mask_id: int,
    device: torch.device,
    batch: int,
) -> float | None:
    """Cross-entropy summed over all positions; None if `batch` rows do not fit into memory."""
    total = 0.0
    try:
        with torch.inference_mode():
            for start in range(0, len(ids), batch):
                labels = torch.from_numpy(ids[start : start + batch]).to(device)
                where = torch.from_numpy(positions[start : start + batch]).to(device)
                picked = logits(labels.scatter(1, where, mask_id), where).float().flatten(0, 1)
                wanted = labels.gather(1, where).flatten()
                total += torch.nn.functional.cross_entropy(picked, wanted, reduction="sum").item()
    except RuntimeError as error:
        if batch == 1 or not is_out_of_memory(error):
            raise
        return None
    return total
