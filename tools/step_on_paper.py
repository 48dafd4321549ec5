"""What a training step would launch and move on a GPU, counted on a machine without one.

    python tools/step_on_paper.py [RECIPE] [key.path=value ...] [--loop ours] ... [--rows 512]
        [--card H200] [--attention cudnn] [--kernels 0] [--out RESULT.json]
    python tools/step_on_paper.py --check

For each loop of benchmarks/step.py (ours, unless others are named; `all` is all of them): the
launches, bytes and FLOPs of one more microbatch, by part of the step, and a model of its seconds.
`--kernels` lists the kernels that move most. `--check` counts a toy and compares it with a count by
hand. tools/paper/__init__.py says what is counted and what is not. It needs triton, g++ and the CPU
build of PyTorch, and takes a minute for 16 layers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]

from paper import gpu  # noqa: E402

if TYPE_CHECKING:
    from paper.launches import Noted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", default=["crammed-2022"])
    parser.add_argument("--loop", action="append", help="as in the results of benchmarks/step.py")
    parser.add_argument("--rows", type=int, default=512, help="rows of a microbatch")
    parser.add_argument("--card", default="H200", help="the card whose rates the time model uses")
    parser.add_argument("--attention", choices=("cudnn", "flash"), default="cudnn")
    parser.add_argument("--kernels", type=int, default=0, help="kernels to list for each loop")
    parser.add_argument("--check", action="store_true", help="compare a toy with a count by hand")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    noted = begin(given.attention)
    if given.check:
        sys.exit(_check(noted))
    from common import finish
    from crammed.errors import CrammedError
    from paper.loops import loops
    from paper.result import counted

    names = given.loop or ["ours"]
    if unknown := sorted({*names} - {"all", *loops()}):
        parser.error(f"--loop {', '.join(unknown)}: choose from all, {', '.join(loops())}")
    try:
        result = counted(noted, given.words, names, given.rows, given.card, given.kernels)
    except CrammedError as error:
        parser.error(str(error))
    result["attention"] = given.attention
    finish(result, given.out)


def begin(attention: str) -> Noted:
    """Record all launches on the GPU from now on; ends the program if this machine cannot."""
    if (missing := gpu.missing()) is not None:
        sys.exit(f"error: a step on paper needs {missing}")
    gpu.load()  # before PyTorch is imported, as the others do
    from paper import compiler
    from paper.launches import Noted

    noted = Noted()
    compiler.install(noted, attention)
    return noted


def _check(noted: Noted) -> int:
    """Print both counts of the toy; returns the exit code."""
    from paper.toy import by_hand, on_paper

    found = [(launch.read, launch.written) for launch in on_paper(noted)]
    for ours, hand in zip(found, by_hand(), strict=False):
        same = "same" if ours == hand else "OTHER"
        print(f"{same}: {ours} bytes read and written, by hand {hand}")
    return 0 if found == by_hand() else 1


if __name__ == "__main__":
    main()
