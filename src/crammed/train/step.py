"""One optimizer update: mask on the device, forward and backward by microbatches, clip, step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from crammed.config import RunConfig
from crammed.data.masking import Masker, predicted_positions
from crammed.data.tokenizer import Specials
from crammed.device import Device
from crammed.keys import key
from crammed.model.encoder import MaskedLM
from crammed.train.plan import Update

if TYPE_CHECKING:
    from torch.optim import Optimizer


class TrainStep:
    """Computes gradients of whole updates and applies them.

    The loss of an update is the sum over its predicted tokens divided by their number, whatever
    the split into microbatches.
    """

    def __init__(
        self,
        model: MaskedLM,
        optimizer: Optimizer,
        config: RunConfig,
        specials: Specials,
        device: Device,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._config = config
        self._device = device
        self._mask = Masker(
            config.seed,
            config.masking.corruption,
            specials.mask,
            specials.ids,
            model.encoder.tokens.num_embeddings,
        )
        self._parameters = list(model.parameters())
        self._in_flight: deque[torch.cuda.Event] = deque()
        loss = self._microbatch_loss
        self._loss = torch.compile(loss, fullgraph=True, dynamic=False) if device.compile else loss

    def _microbatch_loss(self, rows: Tensor, numbers: Tensor, count: int) -> Tensor:
        """Summed cross-entropy of one microbatch [B, S] with `count` predictions a row."""
        masked = self._mask(rows, numbers, count)
        with torch.autocast(
            self._device.torch.type, self._device.dtype, self._device.dtype != torch.float32
        ):
            logits = self._model(masked.ids, masked.positions)
        return F.cross_entropy(
            logits.float().flatten(0, 1), masked.labels.flatten(), reduction="sum"
        )

    def compile_for(self, row_counts: Iterable[int], rates: Iterable[float]) -> None:
        """Run every shape that training will meet once, so that no update pays for compiling."""
        if not self._device.compile:
            return
        sizes = {size for rows in row_counts for size in self._microbatches(rows)}
        length = self._config.data.row_length
        for count in sorted({predicted_positions(rate, length) for rate in rates}):
            for size in sorted(sizes):
                rows = torch.zeros((size, length), dtype=torch.int64, device=self._device.torch)
                numbers = torch.arange(size, device=self._device.torch)
                self._loss(rows, numbers, count).backward()
        self._optimizer.zero_grad(set_to_none=True)
        self._device.synchronize()

    def _microbatches(self, rows: int) -> list[int]:
        whole, rest = divmod(rows, self._device.microbatch_rows)
        return [self._device.microbatch_rows] * whole + [rest] * (rest > 0)

    def gradients(self, rows: Tensor, update: Update) -> Tensor:
        """Add up the gradients of one update; return its mean loss, a scalar on the device.

        Args:
            rows: [R, S] token ids on the CPU.
        """
        device = self._device.torch
        self._stay_close()
        if self._config.model.dropout:
            torch.manual_seed(key(self._config.seed, "dropout", update.number))
        count = predicted_positions(update.mask_rate, rows.shape[1])
        numbers = torch.arange(update.first_row, update.first_row + len(rows), device=device)
        rows = rows.to(device, non_blocking=True)
        total = torch.zeros((), device=device)
        sizes = self._microbatches(len(rows))
        for part, part_numbers in zip(rows.split(sizes), numbers.split(sizes), strict=True):
            loss = self._loss(part, part_numbers, count) / (count * len(rows))
            loss.backward()
            total += loss.detach()
        return total

    def apply(self, lr: float) -> Tensor:
        """Clip, step and clear the gradients; return their norm before clipping, on the device."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        if (clip := self._config.optim.clip) is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, clip, norm, foreach=True)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._device.torch.type == "cuda":
            event = torch.cuda.Event()
            event.record()
            self._in_flight.append(event)
        return norm

    def _stay_close(self) -> None:
        """Let the host run one update ahead of the GPU at most, so that its clock stays honest."""
        if len(self._in_flight) > 1:
            self._in_flight.popleft().synchronize()

    def discard(self) -> None:
        """Forget gradients of an update that did not fit."""
        self._optimizer.zero_grad(set_to_none=True)
