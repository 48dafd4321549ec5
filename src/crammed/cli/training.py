"""The verbs that train: run, pretrain, plan, study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crammed.cli.options import (
    BudgetOption,
    CorpusOption,
    DataOption,
    JsonOption,
    RecipeWords,
    SeedOption,
    configure,
    shown_progress,
    task_names,
)
from crammed.cli.output import plan_words, print_result, run_words, study_table
from crammed.errors import InputError


def run(
    words: RecipeWords = None,
    budget: BudgetOption = None,
    data: DataOption = None,
    corpus: CorpusOption = None,
    glue: Annotated[
        Path | None, typer.Option(help="Folder with a folder for each task (docs/evaluation.md).")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks, as rte,mrpc; all in --glue if left out.")
    ] = None,
    seed: SeedOption = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; resumed if it exists.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Everything: prepare, pretrain, evaluate, export, report."""
    from crammed.pipeline import run_everything
    from crammed.rundir import default_out

    fixed: dict[str, Any] = {}
    if tasks is not None or glue is not None:
        fixed["finetune"] = {"tasks": task_names(tasks, glue)}
    config, _ = configure(words, fixed, budget, seed, data, corpus)
    name = corpus.name if corpus is not None else Path(config.data.sources[0].path).name
    out = out or default_out(config, name, "report.html")
    with shown_progress() as progress:
        progress.line(f"run  {out}")
        result = run_everything(config, out, corpus, glue, progress)
    print_result(result, as_json, run_words(result))


def pretrain(
    words: RecipeWords = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = None,
    seed: SeedOption = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; resumed if it exists.")] = None,
    as_json: JsonOption = False,
) -> None:
    """A corpus and a budget to a trained and exported encoder."""
    from crammed.device import choose_device
    from crammed.pipeline import result, train_and_export
    from crammed.rundir import RunDir, default_out
    from crammed.sizing import seconds_a_shape
    from crammed.training.distributed import follow, joined_group
    from crammed.workers import started

    if corpus is None:
        raise InputError("say which corpus to train on: --corpus CORPUS_DIR")
    config, opened = configure(words, {}, budget, seed, None, corpus)
    assert opened is not None
    if out is None and started() > 1:
        raise InputError("several processes need one run directory: --out RUN_DIR")
    device = choose_device(config.compute, seconds_a_shape(config))
    out = out or default_out(config, corpus.name, "summary.json")
    with joined_group(device) as group:
        if group is not None and group.rank > 0:
            if not (out / "summary.json").exists():  # of a finished run there is nothing to follow
                follow(config, opened, out / "checkpoints", device, group)
            return
        run_dir = RunDir.open(out, config)
        whole = group.whole(device) if group is not None else device
        try:
            with run_dir, shown_progress() as progress:
                progress.line(f"run  {run_dir.path}")
                train_and_export(run_dir, opened, whole, progress, group)
        except InputError:
            run_dir.discard_if_new()
            raise
    values = result(run_dir)
    print_result(values, as_json, run_words(values))


def plan(
    words: RecipeWords = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long to measure.")] = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Measure this device for 20 seconds, and say what the budget will buy on it."""
    from crammed.device import choose_device
    from crammed.sizing import seconds_a_shape
    from crammed.training.forecast import forecast
    from crammed.training.measure import measure

    config, opened = configure(words, {}, budget, None, None, corpus, needs_data=False)
    device = choose_device(config.compute, seconds_a_shape(config))
    with shown_progress() as progress:
        speed = measure(config, opened, device, seconds, progress)
    vocab = opened.vocab_size if opened is not None else config.tokenizer.vocab_size
    values = forecast(config, vocab, opened.rows if opened is not None else None, speed)
    print_result(values, as_json, plan_words(values))


def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="ablation, schedules, masking, optimizers or sizes; or FILE.yaml with base, "
            "baseline and arms.",
        ),
    ],
    words: RecipeWords = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each arm.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder of all runs; resumed.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; a GPU takes one.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Train arms that differ in a few values at equal budgets, and compare their losses."""
    from crammed.data.corpus import Corpus
    from crammed.evaluation.scores.table import show
    from crammed.study.arms import load_study
    from crammed.study.runner import run_study
    from crammed.study.statistics import compare_arms

    if corpus is None or budget is None or out is None:
        raise InputError("a study needs --corpus CORPUS_DIR, --budget and --out DIR")
    opened = Corpus(corpus)
    loaded = load_study(name, opened, budget, words or [])
    with shown_progress() as progress:
        result = run_study(loaded, opened, budget, seeds, out, jobs, progress)
    rows = compare_arms(result)
    if as_json:
        print_result({**result, "compared": rows}, as_json, [])
    else:
        show([study_table(rows, result["baseline"])])
