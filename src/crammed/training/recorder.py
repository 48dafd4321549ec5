"""Log points: sums stay on the device between them, so each point costs one synchronisation."""

from __future__ import annotations

import math

from torch import Tensor

from crammed.budget import Ledger, Work
from crammed.device import Device
from crammed.errors import Diverged
from crammed.progress import ProgressTask
from crammed.rundir import RunDir
from crammed.training.agenda import Agenda
from crammed.training.plan import Update

MOST_SKIPPED = 30
"""Updates skipped in a row; by then the loss scale has fallen from 65,536 to below 1e-4."""


class Recorder:
    """Gathers what updates report, and writes their means at log points.

    Attributes:
        loss: mean loss at the last log point; NaN before the first.
    """

    def __init__(
        self, run: RunDir, agenda: Agenda, ledger: Ledger, device: Device, task: ProgressTask
    ) -> None:
        self._run = run
        self._agenda = agenda
        self._ledger = ledger
        self._device = device
        self._task = task
        self.loss = math.nan
        self._skipped = 0
        self._clear()

    def _clear(self) -> None:
        self._updates: list[Update] = []
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []

    def add(self, update: Update, loss: Tensor, norm: Tensor | None) -> None:
        """Take note of a finished update; `loss` and `norm` are scalars on the device.

        Args:
            norm: None for an update that was skipped; its loss is ignored.

        Raises:
            Diverged: too many updates in a row were skipped.
        """
        self._updates.append(update)
        self._skipped = self._skipped + 1 if norm is None else 0
        if self._skipped == MOST_SKIPPED:
            raise Diverged(
                f"{MOST_SKIPPED} updates in a row had gradients beyond float16's range: try a "
                "lower optim.lr or compute.dtype=float32; the checkpoints hold the last good state"
            )
        if norm is not None:
            self._losses.append(loss)
            self._norms.append(norm)

    def has_news(self) -> bool:
        """Whether an update was applied since the last log point."""
        return bool(self._losses)

    def log(self, work: Work, u: float) -> None:
        """Write a log point, if there is news.

        Raises:
            Diverged: the loss is not finite.
        """
        if not self.has_news():
            return
        self._device.synchronize()  # training that is still under way belongs to training
        with self._agenda.logging():
            self.loss = sum(float(loss) for loss in self._losses) / len(self._losses)
            norm = sum(float(norm) for norm in self._norms) / len(self._norms)
            if not math.isfinite(self.loss):
                raise Diverged(
                    f"the loss is {self.loss} after {work.updates} updates; a lower optim.lr helps "
                    "most often, and the checkpoints hold the last good state"
                )
            seconds = max(1e-9, self._agenda.since_log())
            last = self._updates[-1]
            record = {
                "update": work.updates,
                "u": u,
                "t_charged_s": self._ledger.charged(),
                "t_wall_s": self._ledger.wall(),
                "tokens": work.tokens,
                "loss": self.loss,
                "grad_norm": norm if math.isfinite(norm) else None,
                "lr": self._run.config.optim.lr * last.factor,
                "batch_rows": last.rows,
                "mask_rate": last.mask_rate,
                "tokens_per_s": sum(x.cost.tokens for x in self._updates) / seconds,
            }
            if skipped := len(self._updates) - len(self._losses):
                record["skipped"] = skipped
            words = f"loss {self.loss:.3f}  {record['tokens_per_s']:,.0f} tokens/s"
            if self._device.mfu_peak is not None:
                flops = sum(x.cost.flops for x in self._updates)
                mfu = record["mfu"] = flops / seconds / self._device.mfu_peak
                words += f"  MFU {100 * mfu:.0f} %"
            self._run.metrics(record)
            self._run.heartbeat(self._ledger.charged())
            self._task.update(u, words)
        self._clear()
