"""Formats scores as tables for a terminal; reports share the wording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from crammed.evaluation.scores.notes import notes as said_of
from crammed.evaluation.scores.published import published, published_beside
from crammed.quantity import counted
from crammed.tasks.rows import Rows
from crammed.tasks.task import PAIRS, Task
from crammed.terminal.quiet import one_line
from crammed.terminal.table import Printed, add_column, new_table

Json = Mapping[str, Any]

ROWS_ONLY = (
    "rows only: with one seed, the interval covers variation between rows but not between "
    "fine-tuning seeds; use --seeds 3 or more"
)

NO_SEEDS = "rows only: the interval covers variation between rows; this method has no seeds"


def interval_text(interval: Sequence[float] | None, sign: str = "") -> str:
    """``[81.04, 84.96]`` -> ``81.0 to 85.0``."""
    if interval is None:
        return "undefined"
    low, high = interval
    return f"{low:{sign}.1f} to {high:{sign}.1f}"


def score_interval_text(entry: Json, sign: str = "") -> str:
    """The interval of a score, mean or difference, marked if it covers rows alone."""
    if entry.get("same"):
        return "same predictions"
    if "untested" in entry:
        return str(entry["untested"])
    rows_only = entry["interval"] is not None and is_over_rows(entry)
    return interval_text(entry["interval"], sign) + (", rows only" if rows_only else "")


def is_over_rows(entry: Json) -> bool:
    """Whether an interval covers one seed only; older evaluations lack ``interval_over``."""
    return "interval_over" in entry or len(entry.get("seeds", ())) == 1


def spread_text(score: Json) -> str:
    """Range of the seeds' scores, and how many seeds there are; one seed has no spread."""
    if score.get("kind") == PAIRS:
        return "no seeds"
    count = len(score["seeds"])
    return f"{score['spread']:.1f} ({count} seeds)" if count > 1 else "one seed"


def rows_text(score: Json) -> str:
    """Rows trained on + rows scored on: ``22,566 of 392,702 + 9,815: partial``."""
    official = score.get("official_rows", {})
    parts = []
    for split, count in score["rows"].items():
        of = official.get(split, count)
        parts.append(f"{count:,}{f' of {of:,}' if of != count else ''}")
    if folds := score.get("folds"):
        parts[-1] += f" in {folds} folds"
    return " + ".join(parts) + (": partial" if score["official"] is False else "")


def untrained_text(score: Json) -> str:
    """The untrained model's median, or why there is none."""
    untrained = score.get("untrained")
    if untrained is None:
        return "none"
    return "undefined" if "failed" in untrained else f"{untrained['median']:.1f}"


def linear_text(score: Json) -> str:
    linear = score.get("linear")
    return "none" if linear is None else f"{linear:.1f}"


def also_text(score: Json) -> str:
    """Metrics reported next to the score: ``accuracy 84.1``."""
    return ", ".join(
        f"{metric} {'undefined' if value is None else f'{value:.1f}'}"
        for metric, value in score["also"].items()
    )


def longest_sequence(protocol: Json, model: Json) -> int | None:
    """Maximum tokens per sequence: the protocol's limit, or the model's if that is lower."""
    limits = [each["max_length"] for each in (protocol, model) if "max_length" in each]
    return min(limits, default=None)


def cut_text(score: Json, length: int | None) -> str:
    """``cut to 128 tokens: 12 sequences of train``; empty if every sequence was short enough."""
    cut = [(split, count) for split, count in score["cut"].items() if count]
    if not cut:
        return ""
    (split, count), *others = cut
    words = [f"{counted(count, 'sequence')} of {split}"]
    words += [f"{count:,} of {split}" for split, count in others]
    to = "" if length is None else f" to {counted(length, 'token')}"
    return f"cut{to}: {', '.join(words)}"


def skipped_text(score: Json) -> str:
    """``skipped, without text: 12 rows of train``; empty if every row has text."""
    skipped = [f"{counted(n, 'row')} of {split}" for split, n in score.get("skipped", {}).items()]
    return f"skipped, without text: {', '.join(skipped)}" if skipped else ""


