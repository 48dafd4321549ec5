"""Train the best language encoder that one GPU and a budget can buy, from raw text.

`crammed.load` opens a trained or fine-tuned model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crammed.loaded import load as load

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What Python programs use, imported when it is: that takes seconds, and commands need less."""
    if name == "load":
        from importlib import import_module

        return import_module("crammed.loaded").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
