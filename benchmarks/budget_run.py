"""One recipe, one seed, one budget: trained, and measured in every way, in one go.

    python benchmarks/budget_run.py RECIPE [key.path=value ...] --budget 8m --seed 0 --out DIR
        (--text PATH [--text PATH ...] [--tokenizer FILE] | --corpus DIR)
        [--heldout FILE] [--blimp FILE] [--glue DIR] [--tasks cola,sst2,mrpc,stsb,rte] [--seeds 5]

A trained model is too large to bring back from a machine that is lent, so it is evaluated where it
was trained: held-out loss, BLiMP, and fine-tuning without the untrained twin. DIR gets RESULT.json
after every stage, and the run itself in DIR/run; the same command goes on where it stopped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from crammed.files import read_json, write_json
from crammed.rundir import environment

GLUE_5 = "cola,sst2,mrpc,stsb,rte"


def main(
    words: Annotated[list[str], typer.Argument(help="Recipe, overrides.")],
    out: Annotated[Path, typer.Option()],
    budget: Annotated[str, typer.Option()] = "8m",
    seed: int = 0,
    text: Annotated[list[Path] | None, typer.Option()] = None,
    tokenizer: Path | None = None,
    corpus: Path | None = None,
    heldout: Path | None = None,
    blimp: Path | None = None,
    glue: Path | None = None,
    tasks: str = GLUE_5,
    seeds: int = 5,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    result = _Result(out / "RESULT.json", words, budget, seed)
    run = out / "run"
    if corpus is None:
        corpus = out / "corpus"
        sources = [part for path in text or [] for part in ("--data", str(path))]
        given = [f"tokenizer.file={tokenizer}"] if tokenizer is not None else []
        of_data = [word for word in words if word.startswith(("data.", "tokenizer."))]
        recipe = [word for word in words if "=" not in word]
        result.stage(
            "prepare", "prepare", *recipe, *of_data, *given, *sources, "--out", str(corpus)
        )
        words = [word for word in words if word not in of_data]
    given = ["--corpus", str(corpus), "--budget", budget, "--seed", str(seed), "--out", str(run)]
    result.stage("pretrain", "pretrain", *words, *given)
    for name, file in (("heldout", heldout), ("blimp", blimp)):
        if file is not None:
            result.stage(name, "evaluate", str(run), "--suite", name, "--data", str(file))
    if glue is not None:
        options = ["--tasks", tasks, "--seeds", str(seeds), "--protocol", "cramming", "--no-twin"]
        result.stage("glue", "evaluate", str(run), "--data", str(glue), *options)


class _Result:
    """The file of results; a stage that is in it is not done again."""

    def __init__(self, file: Path, words: list[str], budget: str, seed: int) -> None:
        self._file = file
        described = {"name": "budget_run", "words": words, "budget": budget, "seed": seed}
        self._values: dict[str, Any] = read_json(file) or {
            **described,
            "environment": environment(),
            "stages": {},
        }
        if any(self._values[key] != value for key, value in described.items()):
            raise SystemExit(f"{file} is of another run: choose another --out")

    def stage(self, name: str, *command: str) -> None:
        """Run ``crammed`` with this command and keep what it prints."""
        if name in self._values["stages"]:
            return
        print(f"{name}  crammed {' '.join(command)}", flush=True)
        began = time.perf_counter()
        before = _joules()
        whole = [sys.executable, "-m", "crammed", *command, "--json"]
        done = subprocess.run(whole, stdout=subprocess.PIPE, check=False)
        if done.returncode not in (0, 5):  # 5: a task failed, and the others have scores
            raise SystemExit(f"{name} ended with {done.returncode}")
        after = _joules()
        printed = json.loads(done.stdout)
        entry = {"seconds": time.perf_counter() - began, "result": _kept(name, printed)}
        if before is not None and after is not None:
            entry["joules"] = after - before
        self._values["stages"][name] = entry
        write_json(self._file, self._values)


def _kept(name: str, printed: dict[str, Any]) -> dict[str, Any]:
    """What a record needs of it; a manifest is long."""
    if name != "prepare":
        return printed
    return {key: printed[key] for key in ("documents", "characters", "tokens", "vocab_size")}


def _joules() -> float | None:
    """Energy that the first GPU has used since its driver was loaded; None without one."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
    except Exception:  # no library, no driver, no GPU, or one without a counter
        return None


if __name__ == "__main__":
    typer.run(main)
