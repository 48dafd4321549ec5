"""Runs all benchmarks of pretraining speed on one GPU, in one command.

    python benchmarks/gpu/speed.py --out DIR [--variant "key.path=value ..."] ...
        [--shape crammed-2022 ...] [--tokens 1048576] [--minutes 9] [--set key.path=value] ...

For four shapes (the paper's at lengths 128 and 512, BERT-base, 250 million parameters) it times
updates with the recipe's own settings and with every variant, and the kernels of one microbatch;
for the first shape, it also times the optimizers. Each benchmark is a separate process that writes
DIR/NAME.json when it is done, so repeating the command continues where it stopped, and retries what
failed. With --minutes, nothing is started that would probably end later, judging by the longest
loop so far; exit code 75 means that there is more to do.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

BENCHMARKS = Path(__file__).resolve().parents[1]
SHAPES = {
    "crammed-2022": ["crammed-2022"],
    "bert-base": ["bert-base"],
    "250m": ["crammed-2022", "model.layers=28", "model.width=896"],
    "crammed-2022-512": ["crammed-2022", "data.row_length=512", "model.max_length=512"],
}
LENGTHS = {"crammed-2022-512": 512}
MORE = 75

Jobs = dict[str, list[str]]


def main(
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    variant: Annotated[list[str] | None, typer.Option(help="Other values to compare with.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="Only these shapes.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens per update.")] = 1 << 20,
    updates: Annotated[int, typer.Option(min=1, help="Updates in a row.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns for each.")] = 5,
    minutes: Annotated[
        float | None, typer.Option(help="Start nothing that would end later.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Values for every shape and variant.")
    ] = None,
) -> None:
    if unknown := [name for name in shape or [] if name not in SHAPES]:
        raise SystemExit(f"no shape {', '.join(unknown)}: choose from {', '.join(SHAPES)}")
    out.mkdir(parents=True, exist_ok=True)
    jobs = _jobs(shape or list(SHAPES), variant or [], set_ or [], tokens, updates, rounds)
    began, longest, failed = time.monotonic(), 0.0, []
    loops = {name: 1 + len(variant or []) * name.startswith("step-") for name in jobs}
    for name, command in jobs.items():
        result = out / f"{name}.json"
        if result.exists():
            continue
        ends = time.monotonic() - began + longest * loops[name]
        if minutes is not None and ends > 60 * minutes:
            print(f"{name} is left for the next call of this command", flush=True)
            raise SystemExit(MORE)
        print(f"{name}  {' '.join(command)}", flush=True)
        at = time.monotonic()
        if not _do(command, result):
            failed.append(name)
        longest = max(longest, (time.monotonic() - at) / loops[name])
        print(f"{name}  {time.monotonic() - at:.0f} seconds", flush=True)
    if failed:
        raise SystemExit(f"failed, see NAME.txt in {out}: {', '.join(failed)}")
    print(f"all results are in {out}")


def _jobs(
    shapes: list[str],
    variants: list[str],
    values: list[str],
    tokens: int,
    updates: int,
    rounds: int,
) -> Jobs:
    """Commands by the name of their result, the most informative first."""
    steps: Jobs = {}
    rest: Jobs = {}
    for name in shapes:
        words = [*SHAPES[name], *values]
        length = LENGTHS.get(name, 128)
        counts = [
            "--rows",
            str(max(1, tokens // length)),
            "--updates",
            str(updates),
            "--rounds",
            str(rounds),
        ]
        compared = [part for variant in variants for part in ("--variant", variant)]
        steps[f"step-{name}"] = ["step.py", *words, *counts, "--no-beside", *compared]
        rest[f"profile-{name}"] = ["profile_step.py", *words]
    first = shapes[0]
    rest[f"optimizer-{first}"] = ["optimizer.py", *SHAPES[first], *values]
    return steps | rest


def _do(command: list[str], result: Path) -> bool:
    """Run a benchmark: it leaves a complete result, or, if it fails, its output in a text file."""
    script, *words = command
    aside, log = result.with_suffix(".part"), result.with_suffix(".txt")
    whole = [sys.executable, str(BENCHMARKS / script), *words, "--out", str(aside)]
    with log.open("wb") as output:
        done = subprocess.run(whole, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode or not aside.exists():
        print(log.read_text(errors="replace")[-2000:], flush=True)
        return False
    aside.replace(result)
    log.unlink()
    return True


if __name__ == "__main__":
    typer.run(main)
