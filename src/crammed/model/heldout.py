"""Held-out masked-language-model loss on fixed rows with fixed masks.

Exactly round(rate x length) positions of a row are replaced by `[MASK]`, at rates of 15 % and 25 %.
Loss is in nats per masked token; bits per character compare models with different tokenizers.
The rows come from `crammed.data.heldout`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from crammed.data.heldout import HeldoutRows
from crammed.machine.device import is_out_of_memory

RATES = (0.15, 0.25)
BINS = 8
"""Number of parts of a row in `loss_by_position`."""
AT_ONCE, ON_A_CPU = 8192, 2048
"""Tokens per forward pass; more are no faster on a CPU, and take more memory than training."""
_UNCOUNTED = -1
"""Label of positions with nothing to predict."""

SparseLogits = Callable[[Tensor, Tensor], Tensor]
"""(ids [B, S], positions [B, N]) -> logits [B, N, V]."""
PaddedLogits = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(ids [B, S], positions [B, N], mask [B, S], False at padding) -> logits [B, N, V]."""
Batches = Iterator[tuple[Tensor, Tensor]]
Losses = dict[float, NDArray[np.float32]]
"""Rate -> the loss at each masked position of R rows, [R * N]."""
T = TypeVar("T")


def heldout_loss(
    logits: SparseLogits, rows: HeldoutRows, mask_id: int, device: torch.device
) -> dict[str, float]:
    """Measure loss and bits per character at each rate, with keys such as ``loss@0.15``.

    When memory runs out, the measurement at that rate restarts with half as many rows at a time.
    """
    return heldout_losses(logits, rows, mask_id, device, each=False)[0]


def heldout_losses(
    logits: SparseLogits, rows: HeldoutRows, mask_id: int, device: torch.device, *, each: bool
) -> tuple[dict[str, float], Losses]:
    """As `heldout_loss`, and with `each` also the loss at each masked position."""
    result: dict[str, float] = {}
    losses: Losses = {}
    batch = _rows_at_once(rows, device)
    for rate in RATES:
        positions = _masked_positions(rows, rate)
        batches = partial(_batches, logits, rows.ids, positions, mask_id, device)
        (total, singly), batch = fitting(partial(_summed, batches, each), batch)
        loss = total / positions.size
        result[f"loss@{rate}"] = loss
        result[f"bits_per_character@{rate}"] = loss * rows.tokens_per_character / math.log(2)
        if each:
            losses[rate] = singly
    return result, losses


def loss_by_position(rows: HeldoutRows, losses: Losses) -> list[float | None]:
    """The loss at the lower rate in each of `BINS` equal parts of a row, first to last.

    None for a part without masked positions.
    """
    part = _masked_positions(rows, RATES[0]).flatten() * BINS // rows.ids.shape[1]
    counts = np.bincount(part, minlength=BINS)
    sums = np.bincount(part, losses[RATES[0]], minlength=BINS)
    return [total / n if n else None for total, n in zip(sums.tolist(), counts, strict=True)]


def loss_by_source(rows: HeldoutRows, losses: Losses) -> dict[str, dict[str, float | None]]:
    """For each source, its ``tokens`` in the rows, and what `heldout_loss` gives for them alone.

    Empty unless the rows are from several sources; a loss is None if no token of its source is
    masked.
    """
    if (sources := rows.sources) is None:
        return {}
    count = len(sources.names)
    tokens = np.bincount(sources.of_tokens.ravel(), minlength=count).tolist()
    result: dict[str, dict[str, float | None]] = {
        name: {"tokens": own} for name, own in zip(sources.names, tokens, strict=True)
    }
    for rate, at_positions in losses.items():
        positions = _masked_positions(rows, rate)
        masked = np.take_along_axis(sources.of_tokens, positions, axis=1).ravel()
        sums = np.bincount(masked, at_positions, minlength=count)
        means = sums / np.bincount(masked, minlength=count).clip(1)
        for number in range(count):
            loss = float(means[number]) if (masked == number).any() else None
            bits = None
            if loss is not None:
                bits = loss * sources.tokens_per_character[number] / math.log(2)
            own = result[sources.names[number]]
            own[f"loss@{rate}"], own[f"bits_per_character@{rate}"] = loss, bits
    return result


