"""Initialisation of the layers' matrices with other than one standard deviation for all.

All rules transform what was drawn already, so they all use the same draws.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from crammed.config import ModelConfig
from crammed.model.blocks import Block, Product


def start_matrices(model: nn.Module, config: ModelConfig) -> None:
    """Transform matrices drawn with `init_std` as `model.matrix_start` says, in place."""
    if config.matrix_start == "normal":
        return
    for block in model.modules():
        if not isinstance(block, Block):
            continue
        products = list(block.declared(""))
        for product in products:
            weight = product.linear.weight.detach()
            if config.matrix_start == "deepnorm":
                _scale_for_deepnorm(weight, product, config)
            elif config.matrix_start == "orthogonal":
                _make_orthogonal(weight, product.matrices)
            else:
                weight.mul_(_deviation(config, product == products[-1]) / config.init_std)


def _deviation(config: ModelConfig, is_output: bool) -> float:
    """The standard deviation of a block's matrices; `is_output` for the last one.

    Outputs are smaller the more of them add up, one for each layer that a token goes through.
    """
    small = math.sqrt(2 / (5 * config.width))  # Nguyen and Salazar 2019
    if config.matrix_start == "megatron":  # Shoeybi et al. 2019
        return config.init_std / math.sqrt(2 * config.depth) if is_output else config.init_std
    if config.matrix_start == "wang" and is_output:  # Wang and Komatsuzaki 2021
        return 2 / (config.depth * math.sqrt(config.width))
    return small


def _scale_for_deepnorm(weight: Tensor, product: Product, config: ModelConfig) -> None:
    """Deviations of Glorot and Bengio 2010, smaller but for queries and keys (Wang et al. 2022)."""
    for part, matrix in enumerate(weight.chunk(product.matrices)):
        full = part < {"qkv": 2, "q": 1, "kv": 1}.get(product.name, 0)
        gain = 1.0 if full else (8 * config.depth) ** -0.25
        matrix.mul_(gain * math.sqrt(2 / sum(matrix.shape)) / config.init_std)


def _make_orthogonal(weight: Tensor, matrices: int) -> None:
    """Give stacked matrices singular values of sqrt(outputs / inputs) (Bernstein et al. 2023)."""
    for matrix in weight.chunk(matrices):
        outputs, inputs = matrix.shape
        tall = matrix if outputs >= inputs else matrix.mT
        basis, triangle = torch.linalg.qr(tall)
        basis = basis * triangle.diagonal().sign()  # as if drawn uniformly from all rotations
        matrix.copy_((basis if outputs >= inputs else basis.mT) * (outputs / inputs) ** 0.5)
