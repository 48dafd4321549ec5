"""The encoder's architecture."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from crammed.config.base import Later, PositiveFloat, Section, Size
from crammed.schedule import OpenFraction


class ModelConfig(Section):
    """The encoder. The modules of `crammed.model` document what each choice computes."""

    layers: Annotated[int, Field(gt=0, le=1000)] = 16
    passes: Annotated[int, Field(gt=0, le=100)] = 1
    """How many times a token goes through the whole stack of layers, with the same weights."""
    width: Size = 768
    head_dim: Size = 64
    ffn_ratio: Annotated[float, Field(gt=0.0, le=1024.0)] = 4.0
    """Outputs of the first feed-forward product for each unit of `width`; a gate halves them."""
    gated: bool = True
    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"] = "gelu"
    norm: Literal["pre", "post", "sandwich", "normformer", "deepnorm"] = "pre"
    """Where norms are: before each block, after each sum, before and after each block, as `pre`
    with further norms and a scale for each head, or as `post` with a larger residual."""
    norm_kind: Annotated[Literal["layer", "rms", "scale", "none"], Later()] = "layer"
    norm_eps: PositiveFloat = 1e-12
    norm_bias: bool = True
    """Whether norms have biases; only those of the kind `layer` can."""
    embedding_norm: bool = True
    first_attention_norm: bool = True
    """Whether layer 0 normalises the input of its attention once more after the embedding norm."""
    final_norm: bool = True
    linear_bias: bool = False
    qkv_bias: bool = False
    positions: Literal[
        "none", "learned", "sinusoidal", "scaled-sinusoidal", "rotary", "alibi", "t5"
    ] = "rotary"
    rotary_theta: PositiveFloat = 10000.0
    blocks: Annotated[Literal["serial", "parallel"], Later()] = "serial"
    """Whether the feed-forward block follows the mixer, or both read the same input."""
    ffn_every: Annotated[Size, Later()] = 1
    """Only every n-th layer has a feed-forward block, the last one included."""
    pool_at: Annotated[tuple[Size, ...], Field(strict=False), Later()] = ()
    """Before which layers, counted from 0, two neighbouring tokens become one; empty for none."""
    unpooled_layers: Annotated[Size, Later()] = 2
    """How many layers, the last ones, compute all tokens again after `pool_at`."""
    mixer: Annotated[
        Literal["attention", "fourier", "fourier-hybrid", "gated-attention", "none"], Later()
    ] = "attention"
    """What mixes the tokens of a row: attention, Fourier transforms without parameters, these with
    attention in the last two layers, attention of one head that also takes the place of the
    feed-forward block, or nothing."""
    scope: Annotated[Literal["row", "causal", "local"], Later()] = "row"
    """What a token attends to: all others, itself and those before it, or, except in every
    `global_every`-th layer from the first, those at most half a `window` away."""
    window: Annotated[Size, Later()] = 128
    global_every: Annotated[Size, Later()] = 3
    weighing: Annotated[
        Literal[
            "softmax",
            "relu",
            "sigmoid",
            "identity",
            "layer-norm",
            "running-sum",
            "running-log-sum-exp",
        ],
        Later(),
    ] = "softmax"
    """What turns scores into the weights of values."""
    key_heads: Annotated[Size | None, Later()] = None
    """Number of heads of keys and values, each for several heads of queries; null has as many."""
    max_length: Size = 128
    """The longest input, in tokens, and the number of learned positions."""
    token_types: Annotated[int, Field(ge=0, le=2**20)] = 0
    head_transform: bool = False
    """Whether a dense layer, an activation and a norm come before the decoder."""
    embedding_width: Annotated[Size | None, Later()] = None
    """Width of the table of token embeddings, which one product widens to `width`, and narrows
    again before the decoder; null takes `width`, without a product."""
    tied_decoder: Annotated[bool, Later()] = True
    """Whether the decoder is the table of token embeddings, or has a table of its own."""
    decoder_bias: bool = False
    decoder_bias_start: Literal["zero", "log-frequency"] = "zero"
    """Initial biases of the decoder: 0, or the logarithm of each token's share of the corpus."""
    attention_start: Literal["random", "neighbours", "neighbours-first"] = "random"
    """Initial biases of queries and keys: 0, or values that make each head look at one of the
    neighbouring tokens, in all layers or in the first."""
    embedding_start: Literal["random", "cooccurrence"] = "random"
    """Initial token embeddings: random numbers, or co-occurrence vectors, which are similar for
    tokens with similar neighbours. Computing these is charged to the budget."""
    qk_norm: Literal["none", "rms"] = "none"
    """Whether each head's queries and keys are brought to a root mean square of 1."""
    value_embeddings: bool = False
    """Whether a second table of token embeddings is added to the values of every other layer."""
    residual_scalars: bool = False
    """Whether each layer's input x becomes a x + b x0, where x0 is the input of the first layer,
    and a and b are learned, starting at 1 and 0."""
    logit_cap: PositiveFloat | None = None
    """Bound c of the decoder's logits, which become c tanh(logits / c); null leaves them alone."""
    dropout: OpenFraction = 0.0
    """Dropout in pretraining. Fine-tuning has its own, `finetune.dropout`."""
    embedding_dropout: Annotated[OpenFraction | None, Later()] = None
    """Dropout of the embeddings in pretraining; null takes `dropout`."""
    attention_dropout: Annotated[OpenFraction | None, Later()] = None
    """Dropout of the attention weights in pretraining; null takes `dropout`."""
    layer_drop: Annotated[OpenFraction, Later()] = 0.0
    """Share of rows that skip a layer in pretraining, drawn for each layer and row."""
    ffn_dropout: Literal["residual", "hidden"] = "residual"
    """Where the feed-forward block has dropout: its output (BERT) or hidden layer (ModernBERT)."""
    init_std: PositiveFloat = 0.02
    embedding_std: PositiveFloat | None = None
    """Initial root mean square of the token embeddings; null takes `init_std`."""
    matrix_start: Literal["normal", "small", "megatron", "wang", "orthogonal", "deepnorm"] = (
        "normal"
    )
    """Initialisation of the layers' matrices: normal with `init_std`, scaled by a rule of width and
    depth, or orthogonal (`crammed.model.matrices`). Embeddings keep `init_std`."""
    zero_outputs: bool = False
    """Start the last product of each block at 0, so that pre-norm layers begin as the identity."""
    pooling: Literal["first", "mean", "max", "log-sum-exp"] = "first"
    """What stands for a text where it is classified: the hidden state of its first token, or a
    function of those of all its tokens, special ones included."""
    classifier: Literal["pooler", "head-transform"] = "pooler"
    """What the classifier reads through: a dense layer and tanh, or the transform of the
    masked-language-model head."""
    pooler_width: Size | None = 1024
    """Width of the pooler's dense layer; null takes `width`."""

    def dropouts(self) -> tuple[float, ...]:
        """The rates of all that is drawn at random in training."""
        more = self.embedding_dropout or 0.0, self.attention_dropout or 0.0
        return self.dropout, *more, self.layer_drop

    def with_dropout(self, dropout: float) -> ModelConfig:
        """The model with one rate of dropout, as in fine-tuning."""
        alone = {"embedding_dropout": None, "attention_dropout": None, "layer_drop": 0.0}
        return self.model_copy(update={"dropout": dropout, **alone})

    @property
    def first_embedding_std(self) -> float:
        """`embedding_std`, or `init_std` where that is null."""
        return self.embedding_std or self.init_std

    @property
    def depth(self) -> int:
        """How many layers a token goes through."""
        return self.passes * self.layers

    @property
    def heads(self) -> int:
        """The number of attention heads."""
        return self.width // self.head_dim

    @property
    def ffn_width(self) -> int:
        """Outputs of the first feed-forward product, both halves of a gate included."""
        return round(self.width * self.ffn_ratio)

    @property
    def ffn_hidden(self) -> int:
        """Inputs of the second feed-forward product."""
        return self.ffn_width // 2 if self.gated else self.ffn_width

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        if self.width % self.head_dim:
            raise ValueError(
                f"model.width={self.width} is not a multiple of model.head_dim={self.head_dim}: "
                "set another of the two"
            )
        if self.ffn_width < 1:
            raise ValueError(
                f"model.ffn_ratio={self.ffn_ratio:g} leaves no features: make it larger"
            )
        if self.gated and self.ffn_width % 2:
            raise ValueError(
                f"model.ffn_ratio gives {self.ffn_width} features, and a gate needs an even "
                "number: set another ratio, or model.gated=false"
            )
        if self.decoder_bias_start == "log-frequency" and not self.decoder_bias:
            raise ValueError("model.decoder_bias_start=log-frequency needs model.decoder_bias=true")
        if self.passes > 1 and not self.first_attention_norm:
            raise ValueError("model.passes above 1 needs model.first_attention_norm=true")
        if self.matrix_start == "orthogonal" and self.zero_outputs:
            raise ValueError("model.zero_outputs needs a model.matrix_start other than orthogonal")
        if self.attention_start != "random" and not (
            self.qkv_bias and self.positions == "rotary" and self.qk_norm == "none"
        ):
            raise ValueError(
                f"model.attention_start={self.attention_start} needs model.qkv_bias=true, "
                "model.positions=rotary and model.qk_norm=none; with others set "
                "model.attention_start=random"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"model.positions=rotary needs an even model.head_dim, not {self.head_dim}"
            )
        if self.classifier == "head-transform" and not self.head_transform:
            raise ValueError("model.classifier=head-transform needs model.head_transform=true")
        if self.pool_at:
            self._check_funnel()
        self._check_attention()
        if self.mixer != "attention":
            self._check_mixer()
        self._check_blocks()
        return self

    def _check_blocks(self) -> None:
        if self.norm_kind != "layer" and self.norm_bias:
            raise ValueError(
                f"model.norm_kind={self.norm_kind} has no biases: set model.norm_bias=false"
            )
        if self.norm in ("post", "deepnorm") and self.final_norm:
            raise ValueError(
                f"model.norm={self.norm} ends every layer in a norm: set model.final_norm=false"
            )
        if self.norm == "deepnorm" and (
            self.ffn_every > 1 or self.mixer in ("gated-attention", "none")
        ):
            raise ValueError(
                "model.norm=deepnorm weighs the residual of two blocks in every layer: set "
                "model.norm=post, or model.ffn_every=1 and another model.mixer"
            )
        if self.blocks == "parallel" and (self.norm != "pre" or self.ffn_every > 1):
            raise ValueError("model.blocks=parallel needs model.norm=pre and model.ffn_every=1")
        if self.ffn_every > self.layers:
            raise ValueError(
                f"model.ffn_every={self.ffn_every} is more than there are layers: lower it"
            )

    def _check_funnel(self) -> None:
        last = self.layers - self.unpooled_layers - 1
        if list(self.pool_at) != sorted({*self.pool_at}) or self.pool_at[-1] > last:
            raise ValueError(
                f"model.pool_at needs increasing numbers from 1 to {last}, such as [1]: of the "
                f"{self.layers} layers, the last {self.unpooled_layers} compute all tokens "
                "(model.unpooled_layers)"
                if last > 0
                else f"model.pool_at needs more layers than {self.layers}: set model.layers to "
                f"{self.unpooled_layers + 2} or more, or model.unpooled_layers=1"
            )
        if self.passes > 1 or self.scope != "row":
            raise ValueError(
                "model.pool_at needs model.passes=1 and model.scope=row: two tokens become one"
            )

    def _check_attention(self) -> None:
        if self.scope == "causal" and self.attention_start != "random":
            raise ValueError(
                "model.scope=causal looks at no token ahead: set model.attention_start=random"
            )
        if self.key_heads is None:
            return
        if self.heads % self.key_heads:
            raise ValueError(
                f"model.key_heads={self.key_heads} do not divide {self.heads} heads: set a divisor"
            )
        if self.attention_start != "random" or self.value_embeddings:
            raise ValueError(
                "model.key_heads needs model.attention_start=random and "
                "model.value_embeddings=false"
            )

    def _check_mixer(self) -> None:
        gated = self.mixer == "gated-attention"
        if gated and not (self.gated and self.ffn_every == 1):
            raise ValueError(
                "model.mixer=gated-attention needs model.gated=true and model.ffn_every=1"
            )
        if self.mixer.startswith("fourier") and self.zero_outputs:
            raise ValueError(
                f"model.mixer={self.mixer} has no last product: set model.zero_outputs=false"
            )
        if self.value_embeddings:
            raise ValueError(
                f"model.mixer={self.mixer} has no values: set model.value_embeddings=false"
            )
        if self.mixer != "fourier-hybrid" and (
            self.positions in ("alibi", "t5", *["rotary"] * (not gated))
            or self.qkv_bias
            or self.qk_norm != "none"
            or self.attention_start != "random"
            or self.scope != "row"
            or self.weighing != "softmax"
            or self.key_heads is not None
        ):
            raise ValueError(
                f"model.mixer={self.mixer} has no {'heads' if gated else 'queries and keys'}: set "
                f"model.positions other than alibi{' ' if gated else ', rotary '}and t5, "
                "model.qkv_bias=false, model.qk_norm=none, model.attention_start=random, "
                "model.scope=row, model.weighing=softmax and model.key_heads=null"
            )
