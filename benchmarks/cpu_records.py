"""Records on a CPU: the default recipe against what a user would pick instead, at equal time.

    python benchmarks/cpu_records.py sweep --corpus DIR --heldout FILE --out DIR --cores 0,1
        --point 2x128:2e-3:8 --point 2x128:4e-3:8,schedule=trapezoid,loop=plain,optimizer=muon ...
    python benchmarks/cpu_records.py ten-minutes --corpus DIR --heldout FILE --out DIR --cores 0,1
        [--ours "crammed optim.name=muon"] [--seeds 3] [--only ours ...]
    python benchmarks/cpu_records.py hour --corpus DIR --heldout FILE --out DIR --cores 0,1
        --blimp FILE --tasks-data DIR [--ours ...] [--seeds 1] [--first-seed 0]
        [--only ours ...]

docs/records.md has the rules. `sweep` trains the peer (peer.py) at each point, which may name any
other options of peer.py. Points that differ in shape, architecture, loop, optimizer or start are
different peers; from then on, each uses its best point. `ten-minutes` measures ours, ours with a
fifth and with a tenth of the time, the peers, and `crammed-2022` in our size as studies scale it
down (docs/experiments.md), or only those that are named. `hour` measures ours, the best peer of
`ten-minutes`, and that `crammed-2022`, and scores them on BLiMP and on tasks of the suite `small`.

All train in turn on the same number of cores: seed 0 of everyone, then seed 1. Two machines can
share the seeds of an hour by --first-seed. With --cores given twice, such as --cores 0,1 --cores
2,3, two train side by side. A point with pace=N makes N updates for each second of the time,
however long they take: those that an idle machine makes.

Results are written to DIR/sweep.json, DIR/ten-minutes.json or DIR/hour.json after every step;
repeating a command continues with what is missing. --dry-run only prints what that would cost.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from common import Json, run_app
from contest import HERE, Contest, Contestant, mean_loss
from crammed.errors import InputError
from crammed.files.writing import read_json
from crammed.rules.recipe import load_config
from crammed.study.spec.arms import read_study
from lanes import core_numbers

MASKS = 0.25
"""Of a point that names no others."""
OURS = "ours"
PAPER = "crammed-2022, small form"
SHARES = {OURS: 1, "ours, a fifth of the time": 5, "ours, a tenth of the time": 10}
"""Our contestants, and what each divides the time by."""

CorpusOption = Annotated[Path, typer.Option(help="Made by crammed prepare.")]
HeldoutOption = Annotated[Path, typer.Option(help="JSON lines (.gz) with a field text.")]
OutOption = Annotated[Path, typer.Option(help="Folder of results, logs and models.")]
CoresOption = Annotated[
    list[str],
    typer.Option(help="Numbers of the cores to use, such as 0,1; again for another lane."),
]
SecondsOption = Annotated[float, typer.Option(help="Time to train, to try this in miniature.")]
OursOption = Annotated[str, typer.Option(help="Recipe and overrides of ours.")]
SeedsOption = Annotated[int, typer.Option(min=1)]
OnlyOption = Annotated[list[str] | None, typer.Option(help="Contestants; all if left out.")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only print the cost.")]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def sweep(
    corpus: CorpusOption,
    heldout: HeldoutOption,
    out: OutOption,
    cores: CoresOption,
    point: Annotated[list[str], typer.Option(help="LAYERSxWIDTH:RATE:ROWS[,OPTION=VALUE...]")],
    seconds: SecondsOption = 600.0,
    dry_run: DryOption = False,
) -> None:
    """Look for the peer's learning rate and batch."""
    plan = [(Contestant(text, "peer", seconds, _point(text)), 0) for text in dict.fromkeys(point)]
    with _contest("sweep", corpus, heldout, out, cores) as contest:
        contest.announce(plan)
        if not dry_run:
            list(contest.go(plan))


