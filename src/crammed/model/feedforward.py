"""Blocks that work on each token separately. Copied into exported models (see `blocks`)."""

from __future__ import annotations

from torch import Tensor, nn

from .blocks import ACTIVATIONS, Block, Config, Linear, Nothing, norm_of


class FeedForward(Block):
    """Two products with an activation between them; a GLU if gated (Shazeer 2020)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gated = config.gated
        self.products = {"up": 2 if config.gated else 1, "down": 1}
        self.up = Linear(config.width, config.ffn_width, bias=config.linear_bias)
        self.down = Linear(config.ffn_hidden, config.width, bias=config.linear_bias)
        self.activation = ACTIVATIONS[config.activation].function
        self.norm: nn.Module = nn.Identity()
        if config.norm == "normformer":
            self.norm = norm_of(config, config.ffn_hidden)
        self.drop = nn.Dropout(config.dropout if config.ffn_dropout == "hidden" else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        if self.gated:  # the first half goes through the activation, as in ModernBERT's Wi
            active, gate = hidden.chunk(2, dim=-1)
            hidden = self.activation(active) * gate
        else:
            hidden = self.activation(hidden)
        output: Tensor = self.down(self.drop(self.norm(hidden)))
        return output


def feed_forward_of(config: Config, index: int) -> Block:
    """The feed-forward block of a layer, if it has one; the last layer does beside a mixer."""
    left_out = (config.layers - 1 - index) % config.ffn_every or config.mixer == "gated-attention"
    return Nothing(config) if left_out else FeedForward(config)
