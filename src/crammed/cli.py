"""The command line: thin verbs over the stages. Heavy imports wait until a verb needs them."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.errors import CrammedError, InputError, Interrupted, PeerLost
from crammed.output import (
    cost_words,
    costs,
    next_pretrain,
    plain,
    plan_words,
    print_result,
    run_words,
    score_parts,
)

if TYPE_CHECKING:
    from crammed.config import ComputeConfig, RunConfig
    from crammed.data.corpus import Corpus

app = typer.Typer(
    help="Train the best language encoder that one GPU and a budget can buy, from raw text.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
data_app = typer.Typer(help="Look at a prepared corpus, or check it.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY.PATH=VALUE]...",
        help="A recipe (crammed if left out; a name or a .yaml file) and single values of it.",
    ),
]
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="PATH|NAME...",
        help="Files (.txt .jsonl .csv .tsv .parquet .arrow, plain or .gz .bz2 .xz .zst), folders, "
        "globs, - for standard input, python-docs, hub:NAME.",
    ),
]
BudgetOption = Annotated[
    str | None, typer.Option("--budget", help="90m, 24h, 2e9tok, 500updates or 1e18flop.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of everything random.")]
CorpusOption = Annotated[
    Path | None, typer.Option("--corpus", help="A corpus made by crammed prepare.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")]


@app.command()
def run(
    words: Words = None,
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
        fixed["finetune"] = {"tasks": _task_names(tasks, glue)}
    config, _ = _configure(words, fixed, budget, seed, data, corpus)
    name = corpus.name if corpus is not None else Path(config.data.sources[0].path).name
    out = out or default_out(config, name, "report.html")
    with _progress() as progress:
        progress.line(f"run  {out}")
        result = run_everything(config, out, corpus, glue, progress)
    print_result(result, as_json, run_words(result))


@app.command()
def prepare(
    words: Words = None,
    data: DataOption = None,
    budget: BudgetOption = None,
    out: Annotated[Path | None, typer.Option(help="The corpus directory to make.")] = None,
    work: Annotated[
        Path | None,
        typer.Option(help="Keep cleaned text here, so that later preparations need not read it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Text to a corpus: cleaned documents, tokenizer, packed rows, held-out text, manifest."""
    from crammed.data.prepare import prepare as prepare_corpus
    from crammed.data.show import corpus_words

    config, _ = _configure(words, {}, budget, None, data, None)
    if out is None:
        raise InputError("say where the corpus goes: --out CORPUS_DIR")
    with _progress() as progress:
        corpus = prepare_corpus(config.data, config.tokenizer, out, progress, config.compute, work)
    print_result(corpus.manifest, as_json, [*corpus_words(corpus), ("next", next_pretrain(out))])


