"""The verbs about trained models: evaluate, finetune, embed, predict, report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.budget import Budget
from crammed.cli import options
from crammed.cli.output import print_result
from crammed.errors import InputError
from crammed.terminal.quiet import one_line

if TYPE_CHECKING:
    from crammed.terminal.table import Printed


ScoredOption = Annotated[
    str | None,
    typer.Option(
        help="Folder of tasks, or hub to download them; for blimp, a file or folder of pairs; for "
        "heldout, a file."
    ),
]
CompareOption = Annotated[
    str | None,
    typer.Option(metavar="OTHER", help="Compare with another model, or a folder of its scores."),
]
TwinsOption = Annotated[
    Path | None,
    typer.Option(
        "--untrained-in",
        metavar="DIR",
        help="Folder in which models of one architecture share the predictions of their untrained "
        "twin.",
    ),
]
ScoredSuiteOption = Annotated[
    str,
    typer.Option(
        help="Built-in suite (glue, superglue, small, race, swag, docs), FILE.yaml, blimp or "
        "heldout."
    ),
]
SubmissionOption = Annotated[
    Path | None,
    typer.Option(help="Predict the test splits, and write this zip for the leaderboard."),
]


def evaluate(
    model: options.ModelArgument,
    suite: ScoredSuiteOption = "glue",
    data: ScoredOption = None,
    tasks: options.TasksOption = None,
    seeds: options.SeedsOption = None,
    protocol: options.ProtocolOption = None,
    compare: CompareOption = None,
    untrained: options.UntrainedOption = True,
    untrained_in: TwinsOption = None,
    submission: SubmissionOption = None,
    into: options.IntoOption = None,
    jobs: options.JobsOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    trust_remote_code: options.TrustOption = False,
    out: Annotated[Path | None, typer.Option(help="Write the result to this JSON file.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Score an encoder on tasks, BLiMP or held-out text; compare two."""
    asked = options.arguments(locals(), "compare", "out")
    from crammed.evaluation.comparison import compare_models
    from crammed.evaluation.damage import whole
    from crammed.evaluation.suite import raise_for_failed_tasks
    from crammed.files.writing import check_file, write_json
    from crammed.interface import models
    from crammed.interface.asking import task_names
    from crammed.tasks.task import load_suite
    from crammed.terminal.table import show

    if out is not None:
        check_file(out)
    values: dict[str, Any] = {"model": model, "suites": {}}
    parts: list[Printed] = []
    given = {"--tasks": tasks, "--seeds": seeds, "--submission": submission, "--jobs": jobs}
    given |= {"--untrained-in": untrained_in, "--device": device, "--dtype": dtype}
    given |= {"--trust-remote-code": trust_remote_code or None}
    _need_data(data, compare, {**given, "--no-untrained": None if untrained else True})
    both = None if compare is None else _folders_of(model, compare, suite, protocol, into, data)
    if data is not None:
        values = models.evaluate(**asked).result
        with whole(Path(values["folder"])):  # it may have earlier scores of other tasks
            parts += _score_parts(values)
    if both is not None:
        compared = compare_models(*both, suite)
        values["compare"] = compared.json()
        parts += compared.parts()
    if out is not None:
        write_json(out, values)
    if not as_json:
        show(parts)
    print_result(values, as_json, [])
    named = None if tasks is None else load_suite(suite).scores_of(task_names(tasks))
    raise_for_failed_tasks(values["suites"], named, said=True)


def _need_data(data: str | None, compare: str | None, chosen: Mapping[str, object]) -> None:
    """Refuse to evaluate on nothing, and options that do nothing without data."""
    if data is None and compare is None:
        raise InputError(
            "name the data to evaluate on with --data, or another model with --compare"
        )
    given = [name for name, value in chosen.items() if value not in (None, "auto")]
    if data is None and given:
        raise InputError(f"{given[0]} needs the data to evaluate on: add --data, or leave it out")


def _folders_of(
    model: str, other: str, suite: str, protocol: str | None, into: Path | None, data: str | None
) -> tuple[Path, Path]:
    """Where the scores of two models are; refuse another one that has none of the suite."""
    from crammed.evaluation.comparison import check_other
    from crammed.evaluation.folder import default_folder, scores_folder

    # Where the first model is evaluated now, its folder is checked then.
    own = into or (scores_folder if data is None else default_folder)(model, protocol)
    folders = own, scores_folder(other, protocol)
    check_other(*folders, suite)
    return folders


def _score_parts(values: dict[str, Any]) -> list[Printed]:
    from rich.text import Text

    from crammed.evaluation.scores.table import blimp_table, heldout_text, score_tables

    parts: list[Printed] = []
    kept = "scores are in"
    for suite, scores in values["suites"].items():
        if suite == "blimp":
            parts.append(blimp_table(scores))
        elif suite == "heldout":
            parts.append(Text(f"held-out loss\n{heldout_text(scores)}"))
        else:
            parts += score_tables(suite, scores, values["protocol"], values["max_length"])
            kept = "scores and predictions are in"
    if file := values.get("submission"):
        missing = ", ".join(values["missing"])
        lacks = f"; it lacks {missing}, which the leaderboard expects" if missing else ""
        parts.append(Text(f"the submission is in {one_line(file)}{lacks}"))
    parts.append(Text(f"{kept} {one_line(values['folder'])}"))
    return parts


