"""The verbs that train, and their forecast: run, pretrain, plan."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.cli.options import (
    BudgetOption,
    CorpusOption,
    DataOption,
    FitOption,
    JsonOption,
    RecipeWords,
    SeedOption,
    configure,
    show_budget,
    show_former,
    shown_progress,
    task_names,
)
from crammed.cli.output import print_result
from crammed.errors import InputError

if TYPE_CHECKING:
    from crammed.choosing import Asked, Chosen, Measure
    from crammed.data.corpus import Corpus
    from crammed.device import Device
    from crammed.progress import Progress
    from crammed.training.distributed import Group

MOST_SECONDS = 86400.0
RunOption = Annotated[Path | None, typer.Option(help="Run directory; resumed if it exists.")]


def run(
    words: RecipeWords = None,
    budget: BudgetOption = None,
    data: DataOption = None,
    corpus: CorpusOption = None,
    glue: Annotated[
        Path | None,
        typer.Option(help="Folder that holds a folder for each task (docs/evaluation.md)."),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks, such as rte,mrpc (default: all that --glue has).")
    ] = None,
    seed: SeedOption = None,
    out: RunOption = None,
    fit: FitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Do everything: prepare, pretrain, evaluate, export, report."""
    from crammed.device import choose_kind
    from crammed.pipeline import run_everything
    from crammed.resuming import as_begun, chosen_before, default_out
    from crammed.training.memory import refuse_too_large

    fixed: dict[str, Any] = {}
    if tasks is not None or glue is not None:
        fixed["finetune"] = {"tasks": task_names(tasks, glue)}
    asked, opened = configure(words, fixed, budget, seed, data, corpus, fit=fit, out=out)
    name = corpus.name if corpus is not None else Path(asked.config.data.sources[0].path).name
    out = out or default_out(asked, name, "report.html")
    asked = as_begun(out, asked)
    before = chosen_before(out, asked)
    config = before.config if before is not None else asked.nominally()
    vocab = opened.vocab_size if opened is not None else config.tokenizer.vocab_size
    refuse_too_large(config.model, vocab, choose_kind(config.compute, []))  # before preparing
    with shown_progress() as progress:
        show_budget(progress, config, budget, words)
        show_former(progress, asked)
        progress.line(f"run  {out}")
        result = run_everything(asked, out, corpus, glue, progress)
    print_result(result, as_json, run_lines(result))


