"""How long fine-tuning takes and what it scores, compared with a plain loop on the same device.

    python benchmarks/finetune.py MODEL_DIR --data GLUE_DIR [--tasks rte,mrpc,cola] [--seeds 1]
        [--limit 1000] [--plain SCRIPT] [--plain-steps 300] [--out RESULT.json]

Ours is timed as the command that a user types, loading included, without the untrained model.
The plain loop is one process for each task and seed (plain_finetune.py, or any script with the same
arguments). With --plain-steps, for when there is little GPU time, it stops after that many updates
of each task, and its time is scaled to all updates of all seeds.
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

from common import Json, crammed, finish, run
from crammed.config import ComputeConfig, Protocol
from crammed.machine.device import choose_device
from crammed.runs.environment import environment


def main(
    model: Path,
    data: Annotated[Path, typer.Option(help="TASK/{train,validation}.jsonl.gz")],
    tasks: str = "rte,mrpc,cola",
    seeds: int = 1,
    limit: Annotated[int, typer.Option(help="Training rows for each task; 0 is all.")] = 1000,
    plain: Annotated[Path | None, typer.Option(help="Script with another plain loop.")] = None,
    plain_steps: Annotated[int, typer.Option(help="Updates to time; 0 is complete runs.")] = 0,
    out: Path | None = None,
) -> None:
    names = tasks.split(",")
    with tempfile.TemporaryDirectory(prefix="crammed-benchmark-") as scratch:
        cut = Path(scratch) / "data"
        rows = {name: _cut(data / name, cut / name, limit) for name in names}
        ours = _ours(model, cut, names, seeds, Path(scratch))
        script = plain or Path(__file__).with_name("plain_finetune.py")
        runs = _plain(script, model, cut, names, seeds, plain_steps)
    result: Json = {
        "name": "finetune",
        "environment": environment(),
        "device": choose_device(ComputeConfig()).name,
        "model": model.resolve().name,
        "plain": script.name,
        "rows": rows,
        "seeds": seeds,
        "ours": ours,
        "plain_runs": runs,
    }
    if plain_steps:
        result["plain_seconds"] = _scaled(runs, rows, seeds)
        result["plain_timed_updates"] = plain_steps
    else:
        result["plain_seconds"] = sum(each["wall_seconds"] for each in runs)
    result["times_faster"] = result["plain_seconds"] / ours["seconds"]
    finish(result, out)


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


def _plain(
    script: Path, model: Path, data: Path, names: list[str], seeds: int, steps: int
) -> list[Json]:
    runs = []
    for name in names:
        for seed in range(1 if steps else seeds):
            command = [sys.executable, str(script), str(model), "--task", name]
            command += ["--data", str(data), "--seed", str(seed)]
            command += ["--steps", str(steps)] if steps else []
            began = time.perf_counter()
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            wall = time.perf_counter() - began
            printed = {**json.loads(done.stdout.splitlines()[-1]), "wall_seconds": wall}
            runs.append({k: v for k, v in printed.items() if k != "model"})
    return runs


def _scaled(runs: list[Json], rows: dict[str, int], seeds: int) -> float:
    """Seconds that all updates of all seeds would take at the measured rate."""
    protocol = Protocol()
    seconds = 0.0
    for each in runs:
        updates = protocol.epochs * (rows[each["task"]] // protocol.batch)
        seconds += seeds * updates * each["updates_seconds"] / each["updates"]
    return seconds


if __name__ == "__main__":
    run(main)
