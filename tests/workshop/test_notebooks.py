"""Notebooks and the site of the pages, as far as they can be checked without what runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

import docs_site
import notebooks

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda each: each.stem)
def test_a_notebook_is_python_without_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 4
    for cell in code:
        compile("".join(cell["source"]), notebook.name, "exec")
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
    text = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (notebook.parent / link).exists(), link


def test_every_notebook_is_run() -> None:
    assert sorted(notebooks.NOTEBOOKS) == [each.stem for each in NOTEBOOKS]


def test_the_site_begins_with_the_readme() -> None:
    page = docs_site.on_page_markdown(docs_site.as_page((ROOT / "README.md").read_text("utf-8")))
    for link in re.findall(r"\]\(([^)#]+)", page):
        assert link.startswith("https://") or (ROOT / "docs" / link).exists(), link
    assert "](recipe.md)" in page
    assert "CONTRIBUTING.md has a map" in page
    hooks = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["hooks"]
    assert all((ROOT / hook).exists() for hook in hooks)
