"""Turns a corpus into a trained and exported encoder, and the summary of its run."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from crammed.adaptation.adapting import Adaptation, Adapted
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.data.heldout import rows_of_corpus, text_bytes
from crammed.data.tokenization.tokenizer import Specials
from crammed.data.verification import verify_once
from crammed.errors import Diverged, InputError
from crammed.evaluation.fill_mask import fill_mask_examples, shortest_example
from crammed.export.card import Metadata
from crammed.export.huggingface import export
from crammed.files.hashes import json_hash
from crammed.machine.device import Device
from crammed.machine.energy import counters_of, metering
from crammed.model.electra import lasting
from crammed.model.heldout import RATES, heldout_losses, loss_by_source
from crammed.model.trained import TrainedModel, check_trained, trained_model
from crammed.planning.forecast import early_end
from crammed.planning.settling import announce
from crammed.quantity import logits_text
from crammed.rules.early_end import EarlyEnd, ended_short
from crammed.rules.rates import far_too_high
from crammed.rules.sizing import MOST_EPOCHS
from crammed.runs.directory import RunDir, read_task_scores
from crammed.runs.longer import train_longer
from crammed.runs.summary import Summary, Training, checked, read_summary
from crammed.terminal.progress import Progress
from crammed.tracking.following import tracked
from crammed.training.agenda import TRAINING
from crammed.training.distributed import Group
from crammed.training.loop import Trained, pretrain
from crammed.training.update.build import build_for

EXA = 1e18
_SHOWN = ("metric", "median", "spread", "interval", "official", "untrained", "gain", "linear")
"""Of each score, in the result of a run."""


def train_and_export(
    run: RunDir,
    corpus: Corpus,
    device: Device,
    progress: Progress,
    group: Group | None = None,
    adaptation: Adaptation | None = None,
) -> Summary:
    """Pretrain, measure held-out loss, export and write the summary; skipped if there is one.

    Args:
        group: the processes that train together, if there are several.
        adaptation: a pretrained model to go on with; None trains from scratch.

    Returns:
        the contents of ``summary.json``.

    Raises:
        InputError: the run was started with another corpus, or the corpus is damaged.
    """
    if (summary := run.summary()) is not None:
        _finished_earlier(run, summary, progress, adaptation)
        return summary
    config = run.config
    if config.corpus is not None and config.corpus != corpus.sha256:
        raise InputError(f"{run.path} began with another corpus: name that, or another --out")
    verify_once(corpus, progress)
    with tracked(config.compute.track, run.path, progress):
        trained = _trained(run, corpus, device, progress, group, adaptation)
        work, epochs = trained.work, trained.work.rows / corpus.rows
        size = text_bytes(corpus.manifest["characters"], corpus.heldout)
        seconds = trained.charged_seconds
        early = early_end(config, corpus.vocab_size, corpus.rows, size, work, seconds)
        lost = trained.accounts.get("lost", 0.0)
        short = ended_short(config, trained.u, trained.begun, early, lost)
        _say_how_it_ended(progress, early, short, epochs)
        final = _kept(run, corpus, trained, adaptation)
        heldout, by_source = _measure_heldout(run, corpus, device, trained, progress)
    done = _training(run, corpus, device, trained, heldout)
    if adaptation is not None:
        about = adaptation.result(run, trained.model, corpus, device, progress)
        done = _adapted(run, done, adaptation.outside_rules(), about)
    summary = checked(
        run.path / "summary.json",
        {
            **done.values(),
            "heldout_by_source": by_source,
            "early_end": early.model_dump() if early is not None else None,
            "ended_short": short,
            "fill_mask": fill_mask_examples(final, corpus.heldout, device),
            "export": _export(run, final, done, progress),
        },
        Summary,
    )
    run.finish(summary)
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # nothing is left to resume
    return summary


def _finished_earlier(
    run: RunDir, summary: Summary, progress: Progress, adaptation: Adaptation | None
) -> None:
    """Check what a finished run has left, and say that there is nothing to do."""
    check_trained(run.path)
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # if a process ended just before this
    progress.line(f"pretraining  finished earlier, see {run.path}")
    if adaptation is not None:
        adaptation.note_unmeasured(summary, progress)


def _trained(
    run: RunDir,
    corpus: Corpus,
    device: Device,
    progress: Progress,
    group: Group | None,
    adaptation: Adaptation | None,
) -> Trained:
    config = run.config
    if adaptation is None:
        announce(config, run.choice, corpus, device, progress)
    else:
        adaptation.announce(config, device, progress)
        adaptation.measure_before(run, corpus, device, progress)
    build = build_for if adaptation is None else adaptation.build
    # What follows can be redone from the last checkpoint, which is kept until all is written.
    counters = counters_of(device.torch) if group is None else []  # they cover one process
    with metering(counters, run.last_joules()) as run.energy:
        return pretrain(config, corpus, run, device, progress, group=group, build=build)


def _say_how_it_ended(
    progress: Progress, early: EarlyEnd | None, short: str | None, epochs: float
) -> None:
    if early is not None:
        progress.line(f"corpus  {early.words(over=True)}")
    elif short is not None:
        progress.line(f"note  {short}")
    elif epochs > MOST_EPOCHS:
        progress.line(f"corpus  was read {epochs:.1f} times")


def _kept(
    run: RunDir, corpus: Corpus, trained: Trained, adaptation: Adaptation | None
) -> TrainedModel | Adapted:
    """The trained model; one from scratch is kept under our own names as well."""
    if adaptation is not None:
        return adaptation.finished(trained.model, run.config, corpus)
    final = trained_model(trained.model, run.config.model, corpus.row_length, corpus.tokenizer)
    shutil.rmtree(run.final, ignore_errors=True)
    final.save(run.final)
    return final


def _measure_heldout(
    run: RunDir, corpus: Corpus, device: Device, trained: Trained, progress: Progress
) -> tuple[dict[str, float], dict[str, dict[str, float | None]]]:
    """The trained model's loss on held-out text, and that of each source if there are several.

    The first is also recorded as an event of the run.
    """
    data, work = run.config.data, trained.work
    rows = rows_of_corpus(corpus, data.heldout_rows)
    model, mask = trained.model.eval(), Specials.of(corpus.tokenizer).mask
    each, passed, total = rows.sources is not None, 0, len(RATES) * len(rows.ids)
    with progress.task("held-out loss", total) as task:

        def counting(ids: Tensor, where: Tensor) -> Tensor:
            nonlocal passed
            task.update(passed)
            passed += len(ids)
            return cast(Tensor, model(ids, where))

        heldout, losses = heldout_losses(counting, rows, mask, device.torch, each=each)
        if not all(map(math.isfinite, heldout.values())):
            rate = far_too_high(run.config, run.choice.follows) or "a lower optim.lr"
            words = "the model has finite weights, but no finite held-out loss"
            run.event("diverged", reason=words)
            raise Diverged(f"{words}: start a new run with {rate} and another --out")
        by_source = loss_by_source(rows, losses)
        task.update(
            total, f"{heldout['loss@0.15']:.3f} at 15 %, {heldout['loss@0.25']:.3f} at 25 %"
        )
    done = {"u": trained.u, "update": work.updates, "tokens": work.tokens}
    run.event("heldout", **done, rows=len(rows.ids), **heldout)
    return heldout, by_source


def _export(
    run: RunDir, final: TrainedModel | Adapted, training: Training, progress: Progress
) -> dict[str, Any]:
    """Export the trained model; return the export's entry in the summary."""
    with progress.task("export") as task:
        shutil.rmtree(run.export, ignore_errors=True)  # from a process that ended halfway
        if isinstance(final, TrainedModel):
            metadata = Metadata(languages=run.config.data.clean.languages or ())
            exported = export(final, run.export, "auto", training, metadata)
        else:
            exported = final.export(run.export, training)
        task.update(1, f"{exported.format}; {logits_text(exported.difference)}")
    return {
        "format": exported.format,
        "reasons": list(exported.reasons),
        "logit_difference": exported.difference,
    }


