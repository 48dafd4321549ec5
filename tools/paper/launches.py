"""The launches of a step, recorded while the code around kernels runs on fake tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

VIEWS = (
    # Operators that launch nothing, although PyTorch does not count all of them as views.
    *("prim.", "profiler.", "aten.empty", "aten.new_empty", "aten.detach", "aten.alias"),
    *("aten.as_strided", "aten.view", "aten._unsafe_view", "aten.split", "aten.unbind"),
    *("aten.lift_fresh", "aten.set_", "aten.is_", "aten.sym_", "aten._local_scalar_dense"),
)
FILLS = (
    *("aten.zeros", "aten.new_zeros", "aten.zero_", "aten.ones", "aten.full", "aten.fill_"),
    "aten.arange",
)
"""Operators that write without reading."""
PRODUCTS = ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten._scaled_mm")
ATTENTION = "scaled_dot_product"


@dataclass(frozen=True)
class Launch:
    """One call of a generated kernel, or of an operator that PyTorch computes itself.

    Attributes:
        where: ``forward`` or ``backward`` for generated kernels, otherwise ``operator``.
        read, written: bytes.
        kernels: launches of the device in one call.
        flops: of products and attention; everything else counts as 0.
        shape: of a product or of attention, in words.
    """

    name: str
    where: str
    read: int
    written: int
    kernels: int = 1
    flops: int = 0
    shape: str = ""

    @property
    def moved(self) -> int:
        return self.read + self.written


class Noted:
    """The launches of a stretch of work."""

    def __init__(self) -> None:
        self._launches: list[Launch] | None = None

    def add(self, launch: Launch) -> None:
        """Record a launch, if anybody listens."""
        if self._launches is not None:
            self._launches.append(launch)

    @contextmanager
    def listening(self) -> Iterator[list[Launch]]:
        """Within this context, launches are added to the list that it yields."""
        launches: list[Launch] = []
        self._launches = launches
        try:
            yield launches
        finally:
            self._launches = None


class Operators(TorchDispatchMode):
    """Records every operator that runs outside generated kernels."""

    def __init__(self, noted: Noted) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._noted = noted

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: operators that the compiler runs for itself are no launches of a step."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (launch := launch_of(func, args, kwargs or {}, result)) is not None:
            self._noted.add(launch)
        return result


def launch_of(func: Any, args: Any, kwargs: Any, result: Any) -> Launch | None:
    """The launch that a call of an operator causes; None if it launches nothing."""
    name = str(func).removesuffix(".default")
    inputs, outputs = _tensors((args, kwargs)), _tensors(result)
    if (
        func.is_view
        or name.startswith(VIEWS)
        or not any(x.device.type == "cuda" for x in inputs + outputs)
    ):
        return None
    if name.startswith(PRODUCTS):
        return _product(name, args, _tensors(kwargs.get("out")) or outputs)
    if ATTENTION in name:
        return _attention(name, args, inputs, outputs)
    if name.startswith(FILLS):
        return Launch(name, "operator", 0, _bytes(outputs))
    changed = [
        args[place] if place < len(args) else kwargs.get(argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    read, written = _bytes(inputs), _bytes(_tensors(changed) if changed else outputs)
    kernels = _launches_of_lists(args) if name == "aten._foreach_add_.List" else 1
    return Launch(name, "operator", read, written, kernels)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _product(name: str, args: Any, outputs: list[Tensor]) -> Launch:
    """A product [m, k] x [k, n].

    For `addmm`, the added tensor is read as well; for `baddbmm`, it is copied to the result first.
    """
    factors = [arg for arg in args if isinstance(arg, Tensor)]
    read, written, kernels = _bytes(factors), _bytes(outputs), 1
    if "baddbmm" in name:
        read, written, kernels = read + written, 2 * written, 2
    left, right = factors[1:3] if "add" in name else factors[:2]
    *batch, m, k = left.shape
    n = right.shape[-1]
    turned = "".join("t" if each.stride(-1) != 1 else "n" for each in (left, right))
    shape = f"[{m}, {k}] x [{k}, {n}] {turned} {str(outputs[0].dtype).removeprefix('torch.')}"
    flops = 2 * math.prod(batch) * m * n * k
    return Launch(name, "operator", read, written, kernels, flops, shape)


def _attention(name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> Launch:
    """Two products per head; backward computes five, of which FLOP counts include four."""
    backward = "backward" in name
    rows, heads, length, size = args[1 if backward else 0].shape
    flops = (8 if backward else 4) * rows * heads * length * length * size
    shape = f"[{rows}, {heads}, {length}, {size}]"
    return Launch(name, "operator", _bytes(inputs), _bytes(outputs), 1, flops, shape)


def _launches_of_lists(args: Any) -> int:
    """Tensors of one format share launches, each of at most 64 tensors and 320 chunks."""
    totals, added = list[Tensor](args[0]), list[Tensor](args[1])
    if any(a.dtype != b.dtype for a, b in zip(totals, added, strict=True)):
        return len(totals)
    chunks = sum(math.ceil(total.numel() / 65_536) for total in totals)
    return max(math.ceil(len(totals) / 64), math.ceil(chunks / 320))
