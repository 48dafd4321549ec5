"""Keep finished runs and studies as records, and generate the tables of all pages.

    python tools/records.py add RUN_DIR records/DATE-NAME --command "what was typed"
    python tools/records.py study STUDY_DIR records/DATE-NAME --command "what was typed"
    python tools/records.py tables [--check]

A record is a folder. For each run it holds ``RUN.json`` (command, commit, hardware, configuration,
corpus, results); for a study, ``study.json``. If its README.md cites points of a run's log, copy
the run's ``metrics.jsonl`` there as ``RUN.metrics.jsonl``. A page (README.md, a page of docs/, or
the README.md of a record) names the records it shows between ``<!-- records: DATE-NAME ... -->``
and ``<!-- end of records -->``. Other markers show other kinds of tables:

- ``study: DATE-NAME`` a study; ``experiment: DATE-study-NAME`` a built-in one, which also gets its
  figures, on the page of that record; ``experiments: NAME ...`` a line for the latest record of
  each of these; ``documents: DATE-NAME`` a study whose runs were scored on documents by themselves;
  ``judged: DATE-NAME SCORE ...`` a study by its scores, of which the first is tested; ``verdicts:
  DATE-NAME`` a study beside what a paper found; ``power: DATE-NAME`` simulated studies
  (`study_tables`);
- ``sizes: BUDGET ...`` what the default recipe becomes at some budgets;
- ``contest: DATE-NAME``, ``answer``, ``sweep``, ``hour`` and ``serving`` records on a CPU
  (`cpu_tables`);
- ``minutes: DATE-NAME`` what to expect of little text (`text_tables`);
- ``languages: DATE-NAME ...`` and ``gaps: DATE-NAME ...`` tokenizers in several languages
  (`language_tables`);
- ``scores: DATE-NAME`` scores of encoders on tasks, by arm, and ``agreement: DATE-NAME`` how far
  the tasks rank them alike (`score_tables`);
- ``adapted: DATE-NAME GROUP`` encoders of others, trained further, and ``decisions: DATE-NAME`` the
  ways to an encoder (`score_tables`);
- ``prepare: FILE`` and the other tables of `benchmark_tables` and `count_tables`: benchmark results
  and counts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import benchmark_tables
import count_tables
import cpu_tables
import language_tables
import layout
import score_tables
import study_tables
import text_tables
from crammed.errors import CrammedError, InputError
from crammed.files.writing import read_json, write_json, write_text
from crammed.machine.device import known_peak
from crammed.machine.speed import CORE, SHARE_OF_PEAK
from crammed.model.count import parameters
from crammed.quantity import quantity
from crammed.rules.recipe import load_config
from crammed.rules.sizing import tokens
from crammed.runs.directory import read_config
from crammed.runs.logs import read_lines
from crammed.runs.summary import read_summary
from crammed.study.result import Run, read_result, run_folder

BLOCK = re.compile(r"(<!-- (\w+): (.*?) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)
MARKER = re.compile(r"^<!-- (?:\w+:|end of) .* -->$", re.MULTILINE)
HEAD = (
    "| run | device | budget | text | model | training | held-out loss (unigram) "
    "| scores (untrained model) |"
)
CommandOption = Annotated[
    str, typer.Option(help="The command, with variables in place of folders.")
]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def add(
    run: Path,
    record: Path,
    command: CommandOption,
    corpus: Annotated[
        Path | None, typer.Option(help="Its corpus, if not in RUN; a manifest will do.")
    ] = None,
) -> None:
    """Keep the finished run RUN in the folder RECORD."""
    summary = read_summary(run)
    if summary is None:
        raise InputError(f"{run} holds no finished run")
    if summary.adapted is not None:
        raise InputError(f"{run} adapted {summary.adapted.model}: records are of runs from scratch")
    folder = corpus or run / "corpus"
    manifest = read_json(folder / "manifest.json")
    if manifest is None:
        raise InputError(f"{folder} holds no manifest.json: name the run's corpus with --corpus")
    config = read_config(run).model_dump(mode="json")
    # Data is identified by name and hash; its path on one machine means nothing elsewhere.
    config["data"]["sources"] = summary.corpus.sources
    events = read_lines(run / "events.jsonl")
    kept = {
        "command": command,
        "environment": read_json(run / "env.json"),
        "config": config,
        "sources": manifest["sources"],
        "summary": summary.values(),
        "events": [each for each in events if each["event"] in ("stage", "heldout")],
        "scores": _scores_of(run),
    }
    record.mkdir(parents=True, exist_ok=True)
    write_json(record / f"{run.name}.json", kept)


def _scores_of(run: Path) -> dict[str, Any] | None:
    """The scores of a run by its own protocol, and suites that only another protocol has."""
    found = [read_json(file) or {} for file in sorted(run.glob("evaluation*/scores.json"))]
    suites: dict[str, Any] = {}
    for scores in found:
        suites |= {name: suite for name, suite in scores["suites"].items() if name not in suites}
    return {**found[0], "suites": suites} if found else None


@app.command()
def study(folder: Path, record: Path, command: CommandOption) -> None:
    """Keep the finished study FOLDER in the folder RECORD.

    Scores from ``crammed evaluate --suite heldout`` are kept with their runs.
    """
    values = read_result(folder)
    if not values.arms:
        raise InputError(f"{folder} holds no study: name the folder of one, with its study.json")
    for arm, entry in values.arms.items():
        for seed, run in entry.runs.items():
            scores = _scores_of(run_folder(folder, arm, int(seed))) or {"suites": {}}
            found = scores["suites"].get("heldout", {})
            entry.runs[seed] = Run.model_validate({**found, **run.values()})
    record.mkdir(parents=True, exist_ok=True)
    write_json(record / "study.json", {"command": command, **values.values()})


@app.command()
def tables(
    check: Annotated[
        bool, typer.Option("--check", help="Only report what is out of date.")
    ] = False,
) -> None:
    """Generate the tables of README.md, docs/ and the records' own pages from the records."""
    stale = []
    pages = [
        layout.ROOT / "README.md",
        *sorted((layout.ROOT / "docs").glob("*.md")),
        *sorted(layout.RECORDS.glob("*/README.md")),
    ]
    for page in pages:
        old = page.read_text("utf-8")
        if alone := MARKER.search(BLOCK.sub("", old)):
            raise SystemExit(f"{page.relative_to(layout.ROOT)}: {alone[0]} has no other end")
        new = BLOCK.sub(lambda part: part[1] + MAKERS[part[2]](*part[3].split()) + part[4], old)
        if new != old:
            stale.append(str(page.relative_to(layout.ROOT)))
            if not check:
                write_text(page, new)
    for file, text in study_tables.figures():
        if not file.exists() or file.read_text("utf-8") != text:
            stale.append(f"{file.parent.name}/{file.name}")
            if not check:
                write_text(file, text)
    if check and stale:
        raise SystemExit(f"out of date: {', '.join(stale)}; run python tools/records.py tables")


