"""Inject every fault into every stage, and check that the result is the same as without it.

    python tools/chaos.py --seed 1 --tries 40          # 40 tries in each cell of fault x stage
    python tools/chaos.py --seed 1 --minutes 5         # as many as fit, over all cells
    python tools/chaos.py --stage prepare --fault kill --tries 10
    python tools/chaos.py --seed 1 --only 17           # repeat one try exactly
    python tools/chaos.py --plant sync                 # with a safeguard removed from the code

A try makes a small world, lets a fault strike a command in it, and types the same command again. It
holds if the result is that of an undisturbed command, or if one clear line names what is damaged
and following its advice gives that result; and if nothing finished is lost or done twice.
`campaign/` has the stages, the faults and the judge.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Annotated, TextIO

import typer

from campaign.faults import BY_NAME as FAULTS
from campaign.faults import NOTHING, Fault
from campaign.plants import PLANTS
from campaign.stages import BY_NAME as STAGES
from campaign.stages import Stage
from campaign.tries import Campaign, Failed, Try

Cell = tuple[Stage, Fault]
_SIZE = len(STAGES) * len(FAULTS)
_NUMBERS = {name: n for n, name in enumerate((s, f) for s in STAGES for f in FAULTS)}
_MOST_TURNS = 3
"""A cell gives up after this many times the tries asked for, even if too few faults struck."""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    seed: Annotated[int, typer.Option(help="Seed of all choices.")] = 1,
    tries: Annotated[
        int | None, typer.Option(min=1, help="Tries in each cell (default: 1, or as time allows).")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this many minutes.")] = None,
    stage: Annotated[list[str] | None, typer.Option(help="Only these stages.")] = None,
    fault: Annotated[list[str] | None, typer.Option(help="Only these faults.")] = None,
    only: Annotated[int | None, typer.Option(help="Only the try with this number.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Tries at a time.")] = 1,
    plant: Annotated[
        str | None, typer.Option(help=f"Remove a safeguard: {', '.join(PLANTS)}.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for tries.jsonl and table.md.")] = None,
    first: Annotated[bool, typer.Option("--first", help="Stop at the first failure.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the worlds of tries that failed.")
    ] = False,
) -> None:
    """Inject faults into stages; the exit code is 1 if a try did not hold."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    cells, done = _cells(stage, fault), list[Try]()
    if only is not None:
        cells = [_only(cells, only)]
    elif minutes is None:
        tries = tries or 1
    if plant is not None and plant not in PLANTS:
        raise typer.BadParameter(f"choose from {', '.join(PLANTS)}", param_hint="--plant")
    # Power losses are simulated, so no real disk is needed.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=memory))
    try:
        campaign = Campaign(folder, seed, plant)
        campaign.prepare(list(dict.fromkeys(stage for stage, _ in cells)))
        todo = _numbered(cells, tries, done) if only is None else iter([(only, cells[0])])
        total = tries * len(cells) if tries is not None else None
        _run_all(campaign, todo, total, jobs, minutes, first, out, done)
    except Failed as failed:
        raise SystemExit(f"error: {failed}") from failed
    finally:
        if keep:
            typer.echo(f"the worlds of tries that failed are in {folder}", err=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    shown = _table(done, cells)
    typer.echo(shown)
    if out is not None:
        (out / "table.md").write_text(shown + "\n", "utf-8")
    raise SystemExit(any(each.verdict != "held" for each in done))


def _cells(stages: list[str] | None, faults: list[str] | None) -> list[Cell]:
    """The cells that were asked for and where the fault applies."""
    for kind, given, known in (("stage", stages, STAGES), ("fault", faults, FAULTS)):
        if unknown := set(given or ()) - known.keys():
            raise typer.BadParameter(
                f"no {kind} {', '.join(sorted(unknown))}: choose from {', '.join(known)}"
            )
    return [
        (stage, fault)
        for stage in STAGES.values()
        for fault in FAULTS.values()
        if stage.name in (stages or STAGES) and fault.name in (faults or FAULTS)
        if fault.applies(stage)
    ]


def _only(cells: list[Cell], number: int) -> Cell:
    for stage, fault in cells:
        if _NUMBERS[stage.name, fault.name] == number % _SIZE:
            return stage, fault
    raise typer.BadParameter(f"no cell has the number {number}", param_hint="--only")


def _numbered(cells: list[Cell], tries: int | None, done: list[Try]) -> Iterator[tuple[int, Cell]]:
    """A try in every cell, over and over; after `tries` turns, only where too few faults struck.

    The number of a try encodes its turn and its cell, whatever ``--stage`` and ``--fault`` select.
    """
    for turn in count():
        struck = Counter((each.stage, each.fault) for each in done if each.hit)
        for stage, fault in cells:
            key = stage.name, fault.name
            if tries is None or turn < tries or struck[key] < tries:
                yield turn * _SIZE + _NUMBERS[key], (stage, fault)
        if tries is not None and turn + 1 == _MOST_TURNS * tries:
            return


def _run_all(
    campaign: Campaign,
    todo: Iterator[tuple[int, Cell]],
    total: int | None,
    jobs: int,
    minutes: float | None,
    first: bool,
    out: Path | None,
    done: list[Try],
) -> None:
    """Do the tries, `jobs` at a time, append them to `done`, and report progress.

    Args:
        total: how many there are at least; None if time decides.
        first: stop at the first that fails.
    """
    began = time.monotonic()
    until = began + 60 * minutes if minutes is not None else float("inf")
    log: TextIO | None = None
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        log = (out / "tries.jsonl").open("w", encoding="utf-8")
    free = list(range(jobs))
    with ThreadPoolExecutor(jobs) as pool:
        waiting: dict[Future[Try], int] = {}
        while True:
            while free and time.monotonic() < until and (next_one := next(todo, None)):
                number, (stage, fault) = next_one
                core = free.pop()
                drawn = campaign.draw(number, stage, fault)
                waiting[pool.submit(campaign.run, drawn, core)] = core
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                free.append(waiting.pop(future))
                tried = future.result()
                done.append(tried)
                if log is not None:
                    log.write(json.dumps(asdict(tried)) + "\n")
                    log.flush()
                _show(tried, done, total, began, until)
                if first and tried.verdict != "held":
                    todo = iter(())


def _show(tried: Try, done: list[Try], total: int | None, began: float, until: float) -> None:
    """Print a line for a try that failed, and every 50 tries one with the time left."""
    if tried.verdict != "held":
        what = f"try {tried.number}, {tried.stage}, {tried.fault}: {tried.how}"
        typer.echo(f"{tried.verdict:<11} {what}", err=True)
    if len(done) % 50 == 0:
        spent = time.monotonic() - began
        left = until - time.monotonic()
        if total is not None:
            left = min(left, spent / len(done) * (total - len(done)))
        counts = Counter(each.verdict for each in done)
        words = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        typer.echo(f"{len(done)} tries: {words}; {left / 60:.1f} min left", err=True)


def _table(tries: list[Try], cells: list[Cell]) -> str:
    """Rows are stages, columns are faults, and a cell says how many of its tries held.

    Tries whose fault did not strike, because the command had already ended, are not counted.
    """
    stages = list(dict.fromkeys(stage for stage, _ in cells))
    kinds = [fault for fault in FAULTS.values() if any(fault == one for _, one in cells)]
    counts, held = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for each in tries:
        if each.hit or each.verdict != "held":
            counts[each.stage, each.fault] += 1
            held[each.stage, each.fault] += each.verdict == "held"
    lines = [
        f"| stage | {' | '.join(fault.name for fault in kinds)} |",
        "|---|" + "---|" * len(kinds),
    ]
    for stage in stages:
        shown = []
        for fault in kinds:
            key = stage.name, fault.name
            shown.append(f"{held[key]} of {counts[key]}" if fault.applies(stage) else "none")
        lines.append(f"| {stage.name} | {' | '.join(shown)} |")
    lines += ["", *(f"{fault.name}: none where {fault.why}." for fault in kinds if fault.why)]
    verdicts = Counter(each.verdict for each in tries if each.hit or each.verdict != "held")
    missed = sum(not each.hit and each.verdict == "held" for each in tries)
    words = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    resumed = sum(each.prior != NOTHING for each in tries if each.hit)
    lines += [
        "",
        f"{sum(verdicts.values())} tries: {words}. {resumed} of the faults struck a command that "
        f"resumed after a kill. {missed} more commands ended before their fault could strike.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    app()
