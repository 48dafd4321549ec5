"""One update: the gradients of an objective in microbatches, clip, apply.

`crammed.training.loop` runs the updates; `TrainStep.gradients` calls ``differentiate()`` and
``add()`` of `crammed.training.update.precision.Leaves`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from crammed.config import RunConfig
from crammed.data.masking import predicted_positions
from crammed.errors import InputError
from crammed.keys import key
from crammed.machine.caches import own_compiled_code
from crammed.machine.device import (
    Device,
    is_out_of_memory,
    refusing_full_memory,
    release_gpu_memory,
)
from crammed.machine.lanes import Lanes
from crammed.machine.workers import world_size
from crammed.optim.build import Optimizers
from crammed.training.update.average import kept_weights
from crammed.training.update.dividing import cut, equal_sizes, few_sizes, moved
from crammed.training.update.float8 import FIRST_ROWS
from crammed.training.update.growth import Growth
from crammed.training.update.lanes import lanes_of
from crammed.training.update.memory import LEAST_TOKENS, fitting_rows
from crammed.training.update.objective import Objective
from crammed.training.update.planned import Update
from crammed.training.update.precision import Found, LossScale
from crammed.training.update.sharpness import Curvature, uphill
from crammed.training.update.spread import Spread

T = TypeVar("T")
MOST_SHAPES = 64
"""Most shapes that a process may compile; PyTorch's limit of eight is too few for mask stages."""


