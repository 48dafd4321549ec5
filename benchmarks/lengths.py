"""What longer rows cost: tokens per second and peak memory of an update, at equal tokens.

    python benchmarks/lengths.py [RECIPE] [key.path=value ...] [--lengths 128,512,2048,8192]
        [--tokens 16384] [--rounds 3] [--out RESULT.json]

Every length is measured with attention to the whole row and with attention within documents; the
cost of the latter does not depend on where documents end. All take turns in one process. Peak
memory is that of a separate process that only does two updates: all that it holds, or what it
allocates on a GPU.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from common import Training, config_of, described, finish, numbers_of, run, seconds_of, summary
from crammed.config import RunConfig
from crammed.data.masking import predicted_positions
from crammed.errors import InputError
from crammed.machine.device import choose_device
from crammed.model.count import train_flops_per_token
from resources import alone, largest

ATTENTIONS = ("row", "document")

Case = tuple[int, str]
"""A row length and an attention."""


def main(
    words: Annotated[list[str] | None, typer.Argument(help="Recipe, overrides.")] = None,
    lengths: Annotated[str, typer.Option(help="Row lengths.")] = "128,512,2048,8192",
    tokens: Annotated[int, typer.Option(min=8, help="Tokens per update.")] = 16_384,
    rounds: Annotated[int, typer.Option(min=1, help="Updates of each.")] = 3,
    out: Path | None = None,
) -> None:
    cases = [(n, each) for n in numbers_of("--lengths", lengths) for each in ATTENTIONS]
    if wrong := [length for length, _ in cases if tokens % length]:
        raise InputError(f"--tokens {tokens} is not a multiple of the row length {wrong[0]}")
    first = _config(words, cases[0])
    device = choose_device(first.compute)
    result = described("lengths", first, words, device) | {"tokens": tokens, "rounds": rounds}
    loops = {case: Training(_config(words, case), device, tokens // case[0]) for case in cases}
    took: dict[Case, list[float]] = {case: [] for case in cases}
    for number in range(rounds + 1):
        for case, loop in loops.items():
            seconds = seconds_of(device, partial(loop.update, number))
            if number:  # the first warms up
                took[case].append(seconds)
    loops.clear()
    result["cases"] = [
        {
            "row_length": case[0],
            "attention": case[1],
            **summary(took[case]),
            "tokens_per_second": tokens / summary(took[case])["seconds"],
            "flops_per_token": _flops(_config(words, case)),
            "peak_memory": alone(_peak_memory, words, case, tokens),
        }
        for case in cases
    ]
    finish(result, out)


def _config(words: list[str] | None, case: Case) -> RunConfig:
    length, attention = case
    own = (f"data.row_length={length}", f"train.attention={attention}")
    return config_of([*(words or []), *own])


def _flops(config: RunConfig) -> float:
    length = config.data.row_length
    predicted = predicted_positions(config.masking.rate, length)
    return train_flops_per_token(config.model, config.tokenizer.vocab_size, length, predicted)


def _peak_memory(words: list[str] | None, case: Case, tokens: int) -> int:
    """The most bytes that this process holds in two updates; on a GPU, those allocated there."""
    config = _config(words, case)
    device = choose_device(config.compute)
    training = Training(config, device, tokens // case[0])
    if device.torch.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device.torch)  # leave out what fitting the memory took
    for number in range(2):
        training.update(number)
    device.synchronize()
    if device.torch.type == "cuda":
        return torch.cuda.max_memory_allocated(device.torch)
    return largest()


if __name__ == "__main__":
    run(main)
