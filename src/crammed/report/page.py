"""The report: one self-contained HTML file about runs, and about other models evaluated here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml

import crammed
from crammed.budget import format_seconds
from crammed.data import show
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.evaluation.damage import whole
from crammed.evaluation.folder import read_scores, read_told
from crammed.evaluation.scores import table
from crammed.evaluation.scores.published import published, published_beside
from crammed.files.writing import read_json, write_text
from crammed.quantity import beside_unigram, counted, logits_text, quantity
from crammed.report import bars, figures
from crammed.report.drawing import OF_THE_PAGE
from crammed.report.verdict import of_scores, verdict
from crammed.rules.choosing import Choice
from crammed.runs.directory import read_choice, read_config
from crammed.runs.logs import heldout_losses, read_events, read_metrics
from crammed.runs.summary import read_summary
from crammed.study.findings import table as arms
from crammed.terminal.quiet import visible

SAMPLE_ROWS = 4
METRIC_NUMBERS = ("u", "loss", "lr", "batch_rows", "mask_rate", "tokens_per_s")
HELDOUT_NUMBERS = ("u", "update", "loss@0.15", "loss@0.25")
_OF_SCORES = (
    *("also", "cut", "heldout", "interval", "linear", "mean", "rows", "score_interval"),
    *("skipped", "spread", "untrained"),
)
_OF_ARMS = ("difference", "interval", "mean", "p")
_OF_TROUBLE = {
    **{"spike": ("update", "usual"), "back": ("update", "skipped_rows", "rate")},
    "busy": ("share", "update"),
}
MOST_SPIKES = 5
"""The report gives the updates of at most this many spikes."""


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report to `out`, and return `out`.

    Args:
        folders: directories of finished runs, and evaluation folders.

    Raises:
        InputError: a folder is neither.
    """
    evaluations = [path for path in folders if (path / "evaluation.json").exists()]
    runs = [_load_run(path) for path in folders if path not in evaluations]
    page = rendered(
        "report.html.j2",
        runs=runs,
        evaluations=[_load_evaluation(path) for path in evaluations],
        heldout_texts=_by_heldout_text(runs),
    )
    write_text(out, page)
    return out


def rendered(template: str, **values: Any) -> str:
    """A page, with filters that write numbers for people."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("crammed", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        **{name: getattr(table, f"{name}_text") for name in _OF_SCORES},
        **{f"arm_{name}": getattr(arms, f"{name}_text") for name in _OF_ARMS},
        "duration": format_seconds,
        "quantity": quantity,
        "beside_unigram": beside_unigram,
        "counted": counted,
        "logits": logits_text,
        "source_lines": table.source_lines,
    }
    page = environment.get_template(template).render(**values, version=crammed.__version__)
    return visible(page)


def _by_heldout_text(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several runs, grouped by held-out text, because losses on different texts do not compare.

    Each run gets the ``letter`` of its group. One run alone has no group.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        corpus = run["summary"].corpus  # in older versions it has only the hash of the whole
        groups.setdefault(corpus.heldout_sha256 or corpus.sha256, []).append(run)
    for letter, group in enumerate(groups.values(), ord("A")):
        for run in group:
            run["letter"] = chr(letter)
    return [
        {"letter": group[0]["letter"], "runs": group, "figure": figures.loss_figure(group)}
        for group in groups.values()
        if len(runs) > 1
    ]


def losses_of(path: Path) -> dict[str, Any]:
    """What the figure of a run's losses needs, and the run's events."""
    summary = read_summary(path)
    if summary is None:
        raise InputError(f"{path} is not a finished run: run the same command again to finish it")
    events = read_events(path, heldout=HELDOUT_NUMBERS, stage=("seconds",), **_OF_TROUBLE)
    # The last points may be of updates that a crash undid, if no other update fitted after it.
    points = read_metrics(path, *METRIC_NUMBERS)
    metrics = [point for point in points if point["update"] <= summary.updates] or points
    if not metrics:
        raise InputError(f"{path / 'metrics.jsonl'} holds no log point: restore it from a copy")
    return {
        "label": path.resolve().name,
        "summary": summary,
        "events": events,
        "metrics": metrics,
        "on_the_way": heldout_losses(events, summary.updates),
        "unigram": summary.unigram_cross_entropy,
    }


def curve_html(run: Path) -> str:
    """The losses of a finished run as a notebook shows them: as SVG, in light colours on white."""
    colours = "; ".join(f"--{name}: {colour}" for colour, name in OF_THE_PAGE.items())
    style = f"{colours}; background: #fff; max-width: 640px"
    return (
        "<style>.crammed .narrow { display: none }</style>"
        f'<div class="crammed" style="{style}">{figures.loss_figure([losses_of(run)])}</div>'
    )


def _load_run(path: Path) -> dict[str, Any]:
    config, losses = read_config(path), losses_of(path)
    summary, events = losses["summary"], losses["events"]
    early, choice = summary.early_end, read_choice(path) or Choice()
    run: dict[str, Any] = {
        **losses,
        "name": losses["label"],
        "config": config,
        "stages": _stages(events),
        "spent": early.share if early is not None else summary.u,
        "trouble": _trouble(events),
        **(scores := _all_scores(path)),
        "verdict": list(verdict(path, config, choice, summary, scores["suites"])),
        "env": read_json(path / "env.json") or {},
        "yaml": yaml.safe_dump(config.without_folders(), sort_keys=False),
        "corpus": _corpus(path / "corpus"),
    }
    run["figures"] = {
        "loss": figures.loss_figure([run]),
        "progress": figures.progress_figure(run["metrics"]),
        "ledger": bars.ledger_bars(summary.accounts, config.budget.charge),
        "compute": bars.compute_bars(summary.exaflop, summary.peak_exaflop),
    }
    return run


def _load_evaluation(path: Path) -> dict[str, Any]:
    """What the page says about a model that was not trained here."""
    scores = read_scores(path)
    found = _scores(scores, path)
    words = list(of_scores(found["suites"]))
    return {"name": scores["model"]["name"], **scores, **found, "verdict": words}


def _all_scores(run: Path) -> dict[str, Any]:
    """The scores of a run by its own protocol, followed by those by others that were named."""
    own = run / "evaluation"
    found = _scores(read_scores(own) if (own / "scores.json").exists() else {"suites": {}}, own)
    for file in sorted(run.glob("evaluation-*/scores.json")):
        others = _scores(read_scores(file.parent), file.parent)
        protocol = file.parent.name.removeprefix("evaluation-")
        by = f" by {protocol}"
        found["suites"] |= {name + by: {**s, "by": by} for name, s in others["suites"].items()}
        for name in ("blimp", "other_heldout"):  # which no protocol changes
            found[name] = found[name] or others[name]
    return found


def _scores(scores: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a model was evaluated on: suites of tasks, BLiMP, held-out text."""
    with whole(folder):
        for name, suite in scores["suites"].items():
            if "tasks" in suite:  # what cannot be shown is found before it is in a page
                table.score_tables(name, suite, scores.get("protocol", {}), None)
                "".join(map(table.skipped_text, suite["tasks"].values()))
        return _what_of(scores, folder)


