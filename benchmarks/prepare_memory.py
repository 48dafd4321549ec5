"""How much memory preparing takes when there are many shards, or many files.

    python benchmarks/prepare_memory.py --shards 100,1000,10000 --files 100,10000 --out RESULT.json

Ten thousand shards are 160 GB of text, so these hold 4,000 characters instead of 16 million: what
is measured is what each shard costs besides its text. Files have about 1 KB each. Every run is a
process of its own. Memory is measured as in `prepare.py`; that of the main process is its largest
resident set.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from crammed.data import shards
from crammed.data.preparing.driver import prepare
from crammed.terminal.progress import Progress
from prepare import MEGA, config_of
from resources import alone, largest, memory

SHARD_CHARACTERS = 4_000
HELDOUT_ROWS = 64
"""Few, since it takes memory to look for copies of held-out text, whatever the shards are."""
_SHARDS = "CRAMMED_BENCHMARK_SHARD"
"""Environment variable that tells this process and its workers how large a shard is."""
shards.SHARD_CHARACTERS = int(os.environ.get(_SHARDS, shards.SHARD_CHARACTERS))


def _texts(count: int, characters: int) -> list[str]:
    """Random words; the same each time."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 8))) for _ in range(2_000)]
    return [f"{' '.join(draw.choices(words, k=characters // 6))}." for _ in range(count)]


def _write_shards(folder: Path, count: int) -> Path:
    file = folder / "text.jsonl"
    texts = _texts(count * SHARD_CHARACTERS // 200, 200)
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def _write_files(folder: Path, count: int) -> Path:
    for number, text in enumerate(_texts(count, 1_000)):
        place = folder / "texts" / f"{number // 1_000:04d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"document-{number:07d}.txt").write_text(text)
    return folder / "texts"


def _measure(what: str, count: int, source: Path, out: Path) -> dict[str, Any]:
    config = config_of(source, "tokenizer.vocab_size=2000", f"data.heldout_rows={HELDOUT_ROWS}")
    with memory() as resident, Progress() as progress:
        corpus = prepare(config.data, config.tokenizer, out, progress, config.compute)
    return {
        "what": what,
        "count": count,
        "documents": corpus.manifest["documents"],
        "main_process_megabytes": largest() / MEGA,
        "peak_memory_megabytes": resident.peak / MEGA,
    }


def _measured(what: str, count: int) -> dict[str, Any]:
    with TemporaryDirectory(prefix="crammed-benchmark-") as scratch:
        folder = Path(scratch)
        if what == "shards":
            source = _write_shards(folder, count)
            os.environ[_SHARDS] = str(SHARD_CHARACTERS)
        else:
            source = _write_files(folder, count)
            os.environ.pop(_SHARDS, None)
        values = alone(_measure, what, count, source, folder / "corpus")
    print(json.dumps(values))
    return values


def main(
    shards: Annotated[str, typer.Option(help="Numbers of shards, such as 100,10000.")] = "",
    files: Annotated[str, typer.Option(help="Numbers of files.")] = "",
    out: Path | None = None,
) -> None:
    from common import numbers_of, report

    asked = [("shards", shards), ("files", files)]
    counts = [(what, n) for what, text in asked if text for n in numbers_of(f"--{what}", text)]
    report("prepare_memory", out, runs=[_measured(what, count) for what, count in counts])


if __name__ == "__main__":  # and not in workers
    from common import run

    run(main)
