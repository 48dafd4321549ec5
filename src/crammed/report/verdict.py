"""What a run achieved, in sentences for the top of its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crammed.adaptation.words import described
from crammed.config import RunConfig
from crammed.evaluation.scores.notes import as_good, gain
from crammed.quantity import beside_unigram, quantity
from crammed.rules.choosing import Choice, reasons
from crammed.rules.sizing import in_vocabulary
from crammed.runs.longer import GATE, train_longer
from crammed.runs.summary import Summary

Json = Mapping[str, Any]


def verdict(
    run: Path, config: RunConfig, choice: Choice, summary: Summary, suites: Mapping[str, Json]
) -> Iterator[tuple[str, str]]:
    """Headings, each with a sentence: what was learned, what it is good for, how it ended, why."""
    yield "What it learned", _learned(summary.heldout["loss@0.15"], summary)
    if longer := train_longer(run, summary):
        yield "Train longer", f"{longer[0].upper()}{longer[1:]}."
    yield from of_scores(suites)
    if (early := summary.early_end) is not None:
        yield "Ended early", f"The corpus {early.words(over=True)}. Add text, or lower the budget."
    elif short := summary.ended_short:
        yield "Ended short", f"{short[0].upper()}{short[1:]}."
    if why := summary.outside_rules:
        yield "Outside the rules", f"This run does not count as one of Cramming. {why}."
    if summary.adapted is None:
        yield "Why this size", _size(config, choice, summary)
    for title, words in described(summary.values()):
        yield f"{title[0].upper()}{title[1:]}", f"{words}."


def of_scores(suites: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Headings, each with a sentence about the scores of a suite beside those of simpler models."""
    for name, suite in suites.items():
        if words := _helped(suite["tasks"]):
            yield f"Gain from pretraining: {name}", words
        if said := as_good(suite["tasks"]):
            yield f"Simple baseline: {name}", " ".join(f"{words}." for words in said)


def _learned(loss: float, summary: Summary) -> str:
    unigram = summary.unigram_cross_entropy
    if loss <= unigram - GATE:
        words = "To predict words from their context"
    else:
        words = f"{'Little' if loss < unigram else 'No'} more than how often words occur"
    return (
        f"{words}: the held-out loss of {loss:.3f} nats is {beside_unigram(loss, unigram)}, which "
        f"knows only how often each token occurs ({unigram:.3f})."
    )


def _helped(tasks: Mapping[str, Json]) -> str:
    """Each task's score against the untrained twin's; empty if no task has both."""
    found: dict[str, list[str]] = {"helped on": [], "made no clear difference on": [], "hurt": []}
    for name, task in tasks.items():
        if (found_gain := gain(task)) is None:
            continue
        points, (low, high) = found_gain
        verb = "helped on" if low > 0 else "hurt" if high < 0 else "made no clear difference on"
        found[verb].append(f"{name} ({points:+.1f})")
    parts = [f"{verb} {', '.join(names)}" for verb, names in found.items() if names]
    return (
        f"Pretraining {'; it '.join(parts)}. Figures are points over the untrained model; a "
        "difference is clear if its 95 % interval does not contain 0."
        if parts
        else ""
    )


def _size(config: RunConfig, choice: Choice, summary: Summary) -> str:
    """The size, and why it was chosen, as the command said when training began."""
    epochs, length = summary.epochs, config.data.row_length
    rows = round(summary.tokens / length / epochs) if epochs else None
    config = in_vocabulary(config, summary.corpus.vocab_size)
    size = f"{config.model.layers} x {config.model.width}"
    why = reasons(config, choice, rows or None)
    return f"{size} ({quantity(summary.parameters)} parameters): {why}."
