"""Compiles the loss, and has a GPU compute each half of a gate's gradient once.

The gradients of a gated block's two halves are concatenated for the product before it. On a GPU,
the compiler (PyTorch 2.11 to 2.13) writes up to eight parts in one pass in which every element
computes all of them, exponentials included, and keeps one: in the paper's shape, that took three
times as long as its bytes on an H200. Of more than eight parts, each is written where it belongs,
and those with the same inputs share a pass. So parts without elements are added here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from crammed.errors import InputError

_CAT = torch.ops.aten.cat.default
_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def compiled(loss: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """The loss, compiled when it is called for each shape of its arguments."""
    # Code for CPUs has each part written where it belongs, and no need of options.
    options: dict[str, Any] | None
    options = {"post_grad_custom_post_pass": Apart()} if device.type == "cuda" else None
    return torch.compile(loss, fullgraph=True, dynamic=False, options=options)


@contextmanager
def compiler_faults() -> Iterator[None]:
    """Report failures of the compiler in one line."""
    try:
        yield
    except torch._dynamo.exc.TorchDynamoException as error:
        from torch._inductor.runtime.cache_dir_utils import cache_dir  # takes seconds to import

        fault = getattr(error, "inner_exception", error)
        reason = ": ".join([type(fault).__name__, *str(fault).splitlines()[:1]])
        raise InputError(
            f"the compiler failed: {reason}. If a process was killed while it compiled, remove the "
            f"folder {cache_dir()}; or set compute.compile=off"
        ) from error


class Apart(CustomGraphPass):
    """Changes how concatenations that only matrix products read are computed, not what they are.

    Others stay in the pass that reads them, as in 8 bits: no concatenation is written there.
    """

    def __call__(self, graph: Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=_CAT):
            if _is_for_products(node):
                _add_empty_parts(graph, node)

    def uuid(self) -> bytes:
        """What the compiler's cache knows this pass by."""
        return get_hash_for_files((__file__,))


def _is_for_products(node: Node) -> bool:
    """Whether products are all that reads the node, or views of it."""
    return all(
        user.target in _PRODUCTS or (_is_view(user) and _is_for_products(user))
        for user in node.users
    )


def _is_view(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _add_empty_parts(graph: Graph, node: Node) -> None:
    parts, *dim = node.args
    assert isinstance(parts, list | tuple)
    like = node.meta["val"]
    size = list(like.shape)
    size[dim[0] if dim else 0] = 0  # type: ignore[index]
    with graph.inserting_before(node):
        kind = {"dtype": like.dtype, "device": like.device}
        empty = graph.call_function(torch.ops.aten.full.default, (size, 0.0), kind)
    empty.meta["val"] = like.new_empty(size)
    lacking = config.max_pointwise_cat_inputs + 1 - len(parts)
    node.args = ([*parts, *[empty] * lacking], *dim)
