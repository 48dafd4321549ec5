"""Runs in the process under test: installs the file layer, arms the fault, and runs ``crammed``."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from campaign.files import Layer, Strike, Torn
from campaign.plants import PLANTS

Fault = dict[str, Any]
"""What strikes, as `campaign.faults` draws it."""
_WRITING = ("create", "write", "native", "mkdir")
"""Operations that need space on the disk."""
PATIENCE = 8.0
"""Seconds that a process waits for another that hangs, in place of half an hour."""
LONGEST_DELAY = 1.0
"""The most seconds that a slow disk costs a process."""


def main() -> None:
    """Run ``crammed`` with the fault that the first argument describes."""
    plan: dict[str, Any] = json.loads(sys.argv.pop(1))
    os.sched_setaffinity(0, plan["cores"])
    process = plan["process"]
    fault = plan["fault"] if plan["fault"].get("process", 0) == process else {"kind": "none"}
    layer = Layer(
        Path(plan["root"]), Path(plan["journal"]), Path(plan["kept"]), process, lambda *_: None
    )
    layer.remark("begin", pid=os.getpid())
    _pass_on(plan)
    from crammed.cli.app import main as crammed
    from crammed.machine import device
    from crammed.training import watchdog

    device._measured_peak = lambda *_: 1e11  # measuring takes as long as the rest, for no result
    watchdog.PATIENCE = PATIENCE
    if plan["plant"] is not None:
        PLANTS[plan["plant"]].put()
    layer.strike = _strike(fault, layer)
    _arm(fault, layer)
    layer.install()
    crammed()


def _pass_on(plan: dict[str, Any]) -> None:
    """Give the plan to the processes that this one starts, such as a study's."""
    real, started = subprocess.Popen, [0]

    def start(command: Any, *given: Any, **named: Any) -> Any:
        if list(command[:3]) == [sys.executable, "-m", "crammed"]:
            started[0] += 1
            own = json.dumps({**plan, "process": 10 * plan["process"] + started[0]})
            command = [sys.executable, "-c", code(), own, *command[3:]]
        return real(command, *given, **named)

    subprocess.Popen = start  # type: ignore[misc,assignment]


def code() -> str:
    """The code for ``python -c`` that calls `main`."""
    tools = str(Path(__file__).resolve().parents[1])
    return f"import sys; sys.path.insert(0, {tools!r}); from campaign.inside import main; main()"


def _strike(fault: Fault, layer: Layer) -> Strike:
    """The function that `Layer` calls before each operation."""
    if "at" not in fault:
        return lambda *_: None
    lasts = fault["kind"] in ("full", "slow")

    def strike(kind: str, number: int, path: str) -> None:
        due = (number == fault["at"]) and (kind == "read") == fault.get("reading", False)
        if due or (lasts and number >= fault["at"]):
            _act(fault, layer, kind, path)

    return strike


def _act(fault: Fault, layer: Layer, kind: str, path: str) -> None:
    """What happens at an operation of this kind."""
    if fault["kind"] == "full" and kind not in _WRITING:
        return
    if fault["kind"] == "slow" and fault.setdefault("slept", 0.0) >= LONGEST_DELAY:
        return
    layer.remark("fault")
    if fault["kind"] == "signal":
        if kind == "write" and fault["signal"] == "SIGKILL":
            raise Torn
        os.kill(os.getpid(), signal.Signals[fault["signal"]])
    elif fault["kind"] in ("full", "failing"):
        number = errno.ENOSPC if fault["kind"] == "full" else errno.EIO
        raise OSError(number, os.strerror(number), path)
    elif fault["kind"] == "slow":
        fault["slept"] += fault["delay"]
        time.sleep(fault["delay"])
    elif fault["kind"] == "closed":  # the terminal is: nobody reads the output any more
        read, write = os.pipe()
        os.close(read)
        for standard in fault["streams"]:
            os.dup2(write, standard)
    elif fault["kind"] == "clock":
        _JUMPED.update(fault["jumps"])


_JUMPED: dict[str, float] = {}
"""Seconds by which each clock is wrong from now on."""


def _arm(fault: Fault, layer: Layer) -> None:
    """Prepare faults that strike at a time, at an update, or through a clock."""
    if fault["kind"] == "clock":
        _replace_clocks()
    if fault["kind"] == "poison":
        _poison(fault["update"], layer)
    if "after" in fault:
        timer = threading.Timer(fault["after"], _end, (signal.Signals[fault["signal"]], layer))
        timer.daemon = True
        timer.start()
    for how, end in (("stuck", signal.SIGSTOP), ("dies", signal.SIGKILL)):
        if how in fault:
            _at_update(fault[how], partial(_end, end, layer))


def _end(which: signal.Signals, layer: Layer, *_: object) -> None:
    layer.remark("fault")
    os.kill(os.getpid(), which)


def _at_update(number: int, act: Callable[[Any], object]) -> None:
    """Call `act` with the step just before it changes the weights in an update."""
    from crammed.training.update.step import TrainStep

    real, done = TrainStep.apply, [0]

    def apply(step: Any, *given: Any, **named: Any) -> Any:
        done[0] += 1
        if done[0] == number:
            act(step)
        return real(step, *given, **named)

    TrainStep.apply = apply  # type: ignore[method-assign, assignment]


def _poison(number: int, layer: Layer) -> None:
    """Set one gradient to NaN, as overflow or broken memory would."""

    def act(step: Any) -> None:
        layer.remark("fault")
        parameter = next(p for p in step.model.parameters() if p.grad is not None)
        parameter.grad.view(-1)[0] = float("nan")

    _at_update(number, act)


def _replace_clocks() -> None:
    """Replace every clock that the package reads, so that `_JUMPED` can make it wrong."""

    def wrong(name: str, real: Callable[[], float]) -> Callable[[], float]:
        return lambda: real() + _JUMPED.get(name, 0.0)

    clocks = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}
    replaced = {id(real): wrong(name, real) for name, real in clocks.items()}
    for name, real in clocks.items():
        setattr(time, name, replaced[id(real)])
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "crammed":
            continue
        for value in list(vars(module).values()):
            members = vars(value).values() if isinstance(value, type) else (value,)
            for function in members:
                if isinstance(function, FunctionType) and function.__defaults__:
                    function.__defaults__ = tuple(
                        replaced.get(id(each), each) for each in function.__defaults__
                    )
