"""Keep a finished run as a record, and write the tables of README and docs from the records.

    python tools/records.py add RUN_DIR records/DATE-NAME --command "what was typed"
    python tools/records.py study STUDY_DIR records/DATE-NAME --command "what was typed"
    python tools/records.py tables [--check]

A record is a folder: ``RUN.json`` for every run (command, commit, hardware, configuration, corpus,
results) and ``RUN.metrics.jsonl`` (its log points). A page names the records it shows between
``<!-- records: DATE-NAME ... -->`` and ``<!-- end of records -->``; ``study: DATE-NAME`` shows a
study, ``sizes: BUDGET ...`` what the default recipe is for some budgets, ``prepare: FILE`` and the
other names of `MAKERS` a benchmark's results. Those of the speed of pretraining may name a file
that is not there yet, and say so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from crammed.data.corpus import Corpus
from crammed.device import known_peak
from crammed.errors import InputError
from crammed.files import read_json, write_json, write_text
from crammed.model.count import parameters
from crammed.recipe import load_config
from crammed.report.quantity import quantity
from crammed.rundir import read_config, read_lines, read_metrics
from crammed.sizing import CORE, SHARE_OF_PEAK, tokens
from crammed.study.statistics import RATES, compare_arms

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "records"
BENCHMARKS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- (\w+): (.*?) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)
NOT_YET = "Not measured yet.\n"
PILE_BYTES = 825.18 * 2**30
HEAD = (
    "| run | device | budget | text | size | read | held-out loss (unigram) | scores (untrained) |",
    "|---|---|---|---|---|---|---|---|",
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def add(
    run: Path,
    record: Path,
    command: Annotated[str, typer.Option(help="The command, with variables for folders.")],
    corpus: Annotated[Path | None, typer.Option(help="Its corpus, where not in the run.")] = None,
) -> None:
    """Keep the finished run RUN in the folder RECORD."""
    summary = read_json(run / "summary.json")
    if summary is None:
        raise InputError(f"{run} holds no finished run")
    config = read_config(run).model_dump(mode="json")
    # Data is known by name and hash; where it lay on one machine is nobody else's business.
    config["data"]["sources"] = summary["corpus"]["sources"]
    stages = [e for e in read_lines(run / "events.jsonl") if e["event"] in ("stage", "heldout")]
    kept = {
        "command": command,
        "environment": read_json(run / "env.json"),
        "config": config,
        "sources": Corpus(corpus or run / "corpus").manifest["sources"],
        "summary": summary,
        "events": stages,
        "scores": _scores_of(run),
    }
    record.mkdir(parents=True, exist_ok=True)
    write_json(record / f"{run.name}.json", kept)
    lines = [json.dumps(point) + "\n" for point in read_metrics(run)]
    write_text(record / f"{run.name}.metrics.jsonl", "".join(lines))


def _scores_of(run: Path) -> dict[str, Any] | None:
    """The scores of all protocols that a run was evaluated by, or None."""
    found = [read_json(file) or {} for file in sorted(run.glob("evaluation*/scores.json"))]
    suites = {name: suite for scores in found for name, suite in scores["suites"].items()}
    return {**found[0], "suites": suites} if found else None


@app.command()
def study(
    folder: Path,
    record: Path,
    command: Annotated[str, typer.Option(help="The command, with variables for folders.")],
) -> None:
    """Keep the finished study FOLDER in the folder RECORD."""
    values = read_json(folder / "study.json")
    if values is None:
        raise InputError(f"{folder} holds no study")
    record.mkdir(parents=True, exist_ok=True)
    write_json(record / "study.json", {"command": command, **values})


@app.command()
def tables(
    check: Annotated[bool, typer.Option("--check", help="Only say what is out of date.")] = False,
) -> None:
    """Write the tables of README.md and docs/ from the records."""
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        old = page.read_text("utf-8")
        new = BLOCK.sub(lambda block: block[1] + MAKERS[block[2]](block[3].split()) + block[4], old)
        if new != old:
            stale.append(page.name)
            if not check:
                write_text(page, new)
    if check and stale:
        raise SystemExit(f"out of date: {', '.join(stale)}; run python tools/records.py tables")


def table(records: list[str]) -> str:
    """A table with a row for every run of these records."""
    rows = [
        _row(read_json(file) or {})
        for record in records
        for file in sorted((RECORDS / record).glob("*.json"))
    ]
    return "\n".join([*HEAD, *rows]) + "\n"


def _row(run: dict[str, Any]) -> str:
    s = run["summary"]
    cells = (
        s["recipe"],
        s["device"],
        s["budget"],
        f"{', '.join(s['corpus']['sources'])}, {quantity(s['corpus']['characters'])} characters",
        f"{quantity(s['parameters'])} parameters",
        f"{quantity(s['tokens'])} tokens, {s['epochs']:.2f} epochs",
        f"{s['heldout']['loss@0.15']:.3f} ({s['unigram_cross_entropy']:.3f})",
        "; ".join(_scores(run["scores"] or {"suites": {}})),
    )
    return f"| {' | '.join(cells)} |"


def _scores(scores: dict[str, Any]) -> Iterator[str]:
    """The numbers of every suite. The oldest records have one suite, and its protocol beside it."""
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


def _benchmark(name: str) -> dict[str, Any]:
    benchmark = read_json(BENCHMARKS / name)
    if benchmark is None:
        raise SystemExit(f"a page names {name}, which is not in {BENCHMARKS}")
    return benchmark


def prepare_table(names: list[str]) -> str:
    """The benchmark of preparing, and what the Pile would take at its rates."""
    (name,) = names
    benchmark = _benchmark(name)
    runs = {run["what"]: run for run in benchmark["runs"]}
    lines = ["| what | text | time | rate | memory |", "|---|---|---|---|---|"]
    for what, run in runs.items():
        if "seconds" in run:
            lines.append(
                f"| {what} | {run['megabytes']:.0f} MB | {run['seconds']:.1f} s | "
                f"{run['megabytes_per_second']:.1f} MB/s | {run['peak_memory_megabytes']:.0f} MB |"
            )
    made = benchmark["environment"]
    plain = runs["the tokenizers library, and words first on one core"]
    library = f"{plain['library_megabytes_per_second']:.1f} MB/s"
    ours = f"{plain['words_first_megabytes_per_second']:.1f} MB/s"
    lines += [
        "",
        f"Measured on {made['cores']} cores (commit {made['commit']}). The `tokenizers` library "
        f"encodes the same text at {library} with all cores; words first does at {ours} with one.",
    ]
    if found := runs.get("identity"):
        count, differing = found["documents"], found["differing"]
        lines.append(f"Of {count:,} documents {differing:,} get other ids than from it.")
    given = runs["all, tokenizer given"]
    hours = PILE_BYTES / 1e6 / given["megabytes_per_second"] / 3600
    tokens = PILE_BYTES / 1e6 / given["megabytes"] * given["tokens"]
    lines += [
        "",
        f"At this rate the Pile (825 GiB) takes {hours:.0f} hours on {made['cores']} cores. Shards "
        f"are independent: 32 cores would take {hours * made['cores'] / 32:.1f} hours, if one "
        "process reads fast enough for them, which was not tried. It would end as "
        f"{tokens / 1e9:.0f} billion tokens, {2 * tokens / 1e9:.0f} GB.",
    ]
    return "\n".join(lines) + "\n"


def finetune_table(names: list[str]) -> str:
    """The benchmark of fine-tuning: scores and times beside a plain loop's."""
    (name,) = names
    benchmark = _benchmark(name)
    lines = ["| task | training rows | metric | ours | plain loop |", "|---|---|---|---|---|"]
    plain = benchmark["plain_runs"]
    for task, score in benchmark["ours"]["scores"].items():
        theirs = [r["scores"][score["metric"]] for r in plain if r["task"] == task]
        seeds = [", ".join(f"{value:.1f}" for value in row) for row in (score["seeds"], theirs)]
        rows = f"{benchmark['rows'][task]:,}"
        lines.append(f"| {task} | {rows} | {score['metric']} | {seeds[0]} | {seeds[1]} |")
    ours, theirs_seconds = benchmark["ours"]["seconds"], benchmark["plain_seconds"]
    lines.append(f"| seconds in all | | | {ours:.0f} | {theirs_seconds:.0f} |")
    made = benchmark["environment"]
    lines += [
        "",
        f"{benchmark['seeds']} seeds each, on {benchmark['device']} (commit {made['commit']}): "
        f"**{benchmark['times_faster']:.1f} times faster** than a plain loop that pads batches of "
        "random rows, with the same scores but for the seeds.",
    ]
    return "\n".join(lines) + "\n"


