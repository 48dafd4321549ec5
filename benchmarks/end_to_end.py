"""Where the time goes from raw text to an exported model.

    python benchmarks/end_to_end.py [RECIPE] [key.path=value ...] --data PATH [--data PATH ...]
        [--budget 60s] [--out RESULT.json]

This times one `crammed run` without tasks, as a user types it. The wall time is split into the
accounts of training and what surrounds them; the parts add up to the whole:

start       outside the stages: the interpreter, imports, parsing the command, exiting
prepare     from text to a corpus
setup, compile, data_wait, step, checkpoint, log, evaluate, lost    accounts (docs/rules.md)
heldout     saving the trained model and measuring its held-out loss
export      writing and checking the Hugging Face folder, examples, the summary
report      the HTML page
"""

from __future__ import annotations

import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from common import Json, config_of, crammed, described, finish, run
from crammed.files.writing import read_json
from crammed.machine.device import choose_device
from crammed.runs.logs import read_lines


def main(
    data: Annotated[list[Path], typer.Option(help="Raw text; may be repeated.")],
    words: Annotated[list[str] | None, typer.Argument(help="Recipe, overrides.")] = None,
    budget: str = "60s",
    out: Path | None = None,
) -> None:
    config = config_of([*(words or []), f"budget.limit={budget}"])
    result = described("end_to_end", config, words, choose_device(config.compute))
    with tempfile.TemporaryDirectory(prefix="crammed-benchmark-") as scratch:
        folder = Path(scratch) / "run"
        sources = [part for path in data for part in ("--data", str(path))]
        own = [*(words or []), "finetune.tasks=[]", *sources, "--budget", budget]
        began = time.perf_counter()
        printed = crammed("run", *own, "--out", str(folder))
        wall = time.perf_counter() - began
        seconds = _accounts(folder, wall)
    result |= {
        "budget": budget,
        "megabytes": sum(path.stat().st_size for path in data if path.is_file()) / 1e6,
        "characters": printed["corpus"]["characters"],
        "tokens": printed["tokens"],
        "heldout_loss": printed["heldout_loss"],
        "wall_seconds": wall,
        "seconds": seconds,
    }
    finish(result, out)


def _accounts(run: Path, wall: float) -> dict[str, float]:
    """Seconds by account, which add up to `wall`."""
    events = list(read_lines(run / "events.jsonl"))
    stages = {event["name"]: event for event in events if event["event"] == "stage"}
    heldout = [event for event in events if event["event"] == "heldout"][-1]
    summary: Json = read_json(run / "summary.json") or {}
    ledger: dict[str, float] = summary["accounts"]
    pretrain = stages["pretrain"]["seconds"]
    ended, measured = (
        datetime.fromisoformat(event["at"]) for event in (stages["pretrain"], heldout)
    )
    export = (ended - measured).total_seconds()
    before = wall - sum(stage["seconds"] for stage in stages.values())
    return {
        "start": before,
        "prepare": stages["prepare"]["seconds"],
        **ledger,
        "heldout": pretrain - sum(ledger.values()) - export,
        "export": export,
        "report": stages["evaluate"]["seconds"] + stages["report"]["seconds"],
    }


if __name__ == "__main__":
    run(main)
