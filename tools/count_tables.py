"""Tables of what was counted, not measured: cards that are not here, steps on paper."""

from __future__ import annotations

from benchmark_tables import tabled, there
from crammed.quantity import quantity


def cards_table(names: list[str]) -> str:
    """What a day of training reaches on each card, by count."""
    results, rows = there(names), []
    for result in results:
        for name, card in result["cards"].items():
            memory = f"{card['memory'] / 2**30:.0f} GiB"
            if "refused" in card:
                rows.append(f"| {name} | {memory} | {card['refused']} | | | | |")
                continue
            published = card["published_tokens_per_day"]
            cells = (
                name,
                memory,
                card["dtype"],
                f"{card['taken_memory'] / 2**30:.1f} GiB",
                f"{card['microbatch_rows']:,}",
                f"{card['tokens_per_day'] / 1e9:.1f} G",
                "" if published is None else f"{quantity(published)}",
            )
            rows.append(f"| {' | '.join(cells)} |")
    head = (
        "| card | memory | format | taken, at most | rows at a time | tokens a day, counted "
        "| published, by the paper's program |"
    )
    return tabled(head, rows, results)
