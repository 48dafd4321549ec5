"""Tables of counts that were not measured: cards that are not here, steps on paper."""

from __future__ import annotations

from crammed.machine.cards import CARDS
from crammed.planning.oncard import Taken, counted_speed
from crammed.quantity import quantity
from crammed.rules.recipe import ask
from layout import benchmarks, row_of, table, tabled

A_DAY = 86_400
LEAST = 1e-4
"""Parts that take fewer seconds are left out."""


def cards_table(recipe: str) -> str:
    """The tokens of a day of training on each known card, as ``crammed plan`` counts them."""
    config, rows, known = ask(recipe).config, [], Taken()
    for card in CARDS:
        speed = counted_speed(config, config.tokenizer.vocab_size, card, known)
        a_second = config.batch.rows * config.data.row_length / speed.seconds(config.batch.rows)
        cells = (
            card.name,
            f"{card.memory / 2**30:.0f} GiB",
            card.half,
            f"{(speed.memory or 0) / 2**30:.1f} GiB",
            f"{speed.microbatch_rows:,}",
            f"{A_DAY * a_second / 1e9:.1f} G",
            "" if card.published is None else quantity(A_DAY * card.published),
        )
        rows.append(row_of(*cells))
    head = (
        "| card | memory | format | used at most | rows at a time | tokens a day, counted "
        "| published, by the paper's program |"
    )
    return table(head, rows)


def paper_table(*names: str) -> str:
    """What one more microbatch of each loop launches and moves."""
    results, rows = benchmarks(*names), []
    for result in results:
        for name, loop in result["loops"].items():
            cells = (
                ", ".join([name, *result["overrides"]]),
                f"{loop['launches']:,}",
                f"{loop['flops'] / 1e12:.1f} TFLOP",
                f"{loop['between_products_bytes'] / 1e9:.1f} GB",
                f"{1e3 * loop['seconds']:.1f} ms",
                f"{loop['tokens_per_second'] / 1e6:.2f} M",
            )
            rows.append(row_of(*cells))
    for result in results[:1]:
        fewest = sum(n for part, n in result["fewest_bytes"].items() if part != "attention")
        rows.append(f"| fewest, counted | | | {fewest / 1e9:.1f} GB | | |")
    head = (
        "| loop | launches | products and attention | moved between them | time, by the model "
        "| tokens/s, by the model |"
    )
    return tabled(head, rows, results)


def parts_table(profiled: str, on_paper: str) -> str:
    """What each part of a step took on a card, beside its count on paper of the same shape."""
    profile, paper = results = benchmarks(profiled, on_paper)
    ours = next(iter(paper["loops"].values()))
    counted = {part: _milliseconds(each["seconds"]) for part, each in ours["parts"].items()}
    rows = [
        row_of(part, _milliseconds(taken), counted.get(part, ""))
        for part, taken in profile["groups"].items()
        if taken >= LEAST
    ]
    whole = _milliseconds(profile["kernel_seconds"]), _milliseconds(ours["seconds"])
    rows.append(row_of("all kernels", *whole))
    rows.append(row_of("no kernel runs", _milliseconds(profile["idle_seconds"]), ""))
    return tabled("| part | measured | counted |", rows, results)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
