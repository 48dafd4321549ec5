"""Prepares a tool for counting: loads a GPU that does nothing before PyTorch is imported."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from paper import gpu

if TYPE_CHECKING:
    from paper.launches import Noted


def begin(attention: str) -> Noted:
    """Record all launches on the GPU from now on; ends the program if this machine cannot.

    Args:
        attention: the backend of attention, ``cudnn`` or ``flash``.
    """
    if (missing := gpu.missing()) is not None:
        sys.exit(f"error: a step on paper needs {missing}")
    gpu.load()
    from paper import compiler
    from paper.launches import Noted

    noted = Noted()
    compiler.install(noted, attention)
    return noted
