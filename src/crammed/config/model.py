"""The encoder's architecture."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from crammed.config.base import PositiveFloat, PositiveInt, Section
from crammed.schedule import OpenFraction


class ModelConfig(Section):
    """The encoder; `crammed.model.encoder` says what each choice does."""

    layers: PositiveInt = 16
    width: PositiveInt = 768
    head_dim: PositiveInt = 64
    ffn_ratio: PositiveFloat = 4.0
    """Width of the first feed-forward product over `width`; a gate halves what comes out of it."""
    gated: bool = True
    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"] = "gelu"
    norm: Literal["pre", "post"] = "pre"
    norm_eps: PositiveFloat = 1e-12
    norm_bias: bool = True
    embedding_norm: bool = True
    first_attention_norm: bool = True
    """Whether layer 0 norms the input of its attention once more after the embedding norm."""
    final_norm: bool = True
    linear_bias: bool = False
    qkv_bias: bool = False
    positions: Literal["none", "learned", "sinusoidal", "scaled-sinusoidal", "rotary"] = "rotary"
    rotary_theta: PositiveFloat = 10000.0
    max_length: PositiveInt = 128
    """Longest input; the number of rows of a position table."""
    token_types: Annotated[int, Field(ge=0)] = 0
    head_transform: bool = False
    """Dense layer, activation and norm before the decoder."""
    decoder_bias: bool = False
    dropout: OpenFraction = 0.0
    """Dropout in pretraining."""
    ffn_dropout: Literal["residual", "hidden"] = "residual"
    """Where the feed-forward part drops: its output (BERT) or its hidden layer (ModernBERT)."""
    init_std: PositiveFloat = 0.02
    zero_outputs: bool = False
    """Begin with zeros in the last matrix of attention and feed-forward, so that every layer begins
    as the identity."""
    classifier: Literal["pooler", "head-transform"] = "pooler"
    """What stands between the first token and the classifier: dense and tanh, or the MLM head."""
    pooler_width: PositiveInt | None = 1024
    """Width of the pooler's dense layer; null means `width`."""

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.width // self.head_dim

    @property
    def ffn_width(self) -> int:
        """Rows of the first feed-forward matrix, both halves of a gate included."""
        return round(self.width * self.ffn_ratio)

    @property
    def ffn_hidden(self) -> int:
        """Width between the two feed-forward products."""
        return self.ffn_width // 2 if self.gated else self.ffn_width

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        if self.width % self.head_dim:
            raise ValueError(f"width {self.width} is not a multiple of head_dim {self.head_dim}")
        if self.ffn_width < 1 or (self.gated and self.ffn_width % 2):
            raise ValueError(
                f"ffn_ratio gives {self.ffn_width} features, which a gate cannot halve"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, not {self.head_dim}")
        if self.classifier == "head-transform" and not self.head_transform:
            raise ValueError("classifier head-transform needs head_transform: true")
        if self.norm == "post" and self.final_norm:
            raise ValueError("a post-norm encoder ends in a norm already: set final_norm: false")
        return self
