"""How long fine-tuning takes and what it scores, compared with a plain loop on the same device.

    python benchmarks/finetune.py MODEL_DIR --data GLUE_DIR [--tasks rte,mrpc,cola] [--seeds 1]
        [--limit 1000] [--out RESULT.json]

Ours is timed as the command that a user types, loading included, without the untrained model.
The plain loop (plain_finetune.py) is one process for each task and seed.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from common import Json, crammed, report, run
from crammed.config import ComputeConfig
from crammed.machine.device import choose_device


def main(
    model: Path,
    data: Annotated[Path, typer.Option(help="TASK/{train,validation}.jsonl.gz")],
    tasks: str = "rte,mrpc,cola",
    seeds: int = 1,
    limit: Annotated[int, typer.Option(help="Training rows for each task; 0 is all.")] = 1000,
    out: Path | None = None,
) -> None:
    names = tasks.split(",")
    with tempfile.TemporaryDirectory(prefix="crammed-benchmark-") as scratch:
        cut = Path(scratch) / "data"
        rows = {name: _cut(data / name, cut / name, limit) for name in names}
        ours = _ours(model, cut, names, seeds, Path(scratch))
        runs = [_plain(model, cut, name, seed) for name in names for seed in range(seeds)]
    plain = sum(each["wall_seconds"] for each in runs)
    report(
        "finetune",
        out,
        device=choose_device(ComputeConfig()).name,
        model=model.resolve().name,
        rows=rows,
        seeds=seeds,
        ours=ours,
        plain_runs=runs,
        plain_seconds=plain,
        times_faster=plain / ours["seconds"],
    )


def _cut(source: Path, target: Path, limit: int) -> int:
    """Copy a task with its first training rows, and return how many there are."""
    target.mkdir(parents=True)
    (target / "validation.jsonl.gz").write_bytes((source / "validation.jsonl.gz").read_bytes())
    with gzip.open(source / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        kept = list(islice(lines, limit or None))
    with gzip.open(target / "train.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(kept)
    return len(kept)


def _ours(model: Path, data: Path, names: list[str], seeds: int, scratch: Path) -> Json:
    words = ["--data", str(data), "--tasks", ",".join(names), "--seeds", str(seeds)]
    words += ["--no-untrained", "--into", str(scratch / "evaluation")]
    began = time.perf_counter()
    printed = crammed("evaluate", str(model), "--suite", "glue", *words)
    seconds = time.perf_counter() - began
    scores = printed["suites"]["glue"]["tasks"]
    kept = {name: {k: scores[name][k] for k in ("metric", "seeds", "median")} for name in names}
    return {"seconds": seconds, "scores": kept}


def _plain(model: Path, data: Path, name: str, seed: int) -> Json:
    """What the plain loop prints for a task and a seed, and how long it took."""
    command = [sys.executable, str(Path(__file__).with_name("plain_finetune.py")), str(model)]
    command += ["--task", name, "--data", str(data), "--seed", str(seed)]
    began = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    wall = time.perf_counter() - began
    printed: Json = json.loads(done.stdout.splitlines()[-1])
    del printed["model"]
    return {**printed, "wall_seconds": wall}


if __name__ == "__main__":
    run(main)
