"""How well `crammed plan` predicts the run that follows it.

    python benchmarks/plan_accuracy.py [RECIPE] [key.path=value ...] --corpus DIR
        [--budgets 30s,60s] [--seconds 20] [--out RESULT.json]

For every budget this plans, then trains, each as a user types it, and compares the tokens. `within`
says whether the tokens read are in the range that the plan gave.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from common import config_of, crammed, described, finish, run
from crammed.data.corpus import Corpus
from crammed.machine.device import choose_device


def main(
    corpus: Annotated[Path, typer.Option(help="A corpus made by crammed prepare.")],
    words: Annotated[list[str] | None, typer.Argument(help="Recipe, overrides.")] = None,
    budgets: Annotated[str, typer.Option(help="Budgets, separated by commas.")] = "30s,60s",
    seconds: Annotated[float, typer.Option(help="How long each plan measures.")] = 20.0,
    out: Path | None = None,
) -> None:
    opened = Corpus(corpus)
    own = [f"data.row_length={opened.row_length}", f"tokenizer.vocab_size={opened.vocab_size}"]
    config = config_of([*(words or []), *own])
    result = described("plan_accuracy", config, words, choose_device(config.compute))
    result |= {"plan_seconds": seconds, "runs": []}
    for budget in budgets.split(","):
        common = [*(words or []), "--corpus", str(corpus), "--budget", budget]
        plan = crammed("plan", *common, "--seconds", str(seconds))
        with tempfile.TemporaryDirectory(prefix="crammed-benchmark-") as scratch:
            ran = crammed("pretrain", *common, "--out", f"{scratch}/run")
            accounts = json.loads(Path(scratch, "run", "summary.json").read_text())["accounts"]
        low, high = plan["tokens_between"]
        entry = {
            "budget": budget,
            "predicted_tokens": plan["tokens"],
            "predicted_between": [low, high],
            "tokens": ran["tokens"],
            "ratio": ran["tokens"] / plan["tokens"] if plan["tokens"] else None,
            "within": low <= ran["tokens"] <= high,
            "predicted_compile_seconds": plan["compile_seconds"],
            "accounts": accounts,
        }
        result["runs"].append(entry)
        found = f"{budget}: predicted {plan['tokens']:,}, read {ran['tokens']:,}"
        print(f"{found}, ratio {entry['ratio'] or 0:.3f}", file=sys.stderr, flush=True)
    finish(result, out)


if __name__ == "__main__":
    run(main)
