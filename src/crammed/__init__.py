"""Train the best language encoder that one GPU and a budget can buy, from raw text.

What Python programs use is described in docs/python.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crammed import errors as errors

if TYPE_CHECKING:
    from crammed.interface.corpora import prepare as prepare
    from crammed.interface.models import decide as decide
    from crammed.interface.models import embed as embed
    from crammed.interface.models import evaluate as evaluate
    from crammed.interface.models import finetune as finetune
    from crammed.interface.results import Decision as Decision
    from crammed.interface.results import Embedder as Embedder
    from crammed.interface.results import Evaluation as Evaluation
    from crammed.interface.results import FineTuned as FineTuned
    from crammed.interface.results import Prepared as Prepared
    from crammed.interface.results import Run as Run
    from crammed.interface.results import read_run as read_run
    from crammed.interface.training import adapt as adapt
    from crammed.interface.training import pretrain as pretrain
    from crammed.interface.training import run as run
    from crammed.loaded import Model as Model
    from crammed.loaded import load as load

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(
        ("Decision", "Embedder", "Evaluation", "FineTuned", "Prepared", "Run"), "interface.results"
    ),
    "Model": "loaded",
    "adapt": "interface.training",
    "decide": "interface.models",
    "embed": "interface.models",
    "evaluate": "interface.models",
    "finetune": "interface.models",
    "load": "loaded",
    "prepare": "interface.corpora",
    "pretrain": "interface.training",
    "read_run": "interface.results",
    "run": "interface.training",
}
"""What Python programs use, and where it is: that is imported when it is used, for it takes
seconds, and commands need less."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"crammed.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
