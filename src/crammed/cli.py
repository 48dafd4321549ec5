"""The command line: thin verbs over the stages. Heavy imports wait until a verb needs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.errors import CrammedError, InputError, Interrupted

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
        Path | None, typer.Option(help="Folder with a folder of json lines for each task.")
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
    out = out or default_out(config, name)
    with _progress() as progress:
        progress.line(f"run  {out}")
        result = run_everything(config, out, corpus, glue, progress)
    _print(result, as_json, _run_words(result))


@app.command()
def prepare(
    words: Words = None,
    data: DataOption = None,
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

    config, _ = _configure(words, {}, None, None, data, None)
    if out is None:
        raise InputError("say where the corpus goes: --out CORPUS_DIR")
    with _progress() as progress:
        corpus = prepare_corpus(config.data, config.tokenizer, out, progress, config.compute, work)
    _print(corpus.manifest, as_json, [*corpus_words(corpus), ("next", _next_pretrain(out))])


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

    if corpus is None:
        raise InputError("say which corpus to train on: --corpus CORPUS_DIR")
    config, opened = _configure(words, {}, budget, seed, None, corpus)
    assert opened is not None
    run_dir = RunDir.open(out or default_out(config, corpus.name), config)
    try:
        with run_dir, _progress() as progress:
            progress.line(f"run  {run_dir.path}")
            train_and_export(run_dir, opened, choose_device(config.compute), progress)
    except InputError:
        run_dir.discard_if_new()
        raise
    values = result(run_dir)
    _print(values, as_json, _run_words(values))


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
        parts += _score_parts(values)
    if compare is not None:
        folder = into or evaluation.default_folder(model, protocol)
        other = evaluation.scores_folder(compare, protocol)
        compared = evaluation.compare_models(folder, other, suite)
        values["compare"] = compared.json()
        parts += compared.parts()
    if out is not None:
        write_json(out, values)
    if as_json:
        _print(values, as_json, [])
    else:
        show(parts)
    fail_on_failed(values["suites"])


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """One HTML file about one run, or several side by side."""
    from crammed.report.html import write_report

    typer.echo(write_report(runs, out))


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
    _print(values, as_json, [(key, str(value)) for key, value in values.items() if value])


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes, or show one resolved, with parameters and FLOPs."""
    import yaml

    from crammed.config import load_config, recipe_names

    if name is not None:
        config = load_config(name)
        values = {**_costs(config), "config": config.model_dump(mode="json")}
        if as_json:
            _print(values, as_json, [])
            return
        typer.echo(yaml.safe_dump(values["config"], sort_keys=False), nl=False)
        typer.echo(_cost_words(values))
        return
    listed = {each: load_config(each) for each in recipe_names()}
    table = {each: {**_costs(c), "description": c.description} for each, c in listed.items()}
    _print(table, as_json, [(n, f"{_cost_words(v)}\n{v['description']}") for n, v in table.items()])


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Versions, device, disk, and a self-test that trains and exports a tiny encoder."""
    from crammed.doctor import examine

    with _progress() as progress:
        values = examine(progress)
    _print(values, as_json, [(key, _plain(value)) for key, value in values.items()])


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
    _print({**corpus.manifest, **samples}, as_json, words)


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
) -> tuple[RunConfig, Corpus | None]:
    """The resolved configuration, and the corpus where a ready one is given."""
    from crammed.budget import Budget
    from crammed.config import load_config
    from crammed.data.corpus import Corpus

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
        fixed["corpus"] = corpus.sha256
        fixed["data"] = {**corpus.manifest["data"], "sources": []}
        fixed["tokenizer"] = corpus.manifest["tokenizer"]
    elif data:
        fixed["data"] = {"sources": [_absolute(name) for name in data]}
    config = load_config(recipe, overrides, fixed)
    if corpus is None and not config.data.sources:
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


def _costs(config: RunConfig) -> dict[str, Any]:
    from crammed.data.masking import predicted_positions
    from crammed.model.count import parameters, train_flops_per_token

    vocab, length = config.tokenizer.vocab_size, config.data.row_length
    predicted = predicted_positions(config.masking.rate, length)
    return {
        "parameters": parameters(config.model, vocab),
        "train_flops_per_token": train_flops_per_token(config.model, vocab, length, predicted),
    }


def _cost_words(values: dict[str, Any]) -> str:
    gigaflop = values["train_flops_per_token"] / 1e9
    return f"{values['parameters']:,} parameters, {gigaflop:.3g} GFLOP a token"


def _next_pretrain(corpus_dir: Path) -> str:
    return f"crammed pretrain --corpus {corpus_dir} --budget 1h"


def _run_words(result: dict[str, Any]) -> list[tuple[str, str]]:
    heldout, trust = result["heldout"], ""
    if result["export"]["format"] == "custom":
        trust = ", trust_remote_code=True"
    below = result["unigram_cross_entropy"] - heldout["loss@0.15"]
    words = [
        (
            "held-out loss",
            f"{heldout['loss@0.15']:.3f} nats at 15 % masks ({below:.2f} below unigram), "
            f"{heldout['loss@0.25']:.3f} at 25 %",
        ),
        (
            "trained on",
            f"{result['tokens']:,} tokens, {result['updates']:,} updates, "
            f"{100 * result['u']:.1f} % of {result['budget']}, {result['exaflop']:.3g} exaFLOP",
        ),
    ]
    for name, entry in result["tasks"].items():
        if entry["median"] is not None:
            words.append((name, _score(entry)))
    words.append(("model", result["export_dir"]))
    if result["report"]:
        words.append(("report", result["report"]))
    words.append(
        (
            "next",
            f"{_python()} -c \"from transformers import pipeline; print(pipeline('fill-mask', "
            f"'{result['export_dir']}'{trust})('This is a {result['mask_token']}.'))\"",
        )
    )
    return words


def _python() -> str:
    """How to type this interpreter here: by name where that is what the shell finds."""
    found = shutil.which("python")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "python"
    typed = os.path.relpath(sys.executable)
    return sys.executable if typed.startswith("..") else typed


def _score(entry: dict[str, Any]) -> str:
    partial = ", partial data" if entry.get("official") is False else ""
    twin = entry["untrained"]
    return (
        f"{entry['median']:.1f} {entry['metric']} (spread {entry['spread']:.1f}{partial}); "
        f"untrained twin {twin['median']:.1f} (spread {twin['spread']:.1f})"
    )


def _score_parts(values: dict[str, Any]) -> list[Any]:
    """An evaluation as tables."""
    from rich.text import Text

    from crammed.evaluate.table import blimp_table, score_tables

    parts: list[Any] = []
    for suite, scores in values["suites"].items():
        if suite == "blimp":
            parts.append(blimp_table(scores))
        elif suite == "heldout":
            parts.append(Text("\n".join(f"{name}  {v:.4f}" for name, v in scores.items())))
        else:
            parts += score_tables(suite, scores)
    if missing := values.get("missing"):
        parts.append(Text(f"the leaderboard will miss {', '.join(missing)}"))
    parts.append(Text(f"kept in {values['folder']}"))
    return parts


def _compute(device: str, dtype: str) -> ComputeConfig:
    from pydantic import ValidationError

    from crammed.config import ComputeConfig, explain

    try:
        return ComputeConfig.model_validate({"device": device, "dtype": dtype})
    except ValidationError as error:
        raise InputError(explain(error, ComputeConfig)) from error


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _print(values: dict[str, Any], as_json: bool, words: list[tuple[str, str]]) -> None:
    """The result on stdout: one JSON object, or lines with a label each."""
    if as_json:
        typer.echo(json.dumps(values, allow_nan=False))
        return
    width = max((len(label) for label, _ in words), default=0)
    for label, text in words:
        first, *rest = text.splitlines() or [""]
        typer.echo(f"{label:<{width}}  {first}")
        for line in rest:
            typer.echo(" " * (width + 2) + line)


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


def main() -> None:
    """Run a verb; faults become one line on stderr and an exit code."""
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in ("run", "prepare"):
        sys.argv[1:] = _spread_data(sys.argv[1:])
    try:
        app()
    except CrammedError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("error: interrupted; what is finished is kept", err=True)
        sys.exit(Interrupted.exit_code)
