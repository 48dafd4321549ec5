"""Modules that somebody planted in the working directory: no command and no child imports them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import crammed
from crammed.doctor import TINY
from support.text import documents, write_jsonl

PLANTED = (
    *("pickle", "signal", "threading", "typer", "torch", "numpy", "tokenizers", "pyarrow"),
    *("multiprocessing/__init__", "crammed/__init__", "crammed/__main__", "sitecustomize"),
    *("json/__init__", "subprocess", "shlex", "yaml", "pydantic", "safetensors"),
)
"""Modules of the standard library, of others and of our own, from the first imports to late ones.

Python itself finds a planted `runpy` or our own package before `python -m crammed` can act.
"""
SCRIPT = "import sys\nfrom crammed.__main__ import main\nif __name__ == '__main__':\n    main()\n"
"""What is installed as the command ``crammed``."""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder of text with modules that leave a mark when they are imported."""
    folder = tmp_path / "downloaded"
    for name in PLANTED:
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        mark = tmp_path / f"ran-{name.replace('/', '-')}"
        file.write_text(f"open({str(mark)!r}, 'w').close()\nraise SystemExit('planted')\n")
    write_jsonl(folder / "text.jsonl", documents(600))
    return folder


def ran(folder: Path) -> list[str]:
    return sorted(mark.name for mark in folder.parent.glob("ran-*"))


def environment() -> dict[str, str]:
    """That of a user, who finds the package without the working directory."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    package = Path(crammed.__file__).parents[1]
    return {**kept, "PYTHONPATH": str(package)}


def run(folder: Path, *words: str) -> None:
    """Run Python in the folder, which must import nothing from there and end well."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert not ran(folder)
    assert done.returncode == 0, done.stderr


def without_our_name(folder: Path) -> None:
    """Remove what Python itself imports for ``python -m crammed``, before we can act."""
    for name in ("__init__", "__main__"):
        (folder / "crammed" / f"{name}.py").unlink()
    (folder / "crammed").rmdir()


def test_the_installed_command_imports_nothing_planted_in_any_stage(
    planted: Path, tmp_path: Path
) -> None:
    script = tmp_path / "bin" / "crammed"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    words = ["run", "crammed", "--data", "text.jsonl", "--out", "../run"]
    run(planted, str(script), *words, *TINY, "--budget", "2updates", "--json")


def test_python_m_imports_nothing_planted(planted: Path) -> None:
    without_our_name(planted)
    run(planted, "-m", "crammed", "recipes")


def test_processes_of_torchrun_import_nothing_planted(planted: Path) -> None:
    """As the installed ``torchrun`` starts: it looks for nothing in the working directory."""
    without_our_name(planted)
    run(planted, "-P", "-m", "torch.distributed.run", "--standalone", "-m", "crammed", "recipes")


CHILDREN = """
from types import SimpleNamespace

from crammed.evaluation.finetuning.jobs import _in_processes
from crammed.machine.workers import worker_processes
from crammed.study.running.places import Processes

if __name__ == "__main__":
    ended = Processes(1).run(["-m", "crammed", "recipes"])  # as a study starts its runs
    assert ended.code == 0, ended
    with worker_processes(1, "one") as pool:
        assert pool.submit(abs, -2).result() == 2
    try:
        list(_in_processes([None], SimpleNamespace(threads=1), 1))
    except AttributeError:  # a worker has begun with a job that is none
        pass
"""


def test_children_of_a_program_that_uses_the_package_import_nothing_planted(
    planted: Path, tmp_path: Path
) -> None:
    file = tmp_path / "program" / "program.py"
    file.parent.mkdir()
    file.write_text(CHILDREN)
    run(planted, str(file))
