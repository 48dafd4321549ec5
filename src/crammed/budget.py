"""The budget is the clock of a run.

`Budget` is what a run may spend; `Limits` adds how much text it may read. They turn what the run
has spent and read into progress u in [0, 1], and into the progress of training, which every
schedule is a function of. `Ledger` books every second to exactly one account, and `Pace` predicts
how long the next update takes.

A time budget is charged for the accounts that the configuration names and for work lost in a
crash. A budget of tokens, updates or FLOPs counts only work that was kept, so such a run is
deterministic.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from crammed.errors import InputError
from crammed.quantity import flops_text, quantity

Clock = Callable[[], float]
BudgetKind = Literal["time", "tokens", "updates", "flops"]
Account = Literal["setup", "compile", "data_wait", "step", "checkpoint", "log", "evaluate", "lost"]
ACCOUNTS: tuple[Account, ...] = get_args(Account)

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS: dict[str, BudgetKind] = {"tok": "tokens", "update": "updates", "flop": "flops"}
_MOST: dict[BudgetKind, float] = {"time": 1e10, "tokens": 1e18, "updates": 1e12, "flops": 1e30}
_EXAMPLES = "write it like 90m, 24h, 120s, 2e9tok, 500updates or 1e18flop"


@dataclass(frozen=True)
class Work:
    """What training has done and kept so far."""

    updates: int = 0
    rows: int = 0
    tokens: int = 0
    flops: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.updates + other.updates,
            self.rows + other.rows,
            self.tokens + other.tokens,
            self.flops + other.flops,
        )


@dataclass(frozen=True)
class Budget:
    """What a run may spend, parsed once on entry to the program.

    Attributes:
        limit: seconds, tokens, updates or training FLOPs, depending on `kind`.
        text: the budget as typed; configurations save this.
    """

    kind: BudgetKind
    limit: float
    text: str = field(compare=False)

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read ``24h``, ``90m``, ``1h30m``, ``2e9tok``, ``500updates`` or ``1e18flop``.

        Raises:
            InputError: the text does not have this form, or the budget is not positive or is more
                than any machine could spend.
        """
        typed = text.strip()
        number = r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
        if match := re.fullmatch(rf"({number})\s*(?:(tok)(?:en)?|(update|flop))s?", typed):
            budget = cls(_UNITS[match[2] or match[3]], float(match[1]), text)
        elif re.fullmatch(rf"(?:(?:{number})\s*[smhd]\s*)+", typed):
            parts = re.findall(rf"({number})\s*([smhd])", typed)
            budget = cls("time", sum(float(value) * _SECONDS[unit] for value, unit in parts), text)
        else:
            raise InputError(f"{typed!r} is not a budget: {_EXAMPLES}")
        if not budget.limit > 0:
            raise InputError(f"a budget of {typed!r} leaves nothing to train with: {_EXAMPLES}")
        if budget.limit > _MOST[budget.kind]:
            raise InputError(f"a budget of {typed!r} is more than can be spent: {_EXAMPLES}")
        if budget.kind == "updates" and budget.limit != int(budget.limit):
            raise InputError(
                f"a budget of {typed!r} is not a whole number of updates: write it like 500updates"
            )
        return budget

    def times(self, factor: float) -> Budget:
        """This budget times `factor`; a budget of updates is rounded to whole updates.

        Raises:
            InputError: the result is zero, or more than any machine could spend.
        """
        if factor == 1.0:
            return self
        limit = round(self.limit * factor) if self.kind == "updates" else self.limit * factor
        unit = {"time": "s", "tokens": "tok", "updates": "updates", "flops": "flop"}[self.kind]
        return Budget.parse(f"{limit:.9g}{unit}")

    def spent(self, work: Work, charged_seconds: float) -> float:
        """What has been spent of the limit, in the budget's own unit."""
        if self.kind == "time":
            return charged_seconds
        return float(getattr(work, self.kind))

    def share(self, work: Work, charged_seconds: float) -> float:
        return self.spent(work, charged_seconds) / self.limit

    def part(self, share: float) -> str:
        """A share of the budget in words, such as ``12m`` for a fifth of an hour."""
        limit = share * self.limit
        return str(replace(self, limit=max(1, round(limit)) if self.kind == "updates" else limit))

    def __str__(self) -> str:
        if self.kind == "time":
            return format_seconds(self.limit)
        if self.kind == "flops":
            return flops_text(self.limit)
        unit = self.kind.removesuffix("s") if self.limit == 1 else self.kind
        exact = self.limit < 1e6 and self.limit == int(self.limit)
        return f"{f'{self.limit:,.0f}' if exact else quantity(self.limit)} {unit}"


