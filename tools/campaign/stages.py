"""The stages that faults strike: a command, the world it runs in, and its results.

A world is a folder with everything that a stage needs: tiny text, a tiny corpus, a tiny run.
Commands run inside it, with relative paths, so that its location does not matter.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from campaign.journal import Operation
from crammed.doctor import TINY
from support.text import MODEL, documents, write_jsonl, write_rows

UPDATES = 6
_OFTEN = ("train.checkpoint_seconds=1e-9", "train.log_seconds=1e-9")
"""A checkpoint and a log point after every update."""
_PROTOCOL = ("finetune.seeds=1", "finetune.epochs=1", "finetune.batch=16", "compute.workers=1")
_PREPARE = (
    *("prepare", "crammed", *TINY, "compute.workers=1", "data.heldout_rows=20"),
    *("--data", "text", "--out", "corpus"),
)
_RUN = (
    *("run", "crammed", *TINY, *_OFTEN, *_PROTOCOL, "data.heldout_rows=20"),
    *("--data", "text", "--glue", "tasks", "--tasks", "rte", "--budget", f"{UPDATES}updates"),
    *("--out", "run", "--json"),
)
_PRETRAIN = (
    *("pretrain", "crammed", *MODEL, *_OFTEN, *_PROTOCOL, "--corpus", "corpus"),
    *("--budget", f"{UPDATES}updates", "--out", "run", "--json"),
)
_EVALUATE = (
    *("evaluate", "run", "--data", "tasks", "--tasks", "rte", "--device", "cpu"),
    *("--dtype", "float32", "--jobs", "1", "--json"),
)
_STUDY = (
    *("study", "study.yaml", "--corpus", "corpus", "--budget", "3updates", "--seeds", "1"),
    *("--out", "study", "--json"),
)

Where = Callable[[list[Operation]], slice]
"""Selects the operations of an undisturbed journal that belong to a stage."""


@dataclass(frozen=True)
class Stage:
    """A stage of the campaign: words of ``crammed``, what they need before, what they make.

    Attributes:
        finished: patterns of files that mark finished work, which must not be repeated.
        where: the part of the command that the stage is; None for all of it.
        ranks: processes that train together.
        threads: OMP_NUM_THREADS of the command; None if it is not set, as by most users.
    """

    name: str
    words: tuple[str, ...]
    needs: tuple[str, ...]
    makes: tuple[str, ...]
    finished: tuple[str, ...] = ()
    where: Where | None = None
    ranks: int = 1
    threads: int | None = 1

    def operations(self, journal: list[Operation]) -> list[Operation]:
        """The operations of an undisturbed journal at which a fault can strike."""
        listed = journal[self.where(journal)] if self.where is not None else journal
        return [each for each in listed if each.number]


def _first(journal: list[Operation], *names: str) -> int:
    """The place of the first operation on a path that contains one of these names."""
    found = (n for n, each in enumerate(journal) if any(s in each.path + each.to for s in names))
    return next(found, len(journal))


def _beginning(journal: list[Operation]) -> slice:
    return slice(0, _first(journal, "metrics.jsonl"))


def _updates(journal: list[Operation]) -> slice:
    return slice(_first(journal, "metrics.jsonl"), _last_stage(journal).start)


def _last_stage(journal: list[Operation]) -> slice:
    return slice(_first(journal, "run/.final", "run/final", "run/.export"), len(journal))


_MADE_BY_TRAINING = ("run/final", "run/export", "run/summary.json")
_SHARDS = tuple(f"**/.corpus.preparing/**/*{name}.json" for name in ("read", "select", "pack"))
_PREDICTIONS, _SUMMARIES = "run/evaluation/predictions/**/*.npz", ("study/*/summary.json",)


def _pretrain(name: str, where: Where | None = None, threads: int | None = 1) -> Stage:
    return Stage(name, _PRETRAIN, ("corpus",), _MADE_BY_TRAINING, where=where, threads=threads)


STAGES = (
    Stage("prepare", _PREPARE, ("text",), ("corpus",), _SHARDS),
    _pretrain("pretrain, beginning", _beginning),
    _pretrain("pretrain, updates", _updates),
    _pretrain("pretrain, end", _last_stage),
    Stage("two processes", _PRETRAIN, ("corpus",), _MADE_BY_TRAINING, ranks=2),
    Stage("evaluate", _EVALUATE, ("run", "tasks"), ("run/evaluation",), (_PREDICTIONS,)),
    Stage("export", ("export", "run", "--to", "hf", "--json"), ("run",), ("hf",)),
    Stage("study", _STUDY, ("corpus", "study.yaml"), ("study/study.json",), _SUMMARIES),
    Stage("report", ("report", "run", "--out", "report.html"), ("run",), ("report.html",)),
    Stage(
        "run",
        _RUN,
        ("text", "tasks"),
        (*_MADE_BY_TRAINING, "run/corpus", "run/evaluation"),
        (*_SHARDS, _PREDICTIONS),
    ),
    _pretrain("pretrain, two threads", threads=2),
    _pretrain("pretrain, threads unset", threads=None),
)
BY_NAME = {stage.name: stage for stage in STAGES}


# ---- worlds


def write_inputs(folder: Path) -> None:
    """Write what a user has before the first command: text, a task, a study."""
    for number in range(3):
        write_jsonl(folder / "text" / f"part-{number}.jsonl", documents(150, number))
    for split, count in (("train", 48), ("validation", 24)):
        rows = [
            {"sentence1": text, "sentence2": text[:30], "label": n % 2, "idx": n}
            for n, text in enumerate(documents(count, 7))
        ]
        write_rows(folder / "tasks" / "rte" / f"{split}.jsonl.gz", rows)
    arms = {"plain": [], "fast": ["optim.lr=2e-3"]}
    study = {"base": ["crammed", *MODEL], "baseline": "plain", "arms": arms}
    (folder / "study.yaml").write_text(json.dumps(study), "utf-8")  # JSON is YAML


def make_world(templates: Path, stage: Stage, world: Path) -> None:
    world.mkdir(parents=True)
    for name in stage.needs:
        source = templates / name
        if source.is_dir():
            shutil.copytree(source, world / name, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, world / name)