def study_table(names: list[str]) -> str:
    """A study's arms, the best first, beside its baseline."""
    (name,) = names
    values = read_json(RECORDS / name / "study.json")
    if values is None:
        raise SystemExit(f"a page names {name}, which has no study.json in {RECORDS}")
    base = values["baseline"]
    lines = [
        f"| arm | seeds | held-out loss, 15 % masks | 25 % masks | less {base} (95 %) | tokens |",
        "|---|---|---|---|---|---|",
    ]
    for row in compare_arms(values):
        if RATES[0] not in row:
            lines.append(f"| {row['arm']} | 0 | {row['failed']} | | | |")
            continue
        few, many = (_mean(row[rate]) for rate in RATES)
        difference = _difference(row[RATES[0]])
        tokens = quantity(row["tokens"])
        cells = (row["arm"], str(row["seeds"]), few, many, difference, tokens)
        lines.append(f"| {' | '.join(cells)} |")
    made = values["environment"]
    lines += ["", f"Budget {values['budget']}, {made['cores']} cores, commit {made['commit']}."]
    return "\n".join(lines) + "\n"


def _mean(loss: dict[str, Any]) -> str:
    deviation = loss["deviation"]
    return f"{loss['mean']:.3f}" + (f" ± {deviation:.3f}" if deviation is not None else "")


