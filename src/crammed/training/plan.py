"""Decides what the next update is: its rows and rates, and whether it still fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from crammed.budget import Ledger, Limits, Pace, Work, format_seconds
from crammed.config import RunConfig
from crammed.data.masking import predicted_positions
from crammed.data.tokenization.tokenizer import SPECIALS
from crammed.errors import InputError
from crammed.model.cooccurrence import factorisation_flops
from crammed.model.count import train_flops_per_token
from crammed.quantity import counted
from crammed.schedule import batch_rows, mask_rate


@dataclass(frozen=True)
class Update:
    """One optimizer update, decided before it begins.

    Attributes:
        number: how many updates came before it.
        first_row: place of its first row in the stream.
        factor: factor on every peak learning rate: the schedule at the predicted middle of the
            update, times `Planner.rate`.
        mask_rate: share of positions to predict.
        cost: the work that it adds.
    """

    number: int
    first_row: int
    rows: int
    factor: float
    mask_rate: float
    cost: Work


class Planner:
    """Turns progress into updates until the budget is spent or the text has been read enough.

    Args:
        vocab_size: size of the tokenizer's vocabulary, for the cost in FLOPs.
        corpus_rows: number of rows in the corpus, whose length could end the run; None if there is
            no corpus yet.
        synchronize: waits for the device. It is called only while the pace is unknown and when the
            end is near, where the clock must cover only finished work.

    Attributes:
        charged: seconds charged by the end of the last update.
        skipped_rows: rows of the stream that training skips.
        rate: factor on every learning rate, besides the schedule's.
        reached: place in the stream after the rows of the last update.
    """

    def __init__(
        self,
        config: RunConfig,
        vocab_size: int,
        corpus_rows: int | None,
        ledger: Ledger,
        synchronize: Callable[[], None],
    ) -> None:
        self.budget = config.budget.limit
        self.limits = Limits(self.budget, config.most_tokens(corpus_rows))
        self.charged = ledger.charged()
        self.skipped_rows = self.reached = 0
        self.rate = 1.0
        self._config = config
        self._corpus_rows = corpus_rows
        self._vocab_size = vocab_size
        self._ledger = ledger
        self._synchronize = synchronize
        self._start = work_before_training(config, vocab_size)
        self._pace = Pace()
        self._began = 0.0
        self._exact = False

    def progress(self, work: Work) -> float:
        """Progress u at the end of the last update."""
        return self.limits.progress(self._start + work, self.charged)

    def next(self, work: Work) -> Update | None:
        """The update that follows `work`; None if none fits within the limits."""
        self._began = self._ledger.charged()
        u = self.limits.progress(self._start + work, self._began)
        rows, rate = self.rows(u), self.mask_rate(u)
        cost = self._cost(rows, rate)
        takes = self._pace.typical(rows)
        if self.budget.kind == "time":
            slowest = self._pace.slowest(rows)
            self._exact = slowest == 0.0 or self.budget.limit - self._began < 4 * slowest
            if self._exact:
                self._synchronize()
                self._began = self._ledger.charged()
            if self.budget.limit - self._began <= takes:
                return None
        charged = self._began + takes
        end = self.limits.progress(self._start + work + cost, charged)
        if end > 1.0:
            return None
        factor = self.rate * self._config.schedule((u + end) / 2.0)
        first_row = work.rows + self.skipped_rows
        self.reached = first_row + rows
        return Update(work.updates, first_row, rows, factor, rate, cost)

    def in_time(self) -> bool:
        """Whether the work in progress finished within a time budget; true for other budgets."""
        if self._exact:
            self._synchronize()
        return self.room_for(0.0)

    def room_for(self, seconds: float) -> bool:
        """Whether a time budget has `seconds` left; always true for other budgets."""
        return self.budget.kind != "time" or self._ledger.charged() + seconds <= self.budget.limit

    def finished(self, update: Update) -> None:
        """Record that the update is finished, and how long it took."""
        if self._exact:
            self._synchronize()
        self.charged = self._ledger.charged()
        self._pace.record(self.charged - self._began, update.rows)

    def nothing_fits(self) -> InputError:
        """The error for a run that ends before its first update."""
        update = f"one update of {counted(self.rows(0.0), 'row')}"
        if self.limits.most_tokens < self.rows(0.0) * self._config.data.row_length:
            return InputError(
                f"{update} reads more of the {self._corpus_rows:,} rows of the corpus than "
                "budget.most_epochs allows: raise it or lower batch.rows"
            )
        seconds = self._ledger.seconds["lost"]
        lost = f", {format_seconds(seconds)} of it lost earlier" if seconds else ""
        return InputError(
            f"a budget of {self.budget}{lost} ends before {update} is done: raise the budget or "
            "lower batch.rows"
        )

    def rows_of_run(self, most: int) -> int:
        """Rows that a whole run reads, at most `most`; for budgets other than time."""
        work = Work()
        while work.rows < most and (update := self.next(work)) is not None:
            work += update.cost
        return min(most, work.rows)

    def rows(self, u: float) -> int:
        """Rows of an update that starts at u."""
        batch = self._config.batch
        return batch_rows(u, batch.rows, batch.ramp, batch.ramp_quantum)

    def mask_rate(self, u: float) -> float:
        """Share of positions to predict in an update that starts at u."""
        masking = self._config.masking
        if masking.final_rate is None:
            return masking.rate
        return mask_rate(u, masking.rate, masking.final_rate, masking.stages)

    def _cost(self, rows: int, rate: float) -> Work:
        length = self._config.data.row_length
        per_token = train_flops_per_token(
            self._config.model, self._vocab_size, length, predicted_positions(rate, length)
        )
        return Work(1, rows, rows * length, per_token * rows * length)

    def all_row_counts(self) -> list[int]:
        """All numbers of rows that updates of this run may have."""
        batch = self._config.batch
        if batch.ramp == 0.0:
            return [batch.rows]
        return sorted({*range(batch.ramp_quantum, batch.rows, batch.ramp_quantum), batch.rows})

    def all_mask_rates(self) -> list[float]:
        """All mask rates of this run."""
        stages = self._config.masking.stages
        return [self.mask_rate((stage + 0.5) / stages) for stage in range(stages)]


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
    planner = Planner(config, vocabulary, corpus_rows, Ledger(()), lambda: None)
    if planner.next(Work()) is None:
        raise planner.nothing_fits()


def budget_share(config: RunConfig, vocab_size: int, work: Work, charged_seconds: float) -> float:
    """The share of the budget spent after some updates, however much of the text is left.

    Args:
        work: the work of these updates.
    """
    start = work_before_training(config, vocab_size)
    return config.budget.limit.share(start + work, charged_seconds)


def work_before_training(config: RunConfig, vocab_size: int) -> Work:
    """Work spent before the first update, apart from time."""
    if config.model.embedding_start == "random":
        return Work()
    return Work(flops=factorisation_flops(vocab_size, config.model.width))
