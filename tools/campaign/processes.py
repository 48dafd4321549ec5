"""Starts the commands of a try with the fault inside, and collects how they end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.faults import NOTHING, Plan
from campaign.inside import code
from campaign.journal import Operation, read_journal
from campaign.oracle import Outcome
from campaign.stages import Stage
from support.command import popen

PATIENCE = 600.0
"""Seconds after which a command counts as hanging; none takes nearly as long, even on a core that
it shares with others."""


@dataclass(frozen=True)
class Ended:
    """A command that has ended, with a fault inside.

    Attributes:
        outcomes: one for each process; several if they trained together.
        kept: folder with the files that they removed or replaced.
    """

    outcomes: list[Outcome]
    journal: list[Operation]
    kept: Path

    @property
    def hit(self) -> bool:
        return any(each.kind == "fault" for each in self.journal)


def run(
    stage: Stage,
    world: Path,
    aside: Path,
    fault: Plan = NOTHING,
    plant: str | None = None,
    core: int = 0,
) -> Ended:
    """Run the stage's command in a world, and wait for its end.

    Args:
        aside: new folder for the journal and for removed or replaced files.
        core: number of the core to run on.
    """
    kept = aside / "kept"
    kept.mkdir(parents=True)
    cores = sorted(os.sched_getaffinity(0))
    given = {
        "root": str(world),
        "journal": str(aside / "journal"),
        "kept": str(kept),
        "fault": fault,
        "plant": plant,
        "cores": [cores[core % len(cores)]] if stage.threads == 1 else cores,
    }
    start, environment = _start(stage.threads)
    group = _group(stage.ranks) if stage.ranks > 1 else {}
    started = []
    for rank in range(stage.ranks):
        own = {**group, "RANK": str(rank), "LOCAL_RANK": str(rank)} if group else {}
        words = ["-c", code(), json.dumps({**given, "process": rank}), *stage.words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        env = {**environment, **own}
        started.append(start([sys.executable, *words], **pipes, cwd=world, env=env))
    outcomes = _outcomes(started, fault)
    _wait_for_orphans(aside / "journal", killed=fault.get("signal") == "SIGKILL")
    return Ended(outcomes, read_journal(aside / "journal"), kept)


def _start(threads: int | None) -> tuple[Callable[..., Any], dict[str, str]]:
    """What starts a command with this many threads, and its environment."""
    environment = dict(os.environ)
    if threads == 1:
        return popen, environment
    environment.pop("OMP_NUM_THREADS", None)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    return subprocess.Popen, environment  # a forked process would keep the server's threads


def _group(size: int) -> dict[str, str]:
    """The environment variables that ``torchrun`` would set for all processes."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    return {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _outcomes(started: Sequence[Any], fault: Plan) -> list[Outcome]:
    """How the processes ended; a process that the fault stopped comes last, and is killed."""
    until = time.monotonic() + PATIENCE
    stuck = fault["process"] if "stuck" in fault else None
    found: dict[int, Outcome] = {}
    for rank in sorted(range(len(started)), key=lambda rank: rank == stuck):
        process = started[rank]
        if rank == stuck and process.poll() is None:
            process.kill()
        try:
            out, error = process.communicate(timeout=max(0.1, until - time.monotonic()))
            found[rank] = Outcome(process.returncode, out, error)
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = process.communicate()
            found[rank] = Outcome(None, out, error)
    return [found[rank] for rank in sorted(found)]


def _wait_for_orphans(journal: Path, killed: bool) -> None:
    """Wait for the processes that the command started; kill them if the fault was a kill."""
    pids = [each.about["pid"] for each in read_journal(journal) if each.kind == "begin"]
    until = time.monotonic() + PATIENCE
    for pid in pids:
        while Path(f"/proc/{pid}").exists():
            if killed or time.monotonic() > until:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
