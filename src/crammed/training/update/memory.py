"""What fits into the device's memory: whether the model does, and how many rows at once."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from crammed.config import RunConfig
from crammed.errors import InputError
from crammed.machine.device import is_out_of_memory, memory_of
from crammed.model.count import parameters
from crammed.quantity import quantity

MOST_TOKENS = 65_536
"""Most tokens in a microbatch; a GPU is no faster with more."""
LEAST_TOKENS = 4_096
"""With fewer tokens a GPU idles, so layers recompute their activations instead."""
SHARE = 0.85
"""Share of free memory to plan with; the rest is for what the measurement missed."""
_PROBES = ((8, 16), (1, 2))
"""Pairs of row counts to try first; the second pair is for when the first does not fit."""


def bytes_per_parameter(config: RunConfig) -> int:
    """Bytes of weight, gradient and all that is kept beside them, in float32."""
    return 4 * (2 + config.state_per_parameter())


def fitting_rows(peak: Callable[[int], int], free: int, row_length: int) -> int:
    """The largest power of two of rows that fits into memory, extrapolated from two small numbers.

    A few rows may take less than the gradients of the weights, and so say little about more rows.
    The extrapolated number is therefore tried, and halved until it fits.

    Args:
        peak: returns the bytes that a number of rows takes beyond what is held anyway; may raise
            an out-of-memory error.
        free: free bytes.
    """
    most = max(1, MOST_TOKENS // row_length)
    for small, large in _PROBES:
        few, more = _tried(peak, small), _tried(peak, large)
        if math.inf in (few, more):
            continue
        a_row = max(1, (more - few) // (large - small))
        fixed = max(0, few - a_row * small)
        wanted = int((SHARE * free - fixed) // a_row)
        rows = 1 << (max(1, min(wanted, most)).bit_length() - 1)
        while rows > large and _tried(peak, rows) > SHARE * free:
            rows //= 2
        return rows
    return 1


def _tried(peak: Callable[[int], int], rows: int) -> float:
    """The bytes that `rows` rows take; infinity if memory runs out."""
    try:
        return peak(rows)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return math.inf


def refuse_too_large(config: RunConfig, vocab_size: int, kind: str) -> None:
    """Refuse a model that cannot be trained here, before any of it is allocated.

    Args:
        kind: type of the device, such as ``cuda``.

    Raises:
        InputError: weights, gradients and moments need more than the device's whole memory.
    """
    what = "this machine" if kind == "cpu" else "this machine's GPU"
    refuse_larger(config, vocab_size, memory_of(kind), what)


def refuse_larger(config: RunConfig, vocab_size: int, most: int | None, what: str) -> None:
    """Refuse a model whose weights, gradients and moments need more than `most` bytes.

    Args:
        what: the name of what has the memory, for the message.

    Raises:
        InputError: they do.
    """
    size = parameters(config.model, vocab_size, config.generator())
    held = bytes_per_parameter(config) * size
    if most is not None and held > most:
        raise InputError(
            f"a model of {quantity(size)} parameters needs "
            f"{held / 2**30:,.0f} GiB for weights, gradients and moments, "
            f"and {what} has {most / 2**30:,.0f} GiB: lower model.layers, "
            "model.width or tokenizer.vocab_size"
        )


class Allocated(TorchDispatchMode):
    """Counts the bytes of the tensors that operators create, for as long as their memory is in use.

    Tensors without storage (``meta``) count as if they had it, so this estimates what a device
    would allocate. It leaves out the allocator's rounding and the operators' workspaces.

    Attributes:
        now: bytes that were allocated and are still in use.
        peak: the most bytes in use at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: int = 0
        self.peak: int = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in pytree.tree_leaves((args, kwargs)):
            self._note(tensor, was_there=True)
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            self._note(tensor)
        return result

    def _note(self, tensor: object, *, was_there: bool = False) -> None:
        if not isinstance(tensor, Tensor):
            return
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known[storage] = True
        if not was_there:
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._freed, storage.nbytes())

    def _freed(self, size: int) -> None:
        self.now -= size


def allocated(work: Callable[[], object]) -> int:
    """Peak bytes that `work` allocates, besides what is there when it starts."""
    counted = Allocated()
    with counted:
        work()
    return counted.peak
