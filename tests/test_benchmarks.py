"""Every benchmark runs, in miniature, and says what it promises."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import write_jsonl

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def _prose(count: int, seed: int) -> list[str]:
    """Documents that quality rules do not take offence at."""
    draw = random.Random(seed)
    words = ["the", "of", "and", "to"] * 100
    words += ["".join(draw.choices("aeioulnrst", k=draw.randint(3, 8))) for _ in range(3000)]
    return [
        "\n".join(" ".join(draw.choices(words, k=12)) + "." for _ in range(12))
        for _ in range(count)
    ]


def test_prepare(tmp_path: Path) -> None:
    pytest.importorskip("rensa")
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(2):
        write_jsonl(folder / f"{number}.jsonl", _prose(300, seed=number))
    out = tmp_path / "result.json"
    command = [sys.executable, str(BENCHMARKS / "prepare.py"), str(folder)]
    options = ["--small", str(folder / "0.jsonl"), "--identity", "--out", str(out)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    runs = {run["what"]: run for run in json.loads(out.read_text())["runs"]}
    assert runs["identity"] == {"what": "identity", "documents": 600, "differing": 0}
    trained, given = runs["all, tokenizer trained"], runs["all, tokenizer given"]
    assert (trained["tokens"], trained["rows"]) == (given["tokens"], given["rows"])
    assert trained["megabytes"] > 1.9 * runs["small, tokenizer trained"]["megabytes"]
    assert given["peak_memory_megabytes"] > 50