def _difference(loss: dict[str, Any]) -> str:
    if loss["difference"] is None:
        return ""
    between = loss["interval"]
    words = f" ({between[0]:+.3f} to {between[1]:+.3f})" if between is not None else ""
    return f"{loss['difference']:+.3f}{words}"


def sizes_table(budgets: list[str]) -> str:
    """What the default recipe is for these budgets on two devices, by its rules."""
    lines = [
        "| device | budget | layers x width | parameters | vocabulary | tokens | rows of an update "
        "| learning rate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for device, speed in (
        ("two CPU cores", 2 * CORE),
        ("one H200", SHARE_OF_PEAK * (known_peak("NVIDIA H200") or 0.0)),
    ):
        for budget in budgets:
            fixed = {"budget": {"limit": budget}}
            config = load_config("crammed", fixed=fixed, speed=speed)
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
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _there(names: list[str]) -> list[dict[str, Any]]:
    """The results among these files that were made already."""
    return [found for name in names if (found := read_json(BENCHMARKS / name)) is not None]


def _shape(result: dict[str, Any]) -> str:
    """What was run: recipe, what it changes in it, length of the rows, size."""
    changed = [
        word
        for word in result["overrides"]
        if not word.startswith(("data.row_length", "model.max_length", "tokenizer.vocab_size"))
    ]
    words = " ".join([result["recipe"], *changed])
    size = quantity(result["parameters"])
    return f"{words}, length {result['row_length']}, {size} parameters, {result['dtype']}"


def _source(results: list[dict[str, Any]]) -> str:
    """Where and with what commits these were made."""
    devices = sorted({result["device"] for result in results})
    commits = sorted({str(result["environment"]["commit"]) for result in results})
    torch = sorted({result["environment"]["packages"]["torch"] for result in results})
    return f"{', '.join(devices)}; PyTorch {', '.join(torch)}; commit {', '.join(commits)}."


def _tabled(head: str, rows: list[str], results: list[dict[str, Any]]) -> str:
    rule = "|".join(["", *["---"] * (head.count("|") - 1), ""])
    return "\n".join([head, rule, *rows, "", _source(results)]) + "\n"


def step_table(names: list[str]) -> str:
    """Updates of pretraining: every loop of every shape."""
    if not (results := _there(names)):
        return NOT_YET
    rows = []
    for result in results:
        for name, loop in result["loops"].items():
            mfu = f"{100 * loop['mfu']:.1f} %" if "mfu" in loop else ""
            memory = f"{loop['peak_memory'] / 2**30:.1f} GiB" if "peak_memory" in loop else ""
            energy = loop.get("joules_per_million_tokens")
            cells = (
                _shape(result),
                name,
                f"{result['rows']:,}",
                f"{loop['tokens_per_second']:,.0f}",
                f"{loop['times_ours']:.2f}",
                mfu,
                memory,
                "" if energy is None else f"{energy:,.0f} J",
            )
            rows.append(f"| {' | '.join(cells)} |")
    head = "| shape | loop | rows | tokens/s | time, of ours | MFU | memory | energy, 1 M tokens |"
    return _tabled(head, rows, results)


