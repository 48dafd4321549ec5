"""The encoder and its head: layers of blocks on a residual stream, and their initialisation.

One set of switches covers the paper's encoder, BERT, Izsak's BERT-large and a strict subset of
ModernBERT. Copied into exported models together with the modules it imports (see `blocks`). There,
modules may lie on several devices. Each moves its own inputs; the code here moves what it reads of
another module.

Shapes: B rows, S tokens, D width, H heads, K head_dim, N predicted positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import ACTIVATIONS, Block, Config, Embedding, Linear, Product, norm_of
from .funnel import with_funnel
from .layer import Layer, picked
from .positions import POSITIONS, Tables


class Encoder(nn.Module):
    """Token ids [B, S] to hidden states [B, S, D].

    Attributes:
        compute_dtype: number format of the activations after the embedding norm; None is the format
            of the weights, in which the embedding and its norm always compute.
        depth: how many of the layers are in use; all, unless depth grows in training.
    """

    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype: torch.dtype | None = None
        self.depth: int = config.layers
        own: int | None = config.embedding_width  # less than the width in ALBERT (Lan et al. 2020)
        self.tokens = Embedding(vocab_size, config.width if own is None else own)
        self.widen = None if own is None else Linear(own, config.width, bias=False)
        self.position_encoding = POSITIONS[config.positions](config)
        self.position_encoding.register(self)
        if config.token_types:
            self.types = Embedding(config.token_types, config.width)
        if config.value_embeddings:
            self.values = Embedding(vocab_size, config.width)
        self.embedding_norm: nn.Module
        self.embedding_norm = norm_of(config) if config.embedding_norm else nn.Identity()
        rate: float | None = config.embedding_dropout
        self.drop = nn.Dropout(config.dropout if rate is None else rate)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.final_norm = norm_of(config) if config.final_norm else nn.Identity()
        self._tables: dict[tuple[int, int], Tables] = {}

    def start(self, std: float, generator: torch.Generator | None = None) -> None:
        """Initialise the encoder's own parameters, which belong to its position encoding."""
        self.position_encoding.start(self, std, generator)

    def keep_tables(self, length: int) -> None:
        """Compute the position tables for rows of this length once.

        Otherwise a compiler may compute their sines again in each layer.
        """
        dtype = self.compute_dtype or self.tokens.weight.dtype
        for step in (2**n for n in range(len(self.config.pool_at) + 1)):
            at = torch.arange(0, length, step, device=self.tokens.weight.device)
            tables = self.position_encoding.tables(at)
            self._tables[length, step] = tuple(table.to(dtype) for table in tables)

    def tables(self, length: int, step: int, device: torch.device) -> Tables:
        """What layers take of position tables, for every `step`-th token of rows of this length."""
        # An exporter would take the length that is looked up for the only one.
        tables = self._tables.get((length, step)) if self._tables else None
        if tables is None:
            at = torch.arange(0, length, step, device=device)
            tables = self.position_encoding.tables(at)
        return self.position_encoding.looked_up(self, tables)

    def in_turn(self) -> list[Layer]:
        """The layers in the order a token goes through them, repeated for each pass."""
        layers = [layer for layer in self.layers if isinstance(layer, Layer)][: self.depth]
        return [layer for _ in range(self.config.passes) for layer in layers]

    def steps(self) -> list[Callable[..., Tensor]]:
        """The same, with those that compute fewer tokens as one."""
        layers = self.in_turn()
        return with_funnel(self.config, layers, self.tables) if self.config.pool_at else [*layers]

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        types: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Encode.

        Args:
            ids: token ids, [B, S].
            mask: [B, S] bool, False at padding; or [B, S, S] bool, True where the token of the
                second dimension may attend to that of the third; None if all may attend to all.
            types: token types, [B, S]; None means all 0. Ignored by a model without them.
            positions: [B, N], the positions to return hidden states of, [B, N, D]; others skip
                everything after the last attention. None returns all positions.
        """
        prepared = self.prepare(self.tokens(ids), mask, types, ids)
        return self.through_layers(*prepared, positions=positions)

    def prepare(
        self,
        tokens: Tensor,
        mask: Tensor | None,
        types: Tensor | None,
        ids: Tensor | None,
        at: Tensor | None = None,
    ) -> tuple[Tensor, Tables, Tensor | None, Tensor | None, Tensor | None]:
        """The arguments of `through_layers`, from token vectors [B, S, D].

        Args:
            mask: as in `forward`.
            types: as in `forward`.
            ids: as in `forward`; None if only vectors are known.
            at: the positions of the tokens, [B, S] or [1, S]; None counts from 0.

        Raises:
            ValueError: the model has value embeddings, and `ids` is None.
        """
        if self.widen is not None:
            tokens = self.widen(tokens).to(tokens.device)
        x = self.position_encoding.embed(self, tokens, at)
        if self.config.token_types:
            of_types = self.types.weight[0] if types is None else self.types(types)
            x = x + of_types.to(x.device)
        x = self.embedding_norm(x)
        if self.compute_dtype is not None:
            x = x.to(self.compute_dtype)
        if at is None:
            tables = self.tables(tokens.shape[1], 1, tokens.device)
        else:
            tables = self.position_encoding.tables(at[:, None])
            tables = self.position_encoding.looked_up(self, tables)
        if mask is not None:
            mask = mask[:, None, None, :] if mask.dim() == 2 else mask[:, None]
        values = None
        if self.config.value_embeddings:
            if ids is None:
                raise ValueError("a model with value embeddings needs token ids: give input_ids")
            values = self.values(ids).to(x.dtype)
        x = self.drop(x)
        return x, tables, mask, values, x if self.config.residual_scalars else None

    def unused(self) -> list[nn.Parameter]:
        """The parameters that have no gradients, because they belong to layers beyond `depth`."""
        unused = list(self.layers[self.depth :].parameters())
        if self.config.value_embeddings:
            used = any(layer.value_scale is not None for layer in self.layers[: self.depth])
            unused += [] if used else self.values.parameters()
        return unused

    def through_layers(
        self,
        x: Tensor,
        tables: Tables,
        mask: Tensor | None,
        *more: Tensor | None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Layers and final norm of x [B, S, D]; the other arguments as in `Layer`."""
        *layers, last = self.steps()
        for layer in layers:
            x = layer(x, tables, mask, *more)
        hidden: Tensor = self.final_norm(last(x, tables, mask, *more, positions=positions))
        return hidden


