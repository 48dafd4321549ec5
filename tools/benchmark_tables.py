"""Benchmark tables: one function for each kind of result in ``benchmarks/results``.

Each function takes the names of result files and returns Markdown.
"""

from __future__ import annotations

from typing import Any

from crammed.quantity import counted, quantity
from layout import benchmarks, filled, row_of, table, tabled, unrepeated, welch, wrapped

TERABYTE = 1e12  # bytes
PREPARED = {
    "small, tokenizer trained": "one small file, training the tokenizer",
    "all, tokenizer trained": "all files, training the tokenizer",
    "all, tokenizer given": "all files, tokenizer given",
    "and near-duplicates": "the same, removing near-duplicates",
    "and Gopher's rules": "the same, with Gopher's rules",
    "and C4's rules": "the same, with C4's rules",
}
"""The names that pages give to the runs of the preparation benchmark."""


def prepare_table(name: str) -> str:
    """How fast text is prepared, and what the Pile would take at that rate."""
    (benchmark,) = benchmarks(name)
    runs = {run["what"]: run for run in benchmark["runs"]}
    lines = [
        f"| {PREPARED.get(what, what)} | {run['megabytes']:.0f} MB | {run['seconds']:.1f} s | "
        f"{run['megabytes_per_second']:.1f} MB/s | {run['peak_memory_megabytes']:.0f} MB |"
        for what, run in runs.items()
        if "seconds" in run
    ]
    made = benchmark["environment"]
    plain = runs["the tokenizers library, and words first on one core"]
    library = f"{plain['library_megabytes_per_second']:.1f} MB/s"
    ours = f"{plain['words_first_megabytes_per_second']:.1f} MB/s"
    words = [
        f"Measured on {made['cores']} cores (commit {made['commit']}). On a part of this text, the "
        f"`tokenizers` library encodes {library} with all cores; tokenizing each distinct word "
        f"once encodes {ours} with one core."
    ]
    if identity := runs.get("identity"):
        count, differing = identity["documents"], identity["differing"]
        words.append(f"The two give different ids for {differing:,} of {count:,} documents.")
    given = runs["all, tokenizer given"]
    hours = TERABYTE / 1e6 / given["megabytes_per_second"] / 3600
    tokens = TERABYTE / 1e6 / given["megabytes"] * given["tokens"]
    larger = wrapped(
        f"At the rate with a given tokenizer, a terabyte of such text would take {hours:.0f} hours "
        f"on {made['cores']} cores and become {tokens / 1e9:.0f} billion tokens, "
        f"{2 * tokens / 1e9:.0f} GB. With 32 cores that would be "
        f"{hours * made['cores'] / 32:.1f} hours, if the disk and the steps that the main process "
        "does by itself keep up; that has not been tried."
    )
    return table("| run | text | time | rate | peak memory |", lines, wrapped(*words), larger)


def memory_table(*names: str) -> str:
    """How much memory preparing takes, by the number of shards or of files."""
    results = benchmarks(*names)
    lines = []
    for run in (run for result in results for run in result["runs"]):
        sizes = (run["main_process_megabytes"], run["peak_memory_megabytes"])
        cells = (f"{size:.0f} MB" for size in sizes)
        lines.append(row_of(f"{run['count']:,} {run['what']}", *cells, f"{run['documents']:,}"))
    commits = " and ".join(sorted({result["environment"]["commit"] for result in results}))
    words = wrapped(
        "Largest resident set of the main process, and largest sum of all processes' proportional "
        "sets. Shards have 4,000 characters here instead of 16 million, and files 1 KB "
        f"(`benchmarks/prepare_memory.py`, commit {commits})."
    )
    return table("| | main process | all processes | documents |", lines, words)


def stages_table(*names: str) -> str:
    """What preparing text spends its CPU time on: given a tokenizer, and training one."""
    results = benchmarks(*names)
    head, lines = row_of("stage", *(f"tokenizer {each['tokenizer']}" for each in results)), []
    spent = [result["cpu_seconds"] for result in results]
    for stage in dict.fromkeys(stage for each in spent for stage in each):
        shares = (
            f"{100 * each[stage] / sum(each.values()):.1f} %" if stage in each else ""
            for each in spent
        )
        lines.append(row_of(stage, *shares))
    seconds = " and ".join(f"{sum(each.values()):.1f}" for each in spent)
    first = results[0]
    words = wrapped(
        f"Share of {seconds} seconds of CPU time on {first['megabytes']:.0f} MB of text (SHA-256 "
        f"{', '.join(part['sha256'][:12] for part in first['data'])}; "
        f"`benchmarks/prepare_profile.py`, commit {first['environment']['commit']})."
    )
    return table(head, lines, words)


