"""Tables of the records on a CPU, from the files that ``benchmarks/cpu_records.py`` writes.

Each function takes the name of a record, a folder of ``records/``, and returns Markdown.
"""

from __future__ import annotations

import statistics
from typing import Any

import layout
from crammed.quantity import quantity
from crammed.study.findings.statistics import compare_arms
from crammed.study.findings.table import interval_text, mean_text
from crammed.study.result import RATES, StudyResult
from layout import difference_cell, found, row_of, table, tabled, welch

PARTS = ("ours, a tenth of the time", "ours, a fifth of the time")
"""Ours in less time than the peers."""
USUAL = {
    "architecture": "modernbert",
    "loop": "trainer",
    "optimizer": "adamw",
    "start": "random",
    "schedule": "linear",
    "masks": 0.25,
    "beta2": 0.98,
}
"""Settings of the peer that a sweep shows where they vary, and what they are if it names none."""
JUDGES = ("heldout", "blimp", "glue", "tasks")

COUNTS = "counts of n-grams"
"""What `benchmarks/ngram.py` measures, whose results are in ngram*.json."""

Run = dict[str, Any]


def contest_table(name: str) -> str:
    """The contestants by loss, and how ours does in a part of the time."""
    runs = _runs(name, "ten-minutes")
    best = {rate: _best(runs, rate) for rate in RATES}
    against = {rate: _compared(runs, best[rate]) for rate in RATES}
    rows = []
    for row in against[RATES[0]].values():
        of = [run for run in runs if run["name"] == row["arm"]]
        losses = [mean_text(against[rate][row["arm"]][rate]) for rate in RATES]
        cells = (row["arm"], _minutes(of[0]), *_size(of), str(len(of)), *losses)
        rows.append(row_of(*cells))
    for counts in _counts(name):
        losses = [f"{counts[rate]:.3f}" for rate in RATES]
        rows.append(row_of(COUNTS, "", "", "", quantity(counts["tokens"]), "", *losses))
    head = (
        "| contestant | minutes | layers x width | parameters | tokens | seeds "
        "| held-out loss at 15 % masking | at 25 % masking |"
    )
    words = [_against(runs, rate, best[rate]) for rate in RATES]
    return tabled(head, rows, runs, *words, _cost(runs))


def answer_table(name: str) -> str:
    """The contest in a few lines: ours, in parts of the time too, the best peer, and the floor."""
    runs, rate = _runs(name, "ten-minutes"), RATES[0]
    best = _best(runs, rate)
    rows = []
    for each in ("ours", *reversed(PARTS), best):
        if loss := _alone(runs, each, rate, best):
            minutes = _minutes(next(run for run in runs if run["name"] == each))
            rows.append(row_of(each, minutes, mean_text(loss), difference_cell(loss)))
    for counts in _counts(name)[-1:]:
        counted = f"{COUNTS} in {quantity(counts['tokens'])} tokens"
        rows.append(row_of(counted, "", f"{counts[rate]:.3f}", ""))
    head = "| contestant | minutes | held-out loss | difference from the best peer, 95 % interval |"
    words = [_part(each, loss) for each in PARTS if (loss := _alone(runs, each, rate, best))]
    return table(head, rows, *(f"{each[0].upper()}{each[1:]}." for each in words))


def sweep_table(name: str) -> str:
    """The peer's learning rates and batches, best first."""
    runs = sorted(_runs(name, "sweep"), key=_both)
    points = [{**USUAL, **run["settings"]} for run in runs]
    varied = [key for key in USUAL if len({point[key] for point in points}) > 1]
    rows = []
    for run, point in zip(runs, points, strict=True):
        cells = (
            f"{point['layers']} x {point['width']}",
            f"{point['rate']:.1e}",
            str(point["batch"]),
            *(str(point[key]) for key in varied),
            f"{run['train']['updates']:,}",
            quantity(run["train"]["tokens"]),
            *(f"{run['heldout'][rate]:.3f}" for rate in RATES),
        )
        rows.append(row_of(*cells))
    head = (
        f"| layers x width | learning rate | rows per update |{''.join(f' {v} |' for v in varied)}"
        " updates | tokens | held-out loss at 15 % masking | at 25 % masking |"
    )
    masks = "" if "masks" in varied else f", {100 * points[0]['masks']:.0f} % masks"
    return tabled(head, rows, runs, f"{_minutes(runs[0])} minutes each{masks}.", _cost(runs))


