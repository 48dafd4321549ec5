"""The verb that hands a model over: export."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crammed.cli import options
from crammed.cli.output import print_result
from crammed.errors import InputError

if TYPE_CHECKING:
    from crammed.export.card import Metadata
    from crammed.interface.lines import Line


def export(
    run_dir: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR",
            help="A finished run; with --push also a folder of finetune or embed.",
        ),
    ],
    to: Annotated[Path | None, typer.Option(help="The folder to create.")] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="Upload the model to the Hugging Face hub."),
    ] = None,
    format: Annotated[str, typer.Option(help="auto, modernbert, bert or custom.")] = "auto",
    license: options.LicenseOption = None,
    language: Annotated[
        list[str] | None, typer.Option(help="For the model card: a language, such as en.")
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write model.onnx.")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Give model.onnx 8-bit weights.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Export an encoder for Hugging Face, or upload it."""
    from crammed.evaluation.backbones.huggingface_files import TUNED
    from crammed.export.pushing import Repository
    from crammed.model.trained import is_adapted

    if int8 and not onnx:
        raise InputError("--int8 is for model.onnx only: add --onnx, or leave out --int8")
    if to is None and push is None:
        raise InputError("name the folder to create with --to, or a model on the hub with --push")
    shaped = {"--format": format != "auto", "--onnx": onnx}
    if push is not None and any((run_dir / name).exists() for name in TUNED):
        _refuse({"--to": to, "--license": license, "--language": language, **shaped}, run_dir)
        pushed = Repository(push).upload(run_dir)
        print_result({"pushed": pushed}, as_json, [("pushed", pushed)])
        return
    if adapted := is_adapted(run_dir):
        _refuse(shaped, run_dir)
    repository = None if push is None else Repository(push)
    with _place(to) as folder:
        metadata = _metadata(run_dir, license, language)
        if adapted:
            values, lines = _copied(run_dir, folder, metadata)
        else:
            values, lines = _exported(run_dir, folder, format, metadata, onnx, int8)
        if repository is not None:
            with _made(to):
                values["pushed"] = repository.upload(folder)
            lines.append(("pushed", values["pushed"]))
    if to is None:  # nothing of it is on this machine
        del values["export_dir"]
        lines = [(label, text) for label, text in lines if label != "model"]
    print_result(values, as_json, lines)


def _refuse(given: dict[str, Any], folder: Path) -> None:
    """Refuse options that change a model that is taken as it is."""
    for option, value in given.items():
        if value:
            raise InputError(f"{folder} is taken as it is: leave out {option}")


@contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    """The folder that was named, which must be vacant; or one for a while."""
    from crammed.files.folders import behind_links, check_vacant
    from crammed.files.scratch import scratch_folder

    if folder is None:
        with scratch_folder() as scratch:
            yield scratch / "model"
    else:
        folder = behind_links(folder)
        check_vacant(folder, "--to")
        yield folder


@contextmanager
def _made(to: Path | None) -> Iterator[None]:
    """Say how to repeat a command that failed once the folder that it names was made."""
    try:
        yield
    except InputError as error:
        if to is None:
            raise
        raise InputError(f"{error}; {to} is made: repeat the command without --to") from error


def _metadata(run: Path, license: str | None, languages: list[str] | None) -> Metadata:
    """What was typed, or else what the run's card and configuration say."""
    from crammed.export.card import Metadata
    from crammed.files.regular import read_text
    from crammed.runs.directory import read_config

    card = run / "export" / "README.md"
    before = Metadata.stated(read_text(card) if card.exists() else "")
    there = (run / "config.json").exists()
    known = read_config(run).data.clean.languages if there else None
    license = license or before.license
    return Metadata.of_run(run, license, tuple(languages or known or ()), before.base_model)


def _copied(run: Path, to: Path, metadata: Metadata) -> tuple[dict[str, Any], list[Line]]:
    """Copy the model of a run that adapted one of others, with its card as it is now."""
    from crammed.export.card import with_metadata
    from crammed.files.folders import new_folder
    from crammed.files.regular import read_text
    from crammed.files.writing import read_json
    from crammed.model.trained import exported_model

    source = exported_model(run)
    with new_folder(to) as aside:
        shutil.copytree(source, aside, dirs_exist_ok=True)
        custom = "auto_map" in (read_json(source / "config.json") or {})
        tags = ["custom_code"] if custom else []
        card = with_metadata(read_text(source / "README.md"), metadata, *tags)
        (aside / "README.md").write_text(card, "utf-8")
    return {"export_dir": str(to)}, [("model", str(to))]


def _exported(
    run: Path, to: Path, format: str, metadata: Metadata, onnx: bool, int8: bool
) -> tuple[dict[str, Any], list[Line]]:
    """Export the model of a run; returns the result as JSON and as lines."""
    from typing import cast, get_args

    from crammed.export.huggingface import Format
    from crammed.export.huggingface import export as export_model
    from crammed.hints import no_such
    from crammed.model.trained import load_trained
    from crammed.quantity import logits_text
    from crammed.runs.summary import read_summary

    if format not in get_args(Format):
        raise InputError(no_such("format", format, get_args(Format)))
    numbers: Any = ("int8" if int8 else "float32") if onnx else None
    trained = load_trained(run)
    done = export_model(trained, to, cast(Format, format), read_summary(run), metadata, numbers)
    values = {
        "export_dir": str(done.path),
        "format": done.format,
        "reasons": list(done.reasons),
        "logit_difference": done.difference,
        "onnx_logit_difference": done.onnx,
    }
    lines: list[Line] = [
        ("model", str(done.path)),
        ("format", (done.format, *done.reasons)),
        ("check", logits_text(done.difference)),
    ]
    if done.onnx is not None:
        rounded = f"logits are rounded, by up to {done.onnx:.2g}"
        lines.append(("onnx", rounded if int8 else logits_text(done.onnx, "onnxruntime")))
    return values, lines
