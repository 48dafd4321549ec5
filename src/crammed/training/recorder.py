"""Log points: losses stay on the device between them, so each costs one synchronisation."""

from __future__ import annotations

import math
import statistics
from collections import deque

import torch
from torch import Tensor

from crammed.budget import Work
from crammed.errors import Diverged
from crammed.machine.waiting import Neighbours
from crammed.quantity import counted
from crammed.terminal.progress import ProgressTask
from crammed.training.session import Session
from crammed.training.update.planned import Update

MOST_SKIPPED = 30
"""Most updates skipped in a row; by then the loss scale has fallen from 65,536 to below 1e-4."""
USUAL = 100
"""Number of previous values that define the usual value and deviation."""
LAST = 100
"""The loss at the end of a run is averaged over at least this many updates,"""
SHARE_OF_LAST = 20
"""or over one in this many of all updates, if that is fewer."""
FEWEST = 20
"""Nothing counts as a spike before there are this many values to compare it with."""
FAR = 10.0
"""A spike lies this many typical deviations above the usual value."""
LEAST = {"loss": 0.01, "grad_norm": 0.1}
"""A typical deviation counts as at least this share of the usual value."""


class Spikes:
    """Finds values far above those before them.

    The usual value is the median of the last `USUAL` values, and the typical deviation is their
    median absolute deviation; spikes hardly affect either.

    Args:
        least: lower bound on the deviation, as a share of the usual value.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._last: deque[float] = deque(maxlen=USUAL)

    def add(self, values: list[float]) -> tuple[list[int], float]:
        """Add some values.

        Returns:
            indices of the spikes among them, and the usual value before them.
        """
        found, middle = [], math.nan
        if len(self._last) >= FEWEST:
            middle = statistics.median(self._last)
            deviation = statistics.median(abs(each - middle) for each in self._last)
            limit = middle + FAR * max(deviation, self._least * abs(middle))
            found = [place for place, value in enumerate(values) if value > limit]
        self._last.extend(value for value in values if math.isfinite(value))
        return found, middle


def _values(scalars: list[Tensor]) -> list[float]:
    """The numbers in several scalars, copied from their device together."""
    found: list[float] = torch.stack(scalars).tolist() if scalars else []
    return found


class Recorder:
    """Collects losses and gradient norms of updates, and writes their means at log points.

    Attributes:
        loss: mean loss at the last log point; NaN before the first.
    """

    def __init__(self, session: Session, task: ProgressTask) -> None:
        self._session = session
        self._task = task
        self.loss = math.nan
        on_cpu = session.step.device.torch.type == "cpu"
        self._neighbours = Neighbours() if on_cpu else None
        self._spikes = {name: Spikes(least) for name, least in LEAST.items()}
        self.forget()

    def forget(self) -> None:
        """Drop what has not been written yet, after going back to a checkpoint."""
        self._skipped = 0
        self._recent: deque[float] = deque(maxlen=LAST)
        self._clear()

    def _clear(self) -> None:
        self._updates: list[Update] = []
        self._applied: list[Update] = []
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []

    def add(self, update: Update, loss: Tensor, norm: Tensor | None) -> None:
        """Add a finished update; `loss` and `norm` are scalars on the device.

        Args:
            norm: None for an update that was skipped; its loss is ignored.

        Raises:
            Diverged: too many updates in a row were skipped.
        """
        self._updates.append(update)
        self._skipped = self._skipped + 1 if norm is None else 0
        if self._skipped == MOST_SKIPPED:
            raise Diverged(
                f"{MOST_SKIPPED} updates in a row had gradients beyond float16's range; "
                "compute.dtype=float32 may help"
            )
        if norm is not None:
            self._applied.append(update)
            self._losses.append(loss)
            self._norms.append(norm)

    def check(self, work: Work) -> None:
        """Wait for the losses since the last log point and check them.

        Raises:
            Diverged: one of them is not finite.
        """
        self._finite(_values(self._losses), work)

    @staticmethod
    def _finite(losses: list[float], work: Work) -> None:
        for value in losses:
            if not math.isfinite(value):
                raise Diverged(f"the loss is {value} after {counted(work.updates, 'update')}")

    def log(self, work: Work, u: float, *, ended: bool = False) -> bool:
        """Write a log point if an update was applied since the last one; return whether so.

        If training has `ended`, there may be too few updates since the last log point for a
        meaningful mean, so the loss may include earlier updates.

        Raises:
            Diverged: the loss is not finite.
        """
        if not self._losses:
            return False
        run, ledger = self._session.run, self._session.ledger
        device = self._session.step.device
        device.synchronize()  # so that unfinished updates are booked as training
        with self._session.agenda.logging():
            found = _values([*self._losses, *self._norms])
            losses, norms = found[: len(self._losses)], found[len(self._losses) :]
            self._finite(losses, work)
            self._recent.extend(losses)
            averaged = self._at_the_end(losses, work.updates) if ended else losses
            self.loss, norm = sum(averaged) / len(averaged), sum(norms) / len(norms)
            self._note_spikes("loss", losses)
            self._note_spikes("grad_norm", norms)
            seconds = max(1e-9, self._session.agenda.since_log())
            last = self._updates[-1]
            record = {
                "update": work.updates,
                "u": u,
                "t_charged_s": ledger.charged(),
                "t_wall_s": ledger.wall(),
                "tokens": work.tokens,
                "loss": self.loss,
                "grad_norm": norm if math.isfinite(norm) else None,
                "lr": run.config.optim.lr * last.factor,
                "batch_rows": last.rows,
                "mask_rate": last.mask_rate,
                "tokens_per_s": sum(x.cost.tokens for x in self._updates) / seconds,
            }
            if skipped := len(self._updates) - len(self._losses):
                record["skipped"] = skipped
            words = f"loss {self.loss:.3f}  {record['tokens_per_s']:,.0f} tokens/s"
            if device.mfu_peak is not None:
                flops = sum(x.cost.flops for x in self._updates)
                mfu = record["mfu"] = flops / seconds / device.mfu_peak
                words += f"  MFU {100 * mfu:.0f} %"
            run.metrics(record)
            run.heartbeat(ledger.charged())
            self._task.update(u, words)
            self._note_neighbours(work)
        self._clear()
        return True

    def _at_the_end(self, losses: list[float], updates: int) -> list[float]:
        """The losses since the last log point, or of more updates if those are too few."""
        enough = min(LAST, updates // SHARE_OF_LAST)
        return losses if len(losses) >= enough else list(self._recent)[-enough:]

    def _note_neighbours(self, work: Work) -> None:
        """Say once that other work slows down training, and record it."""
        share = self._neighbours.share() if self._neighbours is not None else None
        if share is None:
            return
        self._neighbours = None
        self._session.run.event("busy", update=work.updates, share=share)
        self._task.line(
            f"machine  is busy: training waits for cores {100 * share:.0f} % of the time and does "
            "fewer updates than it could"
        )

    def _note_spikes(self, name: str, values: list[float]) -> None:
        """Record an event for each value far above those before this log point."""
        places, usual = self._spikes[name].add(values)
        for place in places:
            number = self._applied[place].number + 1
            value = values[place] if math.isfinite(values[place]) else None
            self._session.run.event("spike", of=name, update=number, value=value, usual=usual)
