"""Is this machine ready for a run? Versions, device, disk, and a tiny run from text to export."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from crammed.files.scratch import scratch_folder
from crammed.machine.device import choose_device
from crammed.pipeline import run_everything
from crammed.rules.recipe import ask, load_config
from crammed.runs.environment import environment
from crammed.terminal.progress import SILENT, Progress

TINY = (
    "data.row_length=32",
    "tokenizer.vocab_size=256",
    "model.layers=2",
    "model.width=32",
    "model.head_dim=16",
    "model.max_length=32",
    "finetune.max_length=32",
    "batch.rows=8",
    "optim.lr=1e-3",
    "batch.ramp=0.0",
    "budget.most_epochs=null",
)
"""Overrides that shrink any recipe to a run of seconds on a CPU, with text of any length."""


def examine(progress: Progress) -> dict[str, Any]:
    """Describe this machine and run the self-test.

    Returns:
        what was found, by topic.

    Raises:
        CrammedError: the self-test failed.
    """
    config = load_config("crammed")
    device = choose_device(config.compute)
    free = shutil.disk_usage(".").free
    seen = environment()
    with progress.task("self-test"), scratch_folder() as folder:
        result = _self_test(folder)
    exported = ", and transformers computes the same logits"
    if result["export"]["logit_difference"] is None:
        exported = "; install crammed[hf] to check exports with transformers"
    peak = "unknown"
    if device.peak:
        peak = f"{device.peak / 1e12:.3g} TFLOP/s, {device.peak_source}"
    return {
        "crammed": seen["crammed"],
        "python": seen["python"],
        "packages": seen["packages"],
        "device": device.name,
        "because": list(device.reasons),
        "peak": peak,
        "disk": f"{free / 1e9:.0f} GB free here",
        "self-test": f"trained and exported{exported}",
    }


def _self_test(folder: Path) -> dict[str, Any]:
    """Run everything on a small generated text; return the result of the run."""
    text = folder / "text.txt"
    lines = (
        f"Line {n} says that {n * n} is the square of {n}, and nothing else." for n in range(999)
    )
    text.write_text("\n".join(lines), "utf-8")
    fixed = {"data": {"sources": [str(text)], "documents": "line"}, "budget": {"limit": "3updates"}}
    return run_everything(ask("crammed", TINY, fixed), folder / "run", None, None, SILENT)
