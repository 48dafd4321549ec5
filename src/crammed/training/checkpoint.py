"""Checkpoints: complete or absent, two generations, containing only tensors and JSON.

A generation is a folder ``step-UPDATES``, or ``step-UPDATES-NUMBER`` if that update already had
one. Its ``hashes.json`` has the hash of every file; a generation that does not match its hashes is
skipped in favour of the one before it.
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch
from pydantic import ConfigDict, Field, TypeAdapter
from safetensors.torch import save_file

from crammed.budget import Ledger, Work
from crammed.errors import Diverged, InputError, StoppedByPolicy
from crammed.files.folders import new_folder
from crammed.files.hashes import HASHES, damage, sha256, write_hashes
from crammed.files.regular import read_text
from crammed.files.writing import write_json
from crammed.model.tensors import UNREADABLE, Damaged, all_finite, misfit, read_tensors
from crammed.quantity import counted
from crammed.runs.directory import RunDir
from crammed.training.plan import Detour
from crammed.training.session import Session
from crammed.training.update.average import is_average
from crammed.training.update.step import TrainStep

SCHEMA = 2
"""Version of ``state.json``; from 2 on, a generation contains the hashes of its files."""
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class End:
    """The end of training: seconds charged, and progress after the last update.

    Attributes:
        memory_bytes: most that the process of the last update has held; None in older versions.
    """

    charged_seconds: float
    u: float
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """Everything besides weights and optimizer state that resuming needs.

    Data order, masks and dropout are keyed by the counts in `work`, so no generator state is kept.

    Attributes:
        accounts: seconds by account of the ledger.
        run_sha256: hash of ``env.json``, unique to each run; None in older versions.
        heldout_u: progress at the last held-out measurement.
        loss_scale: the loss scale of float16, or the scales of 8-bit products; None in other
            formats.
        end: None while training goes on.
        over: why a rule of the recipe ended the run; None if none did.
        layers: how many layers are in use; None in older versions.
        rows, begun: as in `Planner`; older versions began at 0.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    work: Work
    accounts: dict[str, float]
    corpus_sha256: str
    run_sha256: str | None = None
    heldout_u: float
    loss_scale: dict[str, float] | None = None
    detour: Detour = field(default_factory=Detour)
    end: End | None = None
    over: str | None = None
    layers: int | None = None
    rows: int | None = None
    begun: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0


class Checkpoints:
    """Writes generations of checkpoints into a run, and deletes the oldest.

    Args:
        held: the generation that the run resumes from, if any.
    """

    def __init__(self, session: Session, held: Path | None = None) -> None:
        self._session = session
        self.held = held

    def updates(self) -> int | None:
        """Updates in the newest generation known to be whole; None if there is none."""
        return None if self.held is None else _numbers(self.held)[0]

    def save(self, work: Work) -> None:
        """Write a generation now, unless this update already has one.

        Raises:
            Diverged: a weight or an optimizer value is not finite; nothing was written.
        """
        if self.updates() != work.updates:
            self.write(work)

    def write(self, work: Work, end: End | None = None, over: str | None = None) -> TrainState:
        """Write a generation, with how training ended or which rule ended the run.

        Raises:
            Diverged: a weight or an optimizer value is not finite; nothing was written.
        """
        run, step, ledger = self._session.run, self._session.step, self._session.ledger
        step.device.synchronize()  # so that unfinished updates are booked as training
        state = TrainState(
            work=work,
            accounts=ledger.state(),
            corpus_sha256=self._session.corpus_sha256,
            run_sha256=_run_sha256(run.path),
            heldout_u=self._session.agenda.heldout_u,
            loss_scale=step.loss_scale(),
            detour=self._session.planner.detour,
            end=end,
            over=over,
            layers=step.growth.layers,
            rows=self._session.planner.rows,
            begun=self._session.planner.begun,
        )
        with self._session.agenda.saving():
            weights = dict(step.model.named_parameters())
            moments = _optimizer_state(step)
            if not all_finite([*weights.values(), *moments.values()]):
                after = counted(work.updates, "update")
                raise Diverged(f"weights are no longer finite after {after}")
            generation = _unused(run.checkpoints, work.updates)
            with new_folder(generation) as aside:
                save_file(_on_cpu(weights), aside / "model.safetensors")
                save_file(_on_cpu(moments), aside / "optimizer.safetensors")
                values = {"schema": SCHEMA, **asdict(state)}
                write_json(aside / "state.json", values, sync_folder=False)
                write_hashes(aside)
            before, self.held = self.held, generation
            run.event("checkpoint", update=work.updates)
            run.heartbeat(ledger.charged())  # so that writing counts after a resume too
            _remove_others(run.checkpoints, (before, generation))
        return state


