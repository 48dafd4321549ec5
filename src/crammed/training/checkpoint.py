"""Checkpoints: complete or absent, two generations, nothing in them but tensors and JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from crammed.budget import Ledger, Work
from crammed.errors import InputError
from crammed.files import new_folder, write_json
from crammed.optim.build import Optimizers
from crammed.rundir import RunDir

GENERATIONS = 2


@dataclass(frozen=True)
class TrainState:
    """Everything besides weights and optimizer state that going on needs.

    Data order, masks and dropout are keyed by the counts in `work`, so there is no generator
    state to keep.
    """

    work: Work
    accounts: dict[str, float]
    corpus_sha256: str
    heldout_u: float
    """Progress at the last held-out measurement."""
    loss_scale: dict[str, float] | None = None
    """Of float16."""


class Checkpoints:
    """Writes a new generation when it is time, and drops the oldest.

    Attributes:
        cost: seconds that the last one took.

    Args:
        synchronize: waits for the device.
    """

    def __init__(
        self,
        run: RunDir,
        model: nn.Module,
        optimizer: Optimizers,
        ledger: Ledger,
        every_seconds: float,
        synchronize: Callable[[], None] = lambda: None,
    ) -> None:
        self._run = run
        self._model = model
        self._optimizer = optimizer
        self._ledger = ledger
        self._every = every_seconds
        self._synchronize = synchronize
        self._last = ledger.wall()
        self.cost = 0.0

    def due(self) -> bool:
        """Whether the last one is long enough ago."""
        return self._ledger.wall() - self._last >= self._every

    def save(self, state: TrainState) -> None:
        """Write a generation now, unless this update has one."""
        self._synchronize()  # training that is still under way belongs to training
        began = self._ledger.wall()
        folder = self._run.checkpoints
        generation = folder / f"step-{state.work.updates:08d}"
        if generation.exists():
            return
        with self._ledger.account("checkpoint"):
            weights = dict(self._model.named_parameters())
            moments = _optimizer_tensors(self._model, self._optimizer)
            with new_folder(generation) as aside:
                save_file(_on_cpu(weights), aside / "model.safetensors")
                save_file(_on_cpu(moments), aside / "optimizer.safetensors")
                write_json(aside / "state.json", {"schema": 1, **asdict(state)})
            for old in _generations(folder)[:-GENERATIONS]:
                shutil.rmtree(old)
            self._run.event("checkpoint", update=state.work.updates)
            self._run.heartbeat(self._ledger.charged())  # so that writing counts after a resume too
        self._last = self._ledger.wall()
        self.cost = self._last - began


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: Optimizers, corpus_sha256: str
) -> TrainState | None:
    """Restore the newest generation into `model` and `optimizer`; None where there is none.

    Raises:
        InputError: the checkpoint was made on another corpus.
    """
    generations = _generations(folder)
    if not generations:
        return None
    newest = generations[-1]
    values = json.loads((newest / "state.json").read_text("utf-8"))
    del values["schema"]
    state = TrainState(**{**values, "work": Work(**values["work"])})
    if state.corpus_sha256 != corpus_sha256:
        raise InputError(
            f"{newest} was trained on another corpus: restore that corpus or choose another --out"
        )
    load_weights(model, newest / "model.safetensors")
    saved = load_file(newest / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        of_parameter = {
            key.removeprefix(f"{name}/"): tensor.to(parameter.device)
            for key, tensor in saved.items()
            if key.startswith(f"{name}/")
        }
        optimizer.state[parameter] = of_parameter
    return state


def load_weights(model: nn.Module, file: Path) -> None:
    """Load every parameter of `model` from a safetensors file; none may be missing or left."""
    model.load_state_dict(load_file(file), strict=True)


def _generations(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _optimizer_tensors(model: nn.Module, optimizer: Optimizers) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": tensor
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state[parameter].items()
    }


def _on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
