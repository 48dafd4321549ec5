"""Run every cell of the notebooks, one notebook after the other, in one empty folder.

    python tools/notebooks.py

A cell that fails ends it. Budgets are some updates instead of minutes, so that a busy machine does
the same. What the cells print is not kept.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ("own-text", "classifier-and-search")
"""In this order: the second one begins with what the first has trained."""
BUDGETS = {'"2m"': '"60updates"', '"20s"': '"20updates"'}
PATIENCE = 1200
"""Seconds that a cell may take."""


def main() -> None:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        for name in NOTEBOOKS:
            began = time.monotonic()
            notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
            nbformat.validate(notebook)
            for cell in notebook.cells:
                for shown, tried in BUDGETS.items():
                    cell.source = cell.source.replace(shown, tried)
            place = {"metadata": {"path": folder}}
            try:
                NotebookClient(notebook, timeout=PATIENCE, resources=place).execute()
            except CellExecutionError as error:
                sys.exit(f"{name}.ipynb: {error}")
            print(f"{name}.ipynb: 1 passed in {time.monotonic() - began:.0f}s", flush=True)


if __name__ == "__main__":
    main()