def _training(
    run: RunDir, corpus: Corpus, device: Device, trained: Trained, heldout: dict[str, float]
) -> Training:
    """What training did, on which corpus, and the held-out loss."""
    config, work = run.config, trained.work
    whys = corpus.manifest.get("outside_rules"), config.outside_rules()
    computing = sum(trained.accounts[name] for name in TRAINING)
    peak = (device.peak or 0.0) * trained.charged_seconds
    values = {
        "schema": 1,
        "recipe": config.recipe,
        "identity": config.identity(),
        "seed": config.seed,
        "budget": str(config.budget.limit),
        "u": trained.u,
        "charged_seconds": trained.charged_seconds,
        "accounts": trained.accounts,
        "parameters": sum(each.numel() for each in lasting(trained.model).values()),
        "updates": work.updates,
        "rows": work.rows,
        "tokens": work.tokens,
        "epochs": work.rows / corpus.rows,
        "tokens_per_second": work.tokens / computing if computing else None,
        "exaflop": work.flops / EXA,
        # A machine that was busy while its peak was measured can pass it, so it is not known.
        "peak_exaflop": peak / EXA if peak >= max(1.0, work.flops) else None,
        "peak_source": device.peak_source,
        "memory_bytes": trained.memory_bytes,
        "joules": run.last_joules() or None,  # as of the last log point
        "device": device.name,
        "dtype": str(device.dtype).removeprefix("torch."),
        "heldout": heldout,
        "unigram_cross_entropy": corpus.manifest["heldout"]["unigram_cross_entropy"],
        "mask_token": Specials.of(corpus.tokenizer).names(corpus.tokenizer)["mask"],
        "outside_rules": "; ".join(filter(None, whys)) or None,
        "corpus": {
            "sha256": corpus.sha256,
            "heldout_sha256": _heldout_sha256(corpus, config),
            "sources": [source["name"] for source in corpus.manifest["sources"]],
            **{k: corpus.manifest[k] for k in ("documents", "characters", "tokens", "vocab_size")},
        },
    }
    return checked(run.path / "summary.json", values, Training)


