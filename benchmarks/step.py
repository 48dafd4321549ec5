"""How fast an update of pretraining is, beside plain loops over BertForMaskedLM of transformers.

    python benchmarks/step.py [RECIPE] [key.path=value ...] [--rows 16] [--updates 10]
        [--beside/--no-beside] [--out RESULT.json]

Ours is a whole update as training does it: masks, forward and backward, clipping, optimizer. The
plain loops do the same with a model of the recipe's shape, BERT's own layers, as many masks and
AdamW as PyTorch gives it: one decodes every position, one only those behind masks. All take turns,
so that a machine that slows down slows all of them down.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import nn

from crammed.budget import Work
from crammed.config import RunConfig
from crammed.data.masking import Masker, predicted_positions
from crammed.data.tokenizer import Specials
from crammed.device import Device, choose_device
from crammed.model.count import parameters, train_flops_per_token
from crammed.model.encoder import MaskedLM, initialise
from crammed.optim.build import build_optimizer
from crammed.recipe import load_config
from crammed.rundir import environment
from crammed.train.plan import Update
from crammed.train.step import TrainStep

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
WARM = 3


def main(
    words: Annotated[list[str] | None, typer.Argument(help="Recipe, overrides.")] = None,
    rows: Annotated[int, typer.Option(help="Rows of an update.")] = 16,
    updates: int = 10,
    beside: Annotated[bool, typer.Option(help="Time the plain loops too.")] = True,
    out: Path | None = None,
) -> None:
    names = [word for word in words or [] if "=" not in word]
    overrides = [word for word in words or [] if "=" in word]
    config = load_config(names[0] if names else "crammed", overrides)
    device = choose_device(config.compute)
    vocab, length = config.tokenizer.vocab_size, config.data.row_length
    loops: dict[str, Callable[[int], None]] = {"ours": _ours(config, device, rows)}
    if beside:
        for masked_only in (False, True):
            name = "plain, masked positions" if masked_only else "plain, every position"
            loops[name] = _plain(config, device, rows, masked_only)
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(WARM + updates):
        for name, loop in loops.items():
            device.synchronize()
            began = time.perf_counter()
            loop(number)
            device.synchronize()
            if number >= WARM:
                seconds[name].append(time.perf_counter() - began)
    predicted = predicted_positions(config.masking.rate, length)
    flops = train_flops_per_token(config.model, vocab, length, predicted)
    result: dict[str, Any] = {
        "name": "step",
        "environment": environment(),
        "device": device.name,
        "dtype": str(device.dtype).removeprefix("torch."),
        "recipe": config.recipe,
        "overrides": overrides,
        "parameters": parameters(config.model, vocab),
        "rows": rows,
        "row_length": length,
        "loops": {name: _summary(each, rows * length) for name, each in seconds.items()},
    }
    ours = result["loops"]["ours"]
    ours["teraflops_per_second"] = flops * ours["tokens_per_second"] / 1e12
    if device.mfu_peak:
        ours["mfu"] = flops * ours["tokens_per_second"] / device.mfu_peak
    text = json.dumps(result, indent=1)
    if out is not None:
        out.write_text(text + "\n", "utf-8")
    print(text)


def _summary(seconds: list[float], tokens: int) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "seconds": statistics.median(ordered),
        "fastest": ordered[0],
        "slowest": ordered[-1],
        "tokens_per_second": tokens / statistics.median(ordered),
    }


def _rows(config: RunConfig, rows: int, number: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(number)
    shape = (rows, config.data.row_length)
    return torch.randint(5, config.tokenizer.vocab_size, shape, generator=draw)


def _ours(config: RunConfig, device: Device, rows: int) -> Callable[[int], None]:
    model = MaskedLM(config.model, config.tokenizer.vocab_size)
    initialise(model, config.model.init_std, torch.Generator().manual_seed(0))
    model.to(device.torch).train()
    step = TrainStep(model, build_optimizer(model, config.optim), config, SPECIALS, device)
    step.prepare([rows], [config.masking.rate])

    def update(number: int) -> None:
        ids = _rows(config, rows, number)
        rate = config.masking.rate
        plan = Update(number, number * rows, rows, 0.0, config.optim.lr, rate, Work())
        step.gradients(ids, plan)
        step.apply(config.optim.lr)

    return update


def _plain(
    config: RunConfig, device: Device, rows: int, masked_only: bool
) -> Callable[[int], None]:
    from transformers import BertConfig, BertForMaskedLM

    shape, optim = config.model, config.optim
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=config.tokenizer.vocab_size,
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.ffn_width,
            max_position_embeddings=max(512, shape.max_length),
            hidden_dropout_prob=shape.dropout,
            attention_probs_dropout_prob=shape.dropout,
        )
    )
    nn.Module.to(model, device.torch).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps
    )
    mask = Masker(
        0, config.masking.corruption, SPECIALS.mask, SPECIALS.ids, config.tokenizer.vocab_size
    )
    count = predicted_positions(config.masking.rate, config.data.row_length)
    half = device.dtype != torch.float32

    def update(number: int) -> None:
        ids = _rows(config, rows, number).to(device.torch)
        masked = mask(ids, torch.arange(rows, device=device.torch), count)
        with torch.autocast(device.torch.type, device.dtype, enabled=half):
            if masked_only:
                hidden = model.bert(input_ids=masked.ids).last_hidden_state
                where = masked.positions[..., None].expand(-1, -1, hidden.shape[-1])
                logits = model.cls(hidden.gather(1, where))
                labels = masked.labels
            else:
                logits = model(input_ids=masked.ids).logits
                labels = torch.full_like(ids, -100).scatter(1, masked.positions, masked.labels)
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100)
        loss.backward()
        if optim.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        optimizer.step()
        optimizer.zero_grad()

    return update


if __name__ == "__main__":
    typer.run(main)
