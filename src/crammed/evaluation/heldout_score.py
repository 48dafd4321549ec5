"""Held-out masked-language-model loss of any encoder (`crammed.model.heldout` computes it)."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

import torch

from crammed.data.heldout import cut_rows
from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone, check_length
from crammed.model.heldout import (
    RATES,
    document_loss,
    heldout_losses,
    loss_by_position,
    loss_by_source,
)

_LENGTH = 128


def heldout_score(
    backbone: Backbone,
    file: Path,
    device: torch.device,
    most_rows: int = 2000,
    length: int | None = None,
    *,
    framed: bool = True,
) -> dict[str, Any]:
    """Measure held-out loss on fixed rows with fixed masks.

    Args:
        file: JSON lines with a field ``text``.
        most_rows: the maximum number of rows to use.
        length: tokens per row; None is 128, or the encoder's limit if that is lower.
        framed: whether [SEP] ends each document, as in the rows that the model was trained on.

    Returns:
        ``rows``, ``length``, ``tokens_per_character``, everything that `heldout_loss` and, if
        documents are framed, `document_loss` return, ``by_position@0.15``, the list from
        `loss_by_position`, and ``by_source`` from `loss_by_source` if the documents are from
        several sources.

    Raises:
        InputError: the file is not in that format or is shorter than one row, or the encoder cannot
            take rows of this length, has no masked-language-model head, mask token or separator, or
            computes no finite numbers.
    """
    length = min(_LENGTH, backbone.max_length) if length is None else length
    check_length(length, backbone)
    if backbone.mask is None or backbone.sep is None:
        raise InputError(
            f"the tokenizer of {backbone.name} has no mask token or no separator: name a "
            "masked-language model"
        )
    sep = backbone.sep if framed else None
    rows = cut_rows(backbone.plain_ids, sep, file, most_rows, length)
    model = backbone.masked_lm(device)
    whole, losses = heldout_losses(model, rows, backbone.mask, device, each=True)
    by_source = loss_by_source(rows, losses)
    scores = {
        "rows": len(rows.ids),
        "length": length,
        "tokens_per_character": rows.tokens_per_character,
        **whole,
        **(document_loss(model, rows, backbone.mask, sep, device) if sep is not None else {}),
        f"by_position@{RATES[0]}": loss_by_position(rows, losses),
        **({"by_source": by_source} if by_source else {}),
    }
    if not all(isfinite(value) for value in scores.values() if isinstance(value, float)):
        raise InputError(f"{backbone.name} computes no finite numbers: evaluate another model")
    return scores