def records_table(*records: str) -> str:
    """A table with one row for each run of these records."""
    rows = [
        _row(read_json(file) or {})
        for record in records
        for file in sorted((layout.RECORDS / record).glob("*.json"))
    ]
    return layout.table(HEAD, rows)


def _row(run: dict[str, Any]) -> str:
    s = run["summary"]
    cells = (
        s["recipe"],
        s["device"],
        s["budget"],
        f"{_named(s['corpus']['sources'])}, {quantity(s['corpus']['characters'])} characters",
        f"{quantity(s['parameters'])} parameters",
        f"{quantity(s['tokens'])} tokens, {s['epochs']:.2f} epochs",
        f"{s['heldout']['loss@0.15']:.3f} ({s['unigram_cross_entropy']:.3f})",
        "; ".join(_scores(run["scores"] or {"suites": {}})),
    )
    return layout.row_of(*cells)


def _named(sources: list[str]) -> str:
    """The first and the last of many files of text."""
    if len(sources) < 5:
        return ", ".join(sources)
    return f"{len(sources)} files, {sources[0]} to {sources[-1]}"


def _scores(scores: dict[str, Any]) -> Iterator[str]:
    """The scores of every suite. The oldest records hold one suite, next to its protocol."""
    suites = scores.get("suites", {"": scores})
    for suite, values in suites.items():
        for name, entry in values.get("tasks", {}).items():
            yield _score(name, entry)
        if suite == "blimp":
            yield f"BLiMP {values['blimp']:.1f}{'' if values['official'] else ', partial'}"


def _score(name: str, entry: dict[str, Any]) -> str:
    if "failed" in entry:
        return f"{name} failed"
    one = len(entry["seeds"]) == 1
    shown = [
        f"{part['median']:.1f}" + ("" if one else f" ± {part['spread'] / 2:.1f}")
        for part in (entry, entry.get("untrained", {}))
        if "seeds" in part
    ]
    words = f"{name} {shown[0]}" + (f" ({shown[1]})" if len(shown) == 2 else "")
    partial = ", partial" if entry["official"] is False else ""
    return words + (", one seed" if one else "") + partial


def sizes_table(*budgets: str) -> str:
    """What the rules make of the default recipe at these budgets, on two devices."""
    head = (
        "| device | budget | layers x width | parameters | vocabulary | tokens | rows per update "
        "| learning rate |"
    )
    lines = []
    for device, speed in (
        ("two CPU cores", 2 * CORE),
        ("one H200", SHARE_OF_PEAK * (known_peak("NVIDIA H200") or 0.0)),
    ):
        for budget in budgets:
            config = load_config("crammed", fixed={"budget": {"limit": budget}}, speed=speed)
            vocab = config.tokenizer.vocab_size
            cells = (
                device,
                budget,
                f"{config.model.layers} x {config.model.width}",
                quantity(parameters(config.model, vocab)),
                f"{vocab:,}",
                quantity(tokens(config, speed)),
                f"{config.batch.rows:,}",
                f"{config.optim.lr:.1e}",
            )
            lines.append(layout.row_of(*cells))
    return layout.table(head, lines)


ROOMS = (benchmark_tables, count_tables, cpu_tables, language_tables, score_tables, study_tables)
MAKERS: dict[str, Callable[..., str]] = {
    name.removesuffix("_table"): make
    for room in (*ROOMS, text_tables, sys.modules[__name__])
    for name, make in vars(room).items()
    if name.endswith("_table")
}
"""What makes the tables of each kind of marker, from the words of the marker."""


if __name__ == "__main__":
    try:
        app()
    except CrammedError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
