"""What the compiler's kernels read and write, recorded while it generates their code."""

from __future__ import annotations

import importlib
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

READ, WRITTEN, ADDED = "read", "written", "added"
"""What a kernel does with elements; those that it adds to are both read and written."""


@dataclass(frozen=True)
class Access:
    """One load or store in the code of a kernel.

    Attributes:
        buffer: the compiler's name for what is read or written.
        index: where in the buffer, as a formula; the same formula reaches the same elements.
        elements: how many elements the formula reaches.
        size: bytes per element.
        whole: elements of the buffer; None if there may be more accesses than elements.
    """

    buffer: str
    does: str
    index: str
    elements: int
    size: int
    whole: int | None


def traffic(accesses: Iterable[Access]) -> tuple[int, int]:
    """The bytes that one launch of a kernel reads and writes.

    Each element counts once: formulas add up, but to no more than the buffer has. Where the formula
    depends on loaded values (a gather, a scatter), every access counts.
    """
    moved: dict[str, int] = {}
    for does in (READ, WRITTEN):
        reached: defaultdict[str, dict[str, int]] = defaultdict(dict)
        most: dict[str, float] = {}
        for access in accesses:
            if access.does in (does, ADDED):
                reached[access.buffer][access.index] = access.elements * access.size
                whole = math.inf if access.whole is None else access.whole * access.size
                most[access.buffer] = max(most.get(access.buffer, 0), whole)
        moved[does] = sum(int(min(most[b], sum(each.values()))) for b, each in reached.items())
    return moved[READ], moved[WRITTEN]


KERNELS: dict[str, tuple[bool, tuple[int, int]]] = {}
"""Of the last kernel generated under each name: whether it is of a backward pass, and `traffic`."""


def watch() -> None:
    """Record the accesses of every kernel from now on in `KERNELS`."""
    made: Any = importlib.import_module("torch._inductor.codegen.triton").TritonKernel
    graphs: Any = importlib.import_module("torch._inductor.virtualized").V
    load, store = made.load, made.store
    store_reduction, call_kernel = made.store_reduction, made.call_kernel

    def noted(kernel: Any) -> dict[tuple[str, str, str], Access]:
        found: dict[tuple[str, str, str], Access] = kernel.__dict__.setdefault("_noted", {})
        return found

    def note(kernel: Any, does: str, name: str, index: Any) -> None:
        elements, by_way = _elements(kernel, index)
        size = graphs.graph.get_dtype(name).itemsize
        whole = None if by_way else elements
        access = Access(name, does, str(index), elements, size, whole)
        noted(kernel)[name, does, str(index)] = access

    def noting_load(self: Any, name: str, index: Any) -> Any:
        note(self, READ, name, index)
        return load(self, name, index)

    def noting_store(self: Any, name: str, index: Any, value: Any, mode: Any = None) -> Any:
        note(self, WRITTEN if mode in (None, "tma") else ADDED, name, index)
        return store(self, name, index, value, mode)

    def noting_reduction(self: Any, name: str, index: Any, value: Any) -> Any:
        note(self, WRITTEN, name, index)
        return store_reduction(self, name, index, value)

    def noting_call(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        gone = self.removed_buffers | graphs.graph.removed_buffers | self.inplaced_to_remove
        kept = []
        for access in noted(self).values():
            if access.does == READ or access.buffer not in gone:
                whole = _numel(graphs.graph, access.buffer)
                bounded = access.whole is not None and whole is not None
                kept.append(replace(access, whole=whole) if bounded else access)
        for space in self.args.workspace_args:  # partial sums, which another kernel adds up
            count, size = int(space.count), space.dtype.itemsize
            kept.append(Access(space.outer_name, WRITTEN, "", count, size, count))
        KERNELS[name] = (bool(graphs.graph.is_backward), traffic(kept))
        return call_kernel(self, name, *args, **kwargs)

    made.load, made.store = noting_load, noting_store
    made.store_reduction, made.call_kernel = noting_reduction, noting_call


def _elements(kernel: Any, index: Any) -> tuple[int, bool]:
    """How many elements a formula reaches, and whether it depends on values that were loaded."""
    nodes = [kernel.range_tree_nodes.get(symbol) for symbol in index.free_symbols]
    if all(node is not None for node in nodes):
        return math.prod(int(node.length) for node in nodes), False
    trees = [
        tree for tree in kernel.range_trees if kernel.inside_reduction or not tree.is_reduction
    ]
    return math.prod(int(tree.numel) for tree in trees), True


def _numel(graph: Any, buffer: str) -> int | None:
    try:
        return int(graph.get_numel(buffer))
    except (KeyError, TypeError, AttributeError):  # one that has no size of its own
        return None
