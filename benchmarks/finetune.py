"""How long fine-tuning takes, beside a plain loop on the same device, and whether scores agree.

    python benchmarks/finetune.py MODEL_DIR --data GLUE_DIR [--tasks rte,mrpc,cola] [--seeds 1]
        [--limit 1000] [--plain SCRIPT] [--plain-steps 300] [--out RESULT.json]

Ours is the command line as a user types it, loading included, without the untrained model. The
plain loop is one process a task and seed (plain_finetune.py, or any script with its arguments);
with --plain-steps it does only so many updates of each task, and its time is scaled to all updates
of all seeds, which is what a GPU of short leases allows.
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
from typing import Annotated, Any

import typer

from crammed.config import ComputeConfig, Protocol
from crammed.device import choose_device
from crammed.rundir import environment

Json = dict[str, Any]


def main(
    model: Path,
    data: Annotated[Path, typer.Option(help="TASK/{train,validation}.jsonl.gz")],
    tasks: str = "rte,mrpc,cola",
    seeds: int = 1,
    limit: Annotated[int, typer.Option(help="Training rows of each task; 0 is all.")] = 1000,
    plain: Annotated[Path | None, typer.Option(help="Another plain loop.")] = None,
    plain_steps: Annotated[int, typer.Option(help="Updates to time; 0 is whole runs.")] = 0,
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
        result["plain_seconds"] = sum(run["wall_seconds"] for run in runs)
    result["times_faster"] = result["plain_seconds"] / ours["seconds"]
    text = json.dumps(result, indent=1)
    if out is not None:
        out.write_text(text + "\n", "utf-8")
    print(text)


def _cut(source: Path, target: Path, limit: int) -> int:
    """Copy a task with its first training rows; how many those are."""
    target.mkdir(parents=True)
    (target / "validation.jsonl.gz").write_bytes((source / "validation.jsonl.gz").read_bytes())
    with gzip.open(source / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        kept = list(islice(lines, limit or None))
    with gzip.open(target / "train.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(kept)
    return len(kept)


def _ours(model: Path, data: Path, names: list[str], seeds: int, scratch: Path) -> Json:
    command = [sys.executable, "-m", "crammed", "evaluate", str(model), "--suite", "glue"]
    command += ["--data", str(data), "--tasks", ",".join(names), "--seeds", str(seeds)]
    command += ["--no-untrained", "--into", str(scratch / "evaluation"), "--json"]
    began = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    seconds = time.perf_counter() - began
    scores = json.loads(done.stdout)["suites"]["glue"]["tasks"]
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
            run = {**json.loads(done.stdout.splitlines()[-1]), "wall_seconds": wall}
            runs.append({k: v for k, v in run.items() if k != "model"})
    return runs


def _scaled(runs: list[Json], rows: dict[str, int], seeds: int) -> float:
    """Seconds of all updates of all seeds at the rate that was timed."""
    protocol = Protocol()
    seconds = 0.0
    for run in runs:
        updates = protocol.epochs * (rows[run["task"]] // protocol.batch)
        seconds += seeds * updates * run["updates_seconds"] / run["updates"]
    return seconds


if __name__ == "__main__":
    typer.run(main)
