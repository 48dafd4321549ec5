"""The whole encoder: embeddings, attention, feed-forward, heads. Needs nothing but PyTorch.

One set of switches spans the paper's encoder, BERT, Izsak's BERT-large and a strict subset of
ModernBERT (the comments name what each built-in class of transformers needs). The file is copied
as it is beside an exported model that has no built-in class, so it must stay self-contained.

Shapes: B rows, S tokens, D width, H heads, K head_dim, N predicted positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
}


class EncoderConfig(Protocol):
    """What the encoder reads; ``crammed.config.ModelConfig`` documents each field."""

    @property
    def layers(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def ffn_width(self) -> int: ...
    @property
    def ffn_hidden(self) -> int: ...
    @property
    def gated(self) -> bool: ...
    @property
    def activation(self) -> str: ...
    @property
    def norm(self) -> str: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def norm_bias(self) -> bool: ...
    @property
    def embedding_norm(self) -> bool: ...
    @property
    def first_attention_norm(self) -> bool: ...
    @property
    def final_norm(self) -> bool: ...
    @property
    def linear_bias(self) -> bool: ...
    @property
    def qkv_bias(self) -> bool: ...
    @property
    def positions(self) -> str: ...
    @property
    def rotary_theta(self) -> float: ...
    @property
    def max_length(self) -> int: ...
    @property
    def token_types(self) -> int: ...
    @property
    def head_transform(self) -> bool: ...
    @property
    def decoder_bias(self) -> bool: ...
    @property
    def dropout(self) -> float: ...
    @property
    def ffn_dropout(self) -> str: ...
    @property
    def init_std(self) -> float: ...
    @property
    def classifier(self) -> str: ...
    @property
    def pooler_width(self) -> int | None: ...


def _norm(config: EncoderConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, eps=config.norm_eps, bias=config.norm_bias)


def sinusoidal_table(length: int, width: int, device: torch.device) -> Tensor:
    """Interleaved sine and cosine of Vaswani et al. 2017, [length, width] float32."""
    place = torch.arange(length, device=device, dtype=torch.float32)[:, None]
    pair = torch.arange(0, width, 2, device=device, dtype=torch.float32)
    angle = place * torch.exp(pair * (-math.log(10000.0) / width))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :width]


def rotary_table(
    length: int, head_dim: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles, each [length, head_dim] float32, halves repeated."""
    exponent = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    place = torch.arange(length, device=device, dtype=torch.float32)
    angle = torch.outer(place, 1.0 / theta**exponent)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of x [..., S, K], rotate-half layout."""
    cos, sin = (part.to(x.dtype) for part in table)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Bidirectional softmax attention over [B, S, D]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.dropout = config.dropout
        # One product for queries, keys and values, in this order (as ModernBERT's Wqkv).
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.out = nn.Linear(config.width, config.width, bias=config.linear_bias)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> Tensor:
        """`mask` [B, 1, 1, S], True where a token may be attended to; None where all may."""
        q, k, v = self.qkv(x).unflatten(-1, (3, -1, self.head_dim)).permute(2, 0, 3, 1, 4)
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        output: Tensor = self.out(y.transpose(1, 2).flatten(-2))
        return output


class FeedForward(nn.Module):
    """Two products with an activation between them; with a gate, GLU (Shazeer 2020)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.ffn_width, bias=config.linear_bias)
        self.down = nn.Linear(config.ffn_hidden, config.width, bias=config.linear_bias)
        self.activation = ACTIVATIONS[config.activation]
        self.gated = config.gated
        self.drop = nn.Dropout(config.dropout if config.ffn_dropout == "hidden" else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        if self.gated:  # the first half goes through the activation (as ModernBERT's Wi)
            active, gate = hidden.chunk(2, dim=-1)
            hidden = self.activation(active) * gate
        else:
            hidden = self.activation(hidden)
        output: Tensor = self.down(self.drop(hidden))
        return output


class Layer(nn.Module):
    """Attention and feed-forward with residuals; norms before (pre) or after (post, BERT) each."""

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        skip = index == 0 and not config.first_attention_norm  # ModernBERT has none in layer 0
        self.attention_norm = nn.Identity() if skip else _norm(config)
        self.attention = Attention(config)
        self.ffn_norm = _norm(config)
        self.ffn = FeedForward(config)
        self.drop_attention = nn.Dropout(config.dropout)
        self.drop_ffn = nn.Dropout(config.dropout if config.ffn_dropout == "residual" else 0.0)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> Tensor:
        if self.pre:
            x = x + self.drop_attention(self.attention(self.attention_norm(x), rotary, mask))
            x = x + self.drop_ffn(self.ffn(self.ffn_norm(x)))
        else:
            x = self.attention_norm(x + self.drop_attention(self.attention(x, rotary, mask)))
            x = self.ffn_norm(x + self.drop_ffn(self.ffn(x)))
        return x


class Encoder(nn.Module):
    """Token ids [B, S] to hidden states [B, S, D]."""

    def __init__(self, config: EncoderConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(vocab_size, config.width)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.max_length, config.width)
        if config.positions == "scaled-sinusoidal":
            self.position_scale = nn.Parameter(torch.empty(1))
        if config.token_types:
            self.types = nn.Embedding(config.token_types, config.width)
        self.embedding_norm: nn.Module
        self.embedding_norm = _norm(config) if config.embedding_norm else nn.Identity()
        self.drop = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.final_norm = _norm(config) if config.final_norm else nn.Identity()
        self._rotary: tuple[Tensor, Tensor] | None = None

    def keep_rotary(self, length: int, device: torch.device, dtype: torch.dtype) -> None:
        """Take rows of this length from now on, and compute the rotary angles once.

        Every layer turns queries and keys by them, and a compiler may well compute sines in each.
        """
        if self.config.positions == "rotary":
            table = rotary_table(length, self.config.head_dim, self.config.rotary_theta, device)
            self._rotary = table[0].to(dtype), table[1].to(dtype)

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Encode.

        Args:
            ids: token ids, [B, S].
            mask: [B, S] bool, False at padding; None where there is none.
            types: token types, [B, S]; None means all 0. Ignored by a model without any.
        """
        length = ids.shape[1]
        x = self.tokens(ids)
        positions = self.config.positions
        if positions == "learned":
            x = x + self.positions.weight[:length]
        elif positions in ("sinusoidal", "scaled-sinusoidal"):
            table = sinusoidal_table(length, self.config.width, ids.device)
            scale = self.position_scale if positions == "scaled-sinusoidal" else 1.0
            x = x + (scale * table).to(x.dtype)
        if self.config.token_types:
            x = x + (self.types.weight[0] if types is None else self.types(types))
        rotary = self._rotary
        if positions == "rotary" and rotary is None:
            rotary = rotary_table(
                length, self.config.head_dim, self.config.rotary_theta, ids.device
            )
        x = self.drop(self.embedding_norm(x))
        attend = None if mask is None else mask[:, None, None, :]
        return self.through_layers(x, rotary, attend)

    def through_layers(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> Tensor:
        """Layers and final norm of x [B, S, D]; `mask` as in `Attention`."""
        for layer in self.layers:
            x = layer(x, rotary, mask)
        hidden: Tensor = self.final_norm(x)
        return hidden


class HeadTransform(nn.Module):
    """Dense layer, activation and norm before the decoder (Devlin et al. 2019)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width, bias=config.linear_bias)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = _norm(config)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.norm(self.activation(self.dense(x)))
        return output


