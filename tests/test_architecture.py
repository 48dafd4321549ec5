"""Layers: imports only go down, there are no cycles, no module has a verb's name; all is short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import crammed

PACKAGE = Path(crammed.__file__).parent
REPOSITORY = Path(__file__).parent.parent
SOURCES = {
    str(file.relative_to(REPOSITORY)): file.read_text("utf-8")
    for folder in ("src", "tools", "benchmarks")
    for file in sorted((REPOSITORY / folder).rglob("*.py"))
}
MOST_LINES_OF_A_FUNCTION, MOST_LINES_OF_A_FILE = 60, 400

FLOORS = (
    # From the top. A room may import from those below it, and from its own folder. A large room has
    # rooms of its own.
    ("__main__",),
    ("cli",),
    ("interface",),
    ("doctor", "deciding"),
    ("pipeline",),
    ("pretraining",),
    ("report",),
    ("study.running", "study.findings"),
    ("study", "study.result"),
    ("study.spec",),
    ("loaded",),
    ("adaptation", "embedding"),
    ("finetuned",),
    ("evaluation",),
    ("planning",),
    ("training",),
    ("training.update",),
    ("export", "tracking"),
    ("runs",),
    ("rules",),
    ("optim", "kernels"),
    ("model",),
    ("data",),
    ("tasks",),
    ("formats",),
    ("machine",),
    ("config", "terminal"),
    ("extras", "files", "budget", "schedule"),
    ("__init__",),
    ("columns", "errors", "hints", "keys", "quantity", "safepath", "sentences"),
)
FLOOR = {room: -floor for floor, rooms in enumerate(FLOORS) for room in rooms}
PUBLIC_NAMES = {*crammed._HOMES}


def modules() -> dict[str, Path]:
    """``data.corpus`` -> its file; a package's ``__init__`` has the name of its folder."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and parts[1:] else parts)] = file
    return found


MODULES = modules()


def imports(name: str) -> Iterator[str]:
    """The modules of the package that a module imports, inside functions too.

    What is imported for annotations alone is not there when the program runs, and is left out.
    """
    file = MODULES[name]
    tree = ast.parse(file.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body.clear()
    folder = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ["crammed", *folder[: len(folder) + 1 - node.level]] if node.level else []
            origin = ".".join([*above, node.module or ""]).strip(".")
            named = [f"{origin}.{alias.name}" for alias in node.names]
        for each in named:
            if each != "crammed" and not each.startswith("crammed."):
                continue
            each = each.removeprefix("crammed").lstrip(".")
            while each not in MODULES and "." in each:
                each = each.rpartition(".")[0]
            yield each if each in MODULES else "__init__"


GRAPH = {name: sorted(set(imports(name)) - {name}) for name in MODULES}


def room(name: str) -> str:
    while name not in FLOOR and "." in name:
        name = name.rpartition(".")[0]
    return name


def test_every_room_has_a_floor() -> None:
    assert {room(name) for name in MODULES} == FLOOR.keys()


def test_no_import_goes_up_or_across() -> None:
    wrong = [
        f"{name} -> {other}"
        for name, others in GRAPH.items()
        for other in others
        if room(name) != room(other) and FLOOR[room(other)] >= FLOOR[room(name)]
    ]
    assert not wrong


def test_no_circle_of_files() -> None:
    """Imports inside functions count: they hide a circle, they do not open it."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            pytest.fail(" -> ".join((*path[path.index(name) :], name)))
        if name not in done:
            for other in GRAPH[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in GRAPH:
        visit(name, ())


def test_no_circle_of_folders() -> None:
    """A folder inside a room and the files beside it: one of the two knows the other."""

    def folder(name: str) -> str:
        return name.rpartition(".")[0] or name

    pairs = {(folder(a), folder(b)) for a, others in GRAPH.items() for b in others}
    both = [f"{a} <-> {b}" for a, b in sorted(pairs) if a < b and (b, a) in pairs]
    assert not both


def test_no_module_is_called_like_a_public_name() -> None:
    words = {part for name in MODULES for part in name.split(".")}
    assert not words & PUBLIC_NAMES


def test_files_are_short() -> None:
    lines = {name: len(text.splitlines()) for name, text in SOURCES.items()}
    assert not {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_FILE}


def test_functions_are_short() -> None:
    lines = {
        f"{name}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name, text in SOURCES.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_FUNCTION}
