"""The stages of a run, in order; a stage whose result already exists is skipped."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crammed.config import RunConfig, TokenizerConfig
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_rows, text_bytes
from crammed.data.preparing.demo_tasks import write_tasks
from crammed.data.preparing.driver import prepare
from crammed.data.preparing.manifest import changed_files
from crammed.data.preparing.read.source import open_sources
from crammed.data.preparing.workfolder import remove_left_overs
from crammed.data.tokenization.tokenizer import Specials
from crammed.data.verification import verify_once
from crammed.errors import Diverged, InputError, TaskFailed
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.fill_mask import fill_mask_examples, shortest_example
from crammed.evaluation.finetuning.engine import Numerics
from crammed.evaluation.folder import EvaluationFolder
from crammed.evaluation.suite import SuiteEvaluator
from crammed.export.huggingface import export
from crammed.files.folders import new_folder
from crammed.files.hashes import json_hash
from crammed.machine.device import Device, peak_memory
from crammed.machine.energy import counters_of, metering
from crammed.model.count import parameters
from crammed.model.heldout import heldout_loss, loss_by_source
from crammed.model.trained import TrainedModel, check_trained, trained_model
from crammed.planning.forecast import early_end
from crammed.planning.settling import announce, device_of, measuring, settled
from crammed.quantity import logits_text
from crammed.rules.choosing import Asked
from crammed.rules.early_end import ended_short
from crammed.rules.rates import far_too_high
from crammed.rules.sizing import MOST_EPOCHS
from crammed.runs.directory import RunDir
from crammed.tasks.read import tasks_in
from crammed.tasks.task import Suite, load_suite, no_such
from crammed.terminal.progress import Progress
from crammed.training.agenda import TRAINING
from crammed.training.distributed import Group
from crammed.training.loop import Trained, pretrain

EXA = 1e18
MADE_HERE = "docs"
"""The suite whose data is generated from the documentation on this machine."""


@dataclass(frozen=True)
class _Tasks:
    """Some tasks of a suite, and the folder with their data."""

    suite: Suite
    names: list[str]
    data: Path


def run_everything(
    asked: Asked,
    out: Path,
    corpus_dir: Path | None,
    glue: Path | None,
    progress: Progress,
) -> dict[str, Any]:
    """Turn text and a budget into a trained, evaluated and exported encoder, and a report.

    Args:
        asked: what to run, `as_begun` in `out`; values it leaves open are chosen once the amount of
            text is known, before the tokenizer is trained.
        out: the run directory.
        corpus_dir: a prepared corpus; None prepares ``data.sources`` in the run directory.
        glue: folder of GLUE tasks; None if ``finetune.tasks`` names none of them.

    Returns:
        the result as printed by ``--json``.

    Raises:
        InputError: wrong input; a run directory that this call created is removed again.
        TaskFailed: everything finished, but a task has no score.
    """
    from crammed.report.page import write_report

    if corpus_dir is None and not (out / "corpus" / "manifest.json").exists():
        open_sources(asked.config.data)
    given = _find_tasks(asked.config.finetune.tasks, glue)
    run, choose = _opened(asked, out, corpus_dir, progress)
    try:
        with run:
            with _stage(run, "prepare"):
                corpus = Corpus(corpus_dir) if corpus_dir else _corpus_of(run, progress, choose)
                tasks = [*_generated_tasks(run), *given]  # before training, in case this fails
            device = device_of(run.config, corpus.rows, run.path)
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
    raise_for_failed_tasks(run.scores())
    return result(run)


def _opened(
    asked: Asked, out: Path, corpus_dir: Path | None, progress: Progress
) -> tuple[RunDir, Callable[[float], TokenizerConfig] | None]:
    """The run directory, and a function that settles open values once the text is cleaned.

    The function is None if nothing is left to settle: nothing is open, or the corpus exists.
    """
    own = out / "corpus"
    if corpus_dir is None and (own / "manifest.json").exists():
        corpus_dir = own
    text = Corpus(corpus_dir) if corpus_dir is not None else None
    asked = asked.of_corpus(text.vocab_size if text is not None else None)
    rows = text.rows if text is not None else None
    rough = asked.nominally(rows)
    measure = measuring(device_of(rough), progress)  # a wrong device ends the run here
    if text is not None or not asked.open:
        chosen = settled(asked, rows, measure)
        return RunDir.open(out, chosen.config, chosen.choice), None
    run = RunDir.open(out, rough)

    def choose(tokens: float) -> TokenizerConfig:
        chosen = settled(asked, tokens / asked.config.data.row_length, measure)
        run.decide(chosen.config, chosen.choice)
        return chosen.config.tokenizer

    return run, choose


def _find_tasks(names: Sequence[str], folder: Path | None) -> list[_Tasks]:
    """The GLUE tasks among these names; their data must exist.

    Raises:
        InputError: a task is unknown or has no data.
    """
    suite, made = load_suite("glue"), load_suite(MADE_HERE).tasks
    wanted = [name for name in names if name not in made]
    if unknown := [name for name in wanted if name not in suite.tasks]:
        raise InputError(no_such("task", unknown[0], (*suite.tasks, *made)))
    if not wanted:
        return []
    if folder is None:
        raise InputError(f"tasks {', '.join(wanted)} need data: name its folder with --glue FOLDER")
    there = tasks_in(suite, folder)
    if missing := [name for name in wanted if name not in there]:
        raise InputError(f"{folder} has no task {', '.join(missing)}: it has {', '.join(there)}")
    return [_Tasks(suite, wanted, folder)]


def _corpus_of(
    run: RunDir, progress: Progress, choose: Callable[[float], TokenizerConfig] | None = None
) -> Corpus:
    """The run's own corpus, prepared if necessary.

    Raises:
        InputError: the text is unsuitable, or has changed since the corpus was prepared.
    """
    path, config = run.path / "corpus", run.config
    if (path / "manifest.json").exists():
        remove_left_overs(path)
        corpus = Corpus(path)
        if changed := changed_files(corpus.manifest, config.data):
            raise InputError(
                f"{', '.join(changed)} changed since {path} was prepared: choose another --out"
            )
        return corpus
    compute = config.compute
    return prepare(config.data, config.tokenizer, path, progress, compute, choose=choose)


def _generated_tasks(run: RunDir) -> list[_Tasks]:
    """The run's demonstration tasks, generated from the documentation on this machine."""
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
    """Record how long a stage takes."""
    began = time.monotonic()
    yield
    run.event("stage", name=name, seconds=time.monotonic() - began)


