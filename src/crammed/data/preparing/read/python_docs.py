"""The source `python-docs`: English documentation that every Python installation has.

It consists of the docstrings of the standard library and of installed packages, read from their
source without importing it, and the topics of `pydoc`. The same packages give the same documents.
Some source files are reserved for the demonstration tasks (`demo_tasks`), so that no model is
evaluated on text that it was pretrained on.
"""

from __future__ import annotations

import ast
import gc
import importlib.metadata
import inspect
import os
import platform
import re
import sysconfig
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from crammed.formats.lines import STOP, Faults
from crammed.keys import uniform

CORPUS_CHARACTERS = 8_000_000
PACKAGE_CHARACTERS = 1_000_000
"""Characters after which no further file of a package is read for the corpus."""
SHORTEST_DOCUMENT = 150
"""Characters; shorter docstrings are ignored."""

_TASK_SHARE = 0.2
_BLOCKS = ("body", "cases", "handlers", "orelse", "finalbody")
"""The fields that hold statements, in the order that nodes have them in."""
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "_vendor", "__pycache__"}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class PythonDocs:
    """The documentation on this machine, as a part of a source."""

    name = "python-docs"

    def documents(self, faults: Faults = STOP) -> Iterator[str]:
        yield from sorted(_pydoc_topics())
        for _, text in docstrings("corpus", CORPUS_CHARACTERS, PACKAGE_CHARACTERS):
            yield text

    def fingerprint(self) -> dict[str, Any]:
        distributions = {
            d.metadata["Name"]: d.version
            for d in importlib.metadata.distributions(path=[str(_roots()["site-packages"])])
            if d.metadata["Name"]  # None after an uninstall that was interrupted
        }
        return {
            "name": self.name,
            "python": platform.python_version(),
            "packages": dict(sorted(distributions.items())),
        }

    def state(self) -> dict[str, Any]:
        return self.fingerprint()


def docstrings(
    part: Literal["corpus", "tasks"], characters: int, per_package: int
) -> Iterator[tuple[str, str]]:
    """Packages and docstrings of one of the two disjoint parts, files in the order of a hash.

    This mixes packages. No further file is read after `characters`, nor one of a package after
    `per_package` of its own; there is still a bit of everything.
    """
    files = [
        (uniform(label), label, path)
        for label, path in _source_files()
        if (uniform("part/" + label) < _TASK_SHARE) == (part == "tasks")
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
            yield package, text
        if total >= characters:
            return


def _roots() -> dict[str, Path]:
    paths = sysconfig.get_paths()
    return {"stdlib": Path(paths["stdlib"]), "site-packages": Path(paths["purelib"])}


def _source_files() -> Iterator[tuple[str, Path]]:
    """Every source file, with a label that is the same on every machine."""
    for root_name, root in _roots().items():
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name not in _SKIPPED]
            for name in files:
                if name.endswith(".py") and name not in _SKIPPED:
                    path = Path(folder, name)
                    yield f"{root_name}/{path.relative_to(root).as_posix()}", path


def _docstrings_of(path: Path) -> list[str]:
    try:
        source = path.read_text("utf-8")
        if '"""' not in source:
            return []
        with warnings.catch_warnings(), _no_garbage():
            warnings.simplefilter("ignore")  # invalid escapes in other people's code
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # too deep to parse
        return []
    texts = []
    for node in documented_nodes(tree):
        if text := ast.get_docstring(node):
            text = _prose(text)
            if len(text) >= SHORTEST_DOCUMENT:
                texts.append(text)
    return texts


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Look for no cycles: syntax trees have none, and looking takes half the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def documented_nodes(tree: ast.Module) -> Iterator[Documented]:
    """What may have a docstring, in the order of `ast.walk`, which also enters expressions."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        for name in _BLOCKS:
            waiting.extend(getattr(node, name, ()))
        if isinstance(node, Documented):
            yield node


def _prose(text: str) -> str:
    """The docstring without lines typed at the interpreter and lines of dashes."""
    lines = inspect.cleandoc(text).splitlines()
    kept = [x for x in lines if not re.match(r"\s*(>>>|\.\.\. |[-=~*^]{3,}\s*$)", x)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def _pydoc_topics() -> list[str]:
    from pydoc_data import topics

    return [_prose(text) for text in topics.topics.values()]
