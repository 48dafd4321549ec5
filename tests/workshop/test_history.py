"""The code behind every record can be found in the history of the repository."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crammed.runs.environment import environment

ROOT = Path(__file__).resolve().parents[2]
REBASED = {
    "e955da4c8a55": "f15e30d",
    "3fa88cec86c2": "56324bd",
    "2174453850a8": None,
    "5e1269a418de": None,
}
"""Commits that results name and that no longer exist, because a rebase put others in their place
before results named their source; None if it cannot be told which."""


UNNAMED = (
    "2026-11-22-lengths",
    "2026-11-25-read-out",
    "2026-11-25-tasks",
    "2026-11-26-gpu-sprint",
    "2026-11-27-cpu-ten-minutes",
    "2026-11-27-gpu-contest",
    "2026-11-27-gpu-sprint",
    "2026-11-27-pairs",
    "2026-11-27-pairs-128",
    "2026-11-28-dropout",
    "2026-11-28-matched-tokens",
    "2026-11-28-same-length",
    "2026-11-28-tasks",
)
"""Records with scores from before these named their source."""


@pytest.fixture(autouse=True)
def _git_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Git follows no settings of a person or a hook, and reads the folder whoever owns it."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    given = {"GLOBAL": os.devnull, "COUNT": "1", "KEY_0": "safe.directory", "VALUE_0": "*"}
    for name, value in given.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)


def git(*words: str, given: str = "", at: Path = ROOT) -> str:
    command = ["git", "-C", str(at), *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout


def environments(values: Any) -> Iterator[dict[str, Any]]:
    """Every environment in a result."""
    if isinstance(values, dict):
        if isinstance(values.get("environment"), dict):
            yield values["environment"]
        values = list(values.values())
    for each in values if isinstance(values, list) else ():
        yield from environments(each)


def lost(found: dict[str, Any], commits: list[str], sources: set[str]) -> bool:
    """Whether neither the source nor the commit of an environment is in a history.

    Nor may a contest's tree of benchmarks be missing.
    """
    if found.get("benchmarks") not in {None, *sources}:
        return True
    named = str(found.get("commit") or "").removesuffix("-dirty")
    commit = REBASED.get(named, named)
    by_commit = commit is None or (commit and any(each.startswith(commit) for each in commits))
    return found.get("source") not in sources and not by_commit


def test_the_code_behind_every_result_is_in_the_history() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("a copy without history")
    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("a shallow clone holds only the last commits")
    commits = git("rev-list", "HEAD").split()
    asked = "".join(f"{commit}:{part}\n" for commit in commits for part in ("src", "benchmarks"))
    sources = {line.split()[0] for line in git("cat-file", "--batch-check", given=asked).split("\n")
               if line.endswith(tuple("0123456789"))}  # fmt: skip
    results = [*ROOT.glob("records/**/*.json"), *ROOT.glob("benchmarks/results/*.json")]
    faults = {
        (str(file.relative_to(ROOT)), found.get("commit"), found.get("source"))
        for file in results
        for found in environments(json.loads(file.read_text("utf-8")))
        if lost(found, commits, sources)
    }
    assert not faults
    assert lost({"commit": "0123456789ab-dirty", "source": "0" * 40}, commits, sources)
    here = {each: git("rev-parse", f"HEAD:{each}").strip() for each in ("src", "benchmarks")}
    made = {"commit": "none", "source": here["src"], "benchmarks": here["benchmarks"]}
    assert not lost(made, commits, sources)
    assert lost({**made, "benchmarks": "0" * 40}, commits, sources)


def test_scores_name_the_code_that_they_are_of() -> None:
    for file in ROOT.glob("records/**/*.json"):
        values = json.loads(file.read_text("utf-8"))
        if file.relative_to(ROOT).parts[1] not in UNNAMED and "suites" in values:
            assert [*environments(values)], file


def test_a_result_names_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crammed.__file__", str(tmp_path / "src" / "crammed" / "__init__.py"))
    assert environment()["source"] is None
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("x = 1\n")
    git("init", "-q", at=tmp_path)
    git("add", ".", at=tmp_path)
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    git(*who, "commit", "-qm", "Add code", at=tmp_path)
    (tmp_path / "notes.md").write_text("Not code.\n")
    made = environment()["source"]
    assert made == git("rev-parse", "HEAD:src", at=tmp_path).strip()
    (tmp_path / "src" / "code.py").write_text("x = 2\n")
    assert environment()["source"] is None