def _what_of(scores: dict[str, Any], folder: Path) -> dict[str, Any]:
    suites, protocol = scores["suites"], scores.get("protocol", {})
    tasks = {
        name: {
            **suite,
            "by": "",
            "figure": figures.scores_figure(suite["tasks"]),
            "published": published_beside(name, suite, protocol),
            "linear": any("linear" in score for score in suite["tasks"].values()),
            "told": {
                task: told
                for task, score in suite["tasks"].items()
                if "failed" not in score and (told := read_told(folder, name, task)) is not None
            },
            "longest": table.longest_sequence(protocol, scores.get("model", {})),
        }
        for name, suite in suites.items()
        if "tasks" in suite
    }
    blimp = suites.get("blimp")
    if blimp is not None:
        others = published()["blimp"] if blimp["official"] else {}
        blimp = {**blimp, "bars": bars.blimp_bars(blimp, others)}
    return {"suites": tasks, "blimp": blimp, "other_heldout": suites.get("heldout")}


def _trouble(events: list[dict[str, Any]]) -> list[str]:
    sentences = []
    for of, name in (("loss", "loss"), ("grad_norm", "gradient norm")):
        found = sorted({e["update"] for e in events if e["event"] == "spike" and e.get("of") == of})
        if found:
            where = ", ".join(f"{update:,}" for update in found[:MOST_SPIKES])
            more = f" and {len(found) - MOST_SPIKES} more" if len(found) > MOST_SPIKES else ""
            sentences.append(f"Spikes of the {name}: after update {where}{more}.")
    busy = [event for event in events if event["event"] == "busy"]
    if busy:
        share, update = 100 * busy[0]["share"], busy[0]["update"]
        sentences.append(
            f"Other work slowed training down: before update {update:,}, a thread waited for its "
            f"core {share:.0f} % of the time."
        )
    returns = [event for event in events if event["event"] == "back"]
    if returns:
        where = ", ".join(f"{event['update']:,}" for event in returns)
        skipped, rate = returns[-1]["skipped_rows"], returns[-1]["rate"]
        changed = [f"{skipped:,} rows were skipped"] if skipped else []
        changed += [f"learning rates were multiplied by {rate:g}"] if rate != 1.0 else []
        why = f": {' and '.join(changed)}" if changed else ""
        sentences.append(f"Training diverged and went back to update {where}{why}.")
    return sentences


def _stages(events: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds spent on each stage, by all processes that worked on it."""
    stages: dict[str, float] = {}
    for event in events:
        if event["event"] == "stage":
            name = str(event.get("name"))
            stages[name] = stages.get(name, 0.0) + event["seconds"]
    return stages


def _corpus(path: Path) -> dict[str, Any] | None:
    """What the page says about the run's own corpus; None if it is elsewhere, or was deleted."""
    try:
        corpus = Corpus(path)
    except InputError:  # it is elsewhere, or was deleted to free the disk
        return None
    steps = show.dropping_steps(corpus.manifest)
    statistics = corpus.manifest.get("statistics")
    return {
        "sources": show.describe_sources(corpus.manifest),
        "skipped": corpus.manifest.get("skipped", []),
        "orders": corpus.orders,
        "drops": bars.drops_bars(steps) if steps else None,
        "documents": figures.documents_figure(statistics) if statistics else None,
        "dropped": show.dropped_samples(corpus),
        "rows": show.sample_rows(corpus, SAMPLE_ROWS),
    }
