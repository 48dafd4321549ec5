"""Tables of benchmarks: one function for each kind of result in ``benchmarks/results``.

Each takes the names of result files, and gives Markdown. A page that names a result which is not
there is an error for what was measured long ago; results of the speed of pretraining may be missing
still, and their table says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crammed.files import read_json
from crammed.quantity import quantity

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
NOT_YET = "Not measured yet.\n"
PILE_BYTES = 825.18 * 2**30


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
