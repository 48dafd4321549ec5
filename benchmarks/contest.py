"""Contests on a CPU: runs with equal time and equally many cores, all judged in the same way.

A contest is one JSON file of runs. It has one or more lanes; a lane is a set of cores, on which
runs follow one another. Each run trains in a process of its own, pinned to the cores of its lane
and with a cold compiler cache, and is then judged by other processes. The file is written after
every step, so a contest that was stopped continues with the first missing step; a training run that
was stopped starts again, because its time must not be interrupted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from common import Json
from crammed.config import ComputeConfig
from crammed.data.corpus import Corpus
from crammed.errors import CrammedError, InputError
from crammed.files.hashes import sha256
from crammed.files.locks import FolderLock
from crammed.files.writing import read_json, write_json
from crammed.machine.device import choose_device
from crammed.runs.directory import read_config
from crammed.runs.environment import environment, tree_hash
from lanes import Processes, in_lanes, separate

HERE = Path(__file__).resolve().parent
BETWEEN = 60.0
NOMINAL = {"heldout": 60.0, "blimp": 300.0, "tasks": 900.0}
"""Seconds that a run is assumed to need besides training and judging, and for each judge, until one
has finished."""
KEPT = (
    "charged_seconds",
    "accounts",
    "updates",
    "tokens",
    "epochs",
    "parameters",
    "dtype",
    "heldout",
    "export",
)
"""What is kept of the summary of one of our runs."""


@dataclass(frozen=True)
class Contestant:
    """One who trains for `seconds`: our recipe or the peer.

    Attributes:
        settings: ``{"words": [recipe, overrides]}`` of ours, or the peer's options.
        wait_for: returns settings that depend on earlier runs of the contest.
    """

    name: str
    maker: Literal["ours", "peer"]
    seconds: float
    settings: Json = field(default_factory=dict)
    wait_for: Callable[[], Json] | None = None


Plan = Sequence[tuple[Contestant, int]]
"""Contestants and seeds, in the order to run."""


class Contest:
    """The runs of one contest, and the file that keeps them, which is of one text and machine.

    Args:
        lanes: the cores of each lane.
        judges: ``{name: words}``, commands of judges; ``MODEL`` stands for the model's folder.
    """

    def __init__(
        self,
        out: Path,
        name: str,
        corpus: Path,
        heldout: Path,
        lanes: Sequence[Sequence[int]],
        judges: dict[str, list[str]],
    ) -> None:
        self.corpus, self.lanes = corpus, separate(lanes)
        opened = Corpus(corpus)  # a corpus that is refused leaves no folder
        self._lock = FolderLock(out)
        self._out, self._name, self._file = out, name, out / f"{name}.json"
        self._judges, self._processes, self._changing = judges, Processes(), threading.Lock()
        device = choose_device(ComputeConfig(threads=len(self.lanes[0])))
        about = {
            "name": name,
            "device": device.name,
            "corpus": {
                "sha256": opened.sha256,
                "sources": [source["name"] for source in opened.manifest["sources"]],
                "tokens": opened.manifest["tokens"],
                "vocab_size": opened.vocab_size,
                "row_length": opened.row_length,
            },
            "heldout_sha256": sha256(heldout),
        }
        self._values: Json = read_json(self._file) or {**about, "runs": []}
        for key, value in about.items():
            if self._values.get(key) != value:
                raise InputError(f"{self._file} has another {key}: choose another --out")
        self.runs: list[Json] = self._values["runs"]
        """A run is complete once it has the results of all judges."""

    def __enter__(self) -> Contest:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def find(self, name: str, seed: int) -> Json:
        """A run that has been trained, or an empty dictionary."""
        found = (each for each in self.runs if (each["name"], each["seed"]) == (name, seed))
        return next(found, {})

    def announce(self, plan: Plan) -> None:
        """Print what is missing and what it will cost."""
        missing = [turn for turn in plan if not self._complete(*turn)]
        seconds = self._left(missing)
        numbers = " and ".join(",".join(map(str, lane)) for lane in self.lanes)
        core_hours = seconds / 3600 * sum(map(len, self.lanes))
        print(
            f"{self._name}: {len(missing)} of {len(plan)} runs to go, about {_duration(seconds)} "
            f"on cores {numbers} ({core_hours:.1f} core-hours)",
            flush=True,
        )

    def go(self, plan: Plan) -> Iterator[Json]:
        """Do what is missing, and yield every run of the plan as soon as it is complete.

        What `Contestant.wait_for` needs must have been in an earlier plan.
        """
        missing = sum(not self._complete(*each) for each in plan)
        for run, is_new in in_lanes(self.lanes, plan, self._turn, self._processes.stop):
            if is_new:
                missing -= 1
                left = _duration(self._left(plan))
                print(f"{_line(run)}; {missing} runs to go, {left}", flush=True)
            yield run

    def _turn(self, turn: tuple[Contestant, int]) -> tuple[Json, bool]:
        """One run of a plan, and whether anything was left to do."""
        contestant, seed = turn
        settings = contestant.wait_for() if contestant.wait_for else contestant.settings
        found = self.find(contestant.name, seed)
        asked = {"seconds": contestant.seconds, "settings": settings}
        if any(found.get(key, value) != value for key, value in asked.items()):
            raise InputError(
                f"{self._file}: {contestant.name!r}, seed {seed}, was made with other "
                "settings: choose another --out"
            )
        if self._complete(contestant, seed):
            return found, False
        return self._run(contestant, seed, settings), True

    def _complete(self, contestant: Contestant, seed: int) -> bool:
        return self._judges.keys() <= self.find(contestant.name, seed).keys()

    def _left(self, plan: Plan) -> float:
        """Seconds that the missing steps of a plan will take in all lanes."""
        extra = [run["wall_seconds"] - run["seconds"] for run in self.runs]
        between = statistics.median(extra) if extra else BETWEEN
        total = 0.0
        for contestant, seed in plan:
            found = self.find(contestant.name, seed)
            total += 0.0 if found else contestant.seconds + between
            total += sum(self._expected(j) for j in self._judges if j not in found)
        return total / len(self.lanes)

    def _expected(self, judge: str) -> float:
        seen = [run[judge]["wall_seconds"] for run in self.runs if judge in run]
        return statistics.median(seen) if seen else NOMINAL[judge]

    def _run(self, contestant: Contestant, seed: int, settings: Json) -> Json:
        name = f"{self._name}-{_slug(contestant.name)}-{seed}"
        folder = self._out / "models" / name
        run = self.find(contestant.name, seed)
        if not run:
            run = self._train(contestant, seed, settings, folder)
            with self._changing:
                self.runs.append(run)
                write_json(self._file, self._values)
        model = folder / "export" if contestant.maker == "ours" else folder
        for judge, command in self._judges.items():
            if judge not in run:
                words = [word.replace("MODEL", str(model)) for word in command]
                if run["train"].get("export", {}).get("format") == "custom":
                    words.append("--trust-remote-code")
                began = time.perf_counter()
                printed = self._call(words, name)
                seconds = time.perf_counter() - began
                found = {"suites": printed["suites"]} if "suites" in printed else printed
                with self._changing:
                    run[judge] = {"wall_seconds": seconds, **found}
                    write_json(self._file, self._values)
        return run

    def _train(self, contestant: Contestant, seed: int, settings: Json, folder: Path) -> Json:
        if folder.exists():
            shutil.rmtree(folder)
        ours = contestant.maker == "ours"
        make = _our_command if ours else _peer_command
        words = make(settings, self.corpus, contestant.seconds, seed, folder)
        about = {**environment(), "benchmarks": tree_hash("benchmarks")}  # the peers' code
        busy, began = os.getloadavg()[0], time.perf_counter()
        printed = self._call(words, folder.name)
        if ours:
            printed |= read_json(folder / "summary.json") or {}
            printed = {key: printed[key] for key in KEPT if key in printed} | _shape(folder)
        return {
            "name": contestant.name,
            "maker": contestant.maker,
            "seed": seed,
            "seconds": contestant.seconds,
            "settings": settings,
            "command": self._shown(words),
            "environment": about,
            "cores": len(self.lanes[0]),
            "lanes": len(self.lanes),
            "load_before": busy,
            "wall_seconds": time.perf_counter() - began,
            "train": printed,
        }

    def _shown(self, words: Sequence[str]) -> str:
        """A command with variables in place of this machine's folders."""
        named = {str(self.corpus): "$CORPUS", sys.executable: "python"}
        folders = {f"{self._out}/": "$OUT/", f"{HERE}/": "benchmarks/"}
        return " ".join(_renamed(word, named, folders) for word in words)

    def _call(self, words: Sequence[str], name: str) -> Json:
        """Run a command on this thread's cores, and return the JSON object that it prints last."""
        log, cache = self._out / "logs" / f"{name}.txt", self._out / "models" / f"{name}.compiled"
        own = {"TORCHINDUCTOR_CACHE_DIR": str(cache.absolute()), "TOKENIZERS_PARALLELISM": "false"}
        shutil.rmtree(cache, ignore_errors=True)
        printed = self._processes.run(words, log, **own)
        shutil.rmtree(cache, ignore_errors=True)
        try:
            result: Json = json.loads(printed.splitlines()[-1])
        except (IndexError, ValueError) as error:
            raise CrammedError(f"{name} printed no result; {log} may say why") from error
        return result


