"""Results in words, as labelled lines."""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from crammed.adaptation.words import described
from crammed.evaluation.scores.notes import notes
from crammed.evaluation.scores.table import linear_text, source_lines, untrained_text
from crammed.files.writing import read_json
from crammed.quantity import beside_unigram, counted, flops_text
from crammed.rules.early_end import EarlyEnd

Line = tuple[str, str | Sequence[str]]
"""A label with a line of text or several."""


def table_html(lines: Sequence[Line]) -> str:
    """Labelled lines as a table of a notebook."""
    rows = []
    for label, text in lines:
        words = "<br>".join(map(html.escape, [text] if isinstance(text, str) else text))
        name = html.escape(label)
        style = 'style="text-align: left; vertical-align: top"'
        rows.append(f"<tr><th {style}>{name}</th><td {style}>{words}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def run_lines(result: dict[str, Any]) -> list[Line]:
    """The result of a run as labelled lines."""
    heldout = result["heldout"]
    beside = beside_unigram(heldout["loss@0.15"], result["unigram_cross_entropy"])
    early = EarlyEnd(**result["early_end"]) if result.get("early_end") else None
    spent = early.share if early is not None else result["u"]
    lines: list[Line] = [
        (
            "held-out loss",
            f"{heldout['loss@0.15']:.3f} nats with 15 % masked ({beside}), "
            f"{heldout['loss@0.25']:.3f} with 25 %",
        ),
        (
            "trained on",
            f"{result['tokens']:,} tokens, {counted(result['updates'], 'update')}, "
            f"{100 * spent:.1f} % of {result['budget']}, "
            f"{flops_text(1e18 * result['exaflop'])}",
        ),
    ]
    if by_source := source_lines(result.get("heldout_by_source", {})):
        lines.insert(1, ("by source", by_source))
    lines += described(result)
    if longer := result["train_longer"]:
        lines.append(("note", longer))
    if early is not None:
        lines.append(("corpus", early.words(over=True)))
    if (short := result.get("ended_short")) is not None:
        lines.append(("note", short))
    if (why := result.get("outside_rules")) is not None:
        lines.append(("outside the rules", why))
    for name, entry in result["tasks"].items():
        if entry["median"] is not None:
            lines.append((name, score_text(entry)))
    lines += [("note", said) for said in notes(result["tasks"])]
    lines.append(("model", result["export_dir"]))
    if result["report"]:
        lines.append(("report", result["report"]))
    return lines


def next_line(result: dict[str, Any]) -> Line:
    """What to type next, to try the model, whether or not transformers is there."""
    if find_spec("transformers") is None:
        gaps = f"crammed.load({result['run_dir']!r}).fill({result['example']!r})"
        return _next(f"import crammed; print({gaps})")
    folder = result["export_dir"]
    return _next(
        "from transformers import pipeline; print(pipeline('fill-mask', "
        f"{folder!r}{_trust(folder)})({result['example']!r}))"
    )


def next_vectors(folder: Path) -> Line:
    """What to type next, to try sentence embeddings."""
    model = f"crammed.load({str(folder)!r}{_trust(folder)})"
    return _next(f"import crammed; print({model}.encode(['A first text.', 'A second one.']))")


def _trust(folder: str | Path) -> str:
    """The argument that lets code run which comes with a model, where some does."""
    own = (read_json(Path(folder) / "config.json") or {}).get("auto_map")
    return ", trust_remote_code=True" if own else ""


def _next(code: str) -> Line:
    return "next", f"{shlex.quote(_python())} -c {_quoted(code)}"


def _quoted(code: str) -> str:
    """Python code as one word of a shell, in double quotes where these suffice."""
    return shlex.quote(code) if re.search(r"[\"$`\\!]", code) else f'"{code}"'


def _python() -> str:
    """What to type for this interpreter: ``python`` if the shell finds it by that name."""
    found = shutil.which("python")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "python"
    typed = os.path.relpath(sys.executable)
    return sys.executable if typed.startswith("..") else typed


def score_text(entry: dict[str, Any]) -> str:
    """A task's score beside those of the untrained model and of TF-IDF."""
    partial = ", partial data" if entry.get("official") is False else ""
    untrained = entry.get("untrained") or {}
    spread = f" (spread {untrained['spread']:.1f})" if "spread" in untrained else ""
    return (
        f"{entry['median']:.1f} {entry['metric']} (spread {entry['spread']:.1f}{partial}); "
        f"untrained model {untrained_text(entry)}{spread}"
        + (f"; TF-IDF {linear_text(entry)}" if entry.get("linear") is not None else "")
    )
