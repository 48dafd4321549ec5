"""The encoder with fused kernels: the same parameters, names and results.

Every residual addition is done in one pass with the norm that follows it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from crammed.kernels.add_norm import WIDEST, add_norm
from crammed.kernels.gate import ACTIVATION_NAMES, gate
from crammed.kernels.jit import available
from crammed.model.blocks import Config, LayerNorm
from crammed.model.encoder import Encoder, Layer, MaskedLM, picked
from crammed.model.feedforward import FeedForward
from crammed.model.positions import Tables


class FusedFeedForward(FeedForward):
    """A feed-forward block; where it is gated, activation and gate take one pass."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.activation_name = config.activation

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return super().forward(x)
        output: Tensor = self.down(self.drop(gate(self.up(x), self.activation_name)))
        return output


class FusedEncoder(Encoder):
    """A pre-norm encoder without dropout on its residual branches."""

    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.ffn = FusedFeedForward(config)

    def through_layers(
        self,
        x: Tensor,
        tables: Tables,
        mask: Tensor | None,
        *more: Tensor | None,
        positions: Tensor | None = None,
    ) -> Tensor:
        branch: Tensor | None = None
        for layer in self.layers:
            assert isinstance(layer, Layer)
            x, normed = _add_norm(x, branch, layer.attention_norm)
            branch = layer.attention(normed, tables, mask)
            if layer is self.layers[-1]:
                x, branch = picked(x, positions), picked(branch, positions)
            x, normed = _add_norm(x, branch, layer.ffn_norm)
            branch = layer.ffn(normed)
        return _add_norm(x, branch, self.final_norm)[1]


def _add_norm(x: Tensor, branch: Tensor | None, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """The stream with `branch` added, and its norm."""
    if branch is None:
        return x, norm(x)
    if not isinstance(norm, LayerNorm):
        total = x + branch
        return total, norm(total)
    return add_norm(x, branch, norm.weight, norm.bias, norm.eps)


class FusedMaskedLM(MaskedLM):
    """A masked language model with a `FusedEncoder`."""

    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        self.encoder = FusedEncoder(config, vocab_size)


def fused(model: MaskedLM) -> tuple[MaskedLM, str]:
    """`model` with fused kernels, and a line that says so; or `model` itself, and the reason.

    The parameters are those of `model`, not copies, so optimizers and checkpoints suit both. On a
    CPU the kernels' reference implementations run.
    """
    config, embedding = model.encoder.config, model.encoder.tokens
    device = embedding.weight.device
    refusal = _refusal(model, device)
    if refusal is not None:
        return model, f"fused kernels off: {refusal}"
    with torch.device("meta"):
        made = FusedMaskedLM(config, embedding.num_embeddings)
    made.load_state_dict(model.state_dict(keep_vars=True), assign=True)
    made.train(model.training)
    what = "norms with residuals" + (", gates" if config.gated else "")
    how = "Triton" if available(device) else "their reference implementations in PyTorch"
    return made, f"fused kernels on: {what}; {how}"


def _refusal(model: MaskedLM, device: torch.device) -> str | None:
    """Why the kernels cannot run this model; None if they can.

    It lists what they support, so anything new is refused until it is added here.
    """
    encoder, config = model.encoder, model.encoder.config
    if config.passes > 1:
        return "they go through the layers once"
    norms: list[nn.Module] = [encoder.final_norm]
    for layer in encoder.layers:
        if type(layer) is not Layer or not layer.pre:
            return "they are for pre-norm layers"
        if type(layer.ffn) is not FeedForward:
            return f"they do not know {type(layer.ffn).__name__}"
        if layer.value_scale is not None:
            return "they do not know value embeddings"
        if layer.stream_scales is not None:
            return "they do not know residual scalars"
        if layer.drop_attention.p or layer.drop_ffn.p:
            return "they are for branches without dropout"
        norms += [layer.attention_norm, layer.ffn_norm]
    if unknown := {type(norm) for norm in norms} - {LayerNorm, nn.Identity}:
        return f"they are for LayerNorm, not {' or '.join(kind.__name__ for kind in unknown)}"
    if config.gated and config.activation not in ACTIVATION_NAMES:
        return f"they do not know the activation {config.activation}"
    if config.width > WIDEST:
        return f"a row of {config.width} is wider than {WIDEST}"
    if device.type == "cuda" and not available(device):
        return "they need Triton and a GPU with bfloat16"
    return None
