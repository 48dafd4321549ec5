"""Settles what a run trains: what it began with, or what suits this device's measured speed.

`crammed prepare`, `pretrain`, `run` and `study` all call `settle`; all processes of a run settle on
the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.data.heldout import text_bytes
from crammed.machine.device import Device, choose_device
from crammed.model.count import parameters
from crammed.planning.speed import training_speed
from crammed.quantity import quantity
from crammed.rules.choosing import Asked, Choice, Chosen, choose, reasons
from crammed.rules.early_end import EarlyEnd
from crammed.rules.rates import far_too_high
from crammed.rules.sizing import (
    MOST_EPOCHS,
    expected_tokens,
    in_vocabulary,
    seconds_a_shape,
    with_values,
)
from crammed.terminal.progress import Progress
from crammed.training.distributed import Group
from crammed.training.update.lanes import lanes_before, lanes_of

BUSY = "is busy: other work slowed the measurement, so the size that it suggests may be too small; "
REPEAT = "repeat the command without that work"
"""What to do of a plan, of which nothing stays."""
_CHOOSE_AGAIN = (
    "to choose again, stop the command before its first update and repeat it without that work"
)


def device_of(config: RunConfig, rows: float | None = None, run: Path | None = None) -> Device:
    """The device of a run.

    Args:
        rows: number of rows in the corpus; None if there is no corpus yet.
        run: the run's folder, if it exists: one that began compiled goes on compiled.

    Raises:
        InputError: this machine lacks the device or the format that the configuration asks for.
    """
    device = choose_device(config.compute, seconds_a_shape(config, rows))
    if config.compute.compile != "auto" or not device.compile or device.torch.type != "cpu":
        return device
    eager = replace(device, compile=False)
    before = lanes_before(run) if run is not None else None
    if (before or lanes_of(config, eager)) == 1:
        return device
    reasons = [words for words in device.reasons if not words.startswith("torch.compile")]
    why = "torch.compile off: lanes are faster for a model of this width"
    return replace(eager, reasons=(*reasons, why))


@dataclass
class Measuring:
    """Measures the speed of all processes of a run together; a `Measure`.

    Attributes:
        busy: whether other work held up a measurement, which is said once.
        mend: what to do about that.
    """

    device: Device
    progress: Progress
    several: int = 1
    busy: bool = False
    mend: str = _CHOOSE_AGAIN

    def __call__(self, config: RunConfig) -> float:
        with self.progress.task("measuring") as task:
            found = training_speed(config, self.device)
            speed = self.several * found.speed
            layers, width = config.model.layers, config.model.width
            task.update(1, f"{layers} x {width} trains with {quantity(speed, 'FLOP/s')}")
        if found.busy and not self.busy:
            self.busy = True
            self.progress.line(f"machine  {BUSY}{self.mend}")
        return speed


def settle(
    asked: Asked, rows: float | None, device: Device, progress: Progress, group: Group | None = None
) -> Chosen:
    """What a run trains: what it began with, or what suits the speed that is measured now.

    Args:
        asked: what is asked for, as the run in its folder has it (`crammed.runs.resuming`).
        rows: how many rows of text there are; None if unknown.
        group: the processes that train together, if there are several.

    Raises:
        InputError: nothing suits what is asked for.
    """
    several = group.size if group is not None and device.torch.type == "cuda" else 1
    measure = Measuring(device, progress, several)
    chosen = choose(asked, rows, measure)
    if asked.choice is not None:
        return chosen
    about = {"typed": asked.keys, "busy": measure.busy}
    return Chosen(chosen.config, chosen.choice.model_copy(update=about))


def tell(chosen: Chosen, group: Group) -> None:
    """Tell the other processes what this one has settled."""
    group.tell(json.dumps({"values": chosen.values, "choice": chosen.choice.model_dump()}))


def told(asked: Asked, group: Group) -> Chosen:
    """What the leading process has settled."""
    said = json.loads(group.tell(None))
    return Chosen(with_values(asked.config, said["values"]), Choice.model_validate(said["choice"]))


def announce(
    config: RunConfig, choice: Choice, corpus: Corpus, device: Device, progress: Progress
) -> None:
    """Log what is about to be trained, on what, and why."""
    for reason in device.reasons:
        progress.line(f"device  {reason}")
    config = in_vocabulary(config, corpus.vocab_size)
    if words := _about_the_text(config, choice, corpus):
        progress.line(f"corpus  {words}")
    size = quantity(parameters(config.model, corpus.vocab_size))
    high = far_too_high(config, choice.follows)
    rate = f"{config.optim.lr:.1e}" + (f" (far too high: {high} would suit)" if high else "")
    progress.line(
        f"model  {config.model.layers} x {config.model.width} ({size} parameters), updates of "
        f"{config.batch.rows:,} rows, learning rate {rate}: "
        f"{reasons(config, choice, corpus.rows)}"
    )


def _about_the_text(config: RunConfig, choice: Choice, corpus: Corpus) -> str | None:
    speed, length = choice.flops_per_second, corpus.rows * corpus.row_length
    paid, most = expected_tokens(config, speed), config.most_tokens(corpus.rows)
    if speed is None and config.budget.limit.kind == "time":  # a nominal speed would be a guess
        ends = f"ends the run when it has been read {most / length:g} times, if the budget lasts"
        return f"{ends} that long" if paid > most else None
    size = text_bytes(corpus.manifest["characters"], corpus.heldout) if paid > most else None
    if early := EarlyEnd.of(config, corpus.rows, size, most / length, most / paid):
        return early.words(over=False)
    if paid / length > MOST_EPOCHS:
        return f"will be read about {paid / length:.1f} times: add text, or lower the budget"
    return None
