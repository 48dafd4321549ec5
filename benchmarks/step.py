"""How fast an update of pretraining is, compared with other settings and with plain loops.

    python benchmarks/step.py [RECIPE] [key.path=value ...] [--rows 16] [--updates 2] [--rounds 5]
        [--variant "key.path=value ..."] ... [--beside/--no-beside] [--memory] [--out RESULT.json]

docs/performance.md says what is timed. Each --variant is ours with other values; with rows of
another length, an update has as many as make the same number of tokens. BERT's feed-forward, in the
plain loops, has no gate: in the paper's shape that makes the products of a layer a fifth larger.
The plain loops are compiled if ours is, and use autocast in 16-bit formats.

Each loop takes a turn as soon as it is built, ours first, and RESULT.json is written with `rounds`
0, so that an interruption still leaves a result. These turns are then discarded. In each round all
loops take turns with several updates in a row, so that a machine that slows down affects them all,
and a GPU's host can run ahead as in training.

The peak memory of a loop on a GPU is what it allocates there. On a CPU, --memory measures ours and
the variants: all that a separate process holds that only does two updates.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from common import (
    SPECIALS,
    Json,
    Training,
    compiling,
    config_of,
    described,
    finish,
    options_of,
    random_rows,
    run,
    summary,
)
from crammed.config import RunConfig
from crammed.config.optim import AdamWConfig
from crammed.data.masking import Masker, predicted_positions
from crammed.errors import InputError
from crammed.files.writing import write_json
from crammed.machine.device import Device, choose_device
from crammed.machine.energy import Meter, gpu_counters
from crammed.model.count import train_flops_per_token
from crammed.training.update.build import new_model
from resources import alone, largest

WARM = 2
MOST_SHAPES = 256
"""The most shapes of one function that the compiler keeps; every variant needs its own."""

Loop = Callable[[int], object]
Logits = Callable[[Tensor, Tensor | None], Tensor]
"""Takes ids [B, S], and positions [B, N] or None for all positions."""


def main(
    words: Annotated[list[str] | None, typer.Argument(help="Recipe, overrides.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows per update.")] = 16,
    updates: Annotated[int, typer.Option(min=1, help="Updates in a row.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns for each.")] = 5,
    variant: Annotated[
        list[str] | None, typer.Option(help="Also time ours with these values; may be repeated.")
    ] = None,
    beside: Annotated[bool, typer.Option(help="Time the plain loops, too.")] = True,
    memory: Annotated[bool, typer.Option("--memory", help="On a CPU: peak memory, too.")] = False,
    out: Path | None = None,
) -> None:
    torch._dynamo.config.recompile_limit = MOST_SHAPES
    config = config_of(words)
    device = choose_device(config.compute)
    result = described("step", config, words, device) | {"rows": rows}
    loops: list[_Timed] = []
    failed: dict[str, str] = {}

    def keep(rounds: int) -> None:
        """Write the results so far, so that they survive if time runs out."""
        timed = {loop.name: loop.result(loops[0]) for loop in loops}
        result.update(rounds=rounds, loops=timed, failed=failed)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_json(out, result)

    def built(name: str) -> _Timed:
        if name in PLAIN:
            microbatch = loops[0].microbatch_rows or rows
            plain = partial(plain_loop, config, device, rows, microbatch, name)
            return _Timed(name, config, device, rows, plain)
        theirs = config_of([*(words or []), *([] if name == "ours" else name.split())])
        number = _rows(rows * config.data.row_length, theirs)
        loop = _Timed(name, theirs, choose_device(theirs.compute), number)
        if memory and device.torch.type == "cpu":
            loop.peak = alone(_peak_memory, theirs, number)
        return loop

    for name in ("ours", *(variant or []), *(PLAIN if beside else ())):
        try:
            loop = built(name)
            loop.run(0, updates)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
            print(f"{name} failed: {failed[name]}", file=sys.stderr, flush=True)
            if not loops:  # nothing to compare the others with
                keep(0)
                raise
        else:
            result.setdefault("compiling", compiling())  # of ours
            loops.append(loop)
            keep(0)
    for loop in loops:
        loop.forget()
    for number in range(rounds):
        for loop in loops:
            loop.run(number * updates, updates)
        keep(number + 1)
    finish(result, out)


def _rows(tokens: int, config: RunConfig) -> int:
    """How many rows make so many tokens."""
    rows, rest = divmod(tokens, config.data.row_length)
    if rest:
        raise InputError(f"{tokens} tokens are no whole rows of {config.data.row_length}")
    return rows


def _peak_memory(config: RunConfig, rows: int) -> int:
    """The most bytes that this process holds in two updates."""
    training = Training(config, choose_device(config.compute), rows)
    for number in range(2):
        training.update(number)
    return largest()


class _Timed:
    """A loop that is ready to be timed: built, by `plain` if it is not ours, and warmed up."""

    def __init__(
        self,
        name: str,
        config: RunConfig,
        device: Device,
        rows: int,
        plain: Callable[[], Loop] | None = None,
    ) -> None:
        self.name, self._config, self._device, self._rows = name, config, device, rows
        self.microbatch_rows: int | None = None
        self._preparation, self.peak = 0.0, 0
        self._seconds: list[float] = []
        self._joules: list[float] = []
        if device.torch.type == "cuda":
            torch.cuda.empty_cache()  # returns what other loops held for a while
        before = self._allocated()
        began = time.perf_counter()
        if plain is None:
            training = Training(config, device, rows)
            self.microbatch_rows = min(rows, training.step.microbatch_rows)
            self._preparation = training.preparation
            self._loop: Loop = training.update
        else:
            self._loop = plain()
        self._loop(0)
        device.synchronize()
        self._until_first = time.perf_counter() - began
        for number in range(1, WARM):
            self._loop(number)
        device.synchronize()
        self._held = self._allocated() - before

    def _allocated(self) -> int:
        on_gpu = self._device.torch.type == "cuda"
        return torch.cuda.memory_allocated(self._device.torch) if on_gpu else 0

    def run(self, first: int, count: int) -> None:
        """Time `count` updates in a row."""
        self._device.synchronize()
        on_gpu, others = self._device.torch.type == "cuda", self._allocated() - self._held
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self._device.torch)
        meter = Meter(gpu_counters(self._device.torch) if on_gpu else ())
        began = time.perf_counter()
        for number in range(first, first + count):
            self._loop(number)
        self._device.synchronize()
        self._seconds.append((time.perf_counter() - began) / count)
        if (used := meter.joules()) is not None:
            self._joules.append(used / count)
        if on_gpu:
            most = torch.cuda.max_memory_allocated(self._device.torch) - others
            self.peak = max(self.peak, most)

    def forget(self) -> None:
        self._seconds.clear()
        self._joules.clear()

    def result(self, ours: _Timed) -> Json:
        """The results; `times_ours` compares turn by turn, so that changes of pace cancel out."""
        config, rows, length = self._config, self._rows, self._config.data.row_length
        values: Json = {"rows": rows, **summary(self._seconds)}
        turns = zip(self._seconds, ours._seconds, strict=True)
        values["times_ours"] = statistics.median(own / its for own, its in turns)
        speed = values["tokens_per_second"] = rows * length / values["seconds"]
        values["seconds_until_first_update"] = self._until_first
        if self._joules:
            mean = statistics.fmean(self._joules)
            values["joules_per_million_tokens"] = mean / rows / length * 1e6
        if self.peak:
            values["peak_memory"] = self.peak
        if self.microbatch_rows is not None:
            values["microbatch_rows"] = self.microbatch_rows
            values["preparation_seconds"] = self._preparation
            vocab = config.tokenizer.vocab_size
            predicted = predicted_positions(config.masking.rate, length)
            flops = train_flops_per_token(config.model, vocab, length, predicted) * speed
            values["teraflops_per_second"] = flops / 1e12
            if self._device.mfu_peak:
                values["mfu"] = flops / self._device.mfu_peak
        return values


def plain_loop(config: RunConfig, device: Device, rows: int, microbatch: int, name: str) -> Loop:
    """One of the `PLAIN` loops, with microbatches of the same size as ours."""
    optim, (make, masked_only) = options_of(config, AdamWConfig), PLAIN[name]
    model, logits_of = make(config)
    nn.Module.to(model, device.torch).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps
    )
    mask = Masker(
        0, config.masking.corruption, SPECIALS.mask, SPECIALS.ids, config.tokenizer.vocab_size
    )
    count = predicted_positions(config.masking.rate, config.data.row_length)
    half = device.dtype != torch.float32

    def loss_of(ids: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device.torch.type, device.dtype, enabled=half):
            logits = logits_of(ids, positions if masked_only else None)
        if not masked_only:
            labels = torch.full_like(ids, -100).scatter(1, positions, labels)
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100)

    loss_of_rows = torch.compile(loss_of, dynamic=False) if device.compile else loss_of

    def update(number: int) -> None:
        ids = random_rows(config, rows, number).to(device.torch)
        numbers = torch.arange(rows, device=device.torch)
        for part, its in zip(ids.split(microbatch), numbers.split(microbatch), strict=True):
            masked = mask(part, its, count)
            loss = loss_of_rows(masked.ids, masked.positions, masked.labels)
            (loss * len(part) / rows).backward()
        if optim.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        optimizer.step()
        optimizer.zero_grad()

    return update


def _bert(config: RunConfig) -> tuple[nn.Module, Logits]:
    """BERT in the recipe's shape; the feed-forward has no gate."""
    from transformers import BertConfig, BertForMaskedLM

    shape = config.model
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

    def logits(ids: Tensor, positions: Tensor | None) -> Tensor:
        hidden = model.bert(input_ids=ids).last_hidden_state
        if positions is not None:
            hidden = hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1]))
        found: Tensor = model.cls(hidden)
        return found

    return model, logits


def _our_layers(config: RunConfig) -> tuple[nn.Module, Logits]:
    model = new_model(config, config.tokenizer.vocab_size, torch.device("cpu"))
    return model, model


PLAIN: dict[str, tuple[Callable[[RunConfig], tuple[nn.Module, Logits]], bool]] = {
    "plain, every position": (_bert, False),
    "plain, masked positions": (_bert, True),
    "plain, our layers, masked positions": (_our_layers, True),
}
"""What makes the model of a plain loop, and whether it decodes only masked positions."""


if __name__ == "__main__":
    run(main)
