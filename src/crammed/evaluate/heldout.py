"""Held-out masked-language-model loss at fixed rows and fixed masks.

The protocol: documents in pieces of 20,000 characters through the model's own tokenizer, [SEP]
after each document, rows without padding in a fixed shuffled order, and exactly round(rate x
length) positions a row behind [MASK], at 15 % and 25 %. Loss is in nats per masked token; bits
per character compare models with different tokenizers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
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

RATES = (0.15, 0.25)
_PIECE = 20_000

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
        InputError: the file is unreadable, is not of that form, or the tokenizer
            lacks special tokens.
    """
    sep = Specials.of(tokenizer).sep
    ids: list[int] = []
    characters = 0
    with open_text(file) as lines:
        for number, line in enumerate(lines, 1):
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{file}, line {number}: not a JSON object with text") from error
            for start in range(0, len(text), _PIECE):
                piece = text[start : start + _PIECE]
                ids.extend(tokenizer.encode(piece, add_special_tokens=False).ids)
            characters += len(text)
            ids.append(sep)
    rows = np.asarray(ids[: len(ids) // length * length], np.int64).reshape(-1, length)
    order = np.random.default_rng(0).permutation(len(rows))[:most_rows]
    return HeldoutRows(rows[order], len(ids) / max(1, characters))


def heldout_loss(
    logits: SparseLogits,
    rows: HeldoutRows,
    mask_id: int,
    device: torch.device,
    batch: int = 64,
) -> dict[str, float]:
    """Loss and bits per character at each rate, as ``loss@0.15`` and so on."""
    result: dict[str, float] = {}
    for rate in RATES:
        count = round(rate * rows.ids.shape[1])
        draw = np.random.default_rng(1).random(rows.ids.shape)
        positions = np.argsort(draw, axis=1)[:, :count]
        total = 0.0
        with torch.inference_mode():
            for start in range(0, len(rows.ids), batch):
                labels = torch.from_numpy(rows.ids[start : start + batch]).to(device)
                where = torch.from_numpy(positions[start : start + batch]).to(device)
                picked = logits(labels.scatter(1, where, mask_id), where).float().flatten(0, 1)
                wanted = labels.gather(1, where).flatten()
                total += torch.nn.functional.cross_entropy(picked, wanted, reduction="sum").item()
        loss = total / (len(rows.ids) * count)
        result[f"loss@{rate}"] = loss
        result[f"bits_per_character@{rate}"] = loss * rows.tokens_per_character / math.log(2)
    return result
