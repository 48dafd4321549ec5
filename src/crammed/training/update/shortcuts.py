"""Ways through the layers in training that leave out a part of the work.

`train.drop_tokens`: the middle layers compute some of the tokens alone (Hou et al. 2022), those
that are predicted and others drawn at random. `train.learned_passes`: only the last passes through
shared layers get gradients (Bansal et al. 2022). `crammed.model.count` counts what is left.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from crammed.config import RunConfig
from crammed.data.masking import keyed_bits, smallest
from crammed.keys import key
from crammed.model.count import middle
from crammed.model.encoder import Encoder
from crammed.model.layer import picked


class Shortcuts:
    """Encodes rows as a run trains on them."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self._config = config
        self._word = torch.tensor(key(config.seed, "kept-tokens"), device=device)

    def encode(
        self,
        encoder: Encoder,
        ids: Tensor,
        mask: Tensor | None,
        predicted: Tensor,
        numbers: Tensor,
        positions: Tensor | None,
    ) -> Tensor:
        """Hidden states at `positions`, as the encoder itself gives.

        Args:
            ids: as `mask` and `positions` in `Encoder.forward`.
            predicted: [B, N], the positions that are predicted.
            numbers: [B], the numbers of the rows in the run.
        """
        count, learned = self._config.kept(predicted.shape[1]), self._config.train.learned_passes
        if count is None and learned is None:
            hidden: Tensor = encoder(ids, mask, positions=positions)
            return hidden
        x, tables, allowed, *more = encoder.prepare(encoder.tokens(ids), mask, None, ids)
        layers = encoder.in_turn()
        dropped = range(0) if count is None else middle(len(layers))
        first = 0 if learned is None else (encoder.config.passes - learned) * encoder.depth
        whole = x
        for n, layer in enumerate(layers[:-1]):
            if count is not None and n == dropped.start:
                kept = self._kept(predicted, numbers, ids.shape[1], count)
                few = self._few(encoder, kept, allowed, more)
                whole, x = x, picked(x, kept)
            given = few if n in dropped else (tables, allowed, *more)
            with torch.no_grad() if n < first else nullcontext():
                x = layer(x, *given)
            if n in dropped and n + 1 == dropped.stop:
                x = whole.scatter(1, kept[..., None].expand_as(x), x)
        hidden = encoder.final_norm(layers[-1](x, tables, allowed, *more, positions=positions))
        return hidden

    def _kept(self, predicted: Tensor, numbers: Tensor, length: int, count: int) -> Tensor:
        """Which tokens the middle layers compute, [B, count], in order."""
        order = keyed_bits(self._word, numbers, length) * length
        order = order + torch.arange(length, device=order.device)  # as `Masker` breaks ties
        order = order.scatter(1, predicted, -1)
        return smallest(smallest(order, count).indices, count).values

    @staticmethod
    def _few(
        encoder: Encoder, kept: Tensor, mask: Tensor | None, more: list[Tensor | None]
    ) -> tuple[object, ...]:
        """A layer's other arguments for these tokens alone."""
        places = encoder.position_encoding
        tables = places.looked_up(encoder, places.tables(kept[:, None]))
        if mask is not None:  # [B, 1, S, S]
            across = kept[:, None, None, :].expand(-1, -1, mask.shape[2], -1)
            mask = mask.gather(3, across)
            mask = mask.gather(2, kept[:, None, :, None].expand(-1, -1, -1, kept.shape[1]))
        return tables, mask, *(None if each is None else picked(each, kept) for each in more)