def train_and_export(
    run: RunDir, corpus: Corpus, device: Device, progress: Progress, group: Group | None = None
) -> dict[str, Any]:
    """Pretrain, measure held-out loss, export and write the summary; skipped if there is one.

    Args:
        group: the processes that train together, if there are several.

    Returns:
        the contents of ``summary.json``.

    Raises:
        InputError: the run was started with another corpus, or the corpus is damaged.
    """
    summary = run.summary()
    if summary is not None:
        check_trained(run.path)
        shutil.rmtree(run.checkpoints, ignore_errors=True)  # if a process ended just before this
        progress.line(f"pretraining  finished earlier, see {run.path}")
        return summary
    config = run.config
    if config.corpus is not None and config.corpus != corpus.sha256:
        raise InputError(f"{corpus.path} is not the corpus that {run.path} was started with")
    verify_once(corpus, progress)
    announce(config, run.choice, corpus, device, progress)
    # What follows can be redone from the last checkpoint, which is kept until all is written.
    counters = counters_of(device.torch) if group is None else []  # they cover one process
    with metering(counters, run.last_joules()) as run.energy:
        trained = pretrain(config, corpus, run, device, progress, group=group)
    work, epochs = trained.work, trained.work.rows / corpus.rows
    size = text_bytes(corpus.manifest["characters"], corpus.heldout)
    early = early_end(config, corpus.vocab_size, corpus.rows, size, work, trained.charged_seconds)
    short = ended_short(config, trained.u, early)
    if early is not None:
        progress.line(f"corpus  {early.words(over=True)}")
    elif short is not None:
        progress.line(f"note  {short}")
    elif epochs > MOST_EPOCHS:
        progress.line(f"corpus  was read {epochs:.1f} times")
    final = trained_model(trained.model, config.model, corpus.row_length, corpus.tokenizer)
    shutil.rmtree(run.final, ignore_errors=True)
    final.save(run.final)
    heldout, by_source = _measure_heldout(run, corpus, device, trained, progress)
    summary = _summary(run, corpus, device, trained, heldout)
    summary["heldout_by_source"] = by_source
    summary["joules"] = run.last_joules() or None  # as of the last log point
    summary["early_end"] = asdict(early) if early is not None else None
    summary["ended_short"] = short
    summary["fill_mask"] = fill_mask_examples(final, corpus.heldout, device)
    summary["export"] = _export(run, final, summary, progress)
    run.finish(summary)
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # nothing is left to resume
    return summary


def _measure_heldout(
    run: RunDir, corpus: Corpus, device: Device, trained: Trained, progress: Progress
) -> tuple[dict[str, float], dict[str, dict[str, float | None]]]:
    """The trained model's loss on held-out text, and that of each source if there are several.

    The first is also recorded as an event of the run.

    Raises:
        Diverged: the loss is not finite.
    """
    data, work = run.config.data, trained.work
    with progress.task("held-out loss") as task:
        rows = heldout_rows(corpus.tokenizer, corpus.heldout, data.heldout_rows, corpus.row_length)
        model, mask = trained.model.eval(), Specials.of(corpus.tokenizer).mask
        heldout = heldout_loss(model, rows, mask, device.torch)
        if not all(map(math.isfinite, heldout.values())):
            rate = far_too_high(run.config, run.choice.follows) or "a lower optim.lr"
            words = "the model has finite weights, but no finite held-out loss"
            raise Diverged(f"{words}: train anew, in another --out, with {rate}")
        by_source = loss_by_source(model, rows, mask, device.torch)
        task.update(1, f"{heldout['loss@0.15']:.3f} at 15 %, {heldout['loss@0.25']:.3f} at 25 %")
    done = {"u": trained.u, "update": work.updates, "tokens": work.tokens}
    run.event("heldout", **done, rows=len(rows.ids), **heldout)
    return heldout, by_source