def _remove_others(folder: Path, kept: tuple[Path | None, ...]) -> None:
    """Remove all generations but these, damaged ones too, and what killed processes left."""
    for old in (*_generations(folder), *folder.glob(".step-*.tmp")):
        if old not in kept:
            with suppress(OSError):  # the next checkpoint tries again; the new one is complete
                shutil.rmtree(old)


@dataclass(frozen=True)
class Loaded:
    """What `load_checkpoint` found.

    Attributes:
        state: the state of the generation, or of a new run if there is none.
        generation: the folder it is from; None if there is none.
        damaged: generations that were skipped, each with what is wrong with it.
        lost: seconds of work that ended with an earlier process, which is not in the generation.
    """

    state: TrainState
    generation: Path | None = None
    damaged: tuple[str, ...] = ()
    lost: float = 0.0


def resume(run: RunDir, step: TrainStep, ledger: Ledger, corpus_sha256: str) -> Loaded:
    """Resume from the run's newest checkpoint, or start if there is none.

    The ledger takes over the accounts of earlier processes and charges the time lost in a crash.

    Raises:
        InputError: the checkpoint was made on another corpus, or all are damaged.
        StoppedByPolicy: a rule of the recipe has ended the run.
    """
    loaded = load_checkpoint(run.checkpoints, step, corpus_sha256)
    saved = loaded.state
    for words in loaded.damaged:
        run.event("damaged", checkpoint=words)
    if saved.end is not None:
        return loaded  # nothing more is charged
    charged = sum(saved.accounts.get(name, 0.0) for name in ledger.charge)
    lost = max(0.0, run.last_heartbeat() - charged)
    ledger.restore(saved.accounts, lost)
    if saved.work.updates or lost:
        run.event("resume", update=saved.work.updates, lost_s=lost)
    return replace(loaded, lost=lost)


def load_checkpoint(folder: Path, step: TrainStep, corpus_sha256: str) -> Loaded:
    """Restore the newest whole generation into the model and the optimizer of `step`.

    Raises:
        InputError: the checkpoint was made on another corpus, or all generations are damaged.
        StoppedByPolicy: a rule of the recipe has ended the run.
    """
    damaged: list[str] = []
    for generation in reversed(_generations(folder)):
        try:
            state, weights, moments = _read(generation, step)
        except Damaged as error:
            damaged.append(f"{generation.name} is damaged ({error})")
            continue
        _check(generation, state, corpus_sha256)
        for name, parameter in step.model.named_parameters():
            with torch.no_grad():
                parameter.copy_(weights[name])
            if parameter.requires_grad:
                step.optimizer.restore(parameter, moments[name])
        step.restore(state.loss_scale)
        if state.layers is not None:
            step.growth.use(state.layers)
        return Loaded(state, generation, tuple(damaged))
    if damaged:
        raise InputError(
            f"no checkpoint in {folder} is intact: {'; '.join(damaged)}. Restore one from a copy, "
            f"or delete {folder} to train from the beginning"
        )
    new = TrainState(work=Work(), accounts={}, corpus_sha256=corpus_sha256, heldout_u=0.0)
    return Loaded(new)


def _check(generation: Path, state: TrainState, corpus_sha256: str) -> None:
    """Refuse a checkpoint that training cannot resume from."""
    if state.corpus_sha256 != corpus_sha256:
        raise InputError(
            f"{generation} was trained on another corpus: restore that corpus or choose another "
            "--out"
        )
    run = _run_sha256(generation.parent.parent)
    if None not in (run, state.run_sha256) and run != state.run_sha256:
        raise InputError(
            f"{generation} belongs to another run, or {generation.parent.parent / 'env.json'} was "
            "changed: restore the files that belong together, or choose another --out"
        )
    if state.over is not None:
        raise StoppedByPolicy(f"{state.over}; the run is over, so choose another --out")


