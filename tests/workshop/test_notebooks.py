"""Notebooks and the site of the pages, as far as they can be checked without what runs them."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

import docs_site
import notebooks

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def python_cells(name: str) -> list[str]:
    """The cells of Python in a notebook."""
    cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


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


def test_a_notebook_makes_its_task_without_tkinter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the Python of Debian lacks, and which some modules of its library import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tkinter", None)
    making = next(cell for cell in python_cells("classifier-and-search") if "my.yaml" in cell)
    exec(making, {})
    rows = map(json.loads, (tmp_path / "my-tasks/module/train.jsonl").read_text().splitlines())
    counts = Counter(row["label"] for row in rows)
    assert len(counts) == 3
    assert min(counts.values()) > 50


def test_a_notebook_may_be_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has made is there, and the functions that make it need new folders."""
    monkeypatch.chdir(tmp_path)
    cells = python_cells("classifier-and-search")
    for folder, verb in (("classifier", "finetune"), ("vectors", "embed")):
        (tmp_path / folder).mkdir()
        (making,) = (cell for cell in cells if f"crammed.{verb}(" in cell)
        crammed = Mock()
        exec(making, {"crammed": crammed, "run": Mock(), "Path": Path})
        getattr(crammed, verb).assert_not_called()


@pytest.mark.parametrize("there", [True, False])
def test_a_notebook_goes_on_with_the_run_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Which may be of other text, or of more time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "crammed", crammed := Mock())
    if there:
        (tmp_path / "runs/notebook").mkdir(parents=True)
    exec(python_cells("classifier-and-search")[0], {})
    given = {} if there else {"data": "python-docs", "budget": "2m"}
    crammed.run.assert_called_once_with(out="runs/notebook", **given)


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