class HeadTransform(nn.Module):
    """Dense layer, activation and norm before the decoder (Devlin et al. 2019)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = Linear(config.width, config.width, bias=config.linear_bias)
        self.activation = ACTIVATIONS[config.activation].function
        self.norm = norm_of(config)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.norm(self.activation(self.dense(x)))
        return output


class MaskedLM(nn.Module):
    """Encoder, optional head transform and a decoder, by default tied to the token embedding."""

    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__()
        self.encoder = Encoder(config, vocab_size)
        self.head = HeadTransform(config) if config.head_transform else nn.Identity()
        own = not config.tied_decoder
        self.output = Embedding(vocab_size, self.encoder.tokens.embedding_dim) if own else None
        self.decoder_bias = nn.Parameter(torch.empty(vocab_size)) if config.decoder_bias else None

    def start(self, std: float, generator: torch.Generator | None = None) -> None:
        if self.decoder_bias is not None:
            nn.init.zeros_(self.decoder_bias)

    def table(self) -> Tensor:
        """The decoder's table, [V, D or the width of the embeddings]."""
        table: Embedding = self.encoder.tokens if self.output is None else self.output
        return table.weight

    def read(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., D] to what the rows of `table` are multiplied with."""
        x: Tensor = self.head(hidden)
        widen = self.encoder.widen
        return x if widen is None else x @ widen.weight.to(x)

    def decode(self, hidden: Tensor, weight: Tensor | None = None) -> Tensor:
        """Hidden states [..., D] to logits [..., V].

        Args:
            weight: the decoder's table [V, D], perhaps in another number format; None is the table.
        """
        if weight is None:
            weight = self.table()
        x = self.read(hidden).to(weight.device)
        bias = None if self.decoder_bias is None else self.decoder_bias.to(x)
        logits = F.linear(x, weight.to(x.dtype), bias)
        cap: float | None = self.encoder.config.logit_cap
        return logits if cap is None else cap * (logits / cap).tanh()

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        types: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, N, V] at `positions` [B, N] (the sparse head), or [B, S, V] everywhere."""
        return self.decode(picked(self.encoder(ids, mask, types), positions))


def products_of(model: nn.Module) -> list[Product]:
    """The matrix products of the layers, in the order of the modules.

    Raises:
        TypeError: a layer has a matrix that no block declares.
    """
    return [
        product
        for name, layer in model.named_modules()
        if isinstance(layer, Layer)
        for product in layer.products(name)
    ]


def initialise(
    model: nn.Module,
    std: float,
    generator: torch.Generator | None = None,
    *,
    zero_outputs: bool = False,
) -> None:
    """Initialise all parameters in place, by each module's `start`.

    With a CPU generator and a model on the CPU, the weights depend only on the generator's seed.

    Args:
        std: standard deviation of matrices and embeddings.
        zero_outputs: set the last product of each block to zero.

    Raises:
        TypeError: no `start` sets one of the parameters.
    """
    before = {name: parameter._version for name, parameter in model.named_parameters()}
    for module in model.modules():
        start: Callable[..., None] | None = getattr(module, "start", None)
        if start is not None:
            start(std, generator)
    unset = [n for n, p in model.named_parameters() if p._version == before[n]]
    if unset:
        raise TypeError(f"no module sets {', '.join(unset)}: set it in the `start` of its module")
    if zero_outputs:
        for module in model.modules():
            if isinstance(module, Block) and module.products:
                nn.init.zeros_(module.get_submodule([*module.products][-1]).get_parameter("weight"))
