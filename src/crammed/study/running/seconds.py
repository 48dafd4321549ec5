"""Budgets of time: every arm gets the FLOPs that it trains in so many seconds of this machine.

By its own clock, a run would be charged for what its neighbours do, and no two seeds would train
equally long. So before the first run, all arms are timed side by side, in turn and several times,
and each arm's seconds become FLOPs, the same for all its seeds. ``study.json`` keeps both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from crammed.budget import Budget
from crammed.config import RunConfig
from crammed.files.hashes import json_hash
from crammed.optim.build import update_flops
from crammed.planning.settling import device_of
from crammed.planning.speed import training_speed
from crammed.rules.sizing import flops_per_token, in_vocabulary, with_values
from crammed.study.result import UpdateTime, read_result
from crammed.study.running.folder import config_of, runs_begun
from crammed.study.spec.arms import Study
from crammed.study.spec.budgets import LIMIT, split
from crammed.study.spec.corpora import Corpora
from crammed.terminal.progress import Progress

ROUNDS = 3
"""How often each arm is timed. The fastest counts: other work makes a machine only slower."""


def in_seconds(
    study: Study, corpora: Corpora, budget: Budget, out: Path, threads: int, progress: Progress
) -> tuple[Study, dict[str, UpdateTime]]:
    """The study with a budget of FLOPs for each arm, and how long its updates take.

    Arms that have begun go on with the budgets that they began with; the others are timed beside
    one of them, the baseline if it is, whose new time says how fast the machine is now. Studies
    whose budget is not one of time, or that began by the clock of each run, as they once did, stay
    as they are.

    Args:
        threads: CPU threads of each run, unless the arm sets them.

    Raises:
        InputError: the device of an arm is missing, or too small for its model.
    """
    before = read_result(out).paces
    if budget.kind != "time" or (not before and any(runs_begun(out, arm) for arm in study.arms)):
        return study, {}
    configs = {arm: config_of(study, arm, corpora, budget, threads) for arm in study.arms}
    for arm, config in configs.items():
        configs[arm] = in_vocabulary(config, corpora.vocabulary(config.corpus))
    own = {arm: split(words, budget) for arm, words in study.arms.items()}
    missing = [arm for arm, (_, limit) in own.items() if limit.kind == "time"]
    paces = {arm: before[arm] for arm in study.arms if arm in before and arm not in missing}
    known = next((arm for arm in (study.baseline, *paces) if arm in paces), study.baseline)
    arms = dict(study.arms)
    if missing:
        decided = {each: _decided(configs[each], corpora) for each in (known, *missing)}
        timed = _side_by_side(decided, progress)
        now = timed[known].seconds_per_update
        slower = paces[known].seconds_per_update / now if known in paces else 1.0
        for arm in missing:
            seconds = timed[arm].seconds_per_update * slower
            paces[arm] = UpdateTime(seconds_per_update=seconds, busy=timed[arm].busy)
            factor = study.budgets[arm.rpartition("@")[2]] if study.budgets else 1.0
            updates = factor * budget.limit / seconds
            flops = f"{LIMIT}{updates * _of_update(configs[arm]):.6g}flop"
            open_ = configs[arm].compute.compile == "auto"
            compiles = [f"compute.compile={decided[arm].compute.compile}"] if open_ else []
            arms[arm] = (*own[arm][0], *compiles, flops)
    return study.model_copy(update={"arms": arms}), paces


def _decided(config: RunConfig, corpora: Corpora) -> RunConfig:
    """The configuration with its `compute.compile` decided, by the seconds that a run is to take.

    A run would decide by its FLOPs at a nominal speed, and so perhaps otherwise than it was timed.
    """
    compiles = device_of(config, corpora.rows(config.corpus)).compile
    return with_values(config, {"compute.compile": "on" if compiles else "off"})


def _side_by_side(configs: Mapping[str, RunConfig], progress: Progress) -> dict[str, UpdateTime]:
    """How long an update of each arm takes; arms that must take equally long are timed as one."""
    kinds = {arm: _kind(config) for arm, config in configs.items()}
    first = {kind: configs[arm] for arm, kind in reversed(kinds.items())}
    found: dict[str, UpdateTime] = {}
    with progress.task("timing the arms side by side", ROUNDS * len(first)) as task:
        for done in range(ROUNDS * len(first)):
            kind = list(first)[done % len(first)]
            config = first[kind]
            measured = training_speed(config, device_of(config))
            now = UpdateTime(
                seconds_per_update=_of_gradients(config) / measured.speed, busy=measured.busy
            )
            best = found.get(kind, now)
            found[kind] = min(now, best, key=lambda each: each.seconds_per_update)
            task.update(done + 1, f"{config.model.layers} x {config.model.width}")
    if any(pace.busy for pace in found.values()):
        progress.line(
            "machine  was busy while arms were timed, so equal seconds may buy unequal work; to "
            "time them again, stop this command and repeat it on an idle machine with another --out"
        )
    return {arm: found[kind] for arm, kind in kinds.items()}


def _kind(config: RunConfig) -> str:
    """A hash of all settings that may change how long an update takes."""
    sections = {"model", "compute", "tokenizer", "batch", "objective", "loss", "train", "masking"}
    values = config.model_dump(mode="json", include=sections)
    optim = config.optim.kind, config.optim.clip is None
    return json_hash([values, optim, config.data.row_length])


def _of_gradients(config: RunConfig) -> float:
    return flops_per_token(config) * config.batch.rows * config.data.row_length


def _of_update(config: RunConfig) -> float:
    """FLOPs of an update, as budgets count them."""
    return _of_gradients(config) + update_flops(
        config.model, config.tokenizer.vocab_size, config.optim, generator=config.generator()
    )
