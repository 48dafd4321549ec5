"""One layer of an encoder: a mixer and a feed-forward block on a residual stream.

Copied into exported models (see `blocks`). Shapes as in `encoder`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .blocks import Block, Config, Nothing, Product, Scales, norm_of
from .feedforward import feed_forward_of
from .mixers import mixer_of
from .positions import Tables


def picked(x: Tensor, positions: Tensor | None) -> Tensor:
    """The vectors [B, N, D] of x [B, S, D] at `positions` [B, N]; None returns x itself."""
    if positions is None:
        return x
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))


class Layer(nn.Module):
    """Attention and feed-forward with residuals; a norm before (pre) or after (post, BERT) each.

    Further forms: norms on both sides (sandwich; Ding et al. 2021), also within the blocks
    (NormFormer; Shleifer et al. 2021), after each with a larger residual (DeepNorm; Wang et al.
    2022), and both blocks side by side (Wang and Komatsuzaki 2021).

    Attributes:
        recompute: discard the activations and recompute them for the gradients (Chen et al. 2016):
            a third more work, a fraction of the memory, the same results.
    """

    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        self.recompute = False
        self.drops = config.layer_drop > 0.0
        self.drop: float | Tensor = config.layer_drop
        self.pre = config.norm in ("pre", "sandwich", "normformer")
        self.parallel: bool = config.blocks == "parallel"
        self.residual = (2 * config.depth) ** 0.25 if config.norm == "deepnorm" else 1.0
        mixer, ffn = mixer_of(config, index), feed_forward_of(config, index)
        skip = isinstance(mixer, Nothing) and not self.parallel
        after = config.norm in ("sandwich", "normformer") and not skip
        # ModernBERT has none in layer 0.
        skip |= self.pre and index == 0 and not config.first_attention_norm
        # The order of the parameters is that in which the norm of their gradients is summed up.
        self.attention_norm = nn.Identity() if skip else norm_of(config)
        self.attention = mixer
        self.after_attention = norm_of(config) if after else nn.Identity()
        skip = self.parallel or isinstance(ffn, Nothing)
        after = config.norm == "sandwich" and not skip
        self.ffn_norm = nn.Identity() if skip else norm_of(config)
        self.ffn = ffn
        self.after_ffn = norm_of(config) if after else nn.Identity()
        self.drop_attention = nn.Dropout(config.dropout)
        self.drop_ffn = nn.Dropout(config.dropout if config.ffn_dropout == "residual" else 0.0)
        has_values = config.value_embeddings and (config.layers - index) % 2 == 1  # the last does
        self.value_scale = Scales(1.0) if has_values else None
        self.stream_scales = Scales(1.0, 0.0) if config.residual_scalars else None

    def products(self, name: str = "") -> Iterator[Product]:
        """The products that the blocks declare, given the layer's dotted name.

        Raises:
            TypeError: the layer has a matrix that no block declares.
        """
        known = set()
        for full, block in self.named_modules(prefix=name):
            if isinstance(block, Block):
                for product in block.declared(full):
                    known.add(f"{product.name}.weight")
                    yield product
        for full, parameter in self.named_parameters(prefix=name):
            if parameter.ndim > 1 and full not in known:
                raise TypeError(
                    f"{full} is a matrix that no block declares: name its Linear in the "
                    "`products` of its Block"
                )

    def forward(
        self,
        x: Tensor,
        tables: Tables,
        mask: Tensor | None,
        *more: Tensor | None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """One layer of x [B, S, D]; `tables` and `mask` as in `Attention`.

        Args:
            more: two tensors [B, S, D]: the value embeddings and the input of the first layer.
                None, or left out, in a model that does not need them.
            positions: [B, N], the positions to return, [B, N, D]; None returns all.
        """
        made: Tensor
        if self.recompute:
            made = checkpoint(
                self._add_blocks, x, tables, mask, *more, positions=positions, use_reentrant=False
            )
        else:
            made = self._add_blocks(x, tables, mask, *more, positions=positions)
        if self.drops and self.training:  # LayerDrop (Fan et al. 2020), for each row by itself
            keeps = torch.rand((len(x), 1, 1), device=x.device) >= self.drop
            made = made.where(keeps, picked(x, positions))
        return made

    def probabilities(
        self,
        x: Tensor,
        tables: Tables,
        mask: Tensor | None,
        values: Tensor | None = None,
        first: Tensor | None = None,
    ) -> Tensor | None:
        """`Block.probabilities` of this layer's attention, from the layer's input x [B, S, D]."""
        if self.stream_scales is not None:
            x = self.stream_scales(x, first)
        return self.attention.probabilities(self.attention_norm(x) if self.pre else x, tables, mask)

    def _add_blocks(
        self,
        x: Tensor,
        tables: Tables,
        mask: Tensor | None,
        values: Tensor | None = None,
        first: Tensor | None = None,
        *,
        positions: Tensor | None,
    ) -> Tensor:
        if self.stream_scales is not None:
            x = self.stream_scales(x, first)
        more = () if self.value_scale is None else (self.value_scale(values),)
        if self.pre:
            normed = self.attention_norm(x)
            mixed = self.after_attention(self.attention(normed, tables, mask, *more))
            x = picked(x + self.drop_attention(mixed), positions)
            read = picked(normed, positions) if self.parallel else self.ffn_norm(x)
            x = x + self.drop_ffn(self.after_ffn(self.ffn(read)))
        else:
            mixed = self.attention(x, tables, mask, *more)
            x = self.attention_norm(self._kept(x) + self.drop_attention(mixed))
            x = picked(x, positions)
            x = self.ffn_norm(self._kept(x) + self.drop_ffn(self.ffn(x)))
        return x

    def _kept(self, x: Tensor) -> Tensor:
        return x if self.residual == 1.0 else self.residual * x