def left_out(task: Task, scored: Mapping[str, Rows], train: Rows | None = None) -> Iterator[str]:
    """What a task lacks, in words: rows without text, rows of empty texts, and splits."""
    splits = {} if train is None else {task.train: train}
    splits |= {task.numbers[name].key: rows for name, rows in scored.items()}
    skipped = {split: rows.skipped for split, rows in splits.items() if rows.skipped}
    if skipped:
        yield skipped_text({"skipped": skipped})
    empty = {split: count for split, rows in splits.items() if (count := rows.empty())}
    if empty:
        found = " and ".join(f"{counted(n, 'row')} of {split}" for split, n in empty.items())
        yield f"empty texts in {found}, which are used like any other"
    if missing := [each.key for name, each in task.numbers.items() if name not in scored]:
        yield f"not scored on {' and '.join(missing)}, which the data lacks"


def mean_text(mean: Json) -> str:
    faults = ["partial data"] if mean["partial"] else []
    if mean.get("failed"):
        faults.append(f"{', '.join(mean['failed'])} FAILED")
    return f"{mean['name']} ({'; '.join(faults)})" if faults else str(mean["name"])


def p_text(p: float | None) -> str:
    """A p-value; a thousand resamples cannot tell one below 0.001 from 0."""
    if p is None:
        return "none"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def heldout_text(scores: Json) -> str:
    """Held-out loss in nats and bits, and the rows it was measured on, one line each."""
    lines = [
        f"{scores['loss@0.15']:.3f} nats per masked token with 15 % masked, "
        f"{scores['loss@0.25']:.3f} with 25 %",
        f"{scores['bits_per_character@0.15']:.3f} bits per character with 15 % masked, "
        f"{scores['bits_per_character@0.25']:.3f} with 25 %",
        f"measured on {counted(scores['rows'], 'row')} of {scores['length']:,} tokens; "
        f"{scores['tokens_per_character']:.3f} tokens per character",
    ]
    if (alone := scores.get("document_loss@0.15")) is not None:  # missing in older scores
        many = scores["document_loss@0.25"]
        lines.append(f"{alone:.3f} nats on documents by themselves, {many:.3f} with 25 %")
    if parts := scores.get("by_position@0.15"):
        shown = ("none" if part is None else f"{part:.3f}" for part in parts)
        lines.append(f"in each eighth of a row: {', '.join(shown)}")
    lines += source_lines(scores.get("by_source", {}))
    return "\n".join(lines)


def source_lines(by_source: Json) -> list[str]:
    """The held-out loss of each source with its tokens, one line each."""
    return [f"{one_line(name)}: {source_text(own)}" for name, own in by_source.items()]


def source_text(own: Json) -> str:
    """Text such as ``2.310 nats (1.204 bits per character) on 12,345 tokens``."""
    if own["loss@0.15"] is None:
        return f"no loss, since none of its {counted(own['tokens'], 'token')} is masked"
    return (
        f"{own['loss@0.15']:.3f} nats ({own['bits_per_character@0.15']:.3f} bits per character) "
        f"on {counted(own['tokens'], 'token')}"
    )


