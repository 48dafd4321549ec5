"""Where one document of a packed row ends and the next begins; worked out on the device."""

from __future__ import annotations

from torch import Tensor


def same_document(rows: Tensor, sep: int) -> Tensor:
    """Which tokens of a row belong to the same document, [B, S, S] bool.

    A [SEP] ends a document and belongs to it. Packing puts one after every document, and text never
    contains one, so the ids themselves tell where documents end.

    Args:
        rows: [B, S] token ids as they were packed, before masking.
        sep: id of [SEP].
    """
    ends = rows == sep
    document = ends.cumsum(1) - ends.long()
    return document[:, :, None] == document[:, None, :]
