"""Finds where documents begin and end within packed rows, on the device."""

from __future__ import annotations

from torch import Tensor


def same_document(rows: Tensor, sep: int) -> Tensor:
    """Which pairs of a row's tokens belong to the same document, [B, S, S] bool.

    A [SEP] ends a document and belongs to it. Packing puts one after every document, and text never
    contains one, so the ids alone show where documents end.

    Args:
        rows: [B, S] token ids as packed, before masking.
        sep: id of [SEP].
    """
    ends = rows == sep
    document = ends.cumsum(1) - ends.long()
    return document[:, :, None] == document[:, None, :]
