"""Tables of counts that were not measured: cards that are not here, steps on paper."""

from __future__ import annotations

from crammed.quantity import quantity
from layout import row_of, tabled, there


def cards_table(names: list[str]) -> str:
    """The counted tokens of a day of training on each card."""
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
            rows.append(row_of(*cells))
    head = (
        "| card | memory | format | used at most | rows at a time | tokens a day, counted "
        "| published, by the paper's program |"
    )
    return tabled(head, rows, results)


def paper_table(names: list[str]) -> str:
    """What one more microbatch of each loop launches and moves."""
    results, rows = there(names), []
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
