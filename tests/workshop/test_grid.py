"""Grids of runs: which runs they are, what is kept of them, and that they continue."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.locks import FolderLock
from crammed.files.writing import read_json, write_json
from support.command import python, started, wait_for
from support.text import MODEL

GRID = Path(__file__).resolve().parents[2] / "benchmarks" / "grid.py"
OWN = ["crammed", *MODEL]


@pytest.fixture
def module(benchmark: Callable[[str], Any]) -> Any:
    """The grid in this process."""
    return benchmark("grid")


def test_a_grid_trains_what_is_missing(tmp_path: Path, corpus: Corpus) -> None:
    text, core = corpus.manifest["tokens"], str(min(os.sched_getaffinity(0)))
    entry = {"corpora": ["a"], "words": [OWN], "variant": "default"}
    first = [{**entry, "tokens": [600], "seeds": [0]}]
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(first))
    words: list[str | Path] = [GRID, tmp_path / "grid.yaml", f"a={corpus.path}"]
    words += ["--out", tmp_path / "out", "--cores", core]
    assert "1 of 1 runs to go" in python(*words, "--dry-run").stdout
    done = python(*words)
    assert done.returncode == 0, done.stderr
    (run,) = (read_json(tmp_path / "out" / "runs.json") or {})["runs"]
    assert (run["text_tokens"], run["variant"], run["seed"]) == (text, "default", 0)
    assert 0 < run["tokens"] <= 600
    assert run["heldout"]["loss@0.15"] > 0
    more = [*first, {**entry, "epochs": [0.5], "seeds": [0, 1]}]
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(more))
    assert "2 of 3 runs to go" in python(*words, "--dry-run").stdout
    write_json(tmp_path / "out" / "runs.json", {"corpora": {"a": {}}, "runs": [run]})
    refused = python(*words)
    assert (refused.returncode, "has another corpus a" in refused.stderr) == (2, True)


@pytest.mark.parametrize("values", [{"corpora": [], "runs": []}, {"corpora": {}, "runs": [3]}])
def test_results_of_something_else_are_refused(
    tmp_path: Path, corpus: Corpus, module: Any, values: dict[str, Any]
) -> None:
    write_json(tmp_path / "out" / "runs.json", values)
    with pytest.raises(InputError, match="does not hold the runs of a grid"):
        module.Runs(tmp_path / "out", {"a": corpus})


def test_runs_have_folders_of_their_own(module: Any) -> None:
    several = [("masking.rate=0.2",), ("masking.final_rate=0.2",), ("tokenizer.file=../../a",)]
    points = [module.Point("../a", 600, words, "x", 0) for words in several]
    names = [module._folder(point) for point in points]
    assert len({*names}) == 3
    assert not any("/" in name or name.startswith(".") for name in names)


def test_a_grid_that_is_terminated_ends_its_runs(tmp_path: Path, corpus: Corpus) -> None:
    core = str(min(os.sched_getaffinity(0)))
    eager = [*OWN, "compute.compile=off"]
    entry = {"corpora": ["a"], "words": [eager], "variant": "long", "tokens": [1e12], "seeds": [0]}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump([entry]))
    words: list[str | Path] = [GRID, tmp_path / "grid.yaml", f"a={corpus.path}"]
    words += ["--out", tmp_path / "out", "--cores", core]
    with started(*words) as grid:
        wait_for(lambda: any((tmp_path / "out" / "runs").glob("*/heartbeat.json")), grid)
        grid.terminate()
        assert "the same command continues" in grid.communicate()[1]
    (run,) = (path for path in (tmp_path / "out" / "runs").iterdir() if path.is_dir())
    FolderLock(run).release()  # nobody trains there any more


def test_a_run_that_fails_ends_the_grid_with_its_log(tmp_path: Path, corpus: Corpus) -> None:
    core = str(min(os.sched_getaffinity(0)))
    wrong = {"corpora": ["a"], "words": [[*OWN, "optim.lr=no"]], "variant": "wrong"}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump([{**wrong, "tokens": [600], "seeds": [0]}]))
    words: list[str | Path] = [GRID, tmp_path / "grid.yaml", f"a={corpus.path}"]
    failed = python(*words, "--out", tmp_path / "out", "--cores", core)
    assert failed.returncode == 1
    (log,) = (tmp_path / "out" / "runs").glob("*.log")
    assert f"ended with exit code 2; {log} says why" in failed.stderr
    assert "optim.lr" in log.read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a list of entries"),
        ("- {corpora: [b], words: [], variant: x, seeds: [0]}", "needs a corpus b: add b=DIR"),
        ("- {corpora: [a], words: [], variant: x, seed: [0]}", "entry 1: 2 faults"),
        ("- {corpora: [a], words: [[]], variant: x, seeds: [0]}", "entry 1 defines no run"),
        ("- {corpora: [a], words: [[]], variant: x, seeds: [0], epochs: [.inf]}", "epochs.0"),
        ("- {corpora: [a], words: [[]], variant: x, seeds: [0], tokens: [0.2]}", "'0tok' leaves"),
        ("- {", "cannot read"),
    ],
)
def test_a_wrong_grid_is_refused(
    tmp_path: Path, corpus: Corpus, module: Any, text: str, why: str
) -> None:
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(InputError) as refused:
        module.main(tmp_path / "grid.yaml", [f"a={corpus.path}"], tmp_path / "out", ["0"], True)
    assert why in str(refused.value)