@app.command()
def pretrain(
    words: Words = None,
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
    from crammed.train.group import follow, joined_group
    from crammed.workers import started

    if corpus is None:
        raise InputError("say which corpus to train on: --corpus CORPUS_DIR")
    config, opened = _configure(words, {}, budget, seed, None, corpus)
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
            with run_dir, _progress() as progress:
                progress.line(f"run  {run_dir.path}")
                train_and_export(run_dir, opened, whole, progress, group)
        except InputError:
            run_dir.discard_if_new()
            raise
    values = result(run_dir)
    print_result(values, as_json, run_words(values))


@app.command()
def evaluate(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A run, a Hugging Face folder, or a name on the hub."),
    ],
    suite: Annotated[
        str,
        typer.Option(help="glue, superglue, race, swag, docs, FILE.yaml, blimp or heldout."),
    ] = "glue",
    data: Annotated[
        str | None,
        typer.Option(help="Folder of tasks, hub, or for blimp and heldout a file."),
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Tasks, as rte,mrpc; all if left out.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Fine-tuning seeds.")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="cramming, bert-base, glue-long, superglue or FILE.yaml."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="OTHER", help="Another model, or a folder of its scores."),
    ] = None,
    twin: Annotated[
        bool, typer.Option("--twin/--no-twin", help="Fine-tune the untrained model too.")
    ] = True,
    submission: Annotated[
        Path | None, typer.Option(help="Predict the test splits for the leaderboard, as this zip.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="Folder of scores and predictions; resumed if it exists.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Models tuned at a time.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with MODEL.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the result to this JSON file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Score any encoder: fine-tuning on tasks, BLiMP, held-out loss; or compare two."""
    from crammed.evaluate import evaluation
    from crammed.evaluate.table import show
    from crammed.files import write_json
    from crammed.pipeline import fail_on_failed

    values: dict[str, Any] = {"model": model, "suites": {}}
    parts: list[Any] = []
    if data is None and compare is None:
        raise InputError("say what to evaluate on: --data FOLDER of tasks, or a file; or --compare")
    if data is not None:
        request = evaluation.Request(
            model=model,
            suite=suite,
            data=data,
            tasks=tuple(name for name in tasks.split(",") if name) if tasks is not None else None,
            seeds=seeds,
            protocol=protocol,
            into=into,
            twin=twin,
            submission=submission,
            jobs=jobs,
            compute=_compute(device, dtype),
            trust_remote_code=trust_remote_code,
        )
        with _progress() as progress:
            values = evaluation.evaluate(request, progress)
        parts += score_parts(values)
    if compare is not None:
        folder = into or evaluation.default_folder(model, protocol)
        other = evaluation.scores_folder(compare, protocol)
        compared = evaluation.compare_models(folder, other, suite)
        values["compare"] = compared.json()
        parts += compared.parts()
    if out is not None:
        write_json(out, values)
    if as_json:
        print_result(values, as_json, [])
    else:
        show(parts)
    fail_on_failed(values["suites"])


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Runs, and folders of evaluations.")
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """One HTML file about one run, or several side by side, and about models scored here."""
    from crammed.report.html import write_report

    typer.echo(write_report(folders, out))


@app.command()
def export(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run.")],
    to: Annotated[Path, typer.Option(help="The folder to make.")],
    format: Annotated[str, typer.Option(help="auto, modernbert, bert or custom.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """A trained encoder as a folder that Hugging Face loads."""
    from typing import cast, get_args

    from crammed.export.huggingface import Format
    from crammed.export.huggingface import export as export_model
    from crammed.files import read_json
    from crammed.model.final import load_final

    if format not in get_args(Format):
        raise InputError(f"no format {format!r}: choose one of {', '.join(get_args(Format))}")
    summary = read_json(run_dir / "summary.json")
    done = export_model(load_final(run_dir), to, cast(Format, format), summary)
    values = {
        "export_dir": str(done.path),
        "format": done.format,
        "reasons": list(done.reasons),
        "logit_difference": done.difference,
    }
    print_result(values, as_json, [(key, str(value)) for key, value in values.items() if value])


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes, or show one resolved, with parameters and FLOPs."""
    import yaml

    from crammed.recipe import load_config, recipe_names

    if name is not None:
        config = load_config(name)
        values = {**costs(config), "config": config.model_dump(mode="json")}
        if as_json:
            print_result(values, as_json, [])
            return
        typer.echo(yaml.safe_dump(values["config"], sort_keys=False), nl=False)
        typer.echo(cost_words(values))
        return
    listed = {each: load_config(each) for each in recipe_names()}
    table = {each: {**costs(c), "description": c.description} for each, c in listed.items()}
    print_result(
        table, as_json, [(n, f"{cost_words(v)}\n{v['description']}") for n, v in table.items()]
    )


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Versions, device, disk, and a self-test that trains and exports a tiny encoder."""
    from crammed.doctor import examine

    with _progress() as progress:
        values = examine(progress)
    print_result(values, as_json, [(key, plain(value)) for key, value in values.items()])


@app.command()
def plan(
    words: Words = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long to measure.")] = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Measure this device for 20 seconds, and say what the budget will buy on it."""
    from crammed.device import choose_device
    from crammed.sizing import seconds_a_shape
    from crammed.train.forecast import forecast, measure

    config, opened = _configure(words, {}, budget, None, None, corpus, needs_data=False)
    device = choose_device(config.compute, seconds_a_shape(config))
    with _progress() as progress:
        speed = measure(config, opened, device, seconds, progress)
    vocab = opened.vocab_size if opened is not None else config.tokenizer.vocab_size
    values = forecast(config, vocab, opened.rows if opened is not None else None, speed)
    print_result(values, as_json, plan_words(values))


@app.command()
def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="ablation, schedules, masking, optimizers or sizes; or FILE.yaml with base, "
            "baseline and arms.",
        ),
    ],
    words: Words = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each arm.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder of all runs; resumed.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; a GPU takes one.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Train arms that differ in a few values at equal budgets, and compare their losses."""
    from crammed.budget import Budget
    from crammed.data.corpus import Corpus
    from crammed.evaluate.table import show
    from crammed.output import study_table
    from crammed.study.run import load_study, run_study
    from crammed.study.statistics import compare_arms

    if corpus is None or budget is None or out is None:
        raise InputError("a study needs --corpus CORPUS_DIR, --budget and --out DIR")
    Budget.parse(budget)
    opened = Corpus(corpus)
    loaded = load_study(name, opened, budget, words or [])
    with _progress() as progress:
        result = run_study(loaded, opened, budget, seeds, out, jobs, progress)
    rows = compare_arms(result)
    if as_json:
        print_result({**result, "compared": rows}, as_json, [])
    else:
        show([study_table(rows, result["baseline"])])


@data_app.command("show")
def data_show(
    corpus_dir: Path,
    rows: Annotated[int, typer.Option(min=0, help="How many rows to decode.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """What a corpus holds: sources, what each step dropped, lengths, rows decoded."""
    from crammed.data.corpus import Corpus
    from crammed.data.show import corpus_words, dropped_samples, sample_rows, sample_words

    corpus = Corpus(corpus_dir)
    samples = {"samples": sample_rows(corpus, rows), "dropped": dropped_samples(corpus)}
    words = [*corpus_words(corpus), *sample_words(corpus, rows)]
    print_result({**corpus.manifest, **samples}, as_json, words)


@data_app.command("verify")
def data_verify(corpus_dir: Path) -> None:
    """Compare every file of a corpus with the hash in its manifest."""
    from crammed.data.corpus import Corpus

    corpus = Corpus(corpus_dir)
    if damaged := list(corpus.damaged()):
        raise InputError(f"corpus {corpus_dir} is damaged: {', '.join(damaged)}; prepare it anew")
    typer.echo(f"{corpus_dir} is whole: {len(corpus.manifest['files'])} files match")


def _configure(
    words: list[str] | None,
    fixed: dict[str, Any],
    budget: str | None,
    seed: int | None,
    data: list[str] | None,
    corpus_dir: Path | None,
    *,
    needs_data: bool = True,
) -> tuple[RunConfig, Corpus | None]:
    """The resolved configuration, and the corpus where a ready one is given."""
    from crammed.budget import Budget
    from crammed.data.corpus import Corpus
    from crammed.recipe import load_config

    recipe, overrides = _recipe_and_overrides(words or [])
    if budget is not None:
        Budget.parse(budget)
        fixed["budget"] = {"limit": budget}
    if seed is not None:
        fixed["seed"] = seed
    corpus = None
    if corpus_dir is not None:
        if data:
            raise InputError("give --data or --corpus, not both")
        if theirs := [word for word in overrides if word.startswith(("data.", "tokenizer."))]:
            raise InputError(f"{theirs[0]}: the corpus was prepared with its own; prepare another")
        corpus = Corpus(corpus_dir)
        fixed |= corpus.settings()
    elif data:
        fixed["data"] = {"sources": [_absolute(name) for name in data]}
    rows = corpus.rows if corpus is not None else None
    config = load_config(recipe, overrides, fixed, rows=rows)
    if needs_data and corpus is None and not config.data.sources:
        raise InputError("no data: name a file or folder of text, as in --data my-text.jsonl.zst")
    return config, corpus


def _task_names(named: str | None, folder: Path | None) -> list[str]:
    """The tasks that were named, or else all of GLUE that the folder has."""
    from crammed.evaluate.read import tasks_in
    from crammed.evaluate.task import load_suite

    if named is not None:
        return [name for name in named.split(",") if name]
    return tasks_in(load_suite("glue"), folder) if folder is not None else []


def _recipe_and_overrides(words: list[str]) -> tuple[str, list[str]]:
    overrides = [word for word in words if "=" in word]
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise InputError(f"one recipe at a time, not {' and '.join(names)}")
    return (names[0] if names else "crammed"), overrides


def _absolute(name: str) -> str:
    """A path that still holds in another folder; what is no path stays as it is."""
    from crammed.config import SourceConfig

    on_disk = SourceConfig(path=name).is_on_disk
    return str(Path(name).expanduser().absolute()) if on_disk else name


def _progress() -> Any:
    from crammed.progress import Progress

    return Progress()


def _compute(device: str, dtype: str) -> ComputeConfig:
    from pydantic import ValidationError

    from crammed.config import ComputeConfig
    from crammed.yamlfile import explain

    if dtype == "float16":
        raise InputError("--dtype float16: fine-tuning has no loss scale for it; try bfloat16")
    try:
        return ComputeConfig.model_validate({"device": device, "dtype": dtype})
    except ValidationError as error:
        raise InputError(explain(error, ComputeConfig)) from error


def _spread_data(arguments: list[str]) -> list[str]:
    """``--data a b`` as ``--data a --data b``, so that a shell's globs work."""
    spread: list[str] = []
    gathering = False
    for argument in arguments:
        override = re.match(r"[a-z_]+(\.[a-z0-9_]+)+=|seed=", argument)
        if gathering and spread[-1] != "--data" and not argument.startswith("-") and not override:
            spread.append("--data")
        elif argument.startswith("-") or override:
            gathering = argument == "--data"
        spread.append(argument)
    return spread


class _Interrupt(BaseException):
    """Ctrl-C. Not KeyboardInterrupt, which the library of the command line keeps for itself."""


def _interrupt(*_: object) -> None:
    raise _Interrupt


def main() -> None:
    """Run a verb; faults become one line on stderr and an exit code."""
    signal.signal(signal.SIGINT, _interrupt)
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in ("run", "prepare"):
        sys.argv[1:] = _spread_data(sys.argv[1:])
    try:
        app()
    except PeerLost as error:
        typer.echo(f"error: {error}", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code)  # threads that wait for the lost process would abort an exit
    except CrammedError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except _Interrupt:
        typer.echo("error: interrupted; what is finished is kept", err=True)
        sys.exit(Interrupted.exit_code)
