"""Log points: sums stay on the device between them, each point is one synchronisation."""

from __future__ import annotations

import math

from torch import Tensor

from crammed.budget import Ledger, Work
from crammed.device import Device
from crammed.errors import Diverged
from crammed.progress import ProgressTask
from crammed.rundir import RunDir
from crammed.training.plan import Update

MOST_SKIPPED = 30
"""Updates in a row; the loss scale has fallen from 65,536 to less than a ten-thousandth by then."""


class Recorder:
    """Gathers what updates report and writes it at log points: means since the last one."""

    def __init__(
        self, run: RunDir, ledger: Ledger, device: Device, task: ProgressTask, log_seconds: float
    ) -> None:
        self._run = run
        self._ledger = ledger
        self._device = device
        self._task = task
        self._log_seconds = log_seconds
        self.cost = 0.0
        """Seconds that the last log point took."""
        self.loss = math.nan
        """Mean loss of the last log point."""
        self._skipped = 0
        self._restart()

    def _restart(self) -> None:
        self._began = self._training_seconds()
        self._updates: list[Update] = []
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []

    def _training_seconds(self) -> float:
        self._ledger.charged()  # books up to now
        return sum(self._ledger.seconds[name] for name in ("data_wait", "step", "log"))

    def add(self, update: Update, loss: Tensor, norm: Tensor | None) -> None:
        """Take note of a finished update; `loss` and `norm` are scalars on the device.

        Args:
            norm: None for an update that was skipped, whose loss may be anything.

        Raises:
            Diverged: too many updates in a row were skipped.
        """
        self._updates.append(update)
        self._skipped = self._skipped + 1 if norm is None else 0
        if self._skipped == MOST_SKIPPED:
            raise Diverged(
                f"{MOST_SKIPPED} updates in a row had gradients beyond float16: try a lower "
                "optim.lr, or compute.dtype=float32; the last good state is among the checkpoints"
            )
        if norm is not None:
            self._losses.append(loss)
            self._norms.append(norm)

    def due(self) -> bool:
        """Whether it is time for a log point: after the first update, then every few seconds."""
        if not self._losses:
            return False
        first = self._updates[0].number == 0
        return first or self._training_seconds() - self._began >= self._log_seconds

    def log(self, work: Work, u: float) -> None:
        """Write a log point, if there is anything to write.

        Raises:
            Diverged: the loss is not finite.
        """
        if not self._losses:
            return
        self._device.synchronize()  # training that is still under way belongs to training
        before = self._ledger.charged()
        with self._ledger.account("log"):
            self.loss = sum(float(loss) for loss in self._losses) / len(self._losses)
            norm = sum(float(norm) for norm in self._norms) / len(self._norms)
            if not math.isfinite(self.loss):
                raise Diverged(
                    f"the loss is {self.loss} after {work.updates} updates; a lower optim.lr helps "
                    "most often, and the last good state is among the checkpoints"
                )
            seconds = max(1e-9, self._training_seconds() - self._began)
            last = self._updates[-1]
            record = {
                "update": work.updates,
                "u": u,
                "t_charged_s": self._ledger.charged(),
                "t_wall_s": self._ledger.wall(),
                "tokens": work.tokens,
                "loss": self.loss,
                "grad_norm": norm if math.isfinite(norm) else None,
                "lr": last.lr,
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
        self.cost = self._ledger.charged() - before
        self._restart()
