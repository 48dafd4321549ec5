"""Held-out loss of any encoder."""

from __future__ import annotations

from pathlib import Path

import torch

from crammed.data.heldout import cut_rows
from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone, check_length
from crammed.model.heldout import heldout_loss

_LENGTH = 128


def heldout_score(
    encoder: Backbone,
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
    rows = cut_rows(encoder.plain_ids, encoder.sep, file, most_rows, length)
    loss = heldout_loss(encoder.masked_lm(device), rows, encoder.mask, device)
    return {
        "rows": len(rows.ids),
        "length": length,
        "tokens_per_character": rows.tokens_per_character,
        **loss,
    }
