"""Decides what the next update is: its rows and rates, and whether it still fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from crammed.budget import Budget, Ledger, Limits, Pace, Work, format_seconds
from crammed.config import RunConfig
from crammed.data.masking import predicted_positions
from crammed.data.tokenization.tokenizer import SPECIALS
from crammed.errors import InputError
from crammed.model.cooccurrence import factorisation_flops
from crammed.model.count import run_flops_per_token
from crammed.optim.build import update_flops
from crammed.quantity import counted
from crammed.training.gradinit import scaling_work
from crammed.training.update.planned import Update


@dataclass(frozen=True)
class Detour:
    """What returns after divergence have changed so far (`crammed.training.recovery`).

    Attributes:
        returns: how many times the run went back.
        skipped_rows: rows of the stream that training skipped.
        rate: factor on every learning rate, besides the schedule's.
    """

    returns: int = 0
    skipped_rows: int = 0
    rate: float = 1.0


class Deadline:
    """Whether updates are complete within a budget of time; other budgets have no deadline.

    Args:
        synchronize: waits for the device. It is called only while the pace is unknown and when the
            end is near, where the clock must cover only finished work.

    Attributes:
        seconds: what may be charged; infinity for other budgets.
        charged: seconds charged by the end of the last update.
    """

    def __init__(self, budget: Budget, ledger: Ledger, synchronize: Callable[[], None]) -> None:
        self.seconds = budget.limit if budget.kind == "time" else math.inf
        self.charged = self._began = ledger.charged()
        self._ledger = ledger
        self._synchronize = synchronize
        self._pace = Pace()
        self._rest = Pace()  # of what follows the gradients: the optimizer's step
        self._computed = self._began
        self._exact = False

    def begin(self) -> float:
        """Begin an update; return the seconds charged so far."""
        self._began = self._ledger.charged()
        return self._began

    def expected(self, rows: int) -> float:
        """The seconds that will be charged when the update, of so many rows, is complete."""
        if self.seconds < math.inf:
            slowest = self._pace.slowest(rows)
            self._exact = slowest == 0.0 or self.seconds - self._began < 4 * slowest
            if self._exact:
                self._synchronize()
                self.begin()
        return self._began + self._pace.typical(rows)

    def met(self) -> bool:
        """Whether the update whose gradients are computed is complete in time."""
        if self._exact:
            self._synchronize()
        self._computed = self._ledger.charged()
        return self._computed + self._rest.typical(1) <= self.seconds

    def room_for(self, seconds: float) -> bool:
        return self._ledger.charged() + seconds <= self.seconds

    def end(self, rows: int) -> None:
        """Record that the update, of so many rows, is complete, and how long it took."""
        if self._exact:
            self._synchronize()
        self.charged = self._ledger.charged()
        self._pace.record(self.charged - self._began, rows)
        if self._exact:  # else a device may still be computing what the clock would tell apart
            self._rest.record(self.charged - self._computed, 1)  # however many rows there are


class Planner:
    """Decides what each update is, until the budget is spent or the text has been read enough.

    Args:
        vocab_size: size of the tokenizer's vocabulary, for the cost in FLOPs.
        corpus_rows: number of rows in the corpus, whose length could end the run; None if there is
            no corpus yet.
        ledger, synchronize: as for `Deadline`.

    Attributes:
        detour: what returns after divergence have changed.
        begun: the share of the budget that was spent when the first update began, such as on
            compiling; schedules begin there.
        reached: place in the stream after the rows of the last update.
        rows: rows of the next update, as the last one's gradients say; None if the ramp says.
    """

    def __init__(
        self,
        config: RunConfig,
        vocab_size: int,
        corpus_rows: int | None,
        ledger: Ledger,
        synchronize: Callable[[], None] = lambda: None,
    ) -> None:
        self.limits = Limits(config.budget.limit, config.most_tokens(corpus_rows))
        self.deadline = Deadline(config.budget.limit, ledger, synchronize)
        self.detour = Detour()
        self.begun = 0.0
        self.reached = 0
        self.rows: int | None = None
        self._config = config
        self._vocab_size = vocab_size
        self._corpus_rows = corpus_rows
        self._ledger = ledger
        self._start = work_before_training(config, vocab_size)

    def progress(self, work: Work) -> float:
        """Progress u at the end of the last update."""
        return self.limits.progress(self._start + work, self.deadline.charged)

    def trained(self, work: Work) -> float:
        """Progress of training, which schedules follow, at the end of the last update."""
        return self.limits.trained(self._start + work, self.deadline.charged, self.begun)

    def next(self, work: Work) -> Update | None:
        """The update that follows `work`, which begins now; None if none fits the limits."""
        charged = self.deadline.begin()
        if work.updates == 0:
            self.begun = self.limits.budget.share(self._start + work, charged)
        u = self.limits.trained(self._start + work, charged, self.begun)
        rows, rate = self.rows or self._config.batch.rows_at(u), self._config.mask_rate_at(u)
        layers, pieces = self._config.layers_at(u), self._config.pieces_at(u)
        cost = self._cost(work.updates, rows, rate, layers, pieces)
        charged, after = self.deadline.expected(rows), self._start + work + cost
        if self.limits.progress(after, charged) > 1.0 or charged >= self.deadline.seconds:
            return None
        end = self.limits.trained(after, charged, self.begun)
        dropped = self._config.dropped_at(u)
        factor = self.detour.rate * self._config.schedule((u + end) / 2.0)
        first_row = work.rows + self.detour.skipped_rows
        self.reached = first_row + rows
        return Update(work.updates, first_row, rows, factor, rate, cost, layers, pieces, dropped)

    def go_on(self, detour: Detour, rows: int | None, begun: float) -> None:
        """Go on with what a checkpoint says; `rows` is None at the start of a run."""
        self.detour, self.begun = detour, begun
        self.rows = rows or self._config.batch.rows_after(None, enough=True)

    def adapt(self, *, enough: bool) -> None:
        """Decide the rows of the next update, after one that is complete.

        Args:
            enough: whether its gradients passed the test of `batch.adaptive`.
        """
        self.rows = self._config.batch.rows_after(self.rows, enough=enough)

    def _cost(self, number: int, rows: int, rate: float, layers: int, pieces: int) -> Work:
        config, tokens = self._config, rows * self._config.data.row_length
        length = config.data.row_length // pieces
        predicted = predicted_positions(rate, length)
        per_token = run_flops_per_token(config, self._vocab_size, predicted, layers, length, number)
        own = update_flops(config.model, self._vocab_size, config.optim, layers, config.generator())
        return Work(1, rows, tokens, per_token * tokens + own)

    def nothing_fits(self) -> InputError:
        """The error for a run that ends before its first update."""
        budget, rows = self._config.budget.limit, self.rows or self._config.batch.rows_at(0.0)
        update = f"one update of {counted(rows, 'row')}"
        if self.limits.most_tokens < rows * self._config.data.row_length:
            return InputError(
                f"{update} would read the {self._corpus_rows:,} rows of the corpus more often than "
                "budget.most_epochs allows: raise that limit or lower batch.rows"
            )
        seconds = self._ledger.seconds["lost"]
        lost = f", {format_seconds(seconds)} of it lost earlier," if seconds else ""
        return InputError(
            f"a budget of {budget}{lost} ends before {update} is done: raise the budget or "
            "lower batch.rows"
        )


def refuse_too_little(
    config: RunConfig, vocab_size: int | None = None, corpus_rows: int | None = None
) -> None:
    """Refuse a budget that one update exceeds, if that is known before anything starts.

    What a time budget pays for is not known yet.

    Args:
        vocab_size: vocabulary size of the corpus; None, if there is none yet, counts with the
            smallest.
        corpus_rows: as in `Planner`.

    Raises:
        InputError: the budget, or `budget.most_epochs`, ends the run before its first update.
    """
    vocabulary = len(SPECIALS) if vocab_size is None else vocab_size
    planner = Planner(config, vocabulary, corpus_rows, Ledger(()))
    planner.go_on(Detour(), None, 0.0)
    if planner.next(Work()) is None:
        raise planner.nothing_fits()


def work_before_training(config: RunConfig, vocab_size: int) -> Work:
    """Work spent before the first update, apart from time."""
    work = scaling_work(config, vocab_size)
    if config.model.embedding_start != "random":
        width = config.model.embedding_width or config.model.width
        work += Work(flops=factorisation_flops(vocab_size, width))
    return work
