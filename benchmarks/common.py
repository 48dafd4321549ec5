"""What the benchmarks share: parsing recipes, random rows, real updates, summaries."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import typer
from torch._dynamo.utils import compile_times

from crammed.budget import Work
from crammed.config import RunConfig
from crammed.config.optim import OptimizerConfig
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import CrammedError, InputError
from crammed.machine.device import Device
from crammed.model.count import parameters
from crammed.rules.recipe import load_config
from crammed.rules.sizing import with_values
from crammed.runs.environment import environment
from crammed.training.update.build import build
from crammed.training.update.planned import Update

Json = dict[str, Any]
Options = TypeVar("Options", bound=OptimizerConfig)

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)


def recipe_of(words: Sequence[str] | None, default: str = "crammed") -> tuple[str, list[str]]:
    """Split command-line words into a recipe and overrides; the last override of a key wins."""
    names = [word for word in words or [] if "=" not in word]
    if len(names) > 1:
        raise InputError(f"name one recipe at a time, not {' and '.join(names)}")
    overrides = {word.partition("=")[0]: word for word in words or [] if "=" in word}
    return names[0] if names else default, list(overrides.values())


def config_of(words: Sequence[str] | None, default: str = "crammed") -> RunConfig:
    recipe, overrides = recipe_of(words, default)
    return load_config(recipe, overrides)


def options_of(config: RunConfig, kind: type[Options]) -> Options:
    """The options of one optimizer, with the recipe's values for those its own optimizer shares."""
    name = kind.model_fields["name"].default
    options = with_values(config, {"optim.name": name}).optim
    assert isinstance(options, kind)
    return options


def described(name: str, config: RunConfig, words: Sequence[str] | None, device: Device) -> Json:
    """The first entries of every result."""
    return {
        "name": name,
        "environment": environment(),
        "device": device.name,
        "dtype": str(device.dtype).removeprefix("torch."),
        "recipe": config.recipe,
        "overrides": recipe_of(words)[1],
        "parameters": parameters(config.model, config.tokenizer.vocab_size),
        "row_length": config.data.row_length,
    }


def compiling() -> dict[str, float]:
    """Seconds of the compiler's phases so far that took a tenth or more; some contain others."""
    names, seconds = compile_times(repr="csv", aggregate=True)
    taken = {name: float(str(each)) for name, each in zip(names, seconds, strict=True)}
    return {name: each for name, each in taken.items() if each >= 0.1}


def random_rows(config: RunConfig, rows: int, number: int) -> torch.Tensor:
    """Token ids [rows, row_length] on the CPU; they differ for every number."""
    draw = torch.Generator().manual_seed(number)
    shape = (rows, config.data.row_length)
    return torch.randint(5, config.tokenizer.vocab_size, shape, generator=draw)


def numbers_of(option: str, text: str, least: int = 1) -> list[int]:
    """The whole numbers, none below `least`, in the value of an option such as ``64,128``."""
    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option}: {text!r} is not a list of numbers such as 1,2") from error
    if min(numbers) < least:
        raise InputError(f"{option}: {min(numbers)} is too small: numbers begin at {least}")
    return numbers


class Training:
    """A recipe's model with its optimizer, ready for updates of `rows` random rows.

    By default, these are one microbatch.
    """

    def __init__(self, config: RunConfig, device: Device, rows: int | None = None) -> None:
        self.config = config
        self.step = build(config, config.tokenizer.vocab_size, SPECIALS, device)
        began = time.perf_counter()
        self.step.prepare([rows or config.batch.rows], [config.masking.rate])
        device.synchronize()
        self.preparation = time.perf_counter() - began
        """Seconds spent on fitting the memory and compiling."""
        self.rows = rows or min(config.batch.rows, self.step.microbatch_rows)

    def gradients(self, number: int) -> torch.Tensor:
        """Forward and backward of one update; returns its loss, on the device."""
        rate = self.config.masking.rate
        plan = Update(number, number * self.rows, self.rows, 1.0, rate, Work())
        return self.step.gradients(random_rows(self.config, self.rows, number), plan)

    def update(self, number: int) -> None:
        self.gradients(number)
        self.step.apply(1.0)


def crammed(*words: str) -> Json:
    """What ``crammed`` prints as JSON, in a process of its own."""
    whole = [sys.executable, "-m", "crammed", *words, "--json"]
    done = subprocess.run(whole, stdout=subprocess.PIPE, check=True)
    values: Json = json.loads(done.stdout)
    return values


def seconds_of(device: Device, work: Callable[[], object]) -> float:
    """Seconds that `work` takes on the device, from idle to idle."""
    device.synchronize()
    began = time.perf_counter()
    work()
    device.synchronize()
    return time.perf_counter() - began


def summary(seconds: Iterable[float]) -> dict[str, float]:
    """The median as ``seconds``, ``fastest`` and ``slowest``."""
    ordered = sorted(seconds)
    return {"seconds": statistics.median(ordered), "fastest": ordered[0], "slowest": ordered[-1]}


def run(main: Callable[..., None]) -> None:
    """Let the command line call `main`; an error becomes one line and an exit code."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(main)
    run_app(app)


def run_app(app: typer.Typer) -> None:
    """Like `run`, for an app with several commands."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that child processes end, too
    try:
        app()
    except CrammedError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


def report(name: str, out: Path | None, **values: Any) -> None:
    """Finish with a result that is about no recipe."""
    finish({"name": name, "environment": environment(), **values}, out)


def finish(result: Json, out: Path | None) -> None:
    """Print a result as JSON, and write it to a file if one is named."""
    text = json.dumps(result, indent=1, allow_nan=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n", "utf-8")
    print(text)
