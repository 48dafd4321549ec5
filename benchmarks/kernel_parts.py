"""The parts of a step that kernels belong to, by their names.

A profile on a device (`profile_step`) and a count without one (`tools/step_on_paper.py`) sort by
the same names, so that they can be compared part by part.
"""

from __future__ import annotations

import re

PARTS = (
    # The first match counts. The compiler names a kernel after its operators, or in a region after
    # what these decompose into; the parts are those of `crammed.model.traffic`. Elementwise kernels
    # contain no norm, although some are named after the one before.
    ("loss", r"softmax|nll_loss|cross_entropy"),
    ("embedding", r"embedding|index_put|_sin_|arange_cos"),
    ("head", r"(gather|scatter|new_zeros).*layer_norm|layer_norm.*(gather|scatter|new_zeros)"),
    ("gates", r"^triton_poi.*(gelu|erf|tanh|silu|sigmoid|exp_|relu)"),
    ("residuals and norms", r"layer_norm|rms_norm|rsqrt|_mul_sub_sum|^aten\.sum"),
    ("gates", r"gelu|silu|relu|sigmoid"),
    ("masks", r"bitwise|sort|topk|scatter|gather|remainder"),
    ("queries, keys, values", r"select_backward|permute|clone|cat|transpose"),
    ("residuals and norms", r"_to_copy.*view|view.*_to_copy"),
    ("weights", r"^aten\.(add_|_foreach_add_)|_to_copy"),
)


def part_of(kernel: str) -> str | None:
    """The part that a kernel between the matrix products belongs to; None if its name says none."""
    found = (name for name, words in PARTS if re.search(words, kernel, re.IGNORECASE))
    return next(found, None)
