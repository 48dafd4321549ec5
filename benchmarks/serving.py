"""What serving an encoder on a CPU costs: latency, throughput and size of Hugging Face folders.

    python benchmarks/serving.py NAME=MODEL_DIR [NAME=MODEL_DIR ...] --cores 0,1
        [--lengths 64,128] [--threads 1,2] [--rounds 9] [--out RESULT.json]

Encoders are loaded by `transformers` without their heads, in float32, and read random tokens: one
sentence at a time (latency) or 32 (throughput). Tokenizing is not timed. The models take turns in
one process; each figure is the median of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from common import Json, numbers_of, report, run, seconds_of, summary
from crammed.config import ComputeConfig
from crammed.errors import InputError
from crammed.machine.device import Device, choose_device
from crammed.terminal.quiet import quiet_transformers
from lanes import core_numbers, pinned

BATCHES = (1, 32)
LEAST_SECONDS = 0.2
"""One timing repeats a call for about this long."""


def main(
    models: Annotated[list[str], typer.Argument(help="NAME=MODEL_DIR")],
    cores: Annotated[str, typer.Option(help="Numbers of the cores to use, such as 0,1.")],
    lengths: Annotated[str, typer.Option(help="Tokens in a sentence.")] = "64,128",
    threads: str = "1,2",
    rounds: int = 9,
    out: Path | None = None,
) -> None:
    folders = dict(_named(word) for word in models)
    if len(folders) < len(models):
        raise InputError("two models have the same name: give each a name of its own")
    each_length = numbers_of("--lengths", lengths)
    each_threads = numbers_of("--threads", threads)
    used = pinned(core_numbers(cores))
    device = choose_device(ComputeConfig(device="cpu", threads=len(used)))
    loaded = {name: _load(folder) for name, folder in folders.items()}
    found: dict[str, Json] = {
        name: {
            "bytes": sum(file.stat().st_size for file in folders[name].glob("*.safetensors")),
            "parameters": sum(each.numel() for each in model.parameters()),
            "times": [],
        }
        for name, model in loaded.items()
    }
    for count in each_threads:
        torch.set_num_threads(count)
        for length in each_length:
            for batch in BATCHES:
                about = {"threads": count, "length": length, "batch": batch}
                for name, times in _times(loaded, device, length, batch, rounds).items():
                    found[name]["times"].append({**about, **summary(times)})
    report("serving", out, device=device.name, models=found)


def _named(word: str) -> tuple[str, Path]:
    name, _, folder = word.partition("=")
    if not (Path(folder) / "config.json").is_file():
        raise InputError(f"{word!r}: name a model and its folder, as NAME=MODEL_DIR")
    return name, Path(folder)


def _load(folder: Path) -> Any:
    from transformers import AutoModel

    with quiet_transformers():
        return AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def _times(
    models: dict[str, Any], device: Device, length: int, batch: int, rounds: int
) -> dict[str, list[float]]:
    """Seconds that each model takes for one batch, round by round."""
    calls = {name: _call(model, batch, length) for name, model in models.items()}
    for call in calls.values():
        call(1)
    repeats = {
        name: max(1, round(LEAST_SECONDS / seconds_of(device, partial(call, 1))))
        for name, call in calls.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, call in calls.items():
            whole = seconds_of(device, partial(call, repeats[name]))
            seconds[name].append(whole / repeats[name])
    return seconds


def _call(model: Any, batch: int, length: int) -> Callable[[int], None]:
    """A function that encodes one batch of random tokens as often as it is told."""
    ids = torch.randint(5, model.config.vocab_size, (batch, length))
    mask = torch.ones_like(ids)

    def call(times: int) -> None:
        for _ in range(times):
            model(input_ids=ids, attention_mask=mask)

    return call


if __name__ == "__main__":
    run(main)
