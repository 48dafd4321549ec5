"""How a tool begins to count: with a GPU that does nothing, before PyTorch is imported."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from paper import gpu

if TYPE_CHECKING:
    from paper.launches import Noted


def begin(what: str, attention: str) -> Noted:
    """Note what is launched on the GPU from now on; ends the program if this machine cannot.

    Args:
        what: is to be counted, for the error.
        attention: whose kernels it has, ``cudnn`` or ``flash``.
    """
    if (missing := gpu.missing()) is not None:
        sys.exit(f"error: {what} needs {missing}")
    gpu.load()
    from paper import compiler
    from paper.launches import Noted

    noted = Noted()
    compiler.install(noted, attention)
    return noted