def _run_sha256(run: Path) -> str | None:
    file = run / "env.json"
    return sha256(file) if file.exists() else None


def _read(generation: Path, step: TrainStep) -> tuple[TrainState, Tensors, dict[str, Tensors]]:
    """State, weights and moments of a generation, checked before any of it is used."""
    if (generation / HASHES).exists() and (fault := damage(generation)):
        raise Damaged(fault)
    try:
        values = json.loads(read_text(generation / "state.json"))
        schema = values.pop("schema")
        state = TypeAdapter(TrainState).validate_python(values)
    except UNREADABLE as error:
        raise Damaged("state.json does not describe a checkpoint") from error
    if schema > 1 and not (generation / HASHES).exists():
        raise Damaged(f"{HASHES} is missing")
    weights = read_tensors(generation / "model.safetensors")
    flat = read_tensors(generation / "optimizer.safetensors")
    if fault := misfit(weights, dict(step.model.named_parameters())):
        raise Damaged(f"model.safetensors: {fault}")
    if not all_finite([*weights.values(), *flat.values()]):  # as older versions could write
        raise Damaged("it holds values that are not finite")
    return state, weights, _by_parameter(flat, step)


def _by_parameter(flat: Tensors, step: TrainStep) -> dict[str, Tensors]:
    """The optimizer's tensors by parameter and key, from names of the form ``PARAMETER/KEY``."""
    named = dict(step.model.named_parameters())
    found: dict[str, Tensors] = {name: {} for name in named}
    any_shape = step.optimizer.of_library is not None
    for full, tensor in flat.items():
        name, _, key = full.rpartition("/")
        if name not in named or not (any_shape or _suits(key, tensor, named[name])):
            raise Damaged(f"optimizer.safetensors: {full} does not match the model")
        found[name][key] = tensor
    names = {id(parameter): name for name, parameter in named.items()}
    for group in step.optimizer.param_groups:
        # Adafactor keeps different values for matrices than for other parameters.
        keys = {(p.ndim > 1, frozenset(found[names[id(p)]])) for p in group["params"]}
        if step.growth.grows:  # a layer that is not in use yet has averages alone, later ones fewer
            own = {(m, frozenset(k for k in kept if not is_average(k))) for m, kept in keys}
            keys = {(matrix, kept) for matrix, kept in own if kept}
        if not any_shape and len(keys) > len({matrix for matrix, _ in keys}):
            raise Damaged("optimizer.safetensors lacks values of some parameters")
    return found


def _suits(key: str, tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether an optimizer could keep this tensor under this key for this parameter.

    ``step`` and NAdam's ``mu_product`` are scalars, and Adafactor has a number for each row and
    each column of a matrix. Everything else has the parameter's shape.
    """
    own = tuple(parameter.shape)
    others = {"row_var": (*own[:-1], 1), "col_var": (*own[:-2], 1, *own[-1:])}
    others |= {"step": (), "mu_product": ()}
    return tensor.dtype == parameter.dtype and tuple(tensor.shape) == others.get(key, own)


def _generations(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("step-*") if _numbers(path)), key=_numbers)


def _numbers(generation: Path) -> tuple[int, ...]:
    """The updates in a generation's name, and its number among those of that update."""
    found = re.fullmatch(r"step-(\d+)(?:-(\d+))?", generation.name)
    return (int(found[1]), int(found[2] or 0)) if found else ()


def _unused(folder: Path, updates: int) -> Path:
    first = folder / f"step-{updates:08d}"
    there = [numbers[1] for numbers in map(_numbers, _generations(folder)) if numbers[0] == updates]
    return first.with_name(f"{first.name}-{max(there) + 1}") if there else first


def _optimizer_state(step: TrainStep) -> Tensors:
    return {
        f"{name}/{key}": tensor
        for name, parameter in step.model.named_parameters()
        if parameter.requires_grad
        for key, tensor in step.optimizer.saved(parameter).items()
    }


def _on_cpu(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
