"""Layers that are compiled once for all of them.

A compiler that is given a whole model compiles each of its layers for itself, which takes seconds
for every layer. Here all layers but the last call one region, which is compiled for the first call
and used again for the others. Across its border nothing can be merged, so it ends where nothing
would be: behind the norm of the layer that follows. So the step moves the same bytes.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from crammed.model.encoder import Encoder, Layer, picked
from crammed.model.positions import Tables


class RegionalEncoder(Encoder):
    """An `Encoder` for the compiler; what it computes is the same."""

    @classmethod
    def take_over(cls, encoder: Encoder) -> None:
        """Make one of these of an `Encoder`, unless its layers need more than regions pass on."""
        config = encoder.config
        if (
            type(encoder) is Encoder
            and config.norm == "pre"
            and not (config.dropout or config.value_embeddings or config.residual_scalars)
        ):
            encoder.__class__ = cls

    def through_layers(
        self,
        x: Tensor,
        tables: Tables,
        mask: Tensor | None,
        *more: Tensor | None,
        positions: Tensor | None = None,
    ) -> Tensor:
        layers = self.in_turn()
        if any(layer.recompute for layer in layers):
            return super().through_layers(x, tables, mask, *more, positions=positions)
        normed: Tensor = layers[0].attention_norm(x)
        for layer, following in pairwise(layers):
            # A first layer without a norm is not like the others.
            through = _blocks if isinstance(layer.attention_norm, nn.Identity) else _region
            x, normed = through(layer, following.attention_norm, x, normed, tables, mask)
        return _blocks(layers[-1], self.final_norm, x, normed, tables, mask, positions)[1]


def _blocks(
    layer: Layer,
    norm: nn.Module,
    x: Tensor,
    normed: Tensor,
    tables: Tables,
    mask: Tensor | None,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The blocks of a pre-norm layer without dropout, behind its first norm, and the next norm.

    Args:
        x: the residual stream [B, S, D].
        normed: what the layer's first norm makes of it.
        positions: as in `Layer`.

    Returns:
        both as the next layer takes them.
    """
    x = picked(x + layer.attention(normed, tables, mask), positions)
    x = x + layer.ffn(layer.ffn_norm(x))
    return x, norm(x)


_region = torch.compiler.nested_compile_region(_blocks)