@app.command()
def ten_minutes(
    corpus: CorpusOption,
    heldout: HeldoutOption,
    out: OutOption,
    cores: CoresOption,
    ours: OursOption = "crammed",
    seeds: SeedsOption = 3,
    only: OnlyOption = None,
    seconds: SecondsOption = 600.0,
    dry_run: DryOption = False,
) -> None:
    """Ours, ours in a fifth and a tenth of the time, and the peers."""
    words = {"words": _words(ours)}
    best = {} if _only_ours(only) else best_points(_finished(out, "sweep"))
    contestants = [
        *(Contestant(name, "ours", seconds / part, words) for name, part in SHARES.items()),
        *(Contestant(name, "peer", seconds, point) for name, point in best.items()),
    ]
    plan = _chosen(contestants, only, range(seeds))
    with _contest("ten-minutes", corpus, heldout, out, cores) as contest:
        last = _of_paper(contest, seconds, only, range(seeds))
        contest.announce([*plan, *last])
        if dry_run:
            return
        for run in contest.go(plan):
            # Later runs may measure another speed.
            first = best and (run["name"], run["seed"]) == (OURS, 0)
            if first and (chosen := _shape(run["train"])) not in {_shape(p) for p in best.values()}:
                raise InputError(
                    f"ours has chosen {chosen}, and the sweep has {', '.join(best)}: run sweep "
                    f"with a --point {chosen}:RATE:ROWS, then repeat this command"
                )
        list(contest.go(last))


@app.command()
def hour(
    corpus: CorpusOption,
    heldout: HeldoutOption,
    out: OutOption,
    cores: CoresOption,
    blimp: Annotated[Path, typer.Option(help="Pairs, JSON lines.")],
    tasks_data: Annotated[Path, typer.Option(help="Folder of the tasks of `small`.")],
    ours: OursOption = "crammed",
    seeds: SeedsOption = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of --seeds.")] = 0,
    only: OnlyOption = None,
    seconds: SecondsOption = 3600.0,
    tasks: str = "sst2,trec,relations",
    dry_run: DryOption = False,
) -> None:
    """Ours, the best peer, and the paper's recipe in our size."""
    if not blimp.is_file() or not tasks_data.is_dir():
        raise InputError("--blimp must name a file of pairs, and --tasks-data a folder of tasks")
    peers = [] if _only_ours(only) else [_best_peer(_finished(out, "ten-minutes"))]
    evaluate = [sys.executable, "-m", "crammed", "evaluate", "MODEL", "--json"]
    small = [*evaluate, "--suite", "small", "--tasks", tasks, "--data", str(tasks_data)]
    small += ["--protocol", "small", "--seeds", "1", "--no-untrained", "--into", "MODEL.small"]
    pairs = [*evaluate, "--suite", "blimp", "--data", str(blimp), "--into", "MODEL.blimp"]
    with _contest("hour", corpus, heldout, out, cores, blimp=pairs, tasks=small) as contest:
        contestants = [
            Contestant(OURS, "ours", seconds, {"words": _words(ours)}),
            *(Contestant(peer["name"], "peer", seconds, peer["settings"]) for peer in peers),
        ]
        turns = range(first_seed, first_seed + seeds)
        plan = _chosen(contestants, only, turns)
        last = _of_paper(contest, seconds, only, turns)
        contest.announce([*plan, *last])
        for stage in () if dry_run else (plan, last):
            list(contest.go(stage))


def _contest(
    name: str, corpus: Path, heldout: Path, out: Path, cores: list[str], **others: list[str]
) -> Contest:
    """A contest that is judged by held-out loss, and by other commands."""
    if not heldout.is_file():
        raise InputError(f"there is no file {heldout}: name the held-out text with --heldout")
    judge = [sys.executable, str(HERE / "heldout_masked_lm.py"), "MODEL", "--data", str(heldout)]
    lanes = [core_numbers(each) for each in cores]
    return Contest(out, name, corpus, heldout, lanes, {"heldout": judge, **others})


def _only_ours(only: list[str] | None) -> bool:
    """Whether no peer takes part, so that none need have been tried before."""
    return bool(only) and {*SHARES, PAPER}.issuperset(only or ())


