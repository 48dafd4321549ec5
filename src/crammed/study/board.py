"""The progress line of a study: which runs are training, how far they are, how long they need."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from crammed.budget import Clock, format_seconds
from crammed.files.writing import last_record
from crammed.quantity import counted
from crammed.study.folder import Left
from crammed.study.timing import Finished
from crammed.terminal.progress import Progress

_UNKNOWN = 0.5
"""The assumed share of a run's time that judging takes, until a run has been judged."""


@dataclass
class _Seen:
    """What has been seen of a run that was started.

    Attributes:
        since: when it was first seen.
        moving: the share that was trained when a log point was first seen, and that time.
        trained: seconds that the run takes before its judges, by what was done since then.
        judging: when it was first seen being judged.
    """

    since: float
    moving: tuple[float, float] | None = None
    trained: float = 0.0
    judging: float | None = None


class _State(NamedTuple):
    """How far a run is.

    Attributes:
        share: of the run that is done.
        words: what it does, and how long that takes.
        left: seconds until the run ends; infinity if unknown.
    """

    share: float
    words: str
    left: float = math.inf


@dataclass
class Board:
    """The state of all runs.

    Attributes:
        seeds: how many runs each arm has.
        finished: how many of them have finished, by arm; `failed` counts those that failed.
        waiting: the runs that have not been started.
        before: seconds that a run takes without its judges, by arm, and `judged` those of all of
            its judges (infinity if unknown), by what finished in earlier calls.
    """

    seeds: int
    clock: Clock
    finished: Counter[str]
    failed: Counter[str] = field(default_factory=Counter)
    waiting: list[Left] = field(default_factory=list)
    before: Mapping[str, float] = field(default_factory=dict)
    judged: float = math.inf
    _seen: dict[Path, _Seen] = field(default_factory=dict)
    _training: list[tuple[str, float]] = field(default_factory=list)
    _judging: list[float] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        arms: Iterable[str],
        seeds: int,
        todo: Sequence[Left],
        known: Finished,
        progress: Progress,
    ) -> Board:
        """The state before the first run that is left, of those in `todo`, has been started."""
        left = Counter(run.arm for run in todo)
        finished = Counter({arm: seeds - left[arm] for arm in arms})
        before = {arm: took + (known.rest or 0.0) for arm, took in known.trained.items()}
        judges = dict.fromkeys(judge.name for run in todo for judge in run.judges)
        judged = sum(known.judging.get(name, math.inf) for name in judges)
        return cls(seeds, progress.clock, finished, Counter(), [*todo], before, judged)

    def ended(self, run: Left, *, failed: bool) -> None:
        """Note the end of a run."""
        (self.failed if failed else self.finished)[run.arm] += 1
        self._start(run)
        seen = self._seen.get(run.folder)
        if failed or seen is None:
            return
        until = self.clock() if seen.judging is None else seen.judging
        if run.before is None:  # an earlier call may have trained a part of it
            self._training.append((run.arm, max(until - seen.since, seen.trained)))
        if seen.judging is not None:
            self._judging.append(self.clock() - seen.judging)

    def of_arm(self, arm: str) -> str:
        """How many runs of an arm have finished, such as ``2 of 3 runs, 1 failed``."""
        failed = f", {self.failed[arm]} failed" if self.failed[arm] else ""
        return f"{self.finished[arm]} of {counted(self.seeds, 'run')}{failed}"

    def look(self, running: Collection[Left]) -> tuple[float, str, float]:
        """How many runs are done, with fractions for those running; the state in words; and the
        seconds until all have ended, infinity until it is known what a run takes."""
        states = {run: self._state(run) for run in running}
        done = float(self.finished.total() + self.failed.total())
        done += sum(state.share for state in states.values())
        failed = [f"{self.failed.total()} failed"] if self.failed else []
        parts = [f"{run.arm} seed {run.seed}: {state.words}" for run, state in states.items()]
        shown = [part for part, state in zip(parts, states.values(), strict=True) if state.words]
        words = "; ".join([f"{self.finished.total()} finished", *failed, *shown])
        return done, words, self._left(states)

    def _start(self, run: Left) -> None:
        if run in self.waiting:
            self.waiting.remove(run)

    def _state(self, run: Left) -> _State:
        self._start(run)
        seen = self._seen.setdefault(run.folder, _Seen(self.clock()))
        if run.judges and (run.folder / "summary.json").exists():
            return self._while_judged(run, seen)
        if (run.folder / "final").exists():  # which is written when training has ended
            share = 1.0 - self._share_of_judging(run)
            return _State(share, "held-out loss and export", self._judged(run))
        if (trained := share_done(run.folder)) is not None:
            return self._while_trained(run, seen, trained)
        return _State(0.0, "")

    def _while_trained(self, run: Left, seen: _Seen, share: float) -> _State:
        now = self.clock()
        of_judging = self._share_of_judging(run)
        done, words = (1.0 - of_judging) * share, f"{100 * share:.0f} %"
        if seen.moving is None:
            seen.moving = share, now
        first, at = seen.moving
        if share <= first:
            return _State(done, words)
        whole, judged = (now - at) / (share - first), self._judged(run)
        seen.trained, left = at - seen.since + whole, (1.0 - share) * whole
        if math.isinf(judged):
            return _State(done, f"{words}, {format_seconds(round(left))} until it is judged")
        left += judged
        return _State(done, f"{words}, {format_seconds(round(left))} left", left)

    def _while_judged(self, run: Left, seen: _Seen) -> _State:
        if seen.judging is None:
            seen.judging = self.clock()
        took, expected = self.clock() - seen.judging, self._judged(run)
        share = min(1.0, took / max(expected, 1e-9))
        done = 1.0 - self._share_of_judging(run) * (1.0 - share)
        left = max(0.0, expected - took)
        if math.isinf(left) or not left:  # how much longer is unknown
            return _State(done, f"judging, {format_seconds(round(took))} so far", left)
        return _State(done, f"judging, {format_seconds(round(left))} left", left)

    def _judged(self, run: Left) -> float:
        """Seconds that judging a run takes; infinity if unknown."""
        if not run.judges:
            return 0.0
        return statistics.median(self._judging) if self._judging else self.judged

    def _share_of_judging(self, run: Left) -> float:
        """The share of a run's time in this study that goes to its judges."""
        if not run.judges or run.before is not None:
            return float(bool(run.judges))
        judged = self._judged(run)
        known = [took for _, took in self._training] or list(self.before.values())
        if math.isinf(judged) or not known:
            return _UNKNOWN
        return judged / max(judged + statistics.median(known), 1e-9)

    def _left(self, states: Mapping[Left, _State]) -> float:
        """Seconds until the last run has ended, if as many run at a time as now."""
        trained = self._trained(states)
        lefts = [
            self._whole(run, trained) if math.isinf(state.left) else state.left
            for run, state in states.items()
        ]
        lefts += [self._whole(run, trained) for run in self.waiting]
        return max([sum(lefts) / max(1, len(states)), *lefts])

    def _trained(self, states: Mapping[Left, _State]) -> dict[str, float]:
        """Seconds that a run takes before its judges, by arm."""
        now = [(run.arm, self._seen[run.folder].trained) for run in states]
        here = [*self._training, *(pair for pair in now if pair[1])]
        paces = [took / self.before[arm] for arm, took in here if self.before.get(arm)]
        # This machine may be slower, or busier, than the one where other runs finished.
        pace = statistics.median(paces) if paces else 1.0
        by_arm: dict[str, list[float]] = {}
        for arm, took in here:
            by_arm.setdefault(arm, []).append(took)
        means = {arm: statistics.fmean(each) for arm, each in by_arm.items()}
        return {**{arm: pace * took for arm, took in self.before.items()}, **means}

    def _whole(self, run: Left, trained: Mapping[str, float]) -> float:
        """Seconds left of a run that does not show how far it is; infinity if nothing tells."""
        whole = self._judged(run)
        if run.before is None:
            others = statistics.fmean(trained.values()) if trained else math.inf
            whole += trained.get(run.arm, others)
        seen = self._seen.get(run.folder)
        return max(0.0, whole - (self.clock() - seen.since)) if seen else whole


def share_done(run: Path) -> float | None:
    """The share of its budget that a run had spent at its last log point; None before the first."""
    try:
        u = (last_record(run / "metrics.jsonl") or {}).get("u")
    except OSError:
        return None
    return min(1.0, max(0.0, u)) if isinstance(u, int | float) else None
