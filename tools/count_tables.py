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


def paper_compiling_table(names: list[str]) -> str:
    """How long compiling takes, and what one more microbatch then launches and moves."""
    results, rows = there(names), []
    for result in results:
        for name, loop in result["loops"].items():
            cells = (
                ", ".join([name, *result["overrides"]]),
                f"{loop['compiling_seconds']:.0f} s",
                f"{loop['launches']:,}",
                f"{loop['between_products_bytes'] / 1e9:.3f} GB",
            )
            rows.append(f"| {' | '.join(cells)} |")
    head = "| loop | compiling, seconds of one core | launches | moved between products |"
    return tabled(head, rows, results)


def paper_parts_table(names: list[str]) -> str:
    """What our loop moves in each part of a step, beside the fewest bytes."""
    results, rows = there(names), []
    for result in results:
        parts, fewest = result["loops"]["ours"]["parts"], result["fewest_bytes"]
        for part in [*fewest, *(name for name in parts if name not in fewest)]:
            each = parts.get(part, {"launches": 0, "read": 0, "written": 0, "seconds": 0.0})
            moved, least = each["read"] + each["written"], fewest.get(part)
            rows.append(
                f"| {part} | {each['launches']:,} | {each['read'] / 1e9:.2f} GB | "
                f"{each['written'] / 1e9:.2f} GB | {moved / 1e9:.2f} GB | "
                f"{'' if least is None else f'{least / 1e9:.2f} GB'} | "
                f"{1e3 * each['seconds']:.2f} ms |"
            )
    head = "| part of ours | launches | read | written | both | fewest | time, by the model |"
    return tabled(head, rows, results)


def paper_finetuning_table(names: list[str]) -> str:
    """What one step of several models launches and moves in fine-tuning, ours and plain."""
    results, rows = there(names), []
    for result in results:
        for width, loops in result["widths"].items():
            for name, loop in loops.items():
                cells = (
                    f"{result['rows']} x {width}",
                    name,
                    f"{loop['host_launches']:,}",
                    f"{loop['launches']:,}",
                    f"{loop['flops'] / 1e12:.2f} TFLOP",
                    f"{loop['bytes'] / 1e9:.1f} GB",
                    f"{1e3 * loop['seconds']:.1f} ms",
                    f"{loop['seconds'] / loops['ours']['seconds']:.1f}",
                )
                rows.append(f"| {' | '.join(cells)} |")
    head = (
        "| rows and tokens | loop | launched by the host | launched on the device "
        "| products and attention | moved | time, by the model | relative |"
    )
    return tabled(head, rows, results)
