"""The source `python-docs`: English documentation that every Python installation carries.

Docstrings of the standard library and of installed packages, read from their source without
importing it, and the topics of `pydoc`. The same packages give the same documents. Some source
files are kept out of the corpus: the demonstration tasks are made from them, so that no model is
evaluated on text it was pretrained on.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.metadata
import inspect
import json
import platform
import random
import re
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from crammed.errors import InputError

CORPUS_CHARACTERS = 8_000_000
PACKAGE_CHARACTERS = 1_000_000
"""No package fills more than this much of the corpus."""
TASK_CHARACTERS = 250_000
"""Text to make tasks from, of any one package."""
SHORTEST_DOCUMENT = 150

_TASK_SHARE = 0.2
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "_vendor", "__pycache__"}


@dataclass(frozen=True)
class Docstring:
    """One docstring and the top-level package it stands in."""

    package: str
    text: str


class PythonDocs:
    """The documentation found on this machine as a part of a source."""

    name = "python-docs"

    def documents(self) -> Iterator[str]:
        yield from sorted(_pydoc_topics())
        for docstring in docstrings("corpus", CORPUS_CHARACTERS, PACKAGE_CHARACTERS):
            yield docstring.text

    def fingerprint(self) -> dict[str, Any]:
        distributions = {
            d.metadata["Name"]: d.version
            for d in importlib.metadata.distributions(path=[str(_roots()["site-packages"])])
        }
        return {
            "name": self.name,
            "python": platform.python_version(),
            "packages": dict(sorted(distributions.items())),
        }


def docstrings(
    part: Literal["corpus", "tasks"], characters: int, per_package: int
) -> Iterator[Docstring]:
    """Docstrings of one of the two disjoint parts, source files in the order of a hash.

    The order mixes packages, so that stopping at `characters` leaves a bit of everything.
    """
    files = [
        (_hash(label), label, path)
        for label, path in _source_files()
        if (_hash("part/" + label) < _TASK_SHARE) == (part == "tasks")
    ]
    total = 0
    taken: dict[str, int] = defaultdict(int)
    for _, label, path in sorted(files):
        package = label.split("/")[1].removesuffix(".py")
        if taken[package] >= per_package:
            continue
        for text in _docstrings_of(path):
            taken[package] += len(text)
            total += len(text)
            yield Docstring(package, text)
        if total >= characters:
            return


def _roots() -> dict[str, Path]:
    paths = sysconfig.get_paths()
    return {"stdlib": Path(paths["stdlib"]), "site-packages": Path(paths["purelib"])}


def _source_files() -> Iterator[tuple[str, Path]]:
    """Every source file with a label that is the same on every machine."""
    for root_name, root in _roots().items():
        for path in root.rglob("*.py"):
            relative = path.relative_to(root)
            if not _SKIPPED.intersection(relative.parts):
                yield f"{root_name}/{relative.as_posix()}", path


def _hash(text: str) -> float:
    """Uniform in [0, 1), the same everywhere."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _docstrings_of(path: Path) -> list[str]:
    try:
        source = path.read_text("utf-8")
        if '"""' not in source:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's code
            tree = ast.parse(source)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            text = _prose(text)
            if len(text) >= SHORTEST_DOCUMENT:
                texts.append(text)
    return texts


def _prose(text: str) -> str:
    """The docstring without interpreter sessions and rules of dashes."""
    lines = inspect.cleandoc(text).splitlines()
    kept = [x for x in lines if not re.match(r"\s*(>>>|\.\.\. |[-=~*^]{3,}\s*$)", x)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def _pydoc_topics() -> list[str]:
    from pydoc_data import topics

    return [_prose(text) for text in topics.topics.values()]


def write_tasks(folder: Path) -> None:
    """Make the two demonstration tasks as GLUE-like folders of json lines.

    ``docs-package``: which of six packages is this docstring from? Few rows to learn from, and
    docstrings that name their package are left out. ``docs-order``: are the words of this
    sentence in their order, or shuffled?

    Raises:
        InputError: this installation has too little documentation.
    """
    by_package: dict[str, list[str]] = defaultdict(list)
    for docstring in docstrings("tasks", 20 * TASK_CHARACTERS, TASK_CHARACTERS):
        text = " ".join(docstring.text.split())
        if docstring.package.lower() not in text.lower():
            by_package[docstring.package].append(text)
    unique = {package: sorted(set(texts), key=_hash) for package, texts in by_package.items()}
    largest = sorted(unique, key=lambda package: (-len(unique[package]), package))[:6]
    # Texts, not rows, are split: no text has a part of it on both sides.
    for split, low, high, per_class in (("train", 0.0, 0.6, 48), ("validation", 0.6, 1.0, 60)):
        part = {p: [t for t in texts if low <= _hash(t) < high] for p, texts in unique.items()}
        _write_rows(folder / "docs-package", split, _package_rows(part, largest, per_class))
        sentences = sorted({s for texts in part.values() for t in texts for s in _sentences(t)})
        rows = 800 if split == "train" else 400
        _write_rows(folder / "docs-order", split, _order_rows(sorted(sentences, key=_hash)[:rows]))


def _package_rows(
    texts: dict[str, list[str]], packages: list[str], per_class: int
) -> list[dict[str, Any]]:
    return [
        {"text": text, "label": label}
        for label, package in enumerate(packages)
        for text in texts[package][:per_class]
    ]


def _order_rows(sentences: list[str]) -> list[dict[str, Any]]:
    rows = []
    for index, sentence in enumerate(sentences):
        words = sentence.lower().rstrip(".!?").split()
        if index % 2 == 0:
            random.Random(sentence).shuffle(words)
        rows.append({"text": " ".join(words), "label": index % 2})
    return rows


def _sentences(text: str) -> list[str]:
    parts = re.split(r"(?<=[.!?]) (?=[A-Z])", text)
    return [part for part in parts if 30 <= len(part) <= 200]


def _write_rows(folder: Path, split: str, rows: list[dict[str, Any]]) -> None:
    if len(rows) < 150:
        raise InputError("this Python installation has too little documentation for the demo tasks")
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(folder / f"{split}.jsonl.gz", "wb", mtime=0) as file:
        for row in sorted(rows, key=lambda row: _hash(json.dumps(row))):
            file.write(json.dumps(row).encode() + b"\n")