def finetune(
    model: options.ModelArgument,
    suite: options.SuiteOption,
    data: Annotated[str, typer.Option(help="Folder of tasks, or hub to download them.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to create.")],
    task: Annotated[str | None, typer.Option(help="The task, if the suite has several.")] = None,
    seeds: options.SeedsOption = None,
    protocol: options.ProtocolOption = None,
    into: options.IntoOption = None,
    untrained: options.UntrainedOption = True,
    jobs: options.JobsOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    trust_remote_code: options.TrustOption = False,
    license: options.LicenseOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Fine-tune an encoder on a task, and keep the median model."""
    given = options.arguments(locals())
    from crammed.interface import models
    from crammed.terminal.table import show

    values = models.finetune(**given).result
    if not as_json:
        show(_score_parts(values))
    trust = ["--trust-remote-code"] * trust_remote_code
    following = shlex.join(["crammed", "predict", str(out), *trust, "--data"])
    lines = [("model", f"{out}; {out / 'README.md'} describes it"), ("next", f"{following} FILE")]
    print_result(values, as_json, lines)


def embed(
    model: options.ModelArgument,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to create.")],
    data: options.DataOption = None,
    budget: Annotated[
        Budget | None,
        typer.Option(
            parser=Budget.parse,
            metavar="BUDGET",
            help="Tuning budget, such as 10m, 2e6tok or 500updates (default: 10m).",
        ),
    ] = None,
    partners: Annotated[
        str,
        typer.Option(
            help="What to learn: neighbours (a passage is close to the next one), dropout (to "
            "itself under another dropout mask), or denoise (rebuild it from its vector)."
        ),
    ] = "neighbours",
    pairs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Score on rated pairs: sentence1, sentence2, score."),
    ] = None,
    beside: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Also score the vectors of this model.")
    ] = None,
    batch: Annotated[
        int, typer.Option(help="Batch size: pairs (with denoise, passages) per update.")
    ] = 64,
    length: Annotated[
        int, typer.Option(help="Maximum tokens per text; longer texts are truncated.")
    ] = 128,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    trust_remote_code: options.TrustOption = False,
    license: options.LicenseOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Tune an encoder into sentence embeddings on unlabelled text."""
    given = options.arguments(locals())
    from crammed.interface import models
    from crammed.interface.lines import next_vectors

    done = models.embed(**given)
    print_result({**done.result, "out": str(out)}, as_json, [*done.lines, next_vectors(out)])


def predict(
    model_dir: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that crammed finetune made.")
    ],
    data: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Rows: .jsonl, .csv, .tsv, .parquet; - reads JSON lines."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write to this .jsonl or .csv file, instead of printing."
        ),
    ] = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    trust_remote_code: options.TrustOption = False,
) -> None:
    """Predict the labels of rows with a fine-tuned model."""
    from crammed.files.writing import check_file
    from crammed.finetuned.output import check_format, print_rows, write_rows
    from crammed.finetuned.prediction import Predictor
    from crammed.interface.asking import compute_config, shown_progress
    from crammed.quantity import truncated

    if out is not None:
        check_file(out)
        check_format(out)
        if out.exists() and data.exists() and out.samefile(data):
            raise InputError(f"{out} holds the rows themselves: name another file with --out")
    compute = compute_config(device, dtype)
    predictor = Predictor.load(model_dir, compute, trust_remote_code=trust_remote_code)
    answers = predictor.predict(data)
    if out is None:
        print_rows(answers)
    else:
        with shown_progress() as progress:
            write_rows(out, answers, progress)
    if predictor.cut:
        typer.echo(f"note: {truncated(predictor.cut, predictor.longest)}", err=True)


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Finished runs and evaluation folders, or a study."),
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write an HTML report on runs, evaluated models or a study."""
    from crammed.files.writing import check_file
    from crammed.interface.asking import shown_progress
    from crammed.report.page import write_report
    from crammed.report.study import write_study_page
    from crammed.study.result import RESULT

    check_file(out)
    if out.suffix.lower() not in (".html", ".htm"):  # such as summary.json, which would be lost
        raise InputError(f"{out}: the report is an HTML file, so its name must end in .html")
    studies = [folder for folder in folders if (folder / RESULT).exists()]
    if not studies:
        typer.echo(one_line(write_report(folders, out)))
        return
    if len(folders) > 1:
        raise InputError(f"{studies[0]} is a study, which gets its own report: name it alone")
    with shown_progress() as progress:
        written = write_study_page(folders[0], out, progress)
    typer.echo(one_line(written))
