"""How long one optimizer update takes at a recipe's shape, in several implementations.

    python benchmarks/optimizer.py [RECIPE] [key.path=value ...] [--updates 5] [--out RESULT.json]

AdamW runs fused, on several tensors at a time (foreach), and on one tensor after the other. Muon
runs as in recipes (all matrices of one shape form a batch, except large ones on a CPU), one
parameter at a time, and as torch.optim.Muon, each with AdamW for the remaining parameters. All take
turns. Clipping and the gradients of a whole update of the recipe (one microbatch, times the number
of microbatches) are timed as well, to give shares of an update.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from common import (
    Json,
    Training,
    config_of,
    described,
    finish,
    options_of,
    run,
    seconds_of,
    summary,
)
from crammed.config import RunConfig
from crammed.config.optim import AdamWConfig, MuonConfig
from crammed.machine.device import choose_device
from crammed.optim.build import build_optimizer
from crammed.optim.muon import Muon

WARM = 2


def main(
    words: Annotated[list[str] | None, typer.Argument(help="Recipe, overrides.")] = None,
    updates: Annotated[int, typer.Option(min=1)] = 5,
    out: Path | None = None,
) -> None:
    config = config_of(words)
    device = choose_device(config.compute)
    training = Training(config, device)
    took = []
    for number in range(WARM + updates):
        took.append(seconds_of(device, partial(training.gradients, number)))
        if number < WARM + updates - 1:
            training.optimizer.zero_grad()
    gradients = summary(took[WARM:])["seconds"] * config.batch.rows / training.rows
    ways = _ways(training.model, config)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM + updates):
        for name, step in ways.items():
            took_now = seconds_of(device, step)
            if number >= WARM:
                seconds[name].append(took_now)
    result = described("optimizer", config, words, device)
    result |= {
        "batch_rows": config.batch.rows,
        "gradients_seconds": gradients,
        "gradients_measured_rows": training.rows,
        "ways": {name: _shared(summary(each), gradients) for name, each in seconds.items()},
    }
    result["muon_differs_from_torch"] = muon_difference(training.model)
    finish(result, out)


def _shared(values: Json, gradients: float) -> Json:
    """The times, and their share of an update."""
    return {**values, "share_of_update": values["seconds"] / (gradients + values["seconds"])}


def _ways(model: nn.Module, config: RunConfig) -> dict[str, Callable[[], object]]:
    """Steps by name, each on parameters of its own with the gradients of `model`."""
    optim = options_of(config, AdamWConfig)
    clip = optim.clip or 1.0
    parameters = list(model.parameters())

    def clipping() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, clip, foreach=True)

    ways: dict[str, Callable[[], object]] = {"clipping": clipping}
    betas = (optim.beta1, optim.beta2)
    for name, kind in (
        ("AdamW, fused", {"fused": True}),
        ("AdamW, foreach", {"foreach": True}),
        ("AdamW, one after the other", {"foreach": False}),
    ):
        own = list(_copy(model).parameters())
        ways[name] = torch.optim.AdamW(own, lr=1e-6, betas=betas, eps=optim.eps, **kind).step
    slow = {"lr": 1e-6, "matrix_lr": 1e-6}
    as_muon = options_of(config, MuonConfig).model_copy(update=slow)
    ways["Muon, ours"] = build_optimizer(_copy(model), as_muon).step
    ways["Muon, one parameter at a time"] = _apart(_copy(model), as_muon)
    ways["Muon, PyTorch's"] = _torchs(_copy(model), as_muon)
    return ways


def _copy(model: nn.Module) -> nn.Module:
    """A copy of the model with weights and gradients of its own."""
    copied = copy.deepcopy(model)
    for theirs, own in zip(model.parameters(), copied.parameters(), strict=True):
        own.grad = None if theirs.grad is None else theirs.grad.clone()
    return copied


def _split(model: nn.Module, optim: MuonConfig) -> tuple[list[Tensor], list[Json]]:
    """The parameters that AdamW updates in recipes with Muon, and Muon's groups."""
    groups = build_optimizer(model, optim).param_groups
    rest = [p for group in groups if "parts" not in group for p in group["params"]]
    return rest, [group for group in groups if "parts" in group]


def _apart(model: nn.Module, optim: MuonConfig) -> Callable[[], object]:
    rest, groups = _split(model, optim)
    each = (
        Muon([{"params": [p], "parts": group["parts"]}], optim.matrix_lr, optim.momentum)
        for group in groups
        for p in group["params"]
    )
    return _beside_adamw(rest, optim, *each)


def _torchs(model: nn.Module, optim: MuonConfig) -> Callable[[], object]:
    rest, groups = _split(model, optim)
    theirs = torch_muon([p for group in groups for p in group["params"]], optim)
    return _beside_adamw(rest, optim, theirs)


def _beside_adamw(
    rest: list[Tensor], optim: MuonConfig, *others: torch.optim.Optimizer
) -> Callable[[], object]:
    """A step of AdamW on these parameters, and of other optimizers on theirs."""
    every = (torch.optim.AdamW(rest, lr=optim.lr, fused=True), *others)
    return lambda: [each.step() for each in every]


def torch_muon(matrices: list[Tensor], optim: MuonConfig) -> torch.optim.Optimizer:
    """PyTorch's Muon with the settings that are built into ours."""
    made: torch.optim.Optimizer = torch.optim.Muon(
        matrices,
        lr=optim.matrix_lr,
        weight_decay=0.0,
        momentum=optim.momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    return made


def muon_difference(model: nn.Module) -> float:
    """The largest relative difference between our updates and PyTorch's, which rounds to bfloat16.

    Matrices that hold queries, keys and values are left out: PyTorch's does not split them.
    """
    optim = MuonConfig(matrix_lr=1.0)
    ours, theirs = _copy(model), _copy(model)
    groups = _split(ours, optim)[1]
    alone = {id(p) for group in groups if group["parts"] == 1 for p in group["params"]}
    each = zip(model.parameters(), ours.parameters(), theirs.parameters(), strict=True)
    pairs = [(before, a, b) for before, a, b in each if id(a) in alone]
    Muon([{"params": [a for _, a, _ in pairs]}], optim.matrix_lr, optim.momentum).step()
    torch_muon([b for _, _, b in pairs], optim).step()
    differences = [
        float((a.detach() - b.detach()).norm() / (before.detach() - b.detach()).norm())
        for before, a, b in pairs
    ]
    return max(differences)


if __name__ == "__main__":
    run(main)