def _chosen(
    contestants: list[Contestant], only: list[str] | None, seeds: range
) -> list[tuple[Contestant, int]]:
    """The turns of those that are named, seed after seed; `crammed-2022` has turns of its own."""
    names = [*(contestant.name for contestant in contestants), PAPER]
    if unknown := sorted(set(only or ()) - set(names)):
        raise InputError(f"--only: choose from {'; '.join(names)}, not {'; '.join(unknown)}")
    chosen = [each for each in contestants if not only or each.name in only]
    return [(contestant, seed) for seed in seeds for contestant in chosen]


def _point(text: str) -> Json:
    """The options of peer.py for a point of the sweep."""
    settings: Json = {"schedule": "linear", "masks": MASKS}
    try:
        first, *others = text.split(",")
        shape, rate, rows = first.split(":")
        layers, width = (int(each) for each in shape.split("x"))
        settings |= {"layers": layers, "width": width, "rate": float(rate), "batch": int(rows)}
        for other in others:
            key, value = other.split("=")
            settings[key] = type(settings.get(key, ""))(value)
    except ValueError as error:
        raise InputError(
            f"--point: {text!r} is not LAYERSxWIDTH:RATE:ROWS[,OPTION=VALUE...]"
        ) from error
    return settings


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"--ours: cannot split {text!r} as a shell would: {error}") from error


def _finished(out: Path, name: str) -> list[Json]:
    """The runs of another contest in the same folder that have been judged."""
    values = read_json(out / f"{name}.json") or {"runs": []}
    runs = [run for run in values["runs"] if "heldout" in run]
    if not runs:
        raise InputError(f"{out} has no {name}.json yet: run {name} with the same --out first")
    return runs


def best_points(runs: Iterable[Json]) -> dict[str, Json]:
    """The best settings of a sweep for each peer, by its name."""
    best: dict[str, Json] = {}
    for run in sorted(runs, key=mean_loss):
        best.setdefault(_peer(run["settings"]), run["settings"])
    return best


def _peer(settings: Json) -> str:
    """``ModernBERT 2x128, plain loop, Muon``."""
    parts = {"plain": "plain loop", "muon": "Muon", "cooccurrence": "our embeddings"}
    own = (text for value, text in parts.items() if value in settings.values())
    names = {"roformer": "RoFormer", "bert": "BERT"}
    architecture = names.get(settings.get("architecture", ""), "ModernBERT")
    return ", ".join([f"{architecture} {_shape(settings)}", *own])


def _shape(settings: Json) -> str:
    return f"{settings['layers']}x{settings['width']}"


def _best_peer(runs: list[Json]) -> Json:
    """A run of the peer variant with the best mean over seeds."""
    peers = [run for run in runs if run["maker"] == "peer"]
    losses: dict[str, list[float]] = {}
    for run in peers:
        losses.setdefault(run["name"], []).append(mean_loss(run))
    if not losses:
        raise InputError("ten-minutes.json has no peer yet: let ten-minutes finish first")
    name = min(losses, key=lambda each: sum(losses[each]) / len(losses[each]))
    return next(run for run in peers if run["name"] == name)


def _of_paper(
    contest: Contest, seconds: float, only: list[str] | None, seeds: range
) -> list[tuple[Contestant, int]]:
    """The turns of `crammed-2022`, which waits for our first run to have its size."""
    paper = Contestant(PAPER, "ours", seconds, wait_for=partial(_small_form, contest))
    return [(paper, seed) for seed in seeds if not only or PAPER in only]


def _small_form(contest: Contest) -> Json:
    """`crammed-2022` as studies scale it down, with the size and batch of our run."""
    run = next((each for each in contest.runs if each["name"] == OURS), None)
    if run is None:
        raise InputError(f"crammed-2022 takes the size of our run: let {OURS!r} finish first")
    ours, full = run["train"], load_config("crammed-2022")
    shape = [f"model.{key}={ours[key]}" for key in ("layers", "width", "head_dim")]
    rate = full.optim.lr * math.sqrt(full.model.width / ours["width"])
    size = [*shape, f"batch.rows={ours['batch']}", f"optim.lr={rate:g}"]
    return {"words": ["crammed-2022", *size, *(read_study("main").small or ())]}


if __name__ == "__main__":
    run_app(app)
