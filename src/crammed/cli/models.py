"""The verbs about trained models: evaluate, report, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crammed.cli.options import JsonOption, compute_config, shown_progress
from crammed.cli.output import print_result, score_parts
from crammed.errors import InputError


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
    from crammed.evaluation import evaluation
    from crammed.evaluation.scores.table import show
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
            compute=compute_config(device, dtype),
            trust_remote_code=trust_remote_code,
        )
        with shown_progress() as progress:
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


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Runs, and folders of evaluations.")
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """One HTML file about one run, or several side by side, and about models scored here."""
    from crammed.report.page import write_report

    typer.echo(write_report(folders, out))


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
    from crammed.model.trained import load_trained

    if format not in get_args(Format):
        raise InputError(f"no format {format!r}: choose one of {', '.join(get_args(Format))}")
    summary = read_json(run_dir / "summary.json")
    done = export_model(load_trained(run_dir), to, cast(Format, format), summary)
    values = {
        "export_dir": str(done.path),
        "format": done.format,
        "reasons": list(done.reasons),
        "logit_difference": done.difference,
    }
    print_result(values, as_json, [(key, str(value)) for key, value in values.items() if value])