def _adapted(run: RunDir, done: Training, why: str, about: dict[str, Any]) -> Training:
    """What training did, marked as an adaptation, with the sum of all of our own training."""
    if (earlier := about["earlier"]) is not None:
        seconds = earlier["seconds"] + done.charged_seconds
        about = {**about, "in_all": {"seconds": seconds, "tokens": earlier["tokens"] + done.tokens}}
    whys = "; ".join(each for each in (why, done.outside_rules) if each)
    values = {**done.values(), "outside_rules": whys, "adapted": about}
    return checked(run.path / "summary.json", values, Training)


def _heldout_sha256(corpus: Corpus, config: RunConfig) -> str:
    """A hash of all that decides the held-out rows: losses compare only where it is equal."""
    files = corpus.manifest["files"]
    hashes = [files[name]["sha256"] for name in ("heldout.jsonl.gz", "tokenizer.json")]
    return json_hash([*hashes, config.data.heldout_rows, config.data.row_length])


def result(run: Path, shown: Path | None = None) -> dict[str, Any]:
    """The result of the finished run in a folder, as ``--json`` prints it.

    Args:
        shown: how to name the folder; None is by its path.

    Raises:
        InputError: it has not finished.
    """
    summary = read_summary(run)
    shown = shown or run
    if summary is None:
        raise InputError(f"{shown} has not finished: repeat its command")
    values = summary.values()
    report, unshown = shown / "report.html", ("schema", "fill_mask", "accounts")
    return {
        "run_dir": str(shown),
        "export_dir": str(shown / "export"),
        "report": str(report) if (run / report.name).exists() else None,
        "heldout_loss": summary.heldout["loss@0.15"],
        "train_longer": train_longer(run, summary),
        "example": shortest_example(values["fill_mask"], summary.mask_token),
        **{k: v for k, v in values.items() if k not in unshown},
        "tasks": {
            name: {k: entry.get(k) for k in _SHOWN} for name, entry in read_task_scores(run).items()
        },
    }