def score_tables(suite: str, scores: Json, protocol: Json, length: int | None) -> list[Printed]:
    """A suite's scores and means, notes that do not fit a row, and comparable published models.

    Args:
        length: as from `longest_sequence`.
    """
    table = new_table(f"{suite}, in percent")
    add_column(table, "task", widest=34)
    add_column(table, "metric", widest=34)
    shown = [score for score in scores["tasks"].values() if "failed" not in score]
    beside = ["TF-IDF"] if any("linear" in score for score in shown) else []
    for name in ("score", "95 % interval", "spread", "untrained", *beside):
        add_column(table, name, numeric=True)
    table.add_column("rows, train + scored", no_wrap=True)
    notes: list[Text] = []
    for name, score in scores["tasks"].items():
        if "failed" in score:
            table.add_row(name, Text(score["metric"]), Text("FAILED", style="bold red"))
            notes.append(Text(f"{name} FAILED: {score['failed']}", style="red"))
            continue
        table.add_row(
            name,
            Text(score["metric"]),
            f"{score['median']:.1f}",
            score_interval_text(score),
            spread_text(score),
            untrained_text(score),
            *(linear_text(score) for _ in beside),
            rows_text(score),
        )
        if words := "; ".join(filter(None, (also_text(score), cut_text(score, length)))):
            notes.append(Text(f"{name}: {words}"))
    _add_means(table, scores["means"], beside)
    notes += [Text(said) for said in said_of(scores["tasks"])]
    if over_rows := [score for score in shown if is_over_rows(score)]:
        untuned = protocol.get("probe") or all(s.get("kind") == PAIRS for s in over_rows)
        notes.append(Text(NO_SEEDS if untuned else ROWS_ONLY))
    parts: list[Printed] = [table]
    if notes:
        parts.append(Text("\n").join(notes))
    if (known := _published_table(suite, scores, protocol)) is not None:
        parts.append(known)
    return parts


def _add_means(table: Table, means: Sequence[Json], beside: Sequence[str]) -> None:
    if means:
        table.add_section()
    for mean in means:
        floor = f"{mean['untrained']:.1f}" if "untrained" in mean else "none"
        value = f"{mean['value']:.1f}"
        linear = [linear_text(mean)] * len(beside)
        table.add_row(mean_text(mean), "mean", value, score_interval_text(mean), "", floor, *linear)


def _published_table(suite: str, scores: Json, protocol: Json) -> Table | None:
    beside = published_beside(suite, scores, protocol)
    if beside is None:
        return None
    table = new_table("Published, by the paper's protocol")
    add_column(table, "model")
    for name in beside["columns"]:
        add_column(table, name, numeric=True)
    for row in beside["rows"]:
        table.add_row(row["name"], *(f"{value:.1f}" for value in row["values"]))
    return table


def comparison_tables(
    a: str, b: str, entries: Sequence[Json], *, probed: bool = False
) -> list[Printed]:
    """The entries of `compare.compare` as a table, then notes on what could not be compared.

    Args:
        probed: whether there are no seeds, since nothing was fine-tuned.
    """
    table = new_table(f"A: {one_line(a)}\nB: {one_line(b)}")
    add_column(table, "task", widest=34)
    add_column(table, "metric", widest=34)
    for name in ("A", "B", "A - B", "95 % interval", "p (one-sided)"):
        add_column(table, name, numeric=True)
    notes: list[Text] = []
    for entry in entries:
        if "why" in entry:
            notes.append(Text(f"{entry['name']} not compared: {entry['why']}"))
            continue
        table.add_row(
            entry["name"],
            Text(entry.get("metric", "mean")),
            f"{entry['a']:.1f}",
            f"{entry['b']:.1f}",
            f"{entry['difference']:+.1f}",
            score_interval_text(entry, "+"),
            p_text(entry["p"]),
        )
    if any(map(is_over_rows, entries)):
        notes.append(Text(NO_SEEDS if probed else ROWS_ONLY))
    parts: list[Printed] = [table] if table.rows else []
    return [*parts, Text("\n").join(notes)] if notes else parts


def blimp_table(scores: Json) -> Table:
    """BLiMP over all paradigms, published models if all of it was scored, and each phenomenon."""
    partial = "" if scores["official"] else ": partial"
    of = f"{counted(scores['paradigms'], 'paradigm')}, {counted(scores['pairs'], 'pair')}"
    table = new_table(f"BLiMP, {of}{partial}")
    add_column(table, "")
    add_column(table, "percent", numeric=True)
    add_column(table, "95 % interval", numeric=True)
    score, middle = f"{scores['blimp']:.1f}", interval_text(scores["interval"])
    table.add_row("this model", score, middle, style="bold")
    for name, value in published()["blimp"].items() if scores["official"] else ():
        table.add_row(name, f"{value:.1f}", style="dim")
    table.add_section()
    for name, value in sorted(scores["phenomena"].items(), key=lambda item: -item[1]):
        table.add_row(name.replace("_", " "), f"{value:.1f}")
    return table
