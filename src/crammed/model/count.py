"""What a model costs: parameters and training FLOPs, from its configuration alone."""

from __future__ import annotations

from crammed.model.encoder import EncoderConfig


def block_matrix_parameters(config: EncoderConfig) -> int:
    """Weights of the layers' four products, without biases."""
    attention = 4 * config.width**2
    ffn = config.width * (config.ffn_width + config.ffn_hidden)
    return config.layers * (attention + ffn)


def parameters(config: EncoderConfig, vocab_size: int) -> int:
    """All parameters of the masked language model; the tied decoder counts once."""
    width, norm = config.width, config.width * (2 if config.norm_bias else 1)
    total = vocab_size * width + config.token_types * width
    if config.positions == "learned":
        total += config.max_length * width
    elif config.positions == "scaled-sinusoidal":
        total += 1
    total += block_matrix_parameters(config)
    if config.qkv_bias:
        total += config.layers * 3 * width
    if config.linear_bias:
        total += config.layers * (width + config.ffn_width + width)
    norms = 2 * config.layers + config.embedding_norm + config.final_norm
    norms -= not config.first_attention_norm
    if config.head_transform:
        norms += 1
        total += width * width + (width if config.linear_bias else 0)
    if config.decoder_bias:
        total += vocab_size
    return total + norms * norm


def train_flops_per_token(
    config: EncoderConfig, vocab_size: int, length: int, predicted: int
) -> float:
    """FLOPs of forward and backward for one token of a row; products and attention only.

    A multiplication and an addition count as two, backward as twice forward. For the paper's
    encoder: 6 x 94.4 M + 12 x 16 x 128 x 768 + 6 x 32768 x 768 x 0.25 = 0.623 GFLOP.

    Args:
        length: tokens of a row.
        predicted: positions of a row that the sparse head predicts.
    """
    head = vocab_size * config.width
    if config.head_transform:
        head += config.width**2
    products = block_matrix_parameters(config) + head * predicted / length
    attention = 2 * config.layers * length * config.width
    return 6.0 * (products + attention)
