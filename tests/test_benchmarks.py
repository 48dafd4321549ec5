"""Every benchmark runs, in miniature, and says what it promises."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import documents, write_jsonl
from crammed.doctor import TINY
from models import save_model
from tasks import write_task

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


@pytest.mark.parametrize("steps", [0, 3])
def test_finetune(tmp_path: Path, steps: int) -> None:
    pytest.importorskip("transformers")
    data, out = tmp_path / "glue", tmp_path / "result.json"
    for task in ("cola", "mrpc"):
        write_task(data, task, rows=80)
    model = save_model(tmp_path / "bert", "bert")
    command = [sys.executable, str(BENCHMARKS / "finetune.py"), str(model), "--data", str(data)]
    command += ["--tasks", "cola,mrpc", "--seeds", "2", "--limit", "64", "--out", str(out)]
    command += ["--plain-steps", str(steps)] if steps else []
    subprocess.run(command, check=True, capture_output=True)
    result = json.loads(out.read_text())
    assert result["rows"] == {"cola": 64, "mrpc": 64}
    assert len(result["plain_runs"]) == (2 if steps else 4)
    updates = 5 * (64 // 16)
    assert {run["updates"] for run in result["plain_runs"]} == {steps or updates}
    for task, metric in (("cola", "matthews"), ("mrpc", "f1")):
        assert len(result["ours"]["scores"][task]["seeds"]) == 2
        plain = [run for run in result["plain_runs"] if run["task"] == task]
        assert steps or all(metric in run["scores"] for run in plain)
    assert result["times_faster"] == result["plain_seconds"] / result["ours"]["seconds"]
    if steps:
        each = sum(run["updates_seconds"] / steps for run in result["plain_runs"])
        assert result["plain_seconds"] == pytest.approx(2 * updates * each)


def test_step(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    out = tmp_path / "result.json"
    small = ["model.layers=2", "model.width=32", "model.head_dim=16", "tokenizer.vocab_size=512"]
    command = [sys.executable, str(BENCHMARKS / "step.py"), "bert-base", *small]
    command += ["--rows", "4", "--updates", "3", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    result = json.loads(out.read_text())
    assert set(result["loops"]) == {"ours", "plain, every position", "plain, masked positions"}
    for loop in result["loops"].values():
        assert 0 < loop["fastest"] <= loop["seconds"] <= loop["slowest"]
        assert loop["tokens_per_second"] == pytest.approx(4 * 128 / loop["seconds"])


def test_budget_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(600))
    out = tmp_path / "out"
    command = [sys.executable, str(BENCHMARKS / "budget_run.py"), "crammed", *TINY]
    command += ["--budget", "12updates", "--text", str(text), "--out", str(out)]
    command += ["--heldout", str(text)]
    subprocess.run(command, check=True, capture_output=True)
    first = json.loads((out / "RESULT.json").read_text())["stages"]
    assert list(first) == ["prepare", "pretrain", "heldout"]
    assert first["pretrain"]["result"]["updates"] == 12
    glue = write_task(tmp_path / "glue", "rte", rows=40)
    command += ["--glue", str(glue), "--tasks", "rte", "--seeds", "1"]
    subprocess.run(command, check=True, capture_output=True)
    stages = json.loads((out / "RESULT.json").read_text())["stages"]
    assert {name: stages[name] for name in first} == first
    scores = stages["glue"]["result"]["suites"]["glue"]
    assert scores["tasks"]["rte"]["official"] is False
    other = subprocess.run([*command, "--seed", "1"], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert "another run" in other.stderr
