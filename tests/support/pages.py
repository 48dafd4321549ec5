"""The pages of docs/, and model cards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).resolve().parents[2] / "docs"


def python_blocks() -> list[str]:
    text = (DOCS / "python.md").read_text("utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def front_matter(folder: Path) -> dict[str, Any]:
    """What the model card in a folder tells the hub."""
    values: dict[str, Any] = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    return values
