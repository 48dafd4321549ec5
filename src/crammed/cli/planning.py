"""The verb that forecasts what a budget buys: plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.cli import options
from crammed.cli.output import print_result
from crammed.errors import InputError

if TYPE_CHECKING:
    from crammed.config import RunConfig
    from crammed.data.corpus import Corpus
    from crammed.interface.lines import Line
    from crammed.machine.cards import Card
    from crammed.planning.parts import PartTimes
    from crammed.rules.choosing import Asked, Chosen, Measure
    from crammed.terminal.progress import Progress

A_DAY = 86400.0
"""Seconds of a day, which is also the longest time to measure for."""
A_WHILE = 20.0
"""Seconds to measure for by default."""
SecondsOption = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        max=A_DAY,
        help="Seconds to measure for (default: 20), after compiling, which can take minutes.",
    ),
]


def plan(
    words: options.RecipeWords = None,
    corpus: options.CorpusOption = None,
    budget: options.BudgetOption = None,
    seconds: SecondsOption = None,
    fit: options.FitOption = False,
    as_json: options.JsonOption = False,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="CARD",
            help="Estimate for a GPU such as 'RTX 4090' instead of measuring this machine.",
        ),
    ] = None,
) -> None:
    """Forecast what a budget buys on this device, or on another card."""
    from crammed.data.heldout import text_bytes
    from crammed.data.show import readings
    from crammed.interface.asking import configure, refuse_twice, show_recipe, shown_progress
    from crammed.planning.forecast import forecast
    from crammed.rules.choosing import choose, values_of
    from crammed.rules.sizing import FOLLOWERS
    from crammed.training.plan import refuse_too_little

    if seconds is not None and math.isnan(seconds):
        raise InputError("--seconds takes a number of seconds, such as 20")
    if seconds is not None and device is not None:
        raise InputError("--device measures nothing: leave --seconds out")
    recipe, overrides = options.recipe_and_overrides(words)
    refuse_twice(overrides, "--device", "compute.device", device is not None)
    asked, opened, _ = configure(
        recipe, overrides, {}, budget, corpus_dir=corpus, fit=fit, needs_data=False
    )
    rows = opened.rows if opened is not None else None
    with shown_progress() as progress:
        show_recipe(progress, asked)
        if device is None:
            speeds = _here(asked, opened, seconds or A_WHILE, progress)
        else:
            speeds = _on(device)
        asked = asked.counted  # nothing is saved
        vocab = opened.vocab_size if opened is not None else None
        refuse_too_little(asked.nominally(rows, speeds.nominal), vocab, rows)
        chosen = choose(asked, rows, speeds.measure, speeds.nominal)
        suited, why = _suited(asked, chosen, opened, speeds)
        speed = speeds.whole(chosen.config)
    config = chosen.config
    size = text_bytes(opened.manifest["characters"], opened.heldout) if opened else None
    vocab = vocab or config.tokenizer.vocab_size
    values = forecast(config, vocab, rows, speed, suited, size)
    values |= {"chosen": values_of(config, FOLLOWERS), "reasons": why, "card": None}
    epochs = values["epochs"]
    values["readings"] = readings(opened.manifest, epochs) if opened and epochs else {}
    if speeds.card is not None:
        values["card"] = _card_values(speeds.card, values["tokens_per_second"])
    print_result(values, as_json, _plan_lines(values))
    if not as_json:
        _show_sizes(values)


@dataclass(frozen=True)
class _Speeds:
    """Where a plan gets speeds from.

    Attributes:
        measure: FLOP/s of a configuration.
        whole: the speeds of all parts of a run with a configuration.
        nominal: FLOP/s to begin with; None is the nominal speed of this machine.
        card: the card for which speeds are counted; None if this device is measured.
    """

    measure: Measure
    whole: Callable[[RunConfig], PartTimes]
    nominal: float | None = None
    card: Card | None = None


def _here(asked: Asked, corpus: Corpus | None, seconds: float, progress: Progress) -> _Speeds:
    from crammed.planning.parts import measure_speed
    from crammed.planning.settling import REPEAT, Measuring, device_of

    rows = corpus.rows if corpus is not None else None
    device = device_of(asked.nominally(rows), rows)
    return _Speeds(
        Measuring(device, progress, mend=REPEAT),
        lambda config: measure_speed(config, corpus, device, seconds, progress),
    )


def _on(name: str) -> _Speeds:
    from crammed.machine.cards import card_called
    from crammed.machine.speed import SHARE_OF_PEAK
    from crammed.planning.oncard import counted_measure, counted_speed

    card = card_called(name)
    return _Speeds(
        counted_measure(card),
        lambda config: counted_speed(config, config.tokenizer.vocab_size, card),
        SHARE_OF_PEAK * card.peak,
        card,
    )


def _card_values(card: Card, tokens_per_second: float) -> dict[str, Any]:
    published = None if card.published is None else A_DAY * card.published
    return {
        "name": card.name,
        "memory": card.memory,
        "tokens_per_day": A_DAY * tokens_per_second,
        "published_tokens_per_day": published,
    }


def _suited(
    asked: Asked, chosen: Chosen, corpus: Corpus | None, speeds: _Speeds
) -> tuple[Chosen | None, str]:
    """The recipe in the size that suits budget and text, and the reasons for the size it has.

    The first is None if none of the sizes to choose from suits what is set.
    """
    from crammed.rules.choosing import SHAPE, choose, reasons

    rows = corpus.rows if corpus is not None else None
    if set(SHAPE) <= set(asked.open):
        known = "measured" if speeds.card is None else "counted"
        return chosen, reasons(chosen.config, chosen.choice, rows, known)
    decided = ["tokenizer.vocab_size"] if corpus is not None else []
    try:
        return choose(asked.wide_open(decided), rows, speeds.measure, speeds.nominal), "as set"
    except InputError:
        return None, "as set"


def _plan_lines(values: dict[str, Any]) -> list[Line]:
    from crammed.budget import format_seconds
    from crammed.quantity import flops_text, quantity, times

    shape = tuple(values["chosen"][key] for key in ("model.layers", "model.width"))
    epochs = values["epochs"]
    low, high = values["tokens_between"]
    apart = f" ({quantity(low)} to {quantity(high)})" if high > 1.02 * low else ""
    card, readings = values["card"], values["readings"]
    lines: list[Line] = [] if card is None else [*_card_lines(card)]
    lines += [
        (
            "size",
            f"{shape[0]} x {shape[1]} in updates of {values['chosen']['batch.rows']:,} rows: "
            f"{values['reasons']}",
        ),
        ("updates", f"{values['updates']:,}"),
        (
            "tokens",
            f"{values['tokens']:,}{apart}, {values['tokens_per_second']:,.0f} per second"
            + (f", {epochs:.2f} epochs" if epochs is not None else ""),
        ),
        *(
            [("sources", ", ".join(f"{name} read {times(n)}" for name, n in readings.items()))]
            if len(set(readings.values())) > 1
            else []
        ),
        (
            "model",
            f"{values['parameters']:,} parameters, {values['tokens_per_parameter']:.1f} tokens "
            "per parameter",
        ),
        ("time", f"{format_seconds(values['seconds'])} charged"),
        ("compute", flops_text(1e18 * values["exaflop"])),
    ]
    if (compiled := values["first_compile_seconds"]) >= 1.0:
        again = format_seconds(values["compile_seconds"])
        lines.append(("compile", f"{again} ({format_seconds(compiled)} the first time)"))
    if values["memory"] is not None:
        taken, rows = f"{values['memory'] / 2**30:.1f}", values["microbatch_rows"]
        most = "" if card is None else f" of {card['memory'] / 2**30:.0f}"
        lines.append(("memory", f"{taken}{most} GiB, {rows} rows at a time"))
    lines += [("note", note) for note in values["notes"]]
    if (best := values["best_size"]) is not None and shape != (best["layers"], best["width"]):
        suits = f"{best['layers']} x {best['width']}: {best['why']}"
        how = "; --fit takes it, unless model.layers or model.width are typed"
        lines.append(("best size", suits + how))
    return lines


def _card_lines(card: dict[str, Any]) -> list[tuple[str, str]]:
    """What to know about a forecast that is counted, not measured."""
    from crammed.quantity import quantity

    lines = [
        (
            "card",
            f"{card['name']}: an estimate from counted FLOPs, bytes and memory; its speed is an "
            "upper limit (docs/gpu.md)",
        ),
        ("a day", f"{quantity(card['tokens_per_day'])} tokens, counted"),
    ]
    if (published := card["published_tokens_per_day"]) is not None:
        lines.append(
            ("published", f"{quantity(published)} tokens a day by the paper's program and encoder")
        )
    return lines


def _show_sizes(values: dict[str, Any]) -> None:
    """Print other sizes; a speed that is not known follows from its FLOPs."""
    from crammed.quantity import quantity
    from crammed.terminal.table import add_column, new_table, show

    sizes, best, card = values["sizes"], values["best_size"], values["card"]
    if not sizes or best is None:
        return
    table = new_table()
    names = ("layers x width", "parameters", "tokens", "/ layer parameter", "epochs")
    for name in (*names, "model states"):  # what ZeRO calls weights, gradients and moments
        add_column(table, name, numeric=True)
    add_column(table, "speed")
    known = "measured" if card is None else "counted"
    for size in sizes:
        is_best = (size["layers"], size["width"]) == (best["layers"], best["width"])
        table.add_row(
            f"{'-> ' if is_best else ''}{size['layers']} x {size['width']}",
            quantity(size["parameters"]),
            quantity(size["tokens"]),
            f"{size['tokens_per_layer_parameter']:,.1f}",
            "" if size["epochs"] is None else f"{size['epochs']:.2f}",
            f"{size['held_memory'] / 2**30:.2f} GiB",
            known if size["measured"] else "from its FLOPs",
        )
    typer.echo()
    show([table])
