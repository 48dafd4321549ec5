"""The stages of a run, one after the other; each is skipped where its result is there already."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crammed.budget import Budget
from crammed.config import FinetuneConfig, RunConfig
from crammed.data.corpus import Corpus
from crammed.data.manifest import changed_files
from crammed.data.prepare import prepare
from crammed.data.python_docs import write_tasks
from crammed.data.sources import open_sources
from crammed.data.tokenizer import Specials
from crammed.device import Device, choose_device
from crammed.errors import InputError, TaskFailed
from crammed.evaluate.fill_mask import fill_mask_examples
from crammed.evaluate.heldout import heldout_loss, heldout_rows
from crammed.evaluate.suite import Scores, evaluate_tasks
from crammed.evaluate.tasks import MADE_HERE, Task, find_tasks
from crammed.export.huggingface import export
from crammed.files import new_folder, write_json
from crammed.model.count import parameters
from crammed.model.final import final_model, load_final
from crammed.progress import Progress
from crammed.rundir import RunDir, read_config
from crammed.train.loop import Trained, pretrain

EXA = 1e18


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
    from crammed.report.html import write_report

    if corpus_dir is not None:
        Corpus(corpus_dir)
    elif not (out / "corpus" / "manifest.json").exists():
        open_sources(config.data)
    given = find_tasks([name for name in config.finetune.tasks if name not in MADE_HERE], glue)
    run = RunDir.open(out, config)
    try:
        with run:
            with _stage(run, "prepare"):
                corpus = Corpus(corpus_dir) if corpus_dir else _corpus_of(run, progress)
                tasks = [*_tasks_made_here(run), *given]
            device = choose_device(config.compute)
            with _stage(run, "pretrain"):
                train_and_export(run, corpus, device, progress)
            with _stage(run, "evaluate"):
                scores = _evaluate(run, tasks, config.finetune, device, progress)
            with _stage(run, "report"):
                report = write_report([run.path], run.path / "report.html")
            progress.line(f"report  {report}")
    except InputError:
        run.discard_if_new()
        raise
    fail_on_failed(scores)
    return result(run)


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


def _tasks_made_here(run: RunDir) -> list[tuple[Task, Path]]:
    """The demonstration tasks among the run's, made from this machine's documentation."""
    names = [name for name in run.config.finetune.tasks if name in MADE_HERE]
    folder = run.path / "tasks"
    if names and not folder.exists():
        with new_folder(folder) as aside:
            write_tasks(aside)
    return find_tasks(names, folder)


@contextmanager
def _stage(run: RunDir, name: str) -> Iterator[None]:
    """Note how long a stage took."""
    began = time.monotonic()
    yield
    run.event("stage", name=name, seconds=time.monotonic() - began)


def train_and_export(
    run: RunDir, corpus: Corpus, device: Device, progress: Progress
) -> dict[str, Any]:
    """Pretrain, measure, export, write summary.json and return it; whatever is there is kept."""
    summary = run.summary()
    if summary is not None:
        progress.line(f"pretraining  finished earlier, see {run.path}")
        return summary
    config = run.config
    if config.corpus is not None and config.corpus != corpus.sha256:
        raise InputError(f"{corpus.path} is not the corpus that {run.path} was started with")
    for reason in device.reasons:
        progress.line(f"device  {reason}")
    trained = pretrain(config, corpus, run, device, progress)
    final = final_model(trained.model, config.model, corpus.row_length, corpus.tokenizer)
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


def _evaluate(
    run: RunDir,
    tasks: list[tuple[Task, Path]],
    protocol: FinetuneConfig,
    device: Device,
    progress: Progress,
) -> Scores:
    def save(scores: Scores) -> None:
        write_json(run.path / "scores.json", scores)

    final = load_final(run.path)
    return evaluate_tasks(final, tasks, protocol, device, progress, run.scores(), save)


def evaluate_run(
    path: Path, names: Sequence[str], data: Path, seeds: int | None, progress: Progress
) -> Scores:
    """Fine-tune a finished run's model on tasks; the scores stay in its directory.

    Args:
        names: the tasks.
        seeds: how many seeds; None is what the recipe says.
    """
    config = read_config(path)
    load_final(path)
    tasks = find_tasks(names, data)
    protocol = config.finetune.model_copy(update={"seeds": seeds or config.finetune.seeds})
    with RunDir.open(path, config) as run:
        return _evaluate(run, tasks, protocol, choose_device(config.compute), progress)


def evaluate_heldout(path: Path, file: Path) -> dict[str, float]:
    """Held-out loss of a finished run's model on a file of documents."""
    config, final = read_config(path), load_final(path)
    device = choose_device(config.compute)
    rows = heldout_rows(final.tokenizer, file, config.data.heldout_rows, final.row_length)
    if not len(rows.ids):
        raise InputError(f"{file} makes no row of {final.row_length} tokens")
    mask = Specials.of(final.tokenizer).mask
    loss = heldout_loss(final.masked_lm(device.torch), rows, mask, device.torch)
    return {"rows": len(rows.ids), "tokens_per_character": rows.tokens_per_character, **loss}


def fail_on_failed(scores: dict[str, Any]) -> None:
    """Raise `TaskFailed` if a task has no score."""
    entries = scores.get("tasks", {}).items()
    if reasons := [f"{name}: {entry['failed']}" for name, entry in entries if "failed" in entry]:
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
            for name, entry in ((run.scores() or {}).get("tasks") or {}).items()
        },
    }
