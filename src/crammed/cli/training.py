"""The verbs that train: run, pretrain."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
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
    show_recipe,
    shown_progress,
)
from crammed.cli.output import Line, print_result
from crammed.errors import InputError

if TYPE_CHECKING:
    from crammed.data.corpus import Corpus
    from crammed.machine.device import Device
    from crammed.pipeline import GivenTasks
    from crammed.rules.choosing import Asked
    from crammed.terminal.progress import Progress
    from crammed.training.distributed import Group

RunOption = Annotated[Path | None, typer.Option(help="Run directory; resumed if it exists.")]


def run(
    words: RecipeWords = None,
    budget: BudgetOption = None,
    data: DataOption = None,
    corpus: CorpusOption = None,
    suite: Annotated[
        str, typer.Option(help="glue, superglue, small, race, swag, docs or FILE.yaml.")
    ] = "glue",
    tasks_data: Annotated[
        str | None,
        typer.Option(
            "--tasks-data",
            metavar="DIR",
            help="Folder of the suite's tasks to fine-tune on (docs/evaluation.md), or hub.",
        ),
    ] = None,
    glue: Annotated[
        str | None, typer.Option(metavar="DIR", help="Short for --suite glue --tasks-data DIR.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks, such as rte,mrpc (default: all in the folder).")
    ] = None,
    seed: SeedOption = None,
    out: RunOption = None,
    fit: FitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Do everything: prepare, pretrain, evaluate, export, report."""
    from crammed.machine.device import choose_kind
    from crammed.pipeline import run_everything
    from crammed.training.memory import refuse_too_large
    from crammed.training.plan import refuse_too_little

    fixed: dict[str, Any] = {}
    given = _given_tasks(suite, tasks_data, glue)
    if tasks is not None:
        fixed["finetune"] = {"tasks": [name for name in tasks.split(",") if name]}
    elif given is not None:
        fixed["finetune"] = {"tasks": given.names()}
    asked, opened, out = configure(
        words, fixed, budget, seed, data, corpus, fit=fit, out=out, last="report.html"
    )
    assert out is not None
    known = (opened.vocab_size, opened.rows) if opened is not None else (None, None)
    config = asked.nominally(known[1])
    vocab = known[0] or config.tokenizer.vocab_size
    refuse_too_large(config, vocab, choose_kind(config.compute, []))  # before preparing
    refuse_too_little(config, *known)
    with shown_progress() as progress:
        show_recipe(progress, asked)
        progress.line(f"run  {out}")
        result = run_everything(asked, out, corpus, given, progress)
    print_result(result, as_json, run_lines(result))


def _given_tasks(suite: str, data: str | None, glue: str | None) -> GivenTasks | None:
    """Where the tasks are that options name, if any do.

    Raises:
        InputError: the options contradict each other, or one is missing.
    """
    from crammed.pipeline import GivenTasks

    if glue is not None and (data is not None or suite != "glue"):
        raise InputError("use --glue DIR, or --suite with --tasks-data, not both")
    data = data if glue is None else glue
    if data is None and suite != "glue":
        raise InputError(f"suite {suite} needs the folder of its tasks: --tasks-data DIR")
    return None if data is None else GivenTasks.of(suite, data)


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
    from crammed.machine.workers import world_size
    from crammed.planning.settling import device_of, told
    from crammed.training.distributed import compare_folders, compare_setups, follow, joined_group
    from crammed.training.plan import refuse_too_little

    if corpus is None:
        raise InputError("name the corpus to train on: --corpus CORPUS_DIR")
    if out is None and world_size() > 1:
        raise InputError("several processes need a common run directory: --out RUN_DIR")
    asked, opened, out = configure(
        words, {}, budget, seed, None, corpus, fit=fit, out=out, last="summary.json"
    )
    assert opened is not None
    assert out is not None
    rough = asked.nominally(opened.rows)
    refuse_too_little(rough, opened.vocab_size, opened.rows)
    device = device_of(rough, opened.rows, out)
    with joined_group(device) as group:
        if group is None or group.rank == 0:
            with shown_progress() as progress:
                show_recipe(progress, asked)
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
    """Settle what is trained, train it, and let the other processes follow; return the result."""
    from crammed.planning.settling import settle, tell
    from crammed.pretraining import result, train_and_export
    from crammed.runs.directory import RunDir
    from crammed.training.distributed import compare_folders, compare_setups

    chosen = settle(asked, corpus.rows, device, progress, group)
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


def run_lines(result: dict[str, Any]) -> list[Line]:
    """The result of a run as labelled lines."""
    from crammed.adaptation.words import described
    from crammed.evaluation.scores.notes import notes
    from crammed.evaluation.scores.table import source_lines
    from crammed.quantity import beside_unigram, counted, flops_text
    from crammed.rules.early_end import EarlyEnd

    heldout, trust = result["heldout"], ""
    beside = beside_unigram(heldout["loss@0.15"], result["unigram_cross_entropy"])
    if result["export"]["format"] == "custom":
        trust = ", trust_remote_code=True"
    early = EarlyEnd(**result["early_end"]) if result.get("early_end") else None
    spent = early.share if early is not None else result["u"]
    lines: list[Line] = [
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
    if by_source := source_lines(result.get("heldout_by_source", {})):
        lines.insert(1, ("by source", by_source))
    lines += described(result)
    if longer := result["train_longer"]:
        lines.append(("note", longer))
    if early is not None:
        lines.append(("corpus", early.words(over=True)))
    if (short := result.get("ended_short")) is not None:
        lines.append(("note", short))
    if (why := result.get("outside_rules")) is not None:
        lines.append(("outside the rules", why))
    for name, entry in result["tasks"].items():
        if entry["median"] is not None:
            lines.append((name, _score(entry)))
    lines += [("note", said) for said in notes(result["tasks"])]
    lines.append(("model", result["export_dir"]))
    if result["report"]:
        lines.append(("report", result["report"]))
    code = (
        "from transformers import pipeline; print(pipeline('fill-mask', "
        f"{result['export_dir']!r}{trust})({result['example']!r}))"
    )
    lines.append(("next", f"{shlex.quote(_python())} -c {_quoted(code)}"))
    return lines


def _quoted(code: str) -> str:
    """Python code as one word of a shell, in double quotes where these suffice."""
    return shlex.quote(code) if re.search(r"[\"$`\\!]", code) else f'"{code}"'


def _python() -> str:
    """What to type for this interpreter: ``python`` if the shell finds it by that name."""
    found = shutil.which("python")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "python"
    typed = os.path.relpath(sys.executable)
    return sys.executable if typed.startswith("..") else typed


def _score(entry: dict[str, Any]) -> str:
    from crammed.evaluation.scores.table import linear_text, untrained_text

    partial = ", partial data" if entry.get("official") is False else ""
    untrained = entry["untrained"] or {}
    spread = f" (spread {untrained['spread']:.1f})" if "spread" in untrained else ""
    return (
        f"{entry['median']:.1f} {entry['metric']} (spread {entry['spread']:.1f}{partial}); "
        f"untrained model {untrained_text(entry)}{spread}"
        + (f"; TF-IDF {linear_text(entry)}" if entry.get("linear") is not None else "")
    )
