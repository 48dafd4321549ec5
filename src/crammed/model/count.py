"""What a model costs: parameters and training FLOPs, from its configuration alone.

Counts come from a model built without storage (``meta``), so nothing here depends on what a model
consists of. They are cached: planners ask before every update, and sizing asks about many shapes.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from crammed.config import ModelConfig
from crammed.model.blocks import Block, Linear
from crammed.model.encoder import MaskedLM, products_of


@lru_cache(maxsize=8)
def outline(config: ModelConfig, vocab_size: int) -> MaskedLM:
    """The model without storage for its weights."""
    with torch.device("meta"):
        return MaskedLM(config, vocab_size)


@lru_cache(maxsize=256)
def block_matrix_parameters(config: ModelConfig) -> int:
    """Number of weights in the products that the layers' blocks declare, without biases.

    Raises:
        TypeError: a layer has a matrix that no block declares.
    """
    return sum(product.linear.weight.numel() for product in products_of(outline(config, 1)))


@lru_cache(maxsize=256)
def parameters(config: ModelConfig, vocab_size: int) -> int:
    """Number of parameters of the masked language model; the tied decoder counts once."""
    return sum(parameter.numel() for parameter in outline(config, vocab_size).parameters())


@lru_cache(maxsize=256)
def train_flops_per_token(
    config: ModelConfig, vocab_size: int, length: int, predicted: int
) -> float:
    """FLOPs per token of forward and backward; matrix products and attention only.

    A multiply-add counts as two, backward as twice forward. For the paper's encoder:
    6 x 94.4 M + 12 x 16 x 128 x 768 + 6 x 32768 x 768 x 0.25 = 0.623 GFLOP.

    Args:
        length: tokens per row.
        predicted: positions per row that the sparse head predicts.

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
    return 6.0 * (products + config.passes * sum(block.mixing(length) for block in blocks))
