"""The faults of the campaign: where each applies, and how a try draws one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from campaign.journal import Operation
from campaign.stages import STAGES, UPDATES, Stage

Plan = dict[str, Any]
"""What `inside` does to a process: ``kind``, ``process``, ``at`` an operation or ``after`` seconds,
and whatever else the kind needs."""
NOTHING: Plan = {"kind": "none"}
Draw = Callable[[random.Random, Sequence[Operation]], Plan]
"""Makes a plan from a choice of operations."""
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
AT_A_TIME = 0.25
"""Share of kills and signals that come at a time instead of at an operation."""
DAMAGES = ("bit", "end", "middle", "empty", "gone")
"""A flipped bit, a file cut at a drawn place, a page of zeros, an empty file, no file."""


@dataclass(frozen=True)
class Fault:
    """A kind of fault, one column of the table.

    Attributes:
        between: what also happens between the two commands: a file is ``damaged``, a ``link`` is
            planted, or the ``power`` is lost, with what was not synced.
        only: names of the stages that it applies to; None for all.
        why: why it does not apply to the others.
    """

    name: str
    draw: Draw
    between: str = ""
    only: tuple[str, ...] | None = None
    why: str = ""

    def applies(self, stage: Stage) -> bool:
        return self.only is None or stage.name in self.only


def place(draw: random.Random, operations: Sequence[Operation]) -> Plan:
    chosen = draw.choice(operations)
    return {"process": chosen.process, "at": chosen.number}


def _sometime(draw: random.Random, operations: Sequence[Operation]) -> Plan:
    plan = place(draw, operations)
    if draw.random() >= AT_A_TIME:
        return plan
    own = [each.seconds for each in operations if each.process == plan["process"]]
    return {"process": plan["process"], "after": draw.uniform(own[0], own[-1])}


def kill(draw: random.Random, operations: Sequence[Operation]) -> Plan:
    """``kill -9`` at an operation (in the middle of a write) or at a time."""
    return {"kind": "signal", "signal": "SIGKILL", **_sometime(draw, operations)}


def _signal(draw: random.Random, operations: Sequence[Operation]) -> Plan:
    if draw.random() < 0.25:  # the terminal is closed, or what reads the output ends
        streams = draw.choice(([1], [1, 2]))
        return {"kind": "closed", "streams": streams, **place(draw, operations)}
    return {"kind": "signal", "signal": draw.choice(SIGNALS), **_sometime(draw, operations)}


def _at_once(kind: str, **more: Any) -> Draw:
    """A fault that strikes at an operation, and needs nothing else that is drawn."""
    return lambda draw, operations: {"kind": kind, **more, **place(draw, operations)}


def _failing(draw: random.Random, operations: Sequence[Operation]) -> Plan:
    plan = {"kind": "failing", "reading": False, **place(draw, operations)}
    if draw.random() < 0.3:
        plan |= {"reading": True, "at": draw.randint(1, 12)}
    return plan


def _clock(draw: random.Random, operations: Sequence[Operation]) -> Plan:
    """The wall clock is set, or the machine sleeps and all clocks jump ahead when it wakes."""
    jump = draw.choice((1.0, 60.0, 3600.0, 1e6, 1e9)) * draw.choice((-1, 1))
    jumps = {"time": jump}
    if draw.random() < 0.5:
        jumps = dict.fromkeys(("time", "monotonic", "perf_counter"), abs(jump))
    return {"kind": "clock", "jumps": jumps, **place(draw, operations)}


def _slow(draw: random.Random, operations: Sequence[Operation]) -> Plan:
    return {"kind": "slow", "delay": draw.choice((0.002, 0.05, 0.3)), **place(draw, operations)}


def _poison(draw: random.Random, operations: Sequence[Operation]) -> Plan:
    return {"kind": "poison", "process": 0, "update": draw.randint(1, UPDATES)}


def _dead(draw: random.Random, operations: Sequence[Operation]) -> Plan:
    how = draw.choice(("dies", "dies", "stuck"))
    return {"kind": "peer", "process": draw.randint(0, 1), how: draw.randint(1, UPDATES)}


FAULTS = (
    Fault("kill", kill),
    Fault("power loss", _at_once("signal", signal="SIGKILL"), "power"),
    Fault("signal", _signal),
    Fault("full disk", _at_once("full")),
    Fault("I/O error", _failing),
    Fault(
        "damaged file",
        kill,
        "damaged",
        only=tuple(stage.name for stage in STAGES if stage.name != "report"),
        why="a report shows what the log files say, and those carry no hash",
    ),
    Fault("clock", _clock),
    Fault("slow disk", _slow),
    Fault(
        "not a number",
        _poison,
        only=("pretrain, updates", "two processes", "run"),
        why="no weights are changed there",
    ),
    Fault("dead process", _dead, only=("two processes",), why="one process works alone"),
    Fault("planted link", kill, "link"),
)
BY_NAME = {fault.name: fault for fault in FAULTS}
