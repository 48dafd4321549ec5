"""What the verbs print: results as words for people, or as one JSON object for scripts."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from crammed.config import RunConfig


def costs(config: RunConfig) -> dict[str, Any]:
    """Parameters, and training FLOPs a token."""
    from crammed.data.masking import predicted_positions
    from crammed.model.count import parameters, train_flops_per_token

    vocab, length = config.tokenizer.vocab_size, config.data.row_length
    predicted = predicted_positions(config.masking.rate, length)
    return {
        "parameters": parameters(config.model, vocab),
        "train_flops_per_token": train_flops_per_token(config.model, vocab, length, predicted),
    }


def cost_words(values: dict[str, Any]) -> str:
    """``120,212,480 parameters, 0.62 GFLOP a token``."""
    gigaflop = values["train_flops_per_token"] / 1e9
    return f"{values['parameters']:,} parameters, {gigaflop:.3g} GFLOP a token"


def next_pretrain(corpus_dir: Path) -> str:
    """What to type once a corpus is there."""
    return f"crammed pretrain --corpus {corpus_dir} --budget 1h"


def run_words(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The result of a run, a label and a line each."""
    heldout, trust = result["heldout"], ""
    if result["export"]["format"] == "custom":
        trust = ", trust_remote_code=True"
    below = result["unigram_cross_entropy"] - heldout["loss@0.15"]
    words = [
        (
            "held-out loss",
            f"{heldout['loss@0.15']:.3f} nats at 15 % masks ({below:.2f} below unigram), "
            f"{heldout['loss@0.25']:.3f} at 25 %",
        ),
        (
            "trained on",
            f"{result['tokens']:,} tokens, {result['updates']:,} updates, "
            f"{100 * result['u']:.1f} % of {result['budget']}, {result['exaflop']:.3g} exaFLOP",
        ),
    ]
    for name, entry in result["tasks"].items():
        if entry["median"] is not None:
            words.append((name, _score(entry)))
    words.append(("model", result["export_dir"]))
    if result["report"]:
        words.append(("report", result["report"]))
    words.append(
        (
            "next",
            f"{_python()} -c \"from transformers import pipeline; print(pipeline('fill-mask', "
            f"'{result['export_dir']}'{trust})('This is a {result['mask_token']}.'))\"",
        )
    )
    return words


def _python() -> str:
    """How to type this interpreter here: by name where that is what the shell finds."""
    found = shutil.which("python")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "python"
    typed = os.path.relpath(sys.executable)
    return sys.executable if typed.startswith("..") else typed


def _score(entry: dict[str, Any]) -> str:
    from crammed.evaluation.scores.table import twin_words

    partial = ", partial data" if entry.get("official") is False else ""
    twin = entry["untrained"] or {}  # none by --no-twin
    spread = f" (spread {twin['spread']:.1f})" if "spread" in twin else ""
    return (
        f"{entry['median']:.1f} {entry['metric']} (spread {entry['spread']:.1f}{partial}); "
        f"untrained twin {twin_words(entry)}{spread}"
    )


def score_parts(values: dict[str, Any]) -> list[Any]:
    """An evaluation as tables."""
    from rich.text import Text

    from crammed.evaluation.scores.table import blimp_table, score_tables

    parts: list[Any] = []
    for suite, scores in values["suites"].items():
        if suite == "blimp":
            parts.append(blimp_table(scores))
        elif suite == "heldout":
            parts.append(Text("\n".join(f"{name}  {v:.4f}" for name, v in scores.items())))
        else:
            parts += score_tables(suite, scores, values["protocol"])
    if missing := values.get("missing"):
        parts.append(Text(f"the leaderboard will miss {', '.join(missing)}"))
    parts.append(Text(f"kept in {values['folder']}"))
    return parts