def pretrain(
    words: RecipeWords = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = None,
    seed: SeedOption = None,
    out: RunOption = None,
    fit: FitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train an encoder on a corpus within a budget, and export it."""
    from crammed.resuming import as_begun, chosen_before, default_out
    from crammed.training.distributed import compare_folders, compare_setups, follow, joined_group
    from crammed.training.settling import device_of, told
    from crammed.workers import world_size

    if corpus is None:
        raise InputError("name the corpus to train on: --corpus CORPUS_DIR")
    asked, opened = configure(words, {}, budget, seed, None, corpus, fit=fit, out=out)
    assert opened is not None
    if out is None and world_size() > 1:
        raise InputError("several processes need a common run directory: --out RUN_DIR")
    out = out or default_out(asked, corpus.name, "summary.json")
    asked = as_begun(out, asked)
    before = chosen_before(out, asked)
    rough = before.config if before is not None else asked.nominally(opened.rows)
    device = device_of(rough, opened.rows)
    with joined_group(device) as group:
        if group is None or group.rank == 0:
            with shown_progress() as progress:
                show_budget(progress, asked.config, budget, words)
                show_former(progress, asked)
                values = _lead(asked, opened, out, device, progress, group)
            print_result(values, as_json, run_lines(values))
            return
        config = told(asked, group).config
        compare_setups(config, opened, device, group)
        compare_folders(out, group)
        if not (out / "summary.json").exists():  # in a finished run there is nothing to follow
            follow(config, opened, out / "checkpoints", device, group)


def _lead(
    asked: Asked, corpus: Corpus, out: Path, device: Device, progress: Progress, group: Group | None
) -> dict[str, Any]:
    """Settle what is trained, train it, and have the other processes follow; returns the result."""
    from crammed.pipeline import result, train_and_export
    from crammed.rundir import RunDir
    from crammed.training.distributed import compare_folders, compare_setups
    from crammed.training.settling import measuring, settled, tell

    chosen = settled(asked, out, corpus.rows, measuring(device, progress, group))
    if group is not None:
        tell(chosen, group)
        compare_setups(chosen.config, corpus, device, group)
    run_dir = RunDir.open(out, chosen.config, chosen.choice)
    whole = group.whole(device) if group is not None else device
    try:
        with run_dir:
            if group is not None:
                compare_folders(out, group)
            progress.line(f"run  {run_dir.path}")
            train_and_export(run_dir, corpus, whole, progress, group)
    except InputError:
        run_dir.discard_if_new()
        raise
    return result(run_dir)


def run_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The result of a run as labelled lines."""
    from crammed.early_end import EarlyEnd
    from crammed.quantity import beside_unigram, counted, flops_text

    heldout, trust = result["heldout"], ""
    beside = beside_unigram(heldout["loss@0.15"], result["unigram_cross_entropy"])
    if result["export"]["format"] == "custom":
        trust = ", trust_remote_code=True"
    early = EarlyEnd.read(result.get("early_end"))
    spent = early.share if early is not None else result["u"]
    lines = [
        (
            "held-out loss",
            f"{heldout['loss@0.15']:.3f} nats with 15 % masked ({beside}), "
            f"{heldout['loss@0.25']:.3f} with 25 %",
        ),
        (
            "trained on",
            f"{result['tokens']:,} tokens, {counted(result['updates'], 'update')}, "
            f"{100 * spent:.1f} % of {result['budget']}, "
            f"{flops_text(1e18 * result['exaflop'])}",
        ),
    ]
    if early is not None:
        lines.append(("corpus", early.words(over=True)))
    for name, entry in result["tasks"].items():
        if entry["median"] is not None:
            lines.append((name, _score(entry)))
    lines.append(("model", result["export_dir"]))
    if result["report"]:
        lines.append(("report", result["report"]))
    lines.append(
        (
            "next",
            f"{_python()} -c \"from transformers import pipeline; print(pipeline('fill-mask', "
            f"'{result['export_dir']}'{trust})('This is a {result['mask_token']}.'))\"",
        )
    )
    return lines


def _python() -> str:
    """What to type for this interpreter: its name, if that is the one that the shell finds."""
    found = shutil.which("python")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "python"
    typed = os.path.relpath(sys.executable)
    return sys.executable if typed.startswith("..") else typed


def _score(entry: dict[str, Any]) -> str:
    from crammed.evaluation.scores.table import untrained_text

    partial = ", partial data" if entry.get("official") is False else ""
    untrained = entry["untrained"] or {}
    spread = f" (spread {untrained['spread']:.1f})" if "spread" in untrained else ""
    return (
        f"{entry['median']:.1f} {entry['metric']} (spread {entry['spread']:.1f}{partial}); "
        f"untrained model {untrained_text(entry)}{spread}"
    )


def plan(
    words: RecipeWords = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = None,
    seconds: Annotated[
        float, typer.Option(min=1.0, max=MOST_SECONDS, help="Seconds to measure for.")
    ] = 20.0,
    fit: FitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure this device, and forecast what a budget buys on it."""
    from crammed.choosing import choose, values_of
    from crammed.data.heldout import text_bytes
    from crammed.sizing import FOLLOWERS
    from crammed.training.forecast import forecast
    from crammed.training.measure import measure_speed
    from crammed.training.settling import device_of, measuring

    if math.isnan(seconds):
        raise InputError("--seconds takes a number of seconds, such as 20")
    asked, opened = configure(words, {}, budget, None, None, corpus, fit=fit, needs_data=False)
    rows = opened.rows if opened is not None else None
    device = device_of(asked.nominally(rows), rows)
    with shown_progress() as progress:
        show_budget(progress, asked.config, budget, words)
        measure = measuring(device, progress)
        chosen = choose(asked, rows, measure)
        suited, why = _suited(asked, chosen, opened, measure)
        speed = measure_speed(chosen.config, opened, device, seconds, progress)
    config = chosen.config
    vocab = opened.vocab_size if opened is not None else config.tokenizer.vocab_size
    size = text_bytes(opened.manifest["characters"], opened.heldout) if opened else None
    values = forecast(config, vocab, rows, speed, suited, size)
    values |= {"chosen": values_of(config, FOLLOWERS), "reasons": why}
    print_result(values, as_json, _plan_lines(values))


def _suited(
    asked: Asked, chosen: Chosen, corpus: Corpus | None, measure: Measure
) -> tuple[Chosen | None, str]:
    """The size that suits budget and text, and why the recipe's own is what it is.

    The first is None if what is set suits none of the sizes to choose from.
    """
    from crammed.choosing import SHAPE, choose, reasons

    rows = corpus.rows if corpus is not None else None
    if set(SHAPE) <= set(asked.open):
        return chosen, reasons(chosen.config, chosen.choice, rows)
    decided = ["tokenizer.vocab_size"] if corpus is not None else []
    try:
        return choose(asked.wide_open(decided), rows, measure), "as set"
    except InputError:
        return None, "as set"


def _plan_lines(values: dict[str, Any]) -> list[tuple[str, str]]:
    """A forecast as labelled lines."""
    from crammed.budget import format_seconds
    from crammed.quantity import flops_text, quantity

    shape = tuple(values["chosen"][key] for key in ("model.layers", "model.width"))
    epochs = values["epochs"]
    low, high = values["tokens_between"]
    apart = f" ({quantity(low)} to {quantity(high)})" if high > 1.02 * low else ""
    lines = [
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
        rows = values["microbatch_rows"]
        lines.append(("memory", f"{values['memory'] / 2**30:.1f} GiB, {rows} rows at a time"))
    lines += [("note", note) for note in values["notes"]]
    if (best := values["best_size"]) is not None:
        if values["sizes"]:
            lines.append(("sizes", "\n".join(_size_lines(values["sizes"], best))))
        if shape != (best["layers"], best["width"]):
            suits = f"{best['layers']} x {best['width']}: {best['why']}"
            how = "; --fit takes it, unless model.layers or model.width are typed"
            lines.append(("best size", suits + how))
    return lines


def _size_lines(sizes: list[dict[str, Any]], best: dict[str, Any]) -> Iterator[str]:
    """A table of sizes: the speed of some was measured, the others' follows from their FLOPs."""
    from crammed.quantity import quantity

    yield "   layers x width  parameters    tokens  / layer parameter  epochs  memory held"
    for size in sizes:
        shape = f"{size['layers']} x {size['width']}"
        is_best = (size["layers"], size["width"]) == (best["layers"], best["width"])
        epochs = "" if size["epochs"] is None else f"{size['epochs']:.2f}"
        yield (
            f"{'->' if is_best else '  '} {shape:>14}  {quantity(size['parameters']):>10}  "
            f"{quantity(size['tokens']):>8}  {size['tokens_per_layer_parameter']:>17.1f}  "
            f"{epochs:>6}  "
            f"{size['held_memory'] / 2**30:>7.2f} GiB  "
            + ("measured" if size["measured"] else "from its FLOPs")
        )
