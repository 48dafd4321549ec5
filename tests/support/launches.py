"""Counts what would be launched on a GPU, from operators on the CPU.

`tools/paper` counts real steps, in a process of its own that stands in for CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_NONE = ("empty", "_unsafe_view", "profiler")


class Launches(TorchDispatchMode):
    """Counts the operations that compute; views and new tensors without values do not.

    A product that is added to a tensor counts twice, since that tensor is copied first. Lists of
    tensors count once if the tensors of two lists agree in strides and, for sums, in format;
    otherwise each tensor counts.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if "_foreach" in name:
            self.number += _launches_of_lists(name, args)
        elif not func.is_view and not any(each in name for each in _NONE):
            self.number += 2 if "baddbmm" in name else 1
        return func(*args, **(kwargs or {}))


def _launches_of_lists(name: str, args: Sequence[Any]) -> int:
    first, *others = (each for each in args if isinstance(each, list | tuple))
    for other in others:
        for one, beside in zip(first, other, strict=True):
            if one.stride() != beside.stride() or ("add" in name and one.dtype != beside.dtype):
                return len(first)
    return 1