def document_loss(
    logits: PaddedLogits, rows: HeldoutRows, mask_id: int, sep: int, device: torch.device
) -> dict[str, float | None]:
    """The loss if the encoder sees each document of a row alone, as ``document_loss@0.15``.

    Rows and masks are those of `heldout_loss`, but no [SEP] is masked or counted, because the end
    of a document alone gives it away. None if nothing else is masked.
    """
    result: dict[str, float | None] = {}
    batch = _rows_at_once(rows, device)
    for rate in RATES:
        pieces = sorted(_pieces(rows, rate, mask_id, sep), key=lambda piece: len(piece.ids))
        total, batch = fitting(partial(_summed_alone, logits, pieces, device), batch)
        count = sum(len(piece.labels) for piece in pieces)
        result[f"document_loss@{rate}"] = total / count if count else None
    return result


def _rows_at_once(rows: HeldoutRows, device: torch.device) -> int:
    most = ON_A_CPU if device.type == "cpu" else AT_ONCE
    return max(1, most // int(rows.ids.shape[1]))


def _masked_positions(rows: HeldoutRows, rate: float) -> NDArray[np.int64]:
    """The masked positions of each row, [R, N], in random order."""
    draw = np.random.default_rng(1).random(rows.ids.shape)
    return np.argsort(draw, axis=1)[:, : round(rate * rows.ids.shape[1])]


def fitting(measure: Callable[[int], T], batch: int) -> tuple[T, int]:
    """Call `measure` with `batch` rows at a time, halved until it fits; return result and batch."""
    while True:
        try:
            return measure(batch), batch
        except RuntimeError as error:
            if batch == 1 or not is_out_of_memory(error):
                raise
        batch //= 2


def _batches(
    logits: SparseLogits,
    ids: NDArray[np.int64],
    positions: NDArray[np.int64],
    mask_id: int,
    device: torch.device,
    batch: int,
) -> Batches:
    """Logits [B * N, V] and labels [B * N] of the masked positions, `batch` rows at a time."""
    for start in range(0, len(ids), batch):
        labels = torch.from_numpy(ids[start : start + batch]).to(device)
        where = torch.from_numpy(positions[start : start + batch]).to(device)
        picked = logits(labels.scatter(1, where, mask_id), where).float().flatten(0, 1)
        yield picked, labels.gather(1, where).flatten()


@torch.inference_mode()
def _summed(
    batches: Callable[[int], Batches], each: bool, batch: int
) -> tuple[float, NDArray[np.float32]]:
    """Cross-entropy summed over all positions, and with `each` at each position, [R * N]."""
    total = 0.0
    parts = [torch.empty(0)]
    for found in batches(batch):
        total += F.cross_entropy(*found, reduction="sum").item()
        if each:
            parts.append(F.cross_entropy(*found, reduction="none").cpu())
    return total, torch.cat(parts).numpy()


class _Piece(NamedTuple):
    """A document's part of a row: masked ids [S], masked positions [N] and labels [N]."""

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]


def _pieces(rows: HeldoutRows, rate: float, mask_id: int, sep: int) -> Iterator[_Piece]:
    """Every document's part of every row, unless nothing in it is masked."""
    for row, positions in zip(rows.ids, _masked_positions(rows, rate), strict=True):
        masked = row.copy()
        masked[positions] = mask_id
        chosen = np.sort(positions[row[positions] != sep])
        masked[row == sep] = sep
        ends = [*(np.flatnonzero(row == sep) + 1).tolist(), len(row)]
        begin = 0
        for end in ends:
            own = chosen[(chosen >= begin) & (chosen < end)]
            if len(own):
                yield _Piece(masked[begin:end], own - begin, row[own])
            begin = end


@torch.inference_mode()
def _summed_alone(
    logits: PaddedLogits, pieces: list[_Piece], device: torch.device, batch: int
) -> float:
    """Cross-entropy summed over the masked positions of documents, `batch` pieces at a time."""
    total = 0.0
    for start in range(0, len(pieces), batch):
        ids, where, labels = zip(*pieces[start : start + batch], strict=True)
        lengths = torch.tensor([len(each) for each in ids], device=device)
        padded = _padded(ids, 0, device)
        mask = torch.arange(padded.shape[1], device=device) < lengths[:, None]
        picked = logits(padded, _padded(where, 0, device), mask).float().flatten(0, 1)
        wanted = _padded(labels, _UNCOUNTED, device).flatten()
        total += F.cross_entropy(picked, wanted, ignore_index=_UNCOUNTED, reduction="sum").item()
    return total


def _padded(arrays: Sequence[NDArray[np.int64]], filler: int, device: torch.device) -> Tensor:
    """Arrays of different lengths as one tensor [B, longest]."""
    tensors = [torch.from_numpy(array) for array in arrays]
    return pad_sequence(tensors, batch_first=True, padding_value=filler).to(device)