def _export(
    run: RunDir, final: TrainedModel, summary: dict[str, Any], progress: Progress
) -> dict[str, Any]:
    """Export the trained model; return the export's entry in the summary."""
    with progress.task("export") as task:
        shutil.rmtree(run.export, ignore_errors=True)  # from a process that ended halfway
        exported = export(final, run.export, "auto", summary)
        task.update(1, f"{exported.format}; {logits_text(exported.difference)}")
    return {
        "format": exported.format,
        "reasons": list(exported.reasons),
        "logit_difference": exported.difference,
    }


def _summary(
    run: RunDir, corpus: Corpus, device: Device, trained: Trained, heldout: dict[str, float]
) -> dict[str, Any]:
    """The part of ``summary.json`` about training, the corpus and the held-out loss."""
    config, work = run.config, trained.work
    computing = sum(trained.accounts[name] for name in TRAINING)
    return {
        "schema": 1,
        "recipe": config.recipe,
        "identity": config.identity(),
        "seed": config.seed,
        "budget": str(config.budget.limit),
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
        "memory_bytes": peak_memory(device.torch),
        "device": device.name,
        "dtype": str(device.dtype).removeprefix("torch."),
        "heldout": heldout,
        "unigram_cross_entropy": corpus.manifest["heldout"]["unigram_cross_entropy"],
        "mask_token": Specials.of(corpus.tokenizer).names(corpus.tokenizer)["mask"],
        "corpus": {
            "sha256": corpus.sha256,
            "heldout_sha256": _heldout_sha256(corpus, config),
            "sources": [source["name"] for source in corpus.manifest["sources"]],
            **{k: corpus.manifest[k] for k in ("documents", "characters", "tokens", "vocab_size")},
        },
    }


def _heldout_sha256(corpus: Corpus, config: RunConfig) -> str:
    """A hash of all that decides the held-out rows: losses compare only where it is equal."""
    files = corpus.manifest["files"]
    hashes = [files[name]["sha256"] for name in ("heldout.jsonl.gz", "tokenizer.json")]
    return json_hash([*hashes, config.data.heldout_rows, config.data.row_length])


def _evaluate(run: RunDir, tasks: list[_Tasks], device: Device, progress: Progress) -> None:
    """Fine-tune the run's model on its tasks and keep the scores in the run directory."""
    if not tasks:
        return
    protocol = run.config.finetune.at_width(run.config.model.width)
    spec = BackboneSpec(str(run.path), protocol.dropout)
    backbone = spec.load()
    workers = run.config.compute.workers if device.torch.type == "cpu" else None
    with EvaluationFolder(run.evaluation, backbone, protocol) as folder:
        evaluator = SuiteEvaluator(
            folder, backbone, spec, protocol, Numerics.on(device), progress, jobs=workers
        )
        for each in tasks:
            evaluator.evaluate(each.suite, each.names, each.data)


def raise_for_failed_tasks(suites: Mapping[str, Any], *, said: bool = False) -> None:
    """Raise `TaskFailed` if a task of a suite has no score.

    Args:
        suites: scores as JSON, by name of the suite; `said` if their faults have been printed.
    """
    reasons = [
        name if said else f"{name}: {entry['failed']}"
        for scores in suites.values()
        for name, entry in scores.get("tasks", {}).items()
        if "failed" in entry
    ]
    if reasons:
        raise TaskFailed(
            f"finished, but these tasks have no score: {(', ' if said else '; ').join(reasons)}"
        )


def result(run: RunDir) -> dict[str, Any]:
    """The result of a finished run as ``--json`` prints it."""
    summary = run.summary() or {}
    report = run.path / "report.html"
    return {
        "run_dir": str(run.path),
        "export_dir": str(run.export),
        "report": str(report) if report.exists() else None,
        "heldout_loss": summary["heldout"]["loss@0.15"],
        "example": shortest_example(summary["fill_mask"], summary["mask_token"]),
        **{k: v for k, v in summary.items() if k not in ("schema", "fill_mask", "accounts")},
        "tasks": {
            name: {k: entry.get(k) for k in ("metric", "median", "spread", "official", "untrained")}
            for scores in run.scores().values()
            for name, entry in scores.get("tasks", {}).items()
        },
    }
