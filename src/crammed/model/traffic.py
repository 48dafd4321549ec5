"""The work of a training step beside its matrix products: attention, and the bytes that move.

Counts from a configuration alone; `crammed.model.count` has the products.
"""

from __future__ import annotations

from crammed.config import ModelConfig


def attention_flops(config: ModelConfig, tokens: int, length: int) -> int:
    """FLOPs of all layers' attention: scores and values in forward, twice as many in backward."""
    return 12 * config.depth * length * config.width * tokens


def attention_bytes(config: ModelConfig, tokens: int, element: int) -> int:
    """The fewest bytes that all layers' attention moves in forward and backward.

    Forward reads queries, keys and values and writes the output; backward reads these four and the
    output's gradient, and writes three gradients. One float32 number for each token and head is
    written by forward and read by backward. In short rows this takes longer than the FLOPs.

    Args:
        element: bytes per element of queries, keys and values.
    """
    return config.depth * tokens * (12 * config.width * element + 8 * config.heads)


def traffic(
    config: ModelConfig, vocab: int, tokens: int, predicted: int, element: int, stream: int
) -> dict[str, int]:
    """The fewest bytes that the parts between the products move in forward and backward.

    Tensors that enter or leave a product are read or written there, in the product's own time.
    Between two products, everything is assumed to happen in one pass. What attention itself moves
    is not here (`attention_bytes`). With `e` bytes per element, and `s` bytes per element of the
    residual stream, each token needs:

    - residual and norm (twice per layer, width D): forward reads stream s and branch e, and writes
      stream s and norm e. Backward reads the gradients of stream s and norm e, and the stream s
      again; it writes the gradient of the stream s, and the branch's e if its format differs.
    - gate (H hidden features): forward reads 2 H and writes H; backward reads H gradients and 2 H
      again, and writes 2 H. Without a gate: reads H, writes H; reads H and H, writes H.
    - after the last attention, both for the predicted positions alone.
    - queries, keys and values: attention's backward gives three gradients, which are read, and
      written packed for one product: 6 D. Rotary positions join this pass; in forward they read
      and write queries and keys: 4 D more.
    - embedding: forward reads a row of float32, and writes stream s and the first norm e; backward
      reads both gradients and the stream again, and reads and writes a row of float32.
    - head: backward writes a gradient of every row after the last attention, zeros included. A
      transform's activation and norm read twice and write once in each direction. Loss: forward
      reads the logits once; backward reads and writes them.
    - weights: their gradients are read as the products wrote them and added to float32. They are
      cast for the products once per update, which is not in here.

    Args:
        element: bytes per element of what products take and give.
        stream: bytes per element of the residual stream.

    Returns:
        bytes per step of each part.
    """
    width, hidden, layers = config.width, config.ffn_hidden, config.depth
    apart = element if element != stream else 0
    norm = (2 * stream + 2 * element) + (3 * stream + element + apart)
    gate = (3 + 5 if config.gated else 2 + 3) * element
    embedding = (4 + stream + element) + (2 * stream + element + 8)
    weights = layers * width * (4 * width + config.ffn_width + hidden) + vocab * width
    head = tokens * width * element
    if config.head_transform:
        weights += width * width
        head += 6 * predicted * width * element
    unpredicted = tokens - predicted
    norms = 2 * layers * tokens - (2 if config.final_norm else 1) * unpredicted
    packed = 10 if config.positions == "rotary" else 6
    return {
        "residuals and norms": norms * width * norm,
        "gates" if config.gated else "activations": (layers * tokens - unpredicted) * hidden * gate,
        "queries, keys, values": packed * layers * tokens * width * element,
        "embedding": tokens * width * embedding,
        "head": head,
        "loss": 3 * predicted * vocab * element,
        "weights": weights * (element + 8),
    }