def _our_command(
    settings: Json, corpus: Path, seconds: float, seed: int, folder: Path
) -> list[str]:
    words = [sys.executable, "-m", "crammed", "pretrain", *settings["words"]]
    words += ["--corpus", str(corpus), "--budget", f"{seconds:g}s", "--seed", str(seed)]
    return [*words, "--out", str(folder), "--json"]


def _peer_command(
    settings: Json, corpus: Path, seconds: float, seed: int, folder: Path
) -> list[str]:
    words = [sys.executable, str(HERE / "peer.py"), str(corpus), "--out", str(folder)]
    words += ["--seconds", f"{seconds:g}", "--seed", str(seed)]
    return words + [part for key, value in settings.items() for part in (f"--{key}", str(value))]


def _renamed(word: str, named: dict[str, str], folders: dict[str, str]) -> str:
    """A word of a command with other names of what it is or begins with."""
    begins = next((folder for folder in folders if word.startswith(folder)), "")
    return named.get(word, folders.get(begins, "") + word.removeprefix(begins))


def _shape(folder: Path) -> Json:
    """The size, batch, optimizer and masking that our recipe chose."""
    config = read_config(folder)
    return {
        **{key: getattr(config.model, key) for key in ("layers", "width", "head_dim")},
        "batch": config.batch.rows,
        "optim": config.optim.model_dump(mode="json"),
        "masking": config.masking.model_dump(mode="json"),
    }


def mean_loss(run: Json) -> float:
    """The mean of the losses at both mask rates, by which contestants are ordered."""
    heldout = run["heldout"]
    return float(heldout["loss@0.15"] + heldout["loss@0.25"]) / 2


def _line(run: Json) -> str:
    loss = run["heldout"]
    shown = f"{loss['loss@0.15']:.3f} at 15 %, {loss['loss@0.25']:.3f} at 25 %"
    return f"{run['name']}, seed {run['seed']}: {shown}"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
