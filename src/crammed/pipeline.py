"""The stages of a run, one after the other; each is skipped where its result is there already."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crammed.budget import Budget
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.data.demo_tasks import write_tasks
from crammed.data.heldout import heldout_rows
from crammed.data.manifest import changed_files
from crammed.data.preparation import prepare
from crammed.data.sources import open_sources
from crammed.data.tokenization.tokenizer import Specials
from crammed.device import Device, choose_device
from crammed.errors import InputError, TaskFailed
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.evaluation import about, numerics_of
from crammed.evaluation.fill_mask import fill_mask_examples
from crammed.evaluation.folder import EvaluationFolder
from crammed.evaluation.suite import evaluate_suite
from crammed.export.huggingface import export
from crammed.files import new_folder, write_json
from crammed.model.count import parameters
from crammed.model.heldout import heldout_loss
from crammed.model.trained import trained_model
from crammed.progress import Progress
from crammed.rundir import RunDir
from crammed.sizing import MOST_EPOCHS, expected_tokens, seconds_a_shape
from crammed.tasks.read import tasks_in
from crammed.tasks.task import Suite, load_suite
from crammed.training.distributed import Group
from crammed.training.loop import Trained, pretrain

EXA = 1e18
MADE_HERE = "docs"
"""The suite whose data is made from the documentation on this machine."""


@dataclass(frozen=True)
class _Tasks:
    """Tasks of one suite, and the folder of their data."""

    suite: Suite
    names: list[str]
    data: Path


def run_everything(
    config: RunConfig, out: Path, corpus_dir: Path | None, glue: Path | None, progress: Progress
) -> dict[str, Any]:
    """Text and a budget in; an evaluated, exported encoder and its report out.

    Args:
        corpus_dir: a prepared corpus; None prepares ``config.data.sources`` into the run.
        glue: folder of GLUE tasks; None if ``config.finetune.tasks`` names none of them.

    Returns:
        The result as ``--json`` prints it.

    Raises:
        InputError: wrong input; a run directory that this call made is removed again.
        TaskFailed: everything is there but the score of a task.
    """
    from crammed.report.page import write_report

    if corpus_dir is not None:
        Corpus(corpus_dir)
    elif not (out / "corpus" / "manifest.json").exists():
        open_sources(config.data)
    given = _find_tasks(config.finetune.tasks, glue)
    device = choose_device(config.compute, seconds_a_shape(config))  # before hours of preparing
    run = RunDir.open(out, config)
    try:
        with run:
            with _stage(run, "prepare"):
                corpus = Corpus(corpus_dir) if corpus_dir else _corpus_of(run, progress)
                tasks = [*_tasks_made_here(run), *given]  # before training, in case they fail
            with _stage(run, "pretrain"):
                train_and_export(run, corpus, device, progress)
            with _stage(run, "evaluate"):
                _evaluate(run, tasks, device, progress)
            with _stage(run, "report"):
                report = write_report([run.path], run.path / "report.html")
            progress.line(f"report  {report}")
    except InputError:
        run.discard_if_new()
        raise
    fail_on_failed(run.scores())
    return result(run)


def _find_tasks(names: Sequence[str], folder: Path | None) -> list[_Tasks]:
    """The GLUE tasks among these names, once their data is known to be there.

    Raises:
        InputError: an unknown task, or one without data.
    """
    suite, made = load_suite("glue"), load_suite(MADE_HERE).tasks
    wanted = [name for name in names if name not in made]
    if unknown := [name for name in wanted if name not in suite.tasks]:
        raise InputError(
            f"no task {', '.join(unknown)}: choose among {', '.join((*suite.tasks, *made))}"
        )
    if not wanted:
        return []
    if folder is None:
        raise InputError(f"tasks {', '.join(wanted)} need their data: name its folder with --glue")
    there = tasks_in(suite, folder)
    if missing := [name for name in wanted if name not in there]:
        raise InputError(f"{folder} has no task {', '.join(missing)}: it has {', '.join(there)}")
    return [_Tasks(suite, wanted, folder)]


def _corpus_of(run: RunDir, progress: Progress) -> Corpus:
    path, config = run.path / "corpus", run.config
    if (path / "manifest.json").exists():
        corpus = Corpus(path)
        if changed := changed_files(corpus.manifest, config.data):
            raise InputError(
                f"{', '.join(changed)} changed since {path} was made: choose another --out"
            )
        return corpus
    return prepare(config.data, config.tokenizer, path, progress, config.compute)


def _tasks_made_here(run: RunDir) -> list[_Tasks]:
    """The demonstration tasks among the run's, made from this machine's documentation."""
    suite = load_suite(MADE_HERE)
    names = [name for name in run.config.finetune.tasks if name in suite.tasks]
    if not names:
        return []
    folder = run.path / "tasks"
    if not folder.exists():
        with new_folder(folder) as aside:
            write_tasks(aside)
    return [_Tasks(suite, names, folder)]


@contextmanager
def _stage(run: RunDir, name: str) -> Iterator[None]:
    """Note how long a stage took."""
    began = time.monotonic()
    yield
    run.event("stage", name=name, seconds=time.monotonic() - began)


def train_and_export(
    run: RunDir, corpus: Corpus, device: Device, progress: Progress, group: Group | None = None
) -> dict[str, Any]:
    """Pretrain, measure, export, write summary.json and return it; whatever is there is kept.

    Args:
        group: other processes that train along.
    """
    summary = run.summary()
    if summary is not None:
        progress.line(f"pretraining  finished earlier, see {run.path}")
        return summary
    config = run.config
    if config.corpus is not None and config.corpus != corpus.sha256:
        raise InputError(f"{corpus.path} is not the corpus that {run.path} was started with")
    for reason in device.reasons:
        progress.line(f"device  {reason}")
    epochs = expected_tokens(config) / corpus.row_length / corpus.rows
    if epochs > MOST_EPOCHS:
        progress.line(f"corpus  is read about {epochs:.0f} times: add text, or lower the budget")
    size = parameters(config.model, corpus.vocab_size)
    progress.line(
        f"model  {config.model.layers} x {config.model.width}, {size:,} parameters; "
        f"updates of {config.batch.rows:,} rows, learning rate {config.optim.lr:.1e}"
    )
    trained = pretrain(config, corpus, run, device, progress, group=group)
    final = trained_model(trained.model, config.model, corpus.row_length, corpus.tokenizer)
    if not run.final.exists():
        final.save(run.final)
    with progress.task("held-out loss") as task:
        rows = heldout_rows(
            corpus.tokenizer, corpus.heldout, config.data.heldout_rows, corpus.row_length
        )
        heldout = heldout_loss(
            trained.model.eval(), rows, Specials.of(corpus.tokenizer).mask, device.torch
        )
        task.update(1, f"{heldout['loss@0.15']:.3f} at 15 %, {heldout['loss@0.25']:.3f} at 25 %")
    run.event(
        "heldout", u=trained.u, update=trained.work.updates, tokens=trained.work.tokens, **heldout
    )
    summary = _summary(run, corpus, device, trained, heldout)
    summary["fill_mask"] = fill_mask_examples(final, corpus.heldout, device)
    with progress.task("export") as task:
        shutil.rmtree(run.export, ignore_errors=True)  # of a process that ended before its summary
        exported = export(final, run.export, "auto", summary)
        summary["export"] = {
            "format": exported.format,
            "reasons": list(exported.reasons),
            "logit_difference": exported.difference,
        }
        checked = "not checked: transformers is not installed"
        if exported.difference is not None:
            checked = f"logits within {exported.difference:.1e} of ours in transformers"
        task.update(1, f"{exported.format}, {checked}")
    write_json(run.path / "summary.json", summary)
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # nothing is left to go on with
    return summary


def _summary(
    run: RunDir, corpus: Corpus, device: Device, trained: Trained, heldout: dict[str, float]
) -> dict[str, Any]:
    config, work = run.config, trained.work
    computing = sum(trained.accounts[name] for name in ("data_wait", "step", "log"))
    return {
        "schema": 1,
        "recipe": config.recipe,
        "identity": config.identity(),
        "seed": config.seed,
        "budget": str(Budget.parse(config.budget.limit)),
        "u": trained.u,
        "charged_seconds": trained.charged_seconds,
        "accounts": trained.accounts,
        "parameters": parameters(config.model, corpus.vocab_size),
        "updates": work.updates,
        "rows": work.rows,
        "tokens": work.tokens,
        "epochs": work.rows / corpus.rows,
        "tokens_per_second": work.tokens / computing if computing else None,
        "exaflop": work.flops / EXA,
        "peak_exaflop": device.peak * trained.charged_seconds / EXA if device.peak else None,
        "peak_source": device.peak_source,
        "device": device.name,
        "dtype": str(device.dtype).removeprefix("torch."),
        "heldout": heldout,
        "unigram_cross_entropy": corpus.manifest["heldout"]["unigram_cross_entropy"],
        "mask_token": Specials.of(corpus.tokenizer).names(corpus.tokenizer)["mask"],
        "corpus": {
            "sha256": corpus.sha256,
            "sources": [source["name"] for source in corpus.manifest["sources"]],
            **{k: corpus.manifest[k] for k in ("documents", "characters", "tokens", "vocab_size")},
        },
    }


def _evaluate(run: RunDir, tasks: list[_Tasks], device: Device, progress: Progress) -> None:
    """Fine-tune the run's model on its tasks; the scores stay in the run directory."""
    protocol = run.config.finetune
    spec = BackboneSpec(str(run.path), protocol.dropout)
    encoder = spec.load()
    workers = run.config.compute.workers if device.torch.type == "cpu" else None
    with EvaluationFolder(run.evaluation, about(encoder), protocol) as kept:
        for each in tasks:
            evaluate_suite(
                kept,
                encoder,
                spec,
                each.suite,
                each.names,
                each.data,
                protocol,
                numerics_of(device),
                progress,
                most=workers,
            )


def fail_on_failed(suites: Mapping[str, Any]) -> None:
    """Raise `TaskFailed` if a task of a suite has no score."""
    reasons = [
        f"{name}: {entry['failed']}"
        for scores in suites.values()
        for name, entry in scores.get("tasks", {}).items()
        if "failed" in entry
    ]
    if reasons:
        raise TaskFailed(f"finished, but without a score for {'; '.join(reasons)}")


def result(run: RunDir) -> dict[str, Any]:
    """What a finished run gives, as ``--json`` prints it."""
    summary = run.summary() or {}
    report = run.path / "report.html"
    return {
        "run_dir": str(run.path),
        "export_dir": str(run.export),
        "report": str(report) if report.exists() else None,
        "heldout_loss": summary["heldout"]["loss@0.15"],
        **{k: v for k, v in summary.items() if k not in ("schema", "fill_mask", "accounts")},
        "tasks": {
            name: {k: entry.get(k) for k in ("metric", "median", "spread", "official", "untrained")}
            for scores in run.scores().values()
            for name, entry in scores.get("tasks", {}).items()
        },
    }
