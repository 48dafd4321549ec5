"""The encoder behind fused kernels: the same parameters, names and results.

Every residual addition waits for the norm that follows it, and is done in the same pass.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from crammed.kernels.add_norm import WIDEST, add_norm
from crammed.kernels.gate import gate
from crammed.kernels.jit import available
from crammed.model.encoder import Encoder, EncoderConfig, FeedForward, Layer, MaskedLM


class FusedFeedForward(FeedForward):
    """A gated feed-forward layer with activation and gate in one pass."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.activation_name = config.activation

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return super().forward(x)
        output: Tensor = self.down(self.drop(gate(self.up(x), self.activation_name)))
        return output


class FusedEncoder(Encoder):
    """A pre-norm encoder without dropout on its residual branches."""

    def __init__(self, config: EncoderConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.ffn = FusedFeedForward(config)

    def through_layers(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> Tensor:
        branch: Tensor | None = None
        for layer in self.layers:
            assert isinstance(layer, Layer)
            x, normed = _add_norm(x, branch, layer.attention_norm)
            branch = layer.attention(normed, rotary, mask)
            x, normed = _add_norm(x, branch, layer.ffn_norm)
            branch = layer.ffn(normed)
        return _add_norm(x, branch, self.final_norm)[1]


def _add_norm(x: Tensor, branch: Tensor | None, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """The stream with `branch` added, and what `norm` makes of it."""
    if branch is None:
        return x, norm(x)
    if not isinstance(norm, nn.LayerNorm):
        total = x + branch
        return total, norm(total)
    return add_norm(x, branch, norm.weight, norm.bias, norm.eps)


class FusedMaskedLM(MaskedLM):
    """A masked language model with a `FusedEncoder`."""

    def __init__(self, config: EncoderConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        self.encoder = FusedEncoder(config, vocab_size)


def fused(model: MaskedLM) -> tuple[MaskedLM, str]:
    """`model` behind fused kernels, and a line that says so; or `model` itself, and why.

    The parameters are those of `model`, not copies: an optimizer or a checkpoint of either is one
    of both. On a CPU the kernels' twins run.
    """
    config, embedding = model.encoder.config, model.encoder.tokens
    device = embedding.weight.device
    refusal = _refusal(config, device)
    if refusal is not None:
        return model, f"fused kernels off: {refusal}"
    with torch.device("meta"):
        twin = FusedMaskedLM(config, embedding.num_embeddings)
    twin.load_state_dict(model.state_dict(keep_vars=True), assign=True)
    twin.train(model.training)
    what = "norms with residuals" + (", gates" if config.gated else "")
    how = "Triton" if available(device) else "their twins in plain PyTorch"
    return twin, f"fused kernels on: {what}; {how}"


def _refusal(config: EncoderConfig, device: torch.device) -> str | None:
    if config.norm != "pre":
        return "they are for pre-norm layers"
    if config.dropout:
        return "they are for branches without dropout"
    if config.width > WIDEST:
        return f"a row of {config.width} is wider than {WIDEST}"
    if device.type == "cuda" and not available(device):
        return "they need Triton and a GPU with bfloat16"
    return None
