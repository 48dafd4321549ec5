"""The work of a training step besides its matrix products: attention, and memory traffic.

All is counted from the configuration alone; `crammed.model.count` counts the products.
"""

from __future__ import annotations

from crammed.config import ModelConfig
from crammed.model.funnel import pooled_length, poolings
from crammed.model.mixers import HYBRID


def _with_attention(config: ModelConfig) -> range:
    first = {"attention": 0, "fourier-hybrid": max(0, config.layers - HYBRID)}
    return range(first.get(config.mixer, config.layers), config.layers)


def _with_ffn(config: ModelConfig) -> range:
    """Which layers have a feed-forward block: the last one, and every n-th before it."""
    return range((config.layers - 1) % config.ffn_every, config.layers, config.ffn_every)


def _in_layers(config: ModelConfig, layers: range, tokens: int) -> int:
    """How many tokens all these layers compute, added up, of rows with so many tokens."""
    return config.passes * sum(tokens >> poolings(config, index) for index in layers)


def attention_flops(config: ModelConfig, tokens: int, length: int) -> int:
    """FLOPs of attention in all layers: scores and values in forward, twice that in backward."""
    seen = [pooled_length(config, index, length) for index in _with_attention(config)]
    return 12 * config.passes * config.width * sum(tokens * each * each // length for each in seen)


def attention_bytes(config: ModelConfig, tokens: int, element: int) -> int:
    """The fewest bytes that attention moves in forward and backward, in all layers.

    Forward reads queries, keys and values and writes the output; backward reads these four and the
    output's gradient, and writes three gradients. Forward also writes one float32 number per token
    and head, which backward reads. In short rows, this traffic takes longer than the FLOPs.

    Args:
        element: bytes per element of queries, keys and values.
    """
    seen = _in_layers(config, _with_attention(config), tokens)
    return seen * (12 * config.width * element + 8 * config.heads)


def traffic(
    config: ModelConfig, vocab: int, tokens: int, predicted: int, element: int, stream: int
) -> dict[str, int]:
    """The fewest bytes that the parts between the products move in a step, by part.

    The traffic of the products' own inputs and outputs is part of the products' time, and
    `attention_bytes` has that of attention. Everything between two products is assumed to take one
    pass. With e = `element` bytes per element, and s = `stream` bytes per element of the residual
    stream, each token needs in forward and backward:

    - residual and norm (twice per layer, width D): forward reads stream s and branch e, and writes
      stream s and norm e. Backward reads the gradients of stream s and norm e, and the stream s
      again; it writes the gradient of the stream s, and the branch's e if its format differs.
    - gate (H hidden features): forward reads 2 H and writes H; backward reads H gradients and 2 H
      again, and writes 2 H. Without a gate: reads H, writes H; reads H and H, writes H.
    - after the last attention, both only for the predicted positions.
    - queries, keys and values: the three gradients from attention's backward are read and written
      packed for one product: 6 D. Rotary positions share this pass; in forward they read and write
      queries and keys: 4 D more.
    - embedding: forward reads a row of float32, and writes stream s and the first norm e; backward
      reads both gradients and the stream again, and reads and writes a row of float32.
    - head: backward writes a gradient of every row after the last attention, zeros included. A
      transform's activation and norm read twice and write once in each direction. Loss: forward
      reads the logits once; backward reads and writes them.
    - weights: their gradients are read in the products' output format and added to float32. The
      casts of weights for the products, once per update, are not included.
    """
    width, hidden = config.width, config.ffn_hidden
    groups = range(config.layers), _with_ffn(config), _with_attention(config)
    every, fed, attended = (_in_layers(config, layers, tokens) for layers in groups)
    norm = 5 * stream + (3 if element == stream else 4) * element
    gate = (3 + 5 if config.gated else 2 + 3) * element
    embedding = (4 + stream + element) + (2 * stream + element + 8)
    weights = config.passes * len(_with_ffn(config)) * width * (config.ffn_width + hidden)
    weights += vocab * (config.embedding_width or width) * (1 if config.tied_decoder else 2)
    few = (config.key_heads or config.heads) * config.head_dim
    weights += config.passes * len(_with_attention(config)) * 2 * width * (width + few)
    head = tokens * width * element
    if config.head_transform:
        weights += width * width
        head += 6 * predicted * width * element
    unpredicted = tokens - predicted
    norms = 2 * every - (2 if config.final_norm else 1) * unpredicted
    packed = 10 if config.positions == "rotary" else 6
    return {
        "residuals and norms": norms * width * norm,
        "gates" if config.gated else "activations": (fed - unpredicted) * hidden * gate,
        "queries, keys, values": packed * attended * width * element,
        "embedding": tokens * width * embedding,
        "head": head,
        "loss": 3 * predicted * vocab * element,
        "weights": weights * (element + 8),
    }
