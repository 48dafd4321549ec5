"""Checkpoints: complete or absent, two generations, nothing in them but tensors and JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from crammed.budget import Ledger, Work
from crammed.device import Device
from crammed.errors import InputError
from crammed.files import new_folder, write_json
from crammed.rundir import RunDir
from crammed.training.agenda import Agenda
from crammed.training.step import TrainStep

GENERATIONS = 2


@dataclass(frozen=True)
class TrainState:
    """Everything besides weights and optimizer state that resuming needs.

    Data order, masks and dropout are keyed by the counts in `work`, so there is no generator
    state to keep.

    Attributes:
        accounts: seconds by account of the ledger.
        heldout_u: progress at the last held-out measurement.
        loss_scale: that of float16; None in other formats.
    """

    work: Work = field(default_factory=Work)
    accounts: dict[str, float] = field(default_factory=dict)
    corpus_sha256: str = ""
    heldout_u: float = 0.0
    loss_scale: dict[str, float] | None = None


class Checkpoints:
    """Writes generations of checkpoints into a run, and drops the oldest.

    Args:
        corpus_sha256: hash of the corpus that the run trains on.
    """

    def __init__(
        self,
        run: RunDir,
        step: TrainStep,
        ledger: Ledger,
        agenda: Agenda,
        device: Device,
        corpus_sha256: str,
    ) -> None:
        self._run = run
        self._step = step
        self._ledger = ledger
        self._agenda = agenda
        self._device = device
        self._corpus_sha256 = corpus_sha256

    def save(self, work: Work) -> None:
        """Write a generation now, unless this update already has one."""
        self._device.synchronize()  # training that is still under way belongs to training
        folder = self._run.checkpoints
        generation = folder / f"step-{work.updates:08d}"
        if generation.exists():
            return
        state = TrainState(
            work,
            self._ledger.state(),
            self._corpus_sha256,
            self._agenda.heldout_u,
            self._step.loss_scale(),
        )
        with self._agenda.saving():
            weights = dict(self._step.model.named_parameters())
            with new_folder(generation) as aside:
                save_file(_on_cpu(weights), aside / "model.safetensors")
                save_file(_on_cpu(_optimizer_state(self._step)), aside / "optimizer.safetensors")
                write_json(aside / "state.json", {"schema": 1, **asdict(state)})
            for old in _generations(folder)[:-GENERATIONS]:
                shutil.rmtree(old)
            self._run.event("checkpoint", update=work.updates)
            self._run.heartbeat(self._ledger.charged())  # so that writing counts after a resume too


def resume(run: RunDir, step: TrainStep, ledger: Ledger, corpus_sha256: str) -> TrainState:
    """Go on from the run's newest checkpoint, or begin where there is none.

    The ledger takes over the accounts of earlier processes, and charges the time that a crash
    destroyed.

    Raises:
        InputError: the checkpoint was made on another corpus.
    """
    saved = load_checkpoint(run.checkpoints, step, corpus_sha256)
    charged = sum(saved.accounts.get(name, 0.0) for name in ledger.charge)
    lost = max(0.0, run.last_heartbeat() - charged)
    ledger.restore(saved.accounts, lost)
    if saved.work.updates or lost:
        run.event("resume", update=saved.work.updates, lost_s=lost)
    return saved


def load_checkpoint(folder: Path, step: TrainStep, corpus_sha256: str) -> TrainState:
    """Restore the newest generation into `step`, its model and its optimizer.

    Returns:
        the state that was saved, or that of a run that has not begun where there is no generation.

    Raises:
        InputError: the checkpoint was made on another corpus.
    """
    generations = _generations(folder)
    if not generations:
        return TrainState(corpus_sha256=corpus_sha256)
    newest = generations[-1]
    values = json.loads((newest / "state.json").read_text("utf-8"))
    del values["schema"]
    state = TrainState(**{**values, "work": Work(**values["work"])})
    if state.corpus_sha256 != corpus_sha256:
        raise InputError(
            f"{newest} was trained on another corpus: restore that corpus or choose another --out"
        )
    step.model.load_state_dict(load_file(newest / "model.safetensors"), strict=True)
    saved = load_file(newest / "optimizer.safetensors")
    for name, parameter in step.model.named_parameters():
        step.optimizer.state[parameter] = {
            key.removeprefix(f"{name}/"): tensor.to(parameter.device)
            for key, tensor in saved.items()
            if key.startswith(f"{name}/")
        }
    step.restore(state.loss_scale)
    return state


def _generations(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _optimizer_state(step: TrainStep) -> dict[str, torch.Tensor]:
    """The optimizer's tensors as ``PARAMETER/KEY``."""
    return {
        f"{name}/{key}": tensor
        for name, parameter in step.model.named_parameters()
        for key, tensor in step.optimizer.state[parameter].items()
    }


def _on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
