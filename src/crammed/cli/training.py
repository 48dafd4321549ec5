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
    JsonOption,
    RecipeWords,
    SeedOption,
    configure,
    show_budget,
    shown_progress,
    task_names,
)
from crammed.cli.output import print_result
from crammed.errors import InputError

if TYPE_CHECKING:
    from crammed.config import RunConfig

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
    as_json: JsonOption = False,
) -> None:
    """Do everything: prepare, pretrain, evaluate, export, report."""
    from crammed.device import choose_kind
    from crammed.pipeline import run_everything
    from crammed.rundir import default_out
    from crammed.training.memory import refuse_too_large

    fixed: dict[str, Any] = {}
    if tasks is not None or glue is not None:
        fixed["finetune"] = {"tasks": task_names(tasks, glue)}
    config, opened = configure(words, fixed, budget, seed, data, corpus)
    name = corpus.name if corpus is not None else Path(config.data.sources[0].path).name
    vocab = opened.vocab_size if opened is not None else config.tokenizer.vocab_size
    refuse_too_large(config.model, vocab, choose_kind(config.compute, []))  # before preparing
    out = out or default_out(config, name, "report.html")
    own = [word for word in words or [] if not word.startswith(("data.", "tokenizer."))]

    def suited(prepared: Path) -> RunConfig:
        return configure(own, {}, budget, seed, None, prepared)[0]

    with shown_progress() as progress:
        show_budget(progress, config, budget, words)
        progress.line(f"run  {out}")
        result = run_everything(config, out, corpus, glue, progress, suited)
    print_result(result, as_json, run_lines(result))


def pretrain(
    words: RecipeWords = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = None,
    seed: SeedOption = None,
    out: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train an encoder on a corpus within a budget, and export it."""
    from crammed.device import choose_device
    from crammed.pipeline import result, train_and_export
    from crammed.rundir import RunDir, default_out
    from crammed.sizing import seconds_a_shape
    from crammed.training.distributed import (
        compare_folders,
        compare_setups,
        follow,
        joined_group,
    )
    from crammed.workers import world_size

    if corpus is None:
        raise InputError("name the corpus to train on: --corpus CORPUS_DIR")
    config, opened = configure(words, {}, budget, seed, None, corpus)
    assert opened is not None
    if out is None and world_size() > 1:
        raise InputError("several processes need a common run directory: --out RUN_DIR")
    device = choose_device(config.compute, seconds_a_shape(config))
    out = out or default_out(config, corpus.name, "summary.json")
    with joined_group(device) as group:
        if group is not None:
            compare_setups(config, opened, device, group)
        if group is not None and group.rank > 0:
            compare_folders(out, group)
            if not (out / "summary.json").exists():  # in a finished run there is nothing to follow
                follow(config, opened, out / "checkpoints", device, group)
            return
        run_dir = RunDir.open(out, config)
        whole = group.whole(device) if group is not None else device
        try:
            with run_dir, shown_progress() as progress:
                show_budget(progress, config, budget, words)
                if group is not None:
                    compare_folders(out, group)
                progress.line(f"run  {run_dir.path}")
                train_and_export(run_dir, opened, whole, progress, group)
        except InputError:
            run_dir.discard_if_new()
            raise
    values = result(run_dir)
    print_result(values, as_json, run_lines(values))


def run_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The result of a run as labelled lines."""
    from crammed.quantity import beside_unigram, counted

    heldout, trust = result["heldout"], ""
    beside = beside_unigram(heldout["loss@0.15"], result["unigram_cross_entropy"])
    if result["export"]["format"] == "custom":
        trust = ", trust_remote_code=True"
    lines = [
        (
            "held-out loss",
            f"{heldout['loss@0.15']:.3f} nats with 15 % masked ({beside}), "
            f"{heldout['loss@0.25']:.3f} with 25 %",
        ),
        (
            "trained on",
            f"{result['tokens']:,} tokens, {counted(result['updates'], 'update')}, "
            f"{100 * result['u']:.1f} % of {result['budget']}, {result['exaflop']:.3g} exaFLOP",
        ),
    ]
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
    as_json: JsonOption = False,
) -> None:
    """Measure this device, and forecast what a budget buys on it."""
    from crammed.device import choose_device
    from crammed.sizing import seconds_a_shape
    from crammed.training.forecast import forecast
    from crammed.training.measure import measure_speed

    config, opened = configure(words, {}, budget, None, None, corpus, needs_data=False)
    device = choose_device(config.compute, seconds_a_shape(config))
    if math.isnan(seconds):
        raise InputError("--seconds takes a number of seconds, such as 20")
    with shown_progress() as progress:
        show_budget(progress, config, budget, words)
        speed = measure_speed(config, opened, device, seconds, progress)
    vocab = opened.vocab_size if opened is not None else config.tokenizer.vocab_size
    values = forecast(config, vocab, opened.rows if opened is not None else None, speed)
    print_result(values, as_json, _plan_lines(values))


def _plan_lines(values: dict[str, Any]) -> list[tuple[str, str]]:
    """A forecast as labelled lines."""
    from crammed.budget import format_seconds
    from crammed.quantity import quantity

    epochs = values["epochs"]
    low, high = values["tokens_between"]
    apart = f" ({quantity(low)} to {quantity(high)})" if high > 1.02 * low else ""
    lines = [
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
        ("compute", f"{values['exaflop']:.3g} exaFLOP"),
    ]
    if (compiled := values["first_compile_seconds"]) >= 1.0:
        again = format_seconds(values["compile_seconds"])
        lines.append(("compile", f"{again} ({format_seconds(compiled)} the first time)"))
    if values["memory"] is not None:
        rows = values["microbatch_rows"]
        lines.append(("memory", f"{values['memory'] / 2**30:.1f} GiB, {rows} rows at a time"))
    lines += [("note", note) for note in values["notes"]]
    if (best := values["best_size"]) is not None:
        lines.append(("sizes", "\n".join(_size_lines(values["sizes"], best))))
        lines.append(("best size", f"{best['layers']} x {best['width']}: {best['why']}"))
    return lines


def _size_lines(sizes: list[dict[str, Any]], best: dict[str, Any]) -> Iterator[str]:
    """A table of sizes: the speed of one was measured, the others' follows from their FLOPs."""
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
