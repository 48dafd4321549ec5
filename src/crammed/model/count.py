"""What a model costs: parameters and training FLOPs, from its configuration alone.

Counts come from a model built without storage (``meta``), so nothing here depends on what a model
consists of. They are cached: planners ask before every update, and sizing asks about many shapes.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from crammed.config import ModelConfig, RunConfig
from crammed.config.objectives import ElectraConfig
from crammed.model.blocks import Block, Linear
from crammed.model.electra import model_in_training
from crammed.model.encoder import MaskedLM, products_of
from crammed.model.funnel import pooled_length


@lru_cache(maxsize=8)
def outline(config: ModelConfig, vocab_size: int, generator: ModelConfig | None = None) -> MaskedLM:
    """The model without storage for its weights; with a generator, all that is trained."""
    with torch.device("meta"):
        return model_in_training(config, vocab_size, generator)


@lru_cache(maxsize=256)
def block_matrix_parameters(config: ModelConfig) -> int:
    """Number of weights in the products that the layers' blocks declare, without biases.

    Raises:
        TypeError: a layer has a matrix that no block declares.
    """
    return sum(product.linear.weight.numel() for product in products_of(outline(config, 1)))


@lru_cache(maxsize=256)
def parameters(config: ModelConfig, vocab_size: int, generator: ModelConfig | None = None) -> int:
    """Number of parameters of the masked language model; the tied decoder counts once.

    Args:
        generator: if given, count all that is trained beside the model as well.
    """
    model = outline(config, vocab_size, generator)
    return sum(parameter.numel() for parameter in model.parameters())


def middle(depth: int) -> range:
    """Which of so many layers, in turn, compute some tokens alone if `train.drop_tokens` is set."""
    return range(depth // 2, depth - 1)


@lru_cache(maxsize=256)
def train_flops_per_token(
    config: ModelConfig,
    vocab_size: int,
    length: int,
    predicted: int,
    kept: int | None = None,
    learned_passes: int | None = None,
) -> float:
    """FLOPs per token of forward and backward; matrix products and attention only.

    A multiply-add counts as two, backward as twice forward. For the paper's encoder:
    6 x 94.4 M + 12 x 16 x 128 x 768 + 6 x 32768 x 768 x 0.25 = 0.623 GFLOP.

    Args:
        length: tokens per row.
        predicted: positions per row that the sparse head predicts.
        kept: tokens of each row that the middle layers compute; None for all.
        learned_passes: how many passes through the layers have a backward; None for all.

    Raises:
        TypeError: a layer has a matrix that no block declares.
    """
    model = outline(config, 1)
    width = model.encoder.tokens.embedding_dim
    widen = 0 if model.encoder.widen is None else model.encoder.widen.weight.numel()
    head = vocab_size * width + widen
    head += sum(part.weight.numel() for part in model.head.modules() if isinstance(part, Linear))
    products = config.passes * block_matrix_parameters(config) + widen + head * predicted / length
    blocks = [part for part in model.encoder.modules() if isinstance(part, Block)]
    flops = 6.0 * (products + config.passes * sum(block.mixing(length) for block in blocks))
    if kept is None and learned_passes is None and not config.pool_at:
        return flops
    return flops - _left_out(model, length, kept or length, learned_passes or config.passes)


def _left_out(model: MaskedLM, length: int, kept: int, learned_passes: int) -> float:
    """The FLOPs per token that the two options and a funnel save."""
    saved, config, layers = 0.0, model.encoder.config, model.encoder.in_turn()
    first = len(layers) - learned_passes * model.encoder.depth
    for n, layer in enumerate(layers):
        products = sum(product.linear.weight.numel() for product in layer.products())
        blocks = [part for part in layer.modules() if isinstance(part, Block)]
        seen = pooled_length(config, n % config.layers, length)
        seen = min(seen, kept) if n in middle(len(layers)) else seen
        whole = products + sum(block.mixing(length) for block in blocks)
        some = seen / length * (products + sum(block.mixing(seen) for block in blocks))
        saved += 6.0 * whole - (2.0 if n < first else 6.0) * some
    return saved


def run_flops_per_token(
    config: RunConfig,
    vocab_size: int,
    predicted: int,
    layers: int | None = None,
    length: int | None = None,
    number: int | None = None,
) -> float:
    """FLOPs per token of an update of a run, besides those of the optimizer.

    Args:
        predicted: as in `train_flops_per_token`.
        layers: how many layers are in use; None for all.
        length: tokens per row; None for the length of the data's rows.
        number: which update it is, if that matters; None for one on average.
    """
    model = config.model
    if layers is not None and layers < model.layers:
        model = model.model_copy(update={"layers": layers})
    if config.loss.name == "embedding":  # which computes no logits
        vocab_size = 0
    length, kept = length or config.data.row_length, config.kept(predicted)
    passes = config.train.learned_passes
    own, objective = predicted, config.objective
    if isinstance(objective, ElectraConfig):
        own = objective.masks(predicted)
    flops = train_flops_per_token(model, vocab_size, length, own, kept, passes)
    if isinstance(objective, ElectraConfig):  # a generator, and a detector of every token
        generator = objective.generator_of(model)
        flops += train_flops_per_token(generator, vocab_size, length, predicted)
        flops += 6.0 * model.width * (model.width + 1)
    if config.objective.name == "script":  # once more, with logits for every token
        flops += train_flops_per_token(model, vocab_size, length, length)
    if config.rows_compared() > 1:  # once more, each half by itself
        flops += train_flops_per_token(model, vocab_size, length // 2, 0)
    return config.passes_per_update(number) * flops
