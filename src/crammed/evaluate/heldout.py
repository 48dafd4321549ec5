"""Held-out masked-language-model loss at fixed rows and fixed masks.

The protocol: documents in pieces of 20,000 characters through the model's own tokenizer, [SEP]
after each document, rows without padding in a fixed shuffled order, and exactly round(rate x
length) positions a row behind [MASK], at 15 % and 25 %. Loss is in nats per masked token; bits
per character compare models with different tokenizers.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from crammed.data.sources import open_text
from crammed.data.tokenizer import Specials
from crammed.errors import InputError
from crammed.evaluate.encoders import Encoder, check_length
from crammed.train.memory import is_out_of_memory

RATES = (0.15, 0.25)
_PIECE = 20_000
_LENGTH = 128
_TOKENS = 8192
"""That are read at a time."""

SparseLogits = Callable[[Tensor, Tensor], Tensor]
"""(ids [B, S], positions [B, N]) -> logits [B, N, V]."""


@dataclass(frozen=True)
class HeldoutRows:
    """Rows [R, S] to evaluate on, and how finely their text was cut."""

    ids: NDArray[np.int64]
    tokens_per_character: float


def heldout_rows(tokenizer: Tokenizer, file: Path, most_rows: int, length: int) -> HeldoutRows:
    """Read a json-lines file with a field ``text`` and cut its rows.

    Raises:
        InputError: the file is unreadable, is not of that form, is shorter than one row, or the
            tokenizer lacks special tokens.
    """

    def ids_of(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return _rows(ids_of, Specials.of(tokenizer).sep, file, most_rows, length)


def heldout_score(
    encoder: Encoder,
    file: Path,
    device: torch.device,
    most_rows: int = 2000,
    length: int | None = None,
) -> dict[str, float]:
    """The protocol on any encoder: ``rows``, ``length``, ``tokens_per_character``, and the losses.

    Args:
        length: tokens a row; 128, or as many as the encoder takes, if None.

    Raises:
        InputError: the file is not of that form, the rows are too long for the encoder, or it has
            no masked-language-model head or no token for a mask or the end of a sentence.
    """
    length = min(_LENGTH, encoder.max_length) if length is None else length
    check_length(length, encoder)
    if encoder.mask is None or encoder.sep is None:
        raise InputError(f"the tokenizer of {encoder.name} has no mask token or no separator")
    rows = _rows(encoder.plain_ids, encoder.sep, file, most_rows, length)
    loss = heldout_loss(encoder.masked_lm(device), rows, encoder.mask, device)
    return {
        "rows": len(rows.ids),
        "length": length,
        "tokens_per_character": rows.tokens_per_character,
        **loss,
    }


def _rows(
    ids_of: Callable[[str], Sequence[int]], sep: int, file: Path, most_rows: int, length: int
) -> HeldoutRows:
    ids = array("i")
    characters = 0
    with open_text(file) as lines:
        for number, line in enumerate(lines, 1):
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{file}, line {number}: not a JSON object with text") from error
            if not isinstance(text, str):
                raise InputError(f"{file}, line {number}: text is no text")
            for start in range(0, len(text), _PIECE):
                ids.extend(ids_of(text[start : start + _PIECE]))
            characters += len(text)
            ids.append(sep)
    if len(ids) < length:
        raise InputError(f"{file} is shorter than one row of {length} tokens")
    rows = np.array(ids[: len(ids) // length * length], np.int64).reshape(-1, length)
    order = np.random.default_rng(0).permutation(len(rows))[:most_rows]
    return HeldoutRows(rows[order], len(ids) / max(1, characters))


def heldout_loss(
    logits: SparseLogits, rows: HeldoutRows, mask_id: int, device: torch.device
) -> dict[str, float]:
    """Loss and bits per character at each rate, as ``loss@0.15`` and so on.

    Where memory runs out, a rate begins again with half as many rows at a time.
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
    """Cross-entropy summed over all positions; None where so many rows are too much for memory."""
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