class TrainStep:
    """Computes gradients of whole updates and applies them.

    The loss of an update is the sum over its predicted tokens divided by their number, however the
    update is split into microbatches.

    Attributes:
        model: the model being trained, in float32 whatever the format of computation: a `MaskedLM`,
            or a model of another library that is called in the same way.
        objective: what it learns from.
        device: where it is trained.
        parameters: the model's parameters.
        average: weights to keep in their place; None if there are none.
        leaves: what losses are differentiated by, to get the gradients of the parameters.
        curvature: measures the curvature for optimizers that need it; None if there is none.
        growth: which of the layers are in use.
        spread: how much the gradients of an update's pieces differ; None if that does not matter.
        together: how many rows must be in one microbatch, since the loss compares them.
        microbatch_rows: rows of one forward and backward pass; reduced when memory runs out.
        recomputes: whether layers recompute their activations for the gradients.
        before_microbatch: called before each microbatch; if it raises, the update is abandoned.
        before_shape: likewise, before each shape that `prepare` compiles.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: Optimizers,
        config: RunConfig,
        device: Device,
        growth: Growth | None = None,
    ) -> None:
        self.model: Any = model
        self.growth = growth or Growth()
        self.objective = objective
        self.leaves = objective.leaves
        self.optimizer = optimizer
        self._config = config
        self.device = device
        self._scale = LossScale() if device.dtype == torch.float16 else None
        self.recomputes = False
        if device.recomputes:
            self._recompute()
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.average = kept_weights(self.parameters, optimizer, config.train)
        self._number = 0
        self.together = config.rows_compared()
        adapt = config.batch.adaptive
        self.spread = None if adapt is None else Spread(self.parameters, adapt)
        if adapt is not None and world_size() > 1:
            raise InputError("batch.adaptive needs a single process: leave it out")
        inner, needs = optimizer.of_library, config.measures_curvature(0)
        self.curvature = Curvature(inner, config, device) if needs and inner is not None else None
        self.lanes = Lanes(lanes_of(config, device))
        optimizer.share_among(self.lanes)
        self.microbatch_rows = device.microbatch_rows
        self.before_microbatch: Callable[[], None] = lambda: None
        self.before_shape: Callable[[], None] = lambda: None
        self._row_counts: frozenset[int] = frozenset()
        self._in_flight: deque[torch.cuda.Event] = deque()
        self._loss = self.objective.loss
        if device.compile:
            from crammed.training.update.compiling import compiled  # slow: it loads the compiler

            own_compiled_code()
            self._loss = compiled(self._loss, device.torch)
            # A shape for each size of a microbatch and each mask rate.
            limit = torch._dynamo.config.recompile_limit
            torch._dynamo.config.recompile_limit = max(limit, MOST_SHAPES)

    def prepare(self, row_counts: Iterable[int], rates: Iterable[float]) -> None:
        """Prepare for the first update: fit the memory, and compile every shape to come.

        Args:
            row_counts: numbers of rows that an update may have.
            rates: mask rates that an update may have.

        Raises:
            InputError: there are too many shapes to compile, the compiler failed, or not even one
                row fits.
        """
        self._row_counts = row_counts = frozenset(row_counts)
        now, depths = self.growth.layers, [*self.growth.depths()]
        self.growth.use(depths[0])
        if self.device.fits_microbatch:
            release_gpu_memory(self.device.torch)  # else what PyTorch keeps counts as taken
            free, _ = torch.cuda.mem_get_info(self.device.torch)
            self.fit(free, self._peak)
            release_gpu_memory(self.device.torch)  # what was tried is neither kept nor a peak
        self.microbatch_rows = min(self.microbatch_rows, max(row_counts, default=1))
        try:
            if self.device.compile:
                from crammed.training.update.compiling import compiler_faults

                rates = list(rates)
                # With as many threads as updates have: code for others would be compiled again.
                with compiler_faults(), self.lanes.entered():
                    for depth in depths:
                        self.growth.use(depth)
                        self._with_less(lambda: self._compile_for(row_counts, rates, len(depths)))
        finally:
            self.growth.use(now)

    def fit(self, free: int, peak: Callable[[int], int]) -> None:
        """Find how many rows fit into memory, and whether layers have to recompute.

        Args:
            free: free bytes, including those for gradients and moments not yet allocated.
            peak: returns the further bytes that a microbatch of a number of rows takes.

        Raises:
            InputError: gradients and moments do not fit.
        """
        length = self._config.data.row_length
        kept = self._config.state_per_parameter()
        for parameter in self.parameters:  # there are no moments yet unless a checkpoint was read
            to_come = 1 if self.optimizer.state.get(parameter) else 1 + kept
            free -= to_come * parameter.numel() * parameter.element_size()
        if free <= 0:
            raise InputError(self._too_large("the gradients and moments of the weights do not fit"))
        self.microbatch_rows = fitting_rows(peak, free, length)
        if self._may_recompute() and self.microbatch_rows * length < LEAST_TOKENS:
            self._recompute()
            self.microbatch_rows = fitting_rows(peak, free, length)

    def _may_recompute(self) -> bool:
        return self.device.recomputes is None and not self.recomputes

    def _recompute(self) -> None:
        self.recomputes = True
        self.objective.recompute()

    def _peak(self, rows: int) -> int:
        """Bytes that a microbatch of `rows` rows takes uncompiled; compiled, it takes less."""
        device = self.device.torch
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        self.try_rows(rows)
        return torch.cuda.max_memory_allocated(device) - before

    def try_rows(self, rows: int) -> None:
        """Forward and backward of a microbatch, uncompiled, to measure it; nothing is kept."""
        device, length = self.device.torch, self._config.data.row_length
        ids = torch.zeros((rows, length), dtype=torch.int64, device=device)
        count = predicted_positions(max(self._config.mask_rates()), length)
        loss = self.objective.loss(ids, torch.arange(rows, device=device), count)
        torch.autograd.grad(loss, self.leaves.tensors, allow_unused=True)

    def _compile_for(self, row_counts: Iterable[int], rates: Iterable[float], depths: int) -> None:
        """Run every shape of this depth once, so that no update has to wait for the compiler."""
        sizes = {size for rows in row_counts for size in self._microbatches(rows)}
        shapes = {(predicted_positions(r, n), n) for n in self._config.lengths() for r in rates}
        if (total := len(sizes) * len(shapes) * depths) > MOST_SHAPES:
            raise InputError(
                f"updates would have {total} shapes, and {MOST_SHAPES} can be compiled: lower "
                "masking.stages, raise batch.quantum, list fewer points in train.grow_at or "
                "train.lengthen_at, or set compute.compile=off"
            )
        for count, length in sorted(shapes):
            for size in sorted(sizes):
                self.before_shape()
                pieces = size * self._config.data.row_length // length
                rows = torch.zeros((pieces, length), dtype=torch.int64, device=self.device.torch)
                numbers = torch.arange(pieces, device=self.device.torch)
                loss = self._loss(rows, numbers, count)
                self.leaves.add(self.leaves.differentiate(loss))
        self.discard()
        self.device.synchronize()

    def _microbatches(self, rows: int) -> list[int]:
        """Sizes of microbatches that add up to `rows` rows; rows that are compared stay together.

        If gradients are compared, they are of equally many rows on every device.
        """
        if self.spread is not None:  # pieces are the same on every device
            return few_sizes(rows, self._config.batch.ramp_quantum)
        groups, rest = divmod(rows, self.together)
        most = max(1, self.microbatch_rows // self.together)
        if (lanes := self.lanes.count) > 1:
            sizes = equal_sizes(groups, most, lanes)
        else:
            counts = {count // self.together for count in self._row_counts}
            sizes = few_sizes(groups, most, counts if self.device.compile else set())
        return [self.together * size for size in sizes] + [rest] * (rest > 0)

    def gradients(self, rows: Tensor, update: Update, first: int = 0) -> Tensor:
        """Accumulate the gradients of one update.

        If the device's memory runs out, the update restarts with smaller microbatches, or with
        layers that recompute.

        Args:
            rows: [R, S] token ids on the CPU; none if an update has fewer rows than processes.
            first: place of these rows in the update, if other processes have the others.

        Returns:
            the mean loss, a scalar on the device; with several processes, these rows' part of it.
            If there are two passes, it is that of the first.

        Raises:
            InputError: not even one row fits.
        """
        # The host runs at most one update ahead of the GPU, so that its clock stays honest.
        if len(self._in_flight) > 1:
            self._in_flight.popleft().synchronize()
        self.growth.reach(update.layers)
        self.growth.drop(update.dropped)
        rows = moved(rows, self.device.torch)
        self._number = update.number
        loss = self._with_less(lambda: self._accumulate(rows, update, first))
        again: AbstractContextManager[None] | None = None
        if len(rows) and (radius := self._config.train.sharpness) is not None:
            again = uphill(self.parameters, radius)
        elif self.curvature is not None and self._config.measures_curvature(update.number):
            again = self.curvature.measured(self.parameters, update.number)
        if again is not None:
            with again:
                self._with_less(lambda: self._accumulate(rows, update, first))
        return loss

    def _with_less(self, work: Callable[[], T]) -> T:
        """Do some work; repeat it with smaller microbatches each time memory runs out."""
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                fault = error.with_traceback(None)  # its frames hold on to tensors
            self._shrink(fault)

    def _accumulate(self, rows: Tensor, update: Update, first: int) -> Tensor:
        device = self.device.torch
        self.leaves.refresh()
        if self.spread is not None:
            self.spread.begin()
        if any(self._config.model.dropouts()):
            torch.manual_seed(key(self._config.seed, f"dropout/{first}", update.number))
        count = predicted_positions(update.mask_rate, rows.shape[1] // update.pieces)
        predictions = count * update.pieces * update.rows
        begin = update.first_row + first
        numbers = torch.arange(begin, begin + len(rows), device=device)
        total = torch.zeros((), device=device)
        scale = 1.0 if self._scale is None else self._scale.value
        sizes = self._microbatches(len(rows))
        if (scales := self.leaves.scales) is not None and not scales.known and len(rows):
            few = cut(rows[:FIRST_ROWS], numbers[:FIRST_ROWS], update.pieces)
            scales.measure(lambda: self.objective.loss(*few, count) / predictions)

        def differentiated(part: tuple[Tensor, Tensor]) -> tuple[Tensor, Found]:
            self.before_microbatch()
            loss = self._loss(*cut(*part, update.pieces), count) / predictions
            return loss.detach(), self.leaves.differentiate(loss * scale)

        parts = list(zip(rows.split(sizes), numbers.split(sizes), strict=True))
        with self.lanes.entered():
            for loss, found in self.lanes.map(differentiated, parts):
                self.leaves.add(found)
                total += loss
                if self.spread is not None:
                    self.spread.take()
        if self.spread is not None:
            self.spread.finish(scale)
        return total

    def _shrink(self, error: RuntimeError) -> None:
        """Drop the gradients so far, and halve the microbatches from now on.

        If half would be too few tokens, let layers recompute first.
        """
        self.discard()
        tokens = self.microbatch_rows * self._config.data.row_length
        fixed = self.spread is not None
        if (fixed or tokens < 2 * LEAST_TOKENS) and self._may_recompute():
            self._recompute()
        elif self.microbatch_rows > self.together and not fixed:
            self.microbatch_rows //= 2
        else:
            name, fewest = "objective.rows", self.together
            if fixed:
                name, fewest = "batch.quantum", self._config.batch.ramp_quantum
            long = f"of {self._config.data.row_length} tokens"
            what, mend = f"not even {name}={fewest} rows {long} fit", "lower that, or "
            if fewest == 1:
                what, mend = f"not even one row {long} fits", ""
            raise InputError(self._too_large(what, mend)) from error
        release_gpu_memory(self.device.torch)

    def _too_large(self, what: str, mend: str = "") -> str:
        where = f"into the memory of {self.device.name}"
        return f"{what} {where}: {mend}train a smaller model (model.layers, model.width)"

    def apply(self, factor: float) -> Tensor | None:
        """Clip the gradients, update the weights and drop the gradients.

        Args:
            factor: factor on every peak learning rate.

        Returns:
            the norm of the gradients before clipping, on the device; None if the update was skipped
            because its gradients are beyond the range of float16. In that format the host waits for
            the device to find out.

        Raises:
            InputError: what the optimizer keeps or computes does not fit into memory.
        """
        fault = self._too_large("an update of the weights does not fit")
        with refusing_full_memory(fault), self.lanes.entered():
            return self._apply(factor)

    def _apply(self, factor: float) -> Tensor | None:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if self._scale is not None:
            torch._foreach_mul_(gradients, 1.0 / self._scale.value)
        norm = torch.nn.utils.get_total_norm(gradients)
        if self._scale is not None:
            finite = bool(norm.isfinite())  # sync
            self._scale.adapt(finite)
            if not finite:
                self.discard()
                return None
        if (clip := self._config.optim.clip) is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, clip, norm)
        self.optimizer.set_factor(factor)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.follow(self._number)
        if self.leaves.scales is not None:
            self.leaves.scales.adapt()
        if self.device.torch.type == "cuda":
            event = torch.cuda.Event()
            event.record()
            self._in_flight.append(event)
        return norm

    def discard(self) -> None:
        """Drop the gradients of an update that does not count."""
        self.optimizer.zero_grad()
        if self.leaves.scales is not None:
            self.leaves.scales.forget()

    def loss_scale(self) -> dict[str, float] | None:
        """Float16's loss scale or the scales of 8-bit products, for a checkpoint; None if none."""
        scale = self.leaves.scales or self._scale
        return None if scale is None else scale.state()

    def restore(self, loss_scale: dict[str, float] | None) -> None:
        """Load the scales of a checkpoint; those of another number format are ignored."""
        if (scale := self.leaves.scales or self._scale) is not None:
            scale.restore(loss_scale)
