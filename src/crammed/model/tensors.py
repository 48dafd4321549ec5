"""Reads untrusted tensor files, and checks tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from crammed.errors import InputError
from crammed.files.regular import ordinary

UNREADABLE = (
    *(InputError, OSError, ValueError, LookupError),
    *(TypeError, AttributeError, RuntimeError),
)
"""What reading and checking a damaged file may raise."""


class Damaged(InputError):
    """A model's files are damaged.

    The message only says how: whoever catches it adds where, and what to do.
    """


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU.

    Raises:
        Damaged: the file is missing, cut off, or not of this format.
    """
    try:
        return load_file(ordinary(file))
    except FileNotFoundError as error:
        raise Damaged(f"{file.name} is missing") from error
    except (SafetensorError, *UNREADABLE) as error:
        raise Damaged(f"{file.name} is not a readable safetensors file") from error


def misfit(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str | None:
    """How tensors differ from `wanted` in name, shape or type; None if they do not."""
    if unknown := tensors.keys() ^ wanted.keys():
        return f"the names of its tensors differ from the model's, for example {min(unknown)!r}"
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            return f"{name} does not have the shape and type that the model needs"
    return None


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no tensor holds an infinity or a NaN; waits for each of their devices once."""
    ends: dict[torch.device, list[Tensor]] = {}
    with torch.no_grad():
        # Extremes reveal any infinity or NaN, and take no memory: aminmax returns a NaN as both.
        for tensor in tensors:  # some optimizers count their steps on the host
            if tensor.numel():
                ends.setdefault(tensor.device, []).extend(e.float() for e in tensor.aminmax())
        return all(bool(torch.stack(each).isfinite().all()) for each in ends.values())
