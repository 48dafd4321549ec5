"""The docstrings of this machine's Python, as text and as demonstration tasks."""

from __future__ import annotations

import ast
import gzip
import json
from pathlib import Path

import pytest

from crammed.data.preparing import demo_tasks
from crammed.data.preparing.read import python_docs
from support.samples import opened


@pytest.fixture(scope="module")
def few_docs() -> list[tuple[str, str]]:
    return list(python_docs.docstrings("corpus", 200_000, 50_000))


def test_python_docs_are_the_same_every_time(few_docs: list[tuple[str, str]]) -> None:
    again = list(python_docs.docstrings("corpus", 200_000, 50_000))
    assert again == few_docs
    assert sum(len(text) for _, text in few_docs) >= 200_000
    assert len({package for package, _ in few_docs}) > 5


def test_the_demonstration_tasks_share_no_row_between_their_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All docstrings have a sentence in common, in two spellings."""
    common = "Returns the number of bytes that were written"
    texts = [
        (f"package{n % 6}", f"Sentence {n} tells the words of number {n}. {common}{'.!'[n % 2]}")
        for n in range(1200)
    ]
    monkeypatch.setattr(demo_tasks, "docstrings", lambda *_: texts)
    demo_tasks.write_tasks(tmp_path)

    def rows(split: str) -> list[str]:
        lines = gzip.decompress((tmp_path / "docs-order" / f"{split}.jsonl.gz").read_bytes())
        return [json.loads(line)["text"] for line in lines.splitlines()]

    words = sorted(common.lower().split())
    assert [sorted(text.split()) == words for text in rows("train")].count(True) == 2
    assert [sorted(text.split()) == words for text in rows("validation")].count(True) == 0
    assert not {*rows("train")} & {*rows("validation")}


@pytest.mark.parametrize("fault", [RecursionError, MemoryError])
def test_a_file_too_deep_to_parse_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: type[Exception]
) -> None:
    """How deep that is depends on the version of Python."""
    file = tmp_path / "table.py"
    file.write_text(f'"""{"A sentence about tables. " * 60}"""\n')
    assert len(python_docs._docstrings_of(file)) == 1

    def too_deep(source: str) -> ast.Module:
        raise fault

    monkeypatch.setattr(ast, "parse", too_deep)
    assert python_docs._docstrings_of(file) == []


def test_python_docs_share_no_file_with_the_tasks(few_docs: list[tuple[str, str]]) -> None:
    tasks = list(python_docs.docstrings("tasks", 200_000, 50_000))
    shared = {text for _, text in few_docs} & {text for _, text in tasks}
    # Different files may hold the same words (copied functions), which is rare.
    assert len(shared) < 0.02 * len(tasks)


def test_documented_nodes_come_in_the_order_of_a_walk_through_all_nodes() -> None:
    tree = ast.parse(
        "class A:\n  if x:\n    def a(): pass\n  else:\n    async def b():\n      class B: pass\n"
        "try:\n  def c(): pass\nexcept E:\n  def d(): pass\nelse:\n  def e(): pass\n"
        "finally:\n  def f(): pass\nfor x in y:\n  def g(): pass\nelse:\n  def h(): pass\n"
        "match x:\n  case 1:\n    def i(): pass\n  case 2:\n    def j(): pass\n"
        "with z:\n  def k(f=lambda: [n for n in (1, 2)]): pass\n"
    )
    slow = [node for node in ast.walk(tree) if isinstance(node, python_docs.Documented)]
    assert len(slow) == 14
    assert list(python_docs.documented_nodes(tree)) == slow


def test_python_docs_fingerprint_names_versions_and_no_folder() -> None:
    source = opened("python-docs")
    fingerprint = source.parts[0].fingerprint()
    assert source.name == fingerprint["name"] == "python-docs"
    assert "torch" in fingerprint["packages"]
    assert "/" not in "".join(fingerprint["packages"].values())


def test_what_an_interrupted_uninstall_leaves_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.dist-info").mkdir()
    (tmp_path / "b.dist-info" / "METADATA").write_text("Name: b\nVersion: 1.0\n")
    monkeypatch.setattr(python_docs, "_roots", lambda: {"site-packages": tmp_path})
    assert python_docs.PythonDocs().fingerprint()["packages"] == {"b": "1.0"}
