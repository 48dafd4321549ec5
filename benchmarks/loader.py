"""How fast rows are read and masked, compared with how fast training consumes them.

    python benchmarks/loader.py [RECIPE] [key.path=value ...] --corpus DIR [--rows 128,1024,8192]
        [--seconds 2] [--out RESULT.json]

Rows are read in random order, as in training, for each batch size. Masks are drawn on the device,
and compiled if training compiles. Training is the forward and backward pass of one microbatch. An
epoch begins with a new shuffle, which is timed separately.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from common import (
    SPECIALS,
    Json,
    Training,
    config_of,
    described,
    finish,
    numbers_of,
    random_rows,
    run,
)
from crammed.config import RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.data.masking import Masker, predicted_positions
from crammed.machine.device import Device, choose_device


def main(
    corpus: Annotated[Path, typer.Option(help="A corpus made by crammed prepare.")],
    words: Annotated[list[str] | None, typer.Argument(help="Recipe, overrides.")] = None,
    rows: Annotated[str, typer.Option(help="Batch sizes in rows.")] = "128,1024,8192",
    seconds: Annotated[float, typer.Option(help="How long to time each.")] = 2.0,
    out: Path | None = None,
) -> None:
    counts = numbers_of("--rows", rows)
    opened = Corpus(corpus)
    own = [f"data.row_length={opened.row_length}", f"tokenizer.vocab_size={opened.vocab_size}"]
    config = config_of([*(words or []), *own])
    device = choose_device(config.compute)
    stream = RowStream(opened, config.seed, config.order)
    result = described("loader", config, words, device)
    result |= {"corpus_rows": opened.rows, "shuffle_seconds": _shuffle(stream, opened.rows)}
    result["read"] = {}
    for count in counts:
        rate = _rate(_reading(stream, count), count, seconds, device)
        result["read"][str(count)] = _both(rate, opened.row_length)
    training = Training(config, device)
    result["microbatch_rows"] = few = training.rows
    result["mask"] = _both(
        _rate(_masking(config, device, few), few, seconds, device), opened.row_length
    )
    numbers = itertools.count()
    consumed = _rate(lambda: training.gradients(next(numbers)), few, seconds, device)
    result["training"] = _both(consumed, opened.row_length)
    slowest = min(entry["rows_per_second"] for entry in result["read"].values())
    result["read_share_of_training"] = consumed / slowest
    finish(result, out)


def _rate(do: Callable[[], object], rows: int, seconds: float, device: Device) -> float:
    """Rows per second when `do` is repeated; the first call does not count."""
    do()
    device.synchronize()
    began, done = time.perf_counter(), 0
    while not done or time.perf_counter() - began < seconds:
        do()
        done += rows
    device.synchronize()
    return done / (time.perf_counter() - began)


def _both(rows_per_second: float, row_length: int) -> Json:
    return {
        "rows_per_second": rows_per_second,
        "tokens_per_second": rows_per_second * row_length,
    }


def _reading(stream: RowStream, rows: int) -> Callable[[], object]:
    at = itertools.count(0, rows)
    return lambda: stream.read(next(at), rows)


def _shuffle(stream: RowStream, rows: int) -> float:
    """Seconds until the first row of a new epoch is determined."""
    began = time.perf_counter()
    stream.indices(rows, 1)
    return time.perf_counter() - began


def _masking(config: RunConfig, device: Device, rows: int) -> Callable[[], object]:
    vocab = config.tokenizer.vocab_size
    mask = Masker(0, config.masking.corruption, SPECIALS.mask, SPECIALS.ids, vocab)
    count = predicted_positions(config.masking.rate, config.data.row_length)
    ids = random_rows(config, rows).to(device.torch)
    numbers = torch.arange(rows, device=device.torch)

    def draw() -> tuple[torch.Tensor, ...]:
        masked = mask(ids, numbers, count)
        return masked.ids, masked.positions, masked.labels

    return torch.compile(draw, dynamic=False) if device.compile else draw


if __name__ == "__main__":
    run(main)