def floor_table(names: list[str]) -> str:
    """What the products and the traffic of a step take at the least."""
    if not (results := _there(names)):
        return NOT_YET
    rows = []
    for result in results:
        words = " ".join([result["recipe"], *result["overrides"]])
        copied = f"{result['copy_gigabytes_per_second']:,.0f} GB/s"
        for name, total in result["sums"].items():
            rows.append(
                f"| {words}, length {result['row_length']} | {name} | {result['tokens']:,} | "
                f"{total['products_ms']:.1f} ms | {total['traffic_ms']:.1f} ms at {copied} | "
                f"{total['tokens_per_second_products']:,.0f} | {total['tokens_per_second']:,.0f} |"
            )
    head = "| shape | products | tokens | products, attention | traffic | tokens/s | with traffic |"
    return _tabled(head, rows, results)


def profile_table(names: list[str]) -> str:
    """Shares of one microbatch and the update after it, by group of kernels."""
    if not (results := _there(names)):
        return NOT_YET
    rows = []
    for result in results:
        whole = result["kernel_seconds"]
        shares = [f"{name} {100 * s / whole:.0f} %" for name, s in result["groups"].items()]
        tokens = result["rows"] * result["row_length"]
        times = f"{1000 * result['seconds']:.1f} ms"
        idle = f"{100 * result['idle_seconds'] / result['seconds']:.0f} %"
        rows.append(f"| {_shape(result)} | {tokens:,} | {times} | {idle} | {', '.join(shares)} |")
    return _tabled("| shape | tokens | time | idle | of the kernels' time |", rows, results)


def optimizer_table(names: list[str]) -> str:
    """Ways to compute one update."""
    if not (results := _there(names)):
        return NOT_YET
    rows = [
        f"| {_shape(result)} | {name} | {1000 * way['seconds']:.2f} ms | "
        f"{100 * way['share_of_update']:.2f} % of {result['batch_rows']:,} rows |"
        for result in results
        for name, way in result["ways"].items()
    ]
    return _tabled("| shape | way | time | share of an update |", rows, results)


def loader_table(names: list[str]) -> str:
    """Reading and masking beside training."""
    if not (results := _there(names)):
        return NOT_YET
    rows = []
    for result in results:
        rates = [(f"read {count} rows", entry) for count, entry in result["read"].items()]
        for what, entry in (*rates, ("mask", result["mask"]), ("train", result["training"])):
            rate = f"{quantity(entry['rows_per_second'])} | {quantity(entry['tokens_per_second'])}"
            rows.append(f"| {_shape(result)} | {what} | {rate} |")
    return _tabled("| shape | what | rows/s | tokens/s |", rows, results)


def end_to_end_table(names: list[str]) -> str:
    """Seconds by account, from raw text to an exported model."""
    if not (results := _there(names)):
        return NOT_YET
    rows = []
    for result in results:
        spent = {name: s for name, s in result["seconds"].items() if s >= 0.05}
        accounts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent.items())
        text = f"{quantity(result['characters'])} characters"
        cells = (_shape(result), text, result["budget"], f"{quantity(result['tokens'])}")
        wall = f"{result['wall_seconds']:.0f}"
        rows.append(f"| {' | '.join(cells)} | {wall} | {accounts} |")
    head = "| shape | text | budget | tokens | seconds in all | of which |"
    return _tabled(head, rows, results)


def plan_table(names: list[str]) -> str:
    """What plans said, and what runs did."""
    if not (results := _there(names)):
        return NOT_YET
    rows = []
    for result in results:
        for entry in result["runs"]:
            low, high = (quantity(tokens) for tokens in entry["predicted_between"])
            predicted = f"{quantity(entry['predicted_tokens'])} ({low} to {high})"
            ratio = "" if entry["ratio"] is None else f"{entry['ratio']:.3f}"
            cells = (_shape(result), entry["budget"], predicted, quantity(entry["tokens"]), ratio)
            rows.append(f"| {' | '.join(cells)} |")
    return _tabled("| shape | budget | predicted tokens | read | ratio |", rows, results)


MAKERS = {
    "records": table,
    "prepare": prepare_table,
    "finetune": finetune_table,
    "study": study_table,
    "sizes": sizes_table,
    "step": step_table,
    "floor": floor_table,
    "profile": profile_table,
    "optimizer": optimizer_table,
    "loader": loader_table,
    "end_to_end": end_to_end_table,
    "plan": plan_table,
}


if __name__ == "__main__":
    app()