@dataclass(frozen=True)
class Limits:
    """What ends a run: its budget or its limit on reading the text, whichever comes first.

    Attributes:
        most_tokens: how many tokens the run may read.
    """

    budget: Budget
    most_tokens: float = math.inf

    def progress(self, work: Work, charged_seconds: float) -> float:
        """Progress u: the share used of whichever limit is nearer."""
        return max(self.budget.share(work, charged_seconds), work.tokens / self.most_tokens)

    def trained(self, work: Work, charged_seconds: float, begun: float) -> float:
        """Progress of training, which the schedules follow: 0 when the first update begins.

        Args:
            begun: the share of the budget that was spent by then.
        """
        share = self.budget.share(work, charged_seconds)
        left = (share - begun) / (1.0 - begun) if begun < 1.0 else 1.0
        return max(left, work.tokens / self.most_tokens)


class Ledger:
    """Books every second since its creation to one account: that of the innermost open context.

    Args:
        charge: the accounts that count against a time budget.
        clock: returns seconds and never goes backwards; tests and forecasts supply their own.
    """

    def __init__(self, charge: Iterable[Account], clock: Clock = time.monotonic) -> None:
        self.charge = frozenset(charge)
        self.seconds: dict[Account, float] = dict.fromkeys(ACCOUNTS, 0.0)
        self._clock = clock
        self._open: list[Account] = ["setup"]
        self._since = clock()

    def _book(self) -> None:
        now = self._clock()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    @contextmanager
    def account(self, name: Account) -> Iterator[None]:
        """Book the time inside the context to `name`."""
        self._book()
        self._open.append(name)
        try:
            yield
        finally:
            self._book()
            self._open.pop()

    def charged(self) -> float:
        """Seconds so far that count against a time budget."""
        self._book()
        return sum(self.seconds[name] for name in ACCOUNTS if name in self.charge)

    def wall(self) -> float:
        """All seconds so far, charged or not."""
        self._book()
        return sum(self.seconds.values())

    def state(self) -> dict[str, float]:
        """The accounts as plain numbers, for a checkpoint or a summary."""
        self._book()
        return {name: self.seconds[name] for name in ACCOUNTS}

    def restore(self, saved: Mapping[str, float], lost: float) -> None:
        """Add saved accounts, and the seconds of work lost in a crash."""
        self._book()
        for name in ACCOUNTS:
            self.seconds[name] += saved.get(name, 0.0)
        self.seconds["lost"] += lost

    def lose(self, kept: Mapping[str, float]) -> float:
        """Move the seconds charged since the earlier state `kept` to the account ``lost``.

        Returns:
            the number of seconds moved.
        """
        self._book()
        before = sum(self.seconds.values())
        for name in self.charge - {"lost"}:
            self.seconds[name] = kept.get(name, 0.0)
        lost = before - sum(self.seconds.values())
        self.seconds["lost"] += lost
        return lost


class Pace:
    """Predicts how long an update takes, from the seconds per row of the last sixteen updates."""

    def __init__(self) -> None:
        self._seconds_per_row: deque[float] = deque(maxlen=16)

    def record(self, seconds: float, rows: int) -> None:
        """Learn from an update of `rows` rows that took `seconds`."""
        self._seconds_per_row.append(seconds / rows)

    def typical(self, rows: int) -> float:
        """Seconds for `rows` at the median pace; 0 before the first update.

        Schedules follow it, and it decides whether one more update fits. Neither a pause nor a load
        of a moment changes it: of an even number, the lower middle counts, so that even a pause in
        one of two updates does not. If a machine becomes slow, the median soon does as well.
        """
        return rows * statistics.median_low(self._seconds_per_row or (0.0,))

    def slowest(self, rows: int) -> float:
        """Seconds at the slowest pace, from which on the end may be near; 0 before the first."""
        return rows * max(self._seconds_per_row, default=0.0)


def format_seconds(seconds: float) -> str:
    """``93784.0`` becomes ``26h 3m``; two units at most."""
    if seconds < 59.5:  # from here on it rounds to a minute
        whole = seconds >= 9.95 or seconds == int(seconds)
        return f"{seconds:.0f}s" if whole else f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest}s" if rest else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if minutes else f"{hours}h"