def copies_table(name: str) -> str:
    """How many altered copies of held-out documents are trained on, for each source."""
    (benchmark,) = benchmarks(name)
    files = benchmark["files"]
    head, lines = row_of("copies", *(f"kept of {each['source']}" for each in files)), []
    for trials in zip(*(each["trials"] for each in files), strict=True):
        for kind in trials[0]["copies"]:
            counts = [trial["copies"][kind] for trial in trials]
            cells = (f"{c['kept']:,} of {c['planted']:,} ({c['kept_before']:,})" for c in counts)
            lines.append(row_of(kind, *cells))
        shares = (
            f"{trial['dropped_without']:,} of {trial['documents']:,} "
            f"({100 * trial['dropped_without'] / trial['documents']:.2f} %)"
            for trial in trials
        )
        lines.append(row_of(f"{trials[0]['of']} dropped without planted copies", *shares))
    sources = "; ".join(
        f"{each['source']}, {each['characters'] / 1e6:.0f} million characters, SHA-256 "
        f"{each['sha256'][:12]}"
        for each in files
    )
    words = wrapped(
        "In brackets: with `data.heldout_copies=keep`. For each kind, one copy of every held-out "
        "document (2 %) was planted among the others; those dropped without planted copies "
        f"include real ones. {sources} (`benchmarks/copies.py`, commit "
        f"{benchmark['environment']['commit']})."
    )
    return table(head, lines, words)


def finetune_table(*names: str) -> str:
    """Scores and times of fine-tuning beside a plain loop.

    Files after the first hold more seeds of some tasks.
    """
    benchmark, *more = benchmarks(*names)
    longer = {each["task"]: each for each in more}
    head = row_of(
        *("task", "training rows", "metric", "ours", "plain loop"),
        "difference of means, 95 % interval",
    )
    lines, intervals = [], []
    for task, score in benchmark["ours"]["scores"].items():
        runs = [run for run in benchmark["plain_runs"] if run["task"] == task]
        theirs = [run["scores"][score["metric"]] for run in runs]
        both = longer.get(task, {"ours": score["seeds"], "plain": theirs})
        sides = [both["ours"], both["plain"]]
        difference, low, high = welch(*sides)
        intervals.append((low, high))
        seeds = " | ".join(", ".join(f"{value:.1f}" for value in side) for side in sides)
        rows, between = f"{benchmark['rows'][task]:,}", f"{low:+.1f} to {high:+.1f}"
        lines.append(row_of(task, rows, score["metric"], seeds, f"{difference:+.1f} ({between})"))
    ours, theirs_seconds = benchmark["ours"]["seconds"], benchmark["plain_seconds"]
    lines.append(f"| total seconds | | | {ours:.0f} | {theirs_seconds:.0f} | |")
    made = benchmark["environment"]
    differ = any(low > 0 or high < 0 for low, high in intervals)
    words = [
        f"{benchmark['seeds']} seeds per task, on {benchmark['device']} (commit "
        f"{made['commit']}): **{benchmark['times_faster']:.1f} times as fast** as a plain loop "
        "that pads batches of random rows.",
        "The scores of some tasks differ by more than seeds explain."
        if differ
        else "No difference between scores is larger than seeds explain.",
        "Intervals are Welch's, over seeds.",
    ]
    words += [
        f"For {task}, the first {benchmark['seeds']} seeds on each side are the ones that were "
        f"timed; the others were run later, to see whether their difference was chance "
        f"(`benchmarks/results/{name}`)."
        for task, name in zip(longer, names[1:], strict=True)
    ]
    return table(head, lines, wrapped(*words))


def coverage_table(name: str) -> str:
    """How often intervals of comparisons contain the true difference, by spread and seeds."""
    (benchmark,) = benchmarks(name)
    cases: dict[float, dict[int, Any]] = {}
    for case in benchmark["cases"]:
        cases.setdefault(case["spread"], {})[case["seeds"]] = case
    seeds = list(next(iter(cases.values())))
    heads = [f"{counted(count, 'seed')} each" for count in seeds]
    lines = []
    for each in cases.values():
        deviation = sum(case["deviation"] for case in each.values()) / len(each)
        held = (f"{100 * each[count]['held']:.0f} %" for count in seeds)
        lines.append(row_of(f"{deviation:.1f}", *held))
    words = (
        f"{benchmark['simulations']:,} comparisons per cell on {benchmark['rows']:,} rows, two "
        f"models of equal quality (`benchmarks/coverage.py`, commit "
        f"{benchmark['environment']['commit']})."
    )
    head = row_of("standard deviation over seeds, points", *heads)
    return table(head, lines, wrapped(words))


