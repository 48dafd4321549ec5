"""Grids of runs: which runs they are, what is kept of them, and that they continue."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from crammed.data.corpus import Corpus
from crammed.files.locks import FolderLock
from crammed.files.writing import read_json, write_json
from support.command import python, started, wait_for
from support.text import MODEL

GRID = Path(__file__).resolve().parents[2] / "benchmarks" / "grid.py"
OWN = ["crammed", *MODEL]


def grid_of(
    folder: Path, corpus: Corpus, words: list[str], *lengths: dict[str, Any]
) -> list[str | Path]:
    """The command that trains with these words on the corpus, to each of these lengths."""
    entry = {"corpora": ["a"], "words": [words], "variant": "default"}
    entries = [{**entry, **{"seeds": [0], **each}} for each in lengths]
    (folder / "grid.yaml").write_text(yaml.safe_dump(entries))
    core = str(min(os.sched_getaffinity(0)))
    given: list[str | Path] = [GRID, folder / "grid.yaml", f"a={corpus.path}"]
    return [*given, "--out", folder / "out", "--cores", core]


def test_a_grid_trains_what_is_missing(tmp_path: Path, corpus: Corpus) -> None:
    text, first = corpus.manifest["tokens"], {"tokens": [600]}
    words = grid_of(tmp_path, corpus, OWN, first)
    assert "1 of 1 runs to go" in python(*words, "--dry-run").stdout
    done = python(*words)
    assert done.returncode == 0, done.stderr
    (run,) = (read_json(tmp_path / "out" / "runs.json") or {})["runs"]
    assert (run["text_tokens"], run["variant"], run["seed"]) == (text, "default", 0)
    assert 0 < run["tokens"] <= 600
    assert run["heldout"]["loss@0.15"] > 0
    words = grid_of(tmp_path, corpus, OWN, first, {"epochs": [0.5], "seeds": [0, 1]})
    assert "2 of 3 runs to go" in python(*words, "--dry-run").stdout
    write_json(tmp_path / "out" / "runs.json", {"corpora": {"a": {}}, "runs": [run]})
    refused = python(*words)
    assert (refused.returncode, "has another corpus a" in refused.stderr) == (2, True)


def test_runs_have_folders_of_their_own(benchmark: Callable[[str], Any]) -> None:
    module = benchmark("grid")
    several = [("masking.rate=0.2",), ("masking.final_rate=0.2",), ("tokenizer.file=../../a",)]
    points = [module.Point("../a", 600, words, "x", 0) for words in several]
    names = [module._folder(point) for point in points]
    assert len({*names}) == 3
    assert not any("/" in name or name.startswith(".") for name in names)


def test_a_grid_that_is_terminated_ends_its_runs(tmp_path: Path, corpus: Corpus) -> None:
    eager = [*OWN, "compute.compile=off"]
    with started(*grid_of(tmp_path, corpus, eager, {"tokens": [1e12]})) as grid:
        wait_for(lambda: any((tmp_path / "out" / "runs").glob("*/heartbeat.json")), grid)
        grid.terminate()
        assert "the same command continues" in grid.communicate()[1]
    (run,) = (path for path in (tmp_path / "out" / "runs").iterdir() if path.is_dir())
    FolderLock(run).release()  # nobody trains there any more


def test_a_run_that_fails_ends_the_grid_with_its_log(tmp_path: Path, corpus: Corpus) -> None:
    failed = python(*grid_of(tmp_path, corpus, [*OWN, "optim.lr=no"], {"tokens": [600]}))
    assert failed.returncode == 1
    (log,) = (tmp_path / "out" / "runs").glob("*.log")
    assert f"(full output: {log})" in failed.stderr
    assert "optim.lr" in log.read_text()
