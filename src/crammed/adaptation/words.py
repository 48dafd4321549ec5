"""What is said of an adapted model: what it was, and what it learned and forgot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from crammed.budget import format_seconds
from crammed.quantity import counted

LOSS = "loss@0.15"


def described(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Headings, each with a sentence, about an adapted run; nothing about one from scratch.

    Args:
        summary: the values of its `crammed.runs.summary.Summary`.
    """
    if (adapted := summary.get("adapted")) is None:
        return
    words = f"{adapted['model']} ({adapted['sha256'][:16]}), which was trained before"
    if count := adapted["random_weights"]:
        lost = counted(count, "tensor")
        words += f"; {lost} of its masked-language-model head were missing and began at random"
    if count := adapted.get("new_words", 0):
        words += f"; its tokenizer was given {counted(count, 'word')}"
    yield "adapted from", words
    if (before := adapted.get("earlier")) is not None:
        yield "in all", in_all(before, summary["charged_seconds"], summary["tokens"])
    yield "on the new text", _change(adapted["heldout"], summary["heldout"])
    sources = summary.get("heldout_by_source", {})
    for name, before in adapted.get("heldout_by_source", {}).items():
        after = sources.get(name, {})
        if before.get(LOSS) is not None and after.get(LOSS) is not None:
            yield f"on {name}", _change(before, after)
    if (old := adapted.get("old_text")) is not None:
        yield f"on the old text, {old['name']}", _change(old["before"], old["after"])


def in_all(before: Mapping[str, Any], seconds: float, tokens: int) -> str:
    """The training of a run of ours and of the one that went on with its model, and their sum.

    Args:
        before: the values of a `crammed.runs.summary.Spent`.
    """
    first, both = format_seconds(before["seconds"]), format_seconds(before["seconds"] + seconds)
    return (
        f"trained for {first}, then {format_seconds(seconds)} more: {both} in all, and "
        f"{before['tokens'] + tokens:,} tokens"
    )


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return (
        f"held-out loss {before[LOSS]:.3f} before, {after[LOSS]:.3f} after "
        f"({after[LOSS] - before[LOSS]:+.3f} nats with 15 % masked)"
    )