def hour_table(name: str) -> str:
    """Held-out loss, BLiMP and fine-tuning scores after an hour of training."""
    runs = _runs(name, "hour")
    tasks = list(next(filter(None, map(_tasks, runs)), {}))
    whole = max(run["seconds"] for run in runs)
    trials = sorted((run for run in runs if run["seconds"] < whole), key=_both)
    rows = []
    for who in dict.fromkeys(run["name"] for run in sorted(runs, key=_both) if run not in trials):
        of = [run for run in runs if run["name"] == who and run not in trials]
        losses = [_average([run["heldout"][rate] for run in of], ".3f") for rate in RATES]
        blimp = _average([r["blimp"]["suites"]["blimp"]["blimp"] for r in of if "blimp" in r])
        scored = [judged for run in of if (judged := _tasks(run))]
        scores = [_average([judged[task]["median"] for judged in scored]) for task in tasks]
        cells = (who, _minutes(of[0]), *_size(of), str(len(of)), *losses, blimp, *scores)
        rows.append(row_of(*cells))
    metrics = {"cola": "CoLA", "mrpc": "MRPC", "rte": "RTE", "sst2": "SST-2", "trec": "TREC"}
    official = [r["blimp"]["suites"]["blimp"]["official"] for r in runs if "blimp" in r]
    grammar = "BLiMP" if all(official) else "BLiMP, partial"
    head = (
        "| contestant | minutes | layers x width | parameters | tokens | seeds "
        f"| held-out loss at 15 % masking | at 25 % masking | {grammar} "
        f"{''.join(f'| {metrics.get(task, task)} ' for task in tasks)}|"
    )
    earlier: list[str] = []
    if trials:
        tried = ", ".join(f"{run['name']}: {run['heldout'][RATES[0]]:.3f}" for run in trials)
        minutes = _minutes(trials[0])
        earlier = [f"Losses at 15 % masking in earlier trials of {minutes} minutes: {tried}."]
    return tabled(head, rows, runs, *earlier, _cost(runs))


def serving_table(name: str) -> str:
    """Latency, throughput and size of encoders, model by model."""
    result = found(layout.RECORDS / name / "serving.json")
    lengths = sorted({time["length"] for m in result["models"].values() for time in m["times"]})
    rows = []
    for model, of in result["models"].items():
        times = {(t["threads"], t["length"], t["batch"]): t["seconds"] for t in of["times"]}
        size = (quantity(of["parameters"]), f"{of['bytes'] / 1e6:.1f} MB")
        for threads in sorted({threads for threads, _, _ in times}):
            cells = [model, *size, str(threads)]
            cells += [f"{1000 * times[threads, length, 1]:.1f}" for length in lengths]
            cells += [f"{32 / times[threads, length, 32]:,.0f}" for length in lengths]
            rows.append(row_of(*cells))
    one = [f"ms per sentence of {length} tokens" for length in lengths]
    many = [f"sentences/s of {length} tokens, 32 at a time" for length in lengths]
    head = f"| model | parameters | file | threads | {' | '.join([*one, *many])} |"
    return tabled(head, rows, [result])


def _runs(name: str, contest: str) -> list[Run]:
    """The judged runs of a contest, each with the machine it ran on."""
    values = found(layout.RECORDS / name / f"{contest}.json")
    machine = {key: values.get(key) for key in ("device", "cores")}
    return [{**machine, **run} for run in values["runs"] if "heldout" in run]


def _counts(name: str) -> list[dict[str, Any]]:
    """The results of counting n-grams, from the fewest tokens to the most."""
    files = (layout.RECORDS / name).glob("ngram*.json")
    return sorted((found(file) for file in files), key=lambda each: int(each["tokens"]))


