"""TSDAE (Wang, Reimers and Gurevych 2021, arXiv 2104.06979): a text is rebuilt from its vector.

Most tokens of a text are deleted, and what is left goes through the encoder. From its vector alone,
a small decoder predicts the whole text, token by token. It is thrown away afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from crammed.evaluation.finetuning.batches import Batch
from crammed.evaluation.finetuning.engine import Numerics

DELETED = 0.6
"""The share of the tokens of a text that are deleted; the paper's best."""
RATE = 10.0
"""The decoder's learning rate, in those of the encoder: it begins at random."""
DROPOUT = 0.1
_HEAD, _STD, _AT_ONCE = 64, 0.02, 1024


class Decoder(nn.Module):
    """One layer of a Transformer that reads the tokens so far and one vector.

    It shares the encoder's token embeddings, for what it reads and for what it predicts. The paper
    shares all layers, but an encoder has no attention to a vector, and need not be a Transformer.

    Args:
        table: the encoder's token embeddings, [V, E]; they are not among the parameters.
        width: of the vectors.
        length: of the longest text, in tokens.
    """

    def __init__(self, table: nn.Parameter, width: int, length: int) -> None:
        super().__init__()
        narrow = table.shape[1]
        heads = next(n for n in range(max(1, width // _HEAD), 0, -1) if width % n == 0)
        self.into = nn.Linear(narrow, width)
        self.norm = nn.LayerNorm(width)
        self.places = nn.Parameter(_STD * torch.randn(length, width))
        self.layer = nn.TransformerDecoderLayer(
            width, heads, 4 * width, DROPOUT, "gelu", batch_first=True, norm_first=True
        )
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, narrow))
        self._table = [table]  # in a list, it is not a parameter of this module
        self._unit = 1.0 / float(table.detach().float().std())

    def loss(self, ids: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
        """Cross-entropy of each token but the first, given those before it and the vector.

        Args:
            ids, mask: [B, S]; padding is on the right.
            vectors: [B, D].
        """
        (table,) = self._table
        seen = F.embedding(ids[:, :-1], table) * self._unit
        hidden = self.norm(self.into(seen)) + self.places[: seen.shape[1]]
        later = nn.Transformer.generate_square_subsequent_mask(hidden.shape[1], hidden.device)
        hidden = self.layer(hidden, vectors[:, None], tgt_mask=later, tgt_is_causal=True)
        kept = mask[:, 1:]
        states, wanted = self.last(hidden[kept]), ids[:, 1:][kept]
        states = states * (self._unit / table.shape[1] ** 0.5)  # logits begin near 1
        parts = zip(states.split(_AT_ONCE), wanted.split(_AT_ONCE), strict=True)
        # The logits of a whole batch would need more memory than the encoder.
        sums = [checkpoint(_summed, *part, table, use_reentrant=False) for part in parts]
        return torch.stack(sums).sum() / len(wanted)


def _summed(states: Tensor, wanted: Tensor, table: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(states, table).float(), wanted, reduction="sum")


def with_deletions(batch: Batch, specials: Sequence[int], draw: torch.Generator) -> Batch:
    """The batch without `DELETED` of its tokens, at random; a text keeps one at least.

    Args:
        specials: ids that are never deleted.
        draw: on the CPU.
    """
    ids, mask = batch.ids, batch.mask
    framing = torch.isin(ids, torch.tensor(list(specials), device=ids.device)) & mask
    chance = torch.rand(ids.shape, generator=draw).to(ids.device)
    chance = chance.masked_fill(framing | ~mask, 2.0)
    first = chance == chance.amin(1, keepdim=True)
    kept = framing | (mask & ((chance < 1.0 - DELETED) | first))
    order = (~kept).to(torch.uint8).argsort(dim=1, stable=True)
    lengths = kept.sum(1)
    order = order[:, : int(lengths.max())]
    places = torch.arange(order.shape[1], device=ids.device)
    types = None if batch.types is None else batch.types.gather(1, order)
    return Batch(ids.gather(1, order), places < lengths[:, None], types, batch.labels)


class Denoising(nn.Module):
    """The loss of a batch of texts.

    Args:
        model: (ids, mask, types) -> vectors [B, D].
        table: the token embeddings in it.
        specials: ids that are never deleted.
    """

    def __init__(
        self,
        model: nn.Module,
        table: nn.Parameter,
        width: int,
        length: int,
        specials: Iterable[int],
    ) -> None:
        super().__init__()
        self.model, self.decoder = model, Decoder(table, width, length)
        self._specials = sorted(specials)

    def forward(
        self, batches: Sequence[Batch], numerics: Numerics, draw: torch.Generator
    ) -> Tensor:
        """The mean over the tokens of the only one of `batches`."""
        (batch,) = batches
        noisy = with_deletions(batch, self._specials, draw)
        with numerics.autocast():
            vectors = self.model(noisy.ids, noisy.mask, noisy.types)
            return self.decoder.loss(batch.ids, batch.mask, vectors)