def _shape(result: dict[str, Any], *, length: bool = True) -> str:
    """What was run: recipe, overrides that have no column, row length, size, number format."""
    others = ("data.row_length", "model.max_length", "tokenizer.vocab_size")
    words = [word for word in result["overrides"] if not word.startswith(others)]
    parts = [" ".join([result["recipe"], *words])]
    parts += [f"length {result['row_length']}"] if length else []
    return ", ".join([*parts, f"{quantity(result['parameters'])} parameters", result["dtype"]])


def step_table(*names: str) -> str:
    """Pretraining updates: every loop of every shape."""
    results, rows = benchmarks(*names), []
    for result in results:
        for name, loop in result["loops"].items():
            mfu = f"{100 * loop['mfu']:.1f} %" if "mfu" in loop else ""
            memory = f"{loop['peak_memory'] / 2**30:.1f} GiB" if "peak_memory" in loop else ""
            energy = loop.get("joules_per_million_tokens")
            joules = "" if energy is None else f"{energy:,.0f} J"
            speed = f"{loop['tokens_per_second']:,.0f}", f"{loop['times_ours']:.2f}"
            count = f"{loop.get('rows', result['rows']):,}"
            rows.append(row_of(_shape(result), name, count, *speed, mfu, memory, joules))
    head = (
        "| shape | loop | rows | tokens/s | time relative to ours | MFU | peak memory "
        "| energy per 1 M tokens |"
    )
    return tabled(*filled(head, unrepeated(rows)), results)


def busy_table(*names: str) -> str:
    """Tokens a second of each way to use the cores, quiet and beside a busy process."""
    results, rows = benchmarks(*names), []
    for result in results:
        for size, loads in result["sizes"].items():
            for load, ways in loads.items():
                tokens = result["rows"] * result["row_length"]
                speeds = [tokens / way["seconds"] for way in ways.values()]
                times = f"{speeds[1] / speeds[0]:.2f}"
                shape = size.replace("x", " x ")
                rows.append(row_of(shape, load, *(f"{speed:,.0f}" for speed in speeds), times))
    head = (
        "| layers x width | machine | threads, tokens/s | lanes, tokens/s | one thread, tokens/s "
        "| lanes relative to threads |"
    )
    return tabled(head, rows, results)


def lengths_table(*names: str) -> str:
    """What rows of several lengths cost, at equal numbers of tokens per update."""
    results, rows = benchmarks(*names), []
    for result in results:
        shortest = result["cases"][0]
        for case in result["cases"]:
            cells = (
                f"{case['row_length']:,}",
                case["attention"],
                f"{case['tokens_per_second']:,.0f}",
                f"{case['seconds'] / shortest['seconds']:.2f}",
                f"{case['flops_per_token'] / shortest['flops_per_token']:.2f}",
                f"{case['peak_memory'] / 2**30:.2f} GiB",
            )
            rows.append(row_of(_shape(result, length=False), *cells))
    head = (
        "| model | row length | attention | tokens/s | time per token, relative "
        "| FLOPs per token, relative | peak memory |"
    )
    return tabled(head, unrepeated(rows), results)


def profile_table(*names: str) -> str:
    """Where the time of one microbatch and its optimizer update goes, by group of kernels."""
    results, rows = benchmarks(*names), []
    for result in results:
        whole = result["kernel_seconds"]
        shares = [
            f"{name} {100 * taken / whole:.0f} %"
            for name, taken in result["groups"].items()
            if taken > 0.005 * whole
        ]
        tokens = result["rows"] * result["row_length"]
        times = f"{1000 * result['seconds']:.1f} ms"
        idle = f"{100 * result['idle_seconds'] / result['seconds']:.0f} %"
        rows.append(f"| {_shape(result)} | {tokens:,} | {times} | {idle} | {', '.join(shares)} |")
    return tabled("| shape | tokens | time | idle | share of kernel time |", rows, results)


def plan_table(*names: str) -> str:
    """What plans predicted, and what the runs did."""
    results, rows = benchmarks(*names), []
    for result in results:
        for entry in result["runs"]:
            low, high = (quantity(tokens) for tokens in entry["predicted_between"])
            predicted = f"{quantity(entry['predicted_tokens'])} ({low} to {high})"
            ratio = "" if entry["ratio"] is None else f"{entry['ratio']:.3f}"
            cells = (_shape(result), entry["budget"], predicted, quantity(entry["tokens"]), ratio)
            rows.append(row_of(*cells))
    return tabled(
        "| shape | budget | predicted tokens (range) | tokens read | read / predicted |",
        unrepeated(rows),
        results,
    )
