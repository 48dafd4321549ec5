"""A line feed in a name never begins a line of what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from crammed.doctor import TINY
from support.command import crammed
from support.tasks import write_task
from support.text import MODEL, documents, write_jsonl

EVIL = "a\nEVIL"
TASKS = "tasks: {cola: {text: sentence, metric: accuracy}}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a corpus, and what else the commands take, all with such names."""
    place = tmp_path_factory.mktemp("names")
    (place / EVIL).mkdir()
    write_jsonl(place / EVIL / f"{EVIL}.jsonl", documents(300))
    (place / EVIL / f"{EVIL}.x{EVIL}").write_text("?")
    (place / EVIL / f"{EVIL}.json").write_text('{"a": 1}')
    (place / f"broken{EVIL}.jsonl").write_text("{\n")
    write_jsonl(place / "more.jsonl", documents(30, 1))
    sources = '[{path: "a\\nEVIL", name: "b\\nEVIL", weight: 2.0}, more.jsonl]'
    (place / f"recipe{EVIL}.yaml").write_text(f"extends: crammed\ndata: {{sources: {sources}}}\n")
    (place / f"suite{EVIL}.yaml").write_text(TASKS)
    write_task(place / f"data{EVIL}", "cola", 40)
    said = crammed(
        *("run", f"recipe{EVIL}.yaml", *TINY, "--budget", "2updates", "--out", f"run{EVIL}"),
        cwd=place,
    )
    assert said.returncode == 0, said.stderr
    _check(said.stdout + said.stderr)
    return place


def _check(said: str) -> None:
    assert "EVIL" in said
    assert "Traceback" not in said
    assert "\nEVIL" not in said


def _name(words: list[str]) -> str:
    return "-".join(words[:2]).replace("\n", " ")


@pytest.mark.parametrize(
    "words",
    [
        ["data", "show", f"run{EVIL}/corpus"],
        ["data", "verify", f"run{EVIL}/corpus"],
        [
            *("plan", *MODEL, "--corpus", f"run{EVIL}/corpus"),
            *("--device", "RTX 4090", "--budget", "10s"),
        ],
        ["runs", "."],
        ["runs", f"run{EVIL}"],
        ["report", f"run{EVIL}", "--out", f"{EVIL}.html"],
        ["export", f"run{EVIL}", "--to", f"exported{EVIL}"],
        [
            *("evaluate", f"run{EVIL}", "--suite", "heldout"),
            *("--data", f"run{EVIL}/corpus/heldout.jsonl.gz"),
        ],
    ],
    ids=_name,
)
def test_each_command(place: Path, words: list[str]) -> None:
    said = crammed(*words, cwd=place)
    assert said.returncode == 0, said.stderr
    _check(said.stdout + said.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ["data", "verify", f"no{EVIL}"],
        ["prepare", *TINY, "--data", EVIL, f"broken{EVIL}.jsonl", "--out", f"made{EVIL}"],
        ["prepare", "--data", f"no{EVIL}", "--out", f"made{EVIL}"],
        ["prepare", "--data", EVIL, "--out", f"run{EVIL}/corpus"],
        ["plan", f"no{EVIL}.yaml"],
        ["report", f"no{EVIL}"],
        ["evaluate", f"run{EVIL}", "--suite", "heldout", "--data", f"run{EVIL}/corpus"],
        ["evaluate", f"run{EVIL}", "--suite", f"no{EVIL}.yaml", "--data", f"data{EVIL}"],
        [
            *("finetune", f"run{EVIL}", "--suite", f"suite{EVIL}.yaml"),
            *("--data", f"no{EVIL}", "--out", "x"),
        ],
        ["predict", f"no{EVIL}", "--data", "more.jsonl"],
        ["study", f"no{EVIL}.yaml", "--data", EVIL, "--budget", "1h", "--out", "study"],
    ],
    ids=_name,
)
def test_each_refusal(place: Path, words: list[str]) -> None:
    said = crammed(*words, cwd=place)
    assert said.returncode == 2, said.stderr
    _check(said.stdout + said.stderr)
