"""Train one recipe with one seed and one budget, and evaluate the model, all in one command.

    python benchmarks/budget_run.py RECIPE [key.path=value ...] --budget sprint --seed 0 --out DIR
        (--text PATH [--text PATH ...] [--tokenizer FILE] | --corpus DIR)
        [--heldout FILE] [--blimp FILE] [--glue DIR] [--tasks cola,sst2,mrpc,stsb,rte] [--seeds 5]
        [--detach [--wait 9m]]

A trained model is too large to bring back from a rented machine, so it is evaluated where it was
trained: held-out loss, BLiMP, and fine-tuning without the untrained model. Two budgets have names:
sprint (8 minutes) and long (20 minutes). After every stage DIR/RESULT.json is written, with each
stage's seconds, energy and memory, and with the losses over time; the run itself is in DIR/run. The
same command continues where it stopped.

With --detach the work is done in a separate process, which outlives this command and writes to
DIR/log.txt. --wait shows its output for the given time. Repeating the command shows what follows,
or restarts the process if it has died. Exit code 75 means that there is more to come.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from common import Json, device_memory, joules, run
from crammed.budget import Budget
from crammed.errors import CrammedError, InputError, Interrupted
from crammed.files.writing import read_json, write_json
from crammed.runs.environment import environment
from crammed.runs.logs import read_lines, read_metrics

GLUE_5 = "cola,sst2,mrpc,stsb,rte"
BUDGETS = {"sprint": "8m", "long": "20m"}
MOST_POINTS = 200
"""Points of a curve to keep."""
_LOOK_SECONDS = 0.5

Stages = list[tuple[str, list[str]]]


def main(
    words: Annotated[list[str], typer.Argument(help="Recipe, overrides.")],
    out: Annotated[Path, typer.Option()],
    budget: Annotated[str, typer.Option(help="sprint, long, or any budget.")] = "sprint",
    seed: int = 0,
    text: Annotated[list[Path] | None, typer.Option()] = None,
    tokenizer: Path | None = None,
    corpus: Path | None = None,
    heldout: Path | None = None,
    blimp: Path | None = None,
    glue: Path | None = None,
    tasks: str = GLUE_5,
    seeds: int = 5,
    detach: Annotated[bool, typer.Option("--detach", help="Work in a separate process.")] = False,
    wait: Annotated[str | None, typer.Option(help="How long to watch it, such as 9m.")] = None,
) -> None:
    spent, folder = Budget.parse(BUDGETS.get(budget, budget)), out / "run"
    stages: Stages = []
    if corpus is None:
        corpus = out / "corpus"
        stages.append(("prepare", _prepare(words, text or [], tokenizer, corpus)))
        words_of_run = [word for word in words if not _of_data(word)]
    else:
        words_of_run = words
    given = ["--corpus", str(corpus), "--budget", spent.text, "--seed", str(seed)]
    given += ["--out", str(folder)]
    stages.append(("pretrain", ["pretrain", *words_of_run, *given]))
    for name, file in (("heldout", heldout), ("blimp", blimp)):
        if file is not None:
            stages.append((name, ["evaluate", str(folder), "--suite", name, "--data", str(file)]))
    if glue is not None:
        options = [
            "--tasks",
            tasks,
            "--seeds",
            str(seeds),
            "--protocol",
            "cramming",
            "--no-untrained",
        ]
        stages.append(("glue", ["evaluate", str(folder), "--data", str(glue), *options]))
    if wait is not None and not detach:
        raise InputError("--wait watches what --detach has started: use both")
    out.mkdir(parents=True, exist_ok=True)
    result = Result(out, words, spent, seed)
    if detach:
        _watch(result, stages, Budget.parse(wait or "1s"))
        return
    with _locked(out) as ours:
        if not ours:
            raise InputError(f"{out} is in use by another process: watch it with --detach")
        for name, command in stages:
            result.stage(name, command)


def _of_data(word: str) -> bool:
    return word.startswith(("data.", "tokenizer."))


def _prepare(words: list[str], text: list[Path], tokenizer: Path | None, corpus: Path) -> list[str]:
    sources = [part for path in text for part in ("--data", str(path))]
    given = [f"tokenizer.file={tokenizer}"] if tokenizer is not None else []
    kept = [word for word in words if "=" not in word or _of_data(word)]
    return ["prepare", *kept, *given, *sources, "--out", str(corpus)]


class Result:
    """The results file; a stage that is recorded there is not repeated."""

    def __init__(self, out: Path, words: list[str], budget: Budget, seed: int) -> None:
        self.out = out
        self._budget = budget
        asked = {"words": words, "budget": budget.text, "seed": seed}
        self._described = {"name": "budget_run", **asked}
        self._read()

    def _read(self) -> None:
        file = self.out / "RESULT.json"
        self._values: dict[str, Any] = read_json(file) or {
            **self._described,
            "environment": environment(),
            "begun": {},
            "stages": {},
        }
        if any(self._values[key] != value for key, value in self._described.items()):
            raise InputError(f"{file} belongs to another run: choose another --out")

    def missing(self, stages: Stages) -> list[str]:
        """Names of the stages that the file on disk lacks."""
        self._read()
        return [name for name, _ in stages if name not in self._values["stages"]]

    def stage(self, name: str, command: Sequence[str]) -> None:
        """Run ``crammed`` with this command, and keep what it prints and what it cost.

        A stage that was killed continues where it stopped: `begun` counts how often it was started,
        and its seconds and joules are those of the last attempt.
        """
        if name in self._values["stages"]:
            return
        begun = self._values["begun"]
        begun[name] = begun.get(name, 0) + 1
        self._write()
        print(f"{name}  crammed {' '.join(command)}", flush=True)
        whole = [sys.executable, "-m", "crammed", *command, "--json"]
        energy, began = joules(), time.perf_counter()
        with _PeakMemory() as memory:
            env = {**os.environ, **_own_compiler_cache(self.out)}
            done = subprocess.run(whole, stdout=subprocess.PIPE, check=False, env=env)
        if done.returncode not in (0, 5):  # 5: a task failed, but the others have scores
            raise SystemExit(f"{name} ended with exit code {done.returncode}")
        entry: Json = {"seconds": time.perf_counter() - began}
        if energy is not None and (after := joules()) is not None:
            entry["joules"] = after - energy
        if memory.most is not None:
            entry["peak_device_memory"] = memory.most
        entry["result"] = _kept(name, json.loads(done.stdout))
        self._values["stages"][name] = entry
        if name == "pretrain":
            self._values["curves"] = curves(self.out / "run", self._budget)
        self._write()
        print(f"{name}  done in {entry['seconds']:.0f} seconds", flush=True)

    def _write(self) -> None:
        write_json(self.out / "RESULT.json", self._values)


def _own_compiler_cache(out: Path) -> dict[str, str]:
    """A compiler cache of its own, so that the run pays for compiling, whatever ran here before."""
    cache = (out / "compiled").absolute()
    return {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}


def _kept(name: str, printed: dict[str, Any]) -> dict[str, Any]:
    """The part of the output that a record needs; a manifest is long."""
    if name != "prepare":
        return printed
    return {key: printed[key] for key in ("documents", "characters", "tokens", "vocab_size")}


def curves(run: Path, budget: Budget) -> Json:
    """Losses over time: held-out losses, and a limited number of log points.

    ``charged_s`` of a held-out loss is None unless a budget of time ended the run.
    """
    in_time = budget.kind == "time" and not (read_json(run / "summary.json") or {}).get("early_end")
    events = [event for event in read_lines(run / "events.jsonl") if event["event"] == "heldout"]
    heldout = [
        {
            "charged_s": event["u"] * budget.limit if in_time else None,
            **{k: v for k, v in event.items() if k in ("u", "at", "update", "tokens")},
            **{k: v for k, v in event.items() if k.startswith("loss@")},
        }
        for event in events
    ]
    points = read_metrics(run)
    every = -(-len(points) // MOST_POINTS) or 1
    kept = ("t_charged_s", "t_wall_s", "u", "tokens", "loss", "lr", "batch_rows", "tokens_per_s")
    training = [{key: point[key] for key in kept} for point in points[::-1][::every][::-1]]
    return {"heldout": heldout, "training": training}


class _PeakMemory:
    """Samples the memory in use on the first GPU; `most` is the maximum, None without a GPU."""

    def __init__(self) -> None:
        self.most: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while (used := device_memory()) is not None:
            self.most = max(self.most or 0, used)
            if self._stop.wait(_LOOK_SECONDS):
                return

    def __enter__(self) -> _PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def _locked(out: Path) -> Iterator[bool]:
    """Hold the folder's lock, which ends with the process; yields False if another one has it."""
    with (out / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _watch(result: Result, stages: Stages, wait: Budget) -> None:
    """Start the work unless it is running, and show its output until it ends or time is up.

    Raises:
        CrammedError: the work ended before it was done.
        Interrupted: there is more to come.
    """
    log, until = result.out / "log.txt", time.monotonic() + wait.limit
    process, shown = None, log.stat().st_size if log.exists() else 0
    with _locked(result.out) as free:
        pass
    if free and result.missing(stages):
        process = _start(log)
    while True:
        time.sleep(_LOOK_SECONDS)
        ended = process.poll() is not None if process is not None else _is_free(result.out)
        if log.exists():
            with log.open("rb") as file:
                file.seek(shown)
                new = file.read()
            shown += len(new)
            sys.stdout.write(new.decode(errors="replace"))
            sys.stdout.flush()
        missing = result.missing(stages)
        if not missing:
            print(f"all stages are done: {result.out / 'RESULT.json'}")
            return
        if ended:
            raise CrammedError(
                f"stopped before {missing[0]} was done, see {log}; the same command tries again"
            )
        if time.monotonic() >= until:
            raise Interrupted(f"still at {missing[0]}; the same command shows what follows")


def _is_free(out: Path) -> bool:
    with _locked(out) as free:
        return free


def _start(log: Path) -> subprocess.Popen[bytes]:
    """Start this command without --detach and --wait, in a session of its own."""
    words, own = iter(sys.argv[1:]), []
    for word in words:
        if word == "--wait":
            next(words)
        elif word != "--detach" and not word.startswith("--wait="):
            own.append(word)
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *own],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )


if __name__ == "__main__":
    run(main)