def plan_words(values: dict[str, Any]) -> list[tuple[str, str]]:
    """A forecast, a label and a line each."""
    from crammed.budget import format_seconds
    from crammed.quantity import quantity

    epochs = values["epochs"]
    low, high = values["tokens_between"]
    apart = f" ({quantity(low)} to {quantity(high)})" if high > 1.02 * low else ""
    words = [
        ("updates", f"{values['updates']:,}"),
        (
            "tokens",
            f"{values['tokens']:,}{apart}, {values['tokens_per_second']:,.0f} a second"
            + (f", {epochs:.2f} epochs" if epochs is not None else ""),
        ),
        (
            "model",
            f"{values['parameters']:,} parameters, {values['tokens_per_parameter']:.1f} tokens "
            "for each",
        ),
        ("time", f"{format_seconds(values['seconds'])} charged"),
        ("compute", f"{values['exaflop']:.3g} exaFLOP"),
    ]
    if (compiled := values["first_compile_seconds"]) >= 1.0:
        again = format_seconds(values["compile_seconds"])
        words.append(("compile", f"{again} ({format_seconds(compiled)} the first time)"))
    if values["memory"] is not None:
        rows = values["microbatch_rows"]
        words.append(("memory", f"{values['memory'] / 2**30:.1f} GiB, {rows} rows at once"))
    words += [("note", note) for note in values["notes"]]
    if (best := values["best_size"]) is not None:
        words.append(("sizes", "\n".join(_size_lines(values["sizes"], best))))
        words.append(("best size", f"{best['layers']} x {best['width']}: {best['why']}"))
    return words


def _size_lines(sizes: list[dict[str, Any]], best: dict[str, Any]) -> Iterator[str]:
    """A table of sizes: the measured one by its seconds, the others by their FLOPs."""
    from crammed.quantity import quantity

    yield "   layers x width  parameters    tokens  a layer parameter  epochs  memory held"
    for size in sizes:
        shape = f"{size['layers']} x {size['width']}"
        is_best = (size["layers"], size["width"]) == (best["layers"], best["width"])
        epochs = "" if size["epochs"] is None else f"{size['epochs']:.2f}"
        yield (
            f"{'->' if is_best else '  '} {shape:>14}  {quantity(size['parameters']):>10}  "
            f"{quantity(size['tokens']):>8}  {size['tokens_per_layer_parameter']:>17.1f}  "
            f"{epochs:>6}  "
            f"{size['held_memory'] / 2**30:>7.2f} GiB  "
            + ("measured" if size["measured"] else "by its FLOPs")
        )


def study_table(rows: list[dict[str, Any]], baseline: str) -> Table:
    """Arms of a study, the best first."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, title="Held-out loss", title_justify="left")
    table.add_column("arm")
    for name in ("seeds", "15 % masks", "25 % masks", f"15 % - {baseline}", "95 %", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if "loss@0.15" not in row:
            table.add_row(row["arm"], "0", f"FAILED: {row['failed']}")
            continue
        at15, at25 = row["loss@0.15"], row["loss@0.25"]
        between = at15["interval"]
        table.add_row(
            row["arm"],
            str(row["seeds"]),
            _mean_words(at15),
            _mean_words(at25),
            "" if at15["difference"] is None else f"{at15['difference']:+.3f}",
            "" if between is None else f"{between[0]:+.3f} to {between[1]:+.3f}",
            "" if at15["p"] is None else f"{at15['p']:.3f}",
        )
    return table


def _mean_words(loss: dict[str, Any]) -> str:
    deviation = loss["deviation"]
    return f"{loss['mean']:.3f}" + (f" ± {deviation:.3f}" if deviation is not None else "")


def plain(value: Any) -> str:
    """A value without brackets."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def print_result(values: dict[str, Any], as_json: bool, words: list[tuple[str, str]]) -> None:
    """The result on stdout: one JSON object, or lines with a label each."""
    if as_json:
        typer.echo(json.dumps(values, allow_nan=False))
        return
    width = max((len(label) for label, _ in words), default=0)
    for label, text in words:
        first, *rest = text.splitlines() or [""]
        typer.echo(f"{label:<{width}}  {first}")
        for line in rest:
            typer.echo(" " * (width + 2) + line)