class MaskedLM(nn.Module):
    """Encoder, optional head transform and a decoder tied to the token embedding."""

    def __init__(self, config: EncoderConfig, vocab_size: int) -> None:
        super().__init__()
        self.encoder = Encoder(config, vocab_size)
        self.head = HeadTransform(config) if config.head_transform else nn.Identity()
        self.decoder_bias = nn.Parameter(torch.empty(vocab_size)) if config.decoder_bias else None

    def decode(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., D] to logits [..., V]."""
        x = self.head(hidden)
        # Training may compute in another format than the weights'.
        bias = None if self.decoder_bias is None else self.decoder_bias.to(x.dtype)
        return F.linear(x, self.encoder.tokens.weight.to(x.dtype), bias)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        types: Tensor | None = None,
    ) -> Tensor:
        """Logits at `positions` [B, N] as [B, N, V], the sparse head; everywhere as [B, S, V]."""
        hidden = self.encoder(ids, mask, types)
        if positions is not None:
            hidden = hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1]))
        return self.decode(hidden)


class SequenceClassifier(nn.Module):
    """The first token through the model family's own head to `outputs` logits."""

    def __init__(self, config: EncoderConfig, vocab_size: int, outputs: int) -> None:
        super().__init__()
        self.encoder = Encoder(config, vocab_size)
        self.classifier_kind = config.classifier
        pooled = config.width
        if config.classifier == "pooler":
            pooled = config.pooler_width or config.width
            self.pooler = nn.Linear(config.width, pooled)
        else:  # ModernBERT classifies through the transform of its masked-language-model head
            self.head = HeadTransform(config)
        self.drop = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(pooled, outputs)

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Logits [B, outputs]."""
        first = self.encoder(ids, mask, types)[:, 0]
        pooled = self.pooler(first).tanh() if self.classifier_kind == "pooler" else self.head(first)
        logits: Tensor = self.classifier(self.drop(pooled))
        return logits


class TokenClassifier(nn.Module):
    """Every token to `outputs` logits; through the transform where the family does (ModernBERT)."""

    def __init__(self, config: EncoderConfig, vocab_size: int, outputs: int) -> None:
        super().__init__()
        self.encoder = Encoder(config, vocab_size)
        through = config.classifier == "head-transform"
        self.head = HeadTransform(config) if through else nn.Identity()
        self.drop = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.width, outputs)

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Logits [B, S, outputs]."""
        logits: Tensor = self.classifier(self.drop(self.head(self.encoder(ids, mask, types))))
        return logits


def initialise(
    model: nn.Module,
    std: float,
    generator: torch.Generator | None = None,
    *,
    zero_outputs: bool = False,
) -> None:
    """Draw all weights in place: matrices and embeddings N(0, std), biases 0, norms 1 and 0.

    With `zero_outputs` the last matrices of attention and feed-forward start at zero. The scale of
    sinusoidal positions starts at D ** -0.5. With a CPU generator and a model on the
    CPU the weights depend on the generator's seed alone.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, 0.0, std, generator=generator)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        bias = getattr(module, "bias", None)
        if isinstance(bias, nn.Parameter):
            nn.init.zeros_(bias)
        if isinstance(module, Encoder) and hasattr(module, "position_scale"):
            nn.init.constant_(module.position_scale, module.config.width**-0.5)
        if isinstance(module, MaskedLM) and module.decoder_bias is not None:
            nn.init.zeros_(module.decoder_bias)
    if zero_outputs:
        for module in model.modules():
            if isinstance(module, Layer):
                nn.init.zeros_(module.attention.out.weight)
                nn.init.zeros_(module.ffn.down.weight)