def _compared(runs: list[Run], base: str) -> dict[str, dict[str, Any]]:
    """A row for every contestant, best first, compared with the one named `base`."""
    arms: dict[str, Any] = {base: {"words": [], "runs": {}}}
    for run in runs:
        values = {rate: run["heldout"][rate] for rate in RATES}
        values |= {"tokens": run["train"]["tokens"], "seconds": run["seconds"]}
        arms.setdefault(run["name"], {"words": [], "runs": {}})["runs"][str(run["seed"])] = values
    study = StudyResult.model_validate({"baseline": base, "arms": arms})
    return {row["arm"]: row for row in compare_arms(study)}


def _against(runs: list[Run], rate: str, best: str) -> str:
    """How ours with parts of the time compares with the best peer, each as a single comparison."""
    share = f"{100 * float(rate.partition('@')[2]):.0f} %"
    sentence = f"At {share} masking, the best peer is {best}"
    for name in PARTS:
        if loss := _alone(runs, name, rate, best):
            interval = interval_text(loss)
            words = f" (95 % interval of the difference: {interval})" if interval else ""
            sentence += f"; {_part(name, loss)}{words}"
    return f"{sentence}."


def _part(name: str, loss: dict[str, Any]) -> str:
    """``in a fifth of the time, ours is 0.127 nats lower``."""
    lower = "lower" if loss["difference"] < 0 else "higher"
    return f"in {name.partition(', ')[2]}, ours is {abs(loss['difference']):.3f} nats {lower}"


def _alone(runs: list[Run], name: str, rate: str, best: str) -> dict[str, Any] | None:
    """A contestant's loss compared with the best peer's, without regard to the others."""
    two = [run for run in runs if run["name"] in (name, best)]
    row = _compared(two, best).get(name)
    if row is None or row[rate]["interval"] is None:
        return None if row is None else row[rate]
    # Of two contestants whose seeds vary so differently, the variances have little in common.
    ours, theirs = (
        [run["heldout"][rate] for run in two if run["name"] == each] for each in (name, best)
    )
    return {**row[rate], "interval": welch(ours, theirs)[1:]}


def _best(runs: list[Run], rate: str) -> str:
    """The peer with the lowest mean loss."""
    losses: dict[str, list[float]] = {}
    for run in runs:
        if run["maker"] == "peer":
            losses.setdefault(run["name"], []).append(run["heldout"][rate])
    return min(losses, key=lambda name: statistics.fmean(losses[name]))


def _both(run: Run) -> float:
    return statistics.fmean(run["heldout"][rate] for rate in RATES)


def _tasks(run: Run) -> dict[str, Any]:
    """The scores of a run on tasks, by name; older records have them under another name."""
    suites = (run.get("tasks") or run.get("glue") or {"suites": {}})["suites"].values()
    return {name: score for suite in suites for name, score in suite["tasks"].items()}


def _size(runs: list[Run]) -> tuple[str, str, str]:
    """Layers and width, parameters, and tokens, which may all differ from seed to seed."""
    shapes = [{**run["settings"], **run["train"]} for run in runs]
    sizes = dict.fromkeys(f"{each['layers']} x {each['width']}" for each in shapes)
    parameters = dict.fromkeys(quantity(each["parameters"]) for each in shapes)
    tokens = statistics.fmean(run["train"]["tokens"] for run in runs)
    return ", ".join(sizes), ", ".join(parameters), quantity(tokens)


def _minutes(run: Run) -> str:
    return f"{run['seconds'] / 60:.3g}"


def _average(values: list[float], form: str = ".1f") -> str:
    return format(statistics.fmean(values), form) if values else ""


def _cost(runs: list[Run]) -> str:
    seconds = 0.0
    for run in runs:
        judged = sum(run[judge]["wall_seconds"] for judge in JUDGES if judge in run)
        seconds += run["cores"] * (run["wall_seconds"] + judged)
    return f"Training and judging took {seconds / 3600:.1f} core-hours."
