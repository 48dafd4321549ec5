"""What preparing text spends its CPU time on, by stage.

    python benchmarks/prepare_profile.py DATA [--tokenizer FILE] [--out RESULT.json]

One process does the work by itself, so that its clock sees all of it. What no job of a stage does
is the main process's own work: finding files, choosing, joining and writing what concerns all text.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, TypeVar

import typer

from crammed.data.preparing.driver import prepare
from crammed.machine import engine
from crammed.terminal.progress import Progress
from prepare import MEGA, bytes_of, config_of, parts_of

STAGES = {
    "read": "reading and cleaning",
    "_repeated": "duplicates",
    "_marked": "duplicates",
    "_linked": "duplicates",
    "_runs": "hashing held-out text",
    "select_shard": "selecting, and looking for copies of held-out text",
    "_copies": "selecting, and looking for copies of held-out text",
    "_add_up": "counting words",
    "pack_shards": "tokenizing",
    "score_file": "ordering",
}
"""Names of the stages, by the function that is called for each of their jobs."""
TRAINING = "training the tokenizer, and all that the main process does"
MAIN = "all that the main process does"

Item = TypeVar("Item")
Result = TypeVar("Result")


def main(
    data: Path,
    tokenizer: Annotated[Path | None, typer.Option(help="Use this tokenizer.json.")] = None,
    out: Path | None = None,
) -> None:
    from common import report

    spent, run_job = defaultdict[str, float](float), engine._run

    def timed(function: Callable[[Item], Result], job: Item) -> Result:
        began = time.process_time()
        result = run_job(function, job)
        spent[STAGES.get(function.__name__, MAIN)] += time.process_time() - began
        return result

    words = [] if tokenizer is None else [f"tokenizer.file={tokenizer}"]
    config = config_of(data, "compute.workers=1", *words)
    size = bytes_of(data)  # also brings the text into the page cache
    engine._run = timed
    with TemporaryDirectory(prefix="crammed-benchmark-") as folder, Progress() as progress:
        began = time.process_time()
        prepare(config.data, config.tokenizer, Path(folder, "corpus"), progress, config.compute)
        whole = time.process_time() - began
    rest = whole - sum(spent.values())
    spent[MAIN if tokenizer else TRAINING] = rest + spent.pop(MAIN, 0.0)
    report(
        "prepare_profile",
        out,
        data=[part.fingerprint() for part in parts_of(data)],
        megabytes=size / MEGA,
        tokenizer="given" if tokenizer else "trained",
        cpu_seconds=dict(sorted(spent.items(), key=lambda each: -each[1])),
    )


if __name__ == "__main__":
    from common import run

    run(main)
