"""The folder of a study: whether it holds another study, and what has finished in it."""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crammed.budget import Budget
from crammed.config import RunConfig, TokenizerConfig
from crammed.errors import InputError
from crammed.planning.settling import device_of, settle
from crammed.quantity import counted
from crammed.rules.choosing import Asked, Chosen
from crammed.rules.recipe import load_config, parse_overrides, typed
from crammed.rules.sizing import with_values
from crammed.runs.directory import differing, read_config
from crammed.runs.resuming import disagreements
from crammed.runs.summary import read_summary
from crammed.study.result import RESULT, Arm, Run, StudyResult, read_result, run_folder
from crammed.study.running.judges import Judge, drop_stale
from crammed.study.spec.arms import Study, merged
from crammed.study.spec.budgets import at, limits, split
from crammed.study.spec.corpora import ArmCorpora, Corpora, decides_corpus, of_training
from crammed.study.spec.small import has_factor
from crammed.terminal.progress import Progress


@dataclass(frozen=True, eq=False)
class Left:
    """A run that is to be trained, judged, or both.

    Attributes:
        before: its entry in ``study.json`` if it is trained already.
        judges: those that are still to score it.
    """

    arm: str
    seed: int
    folder: Path
    before: Run | None = None
    judges: tuple[Judge, ...] = ()


def begun_arms(study: Study, seeds: int, out: Path, judges: Sequence[Judge]) -> dict[str, Arm]:
    """The arms of the study and those in the folder, with the runs that have finished.

    Why scores are missing is left out: a call that asks for them tries again, and says it again.
    Scores by data that has changed are left out, also of arms and seeds that are not asked for now.
    """
    found = read_result(out)
    arms = {arm: Arm(words=study.words(arm), runs={}) for arm in study.arms}
    for name, arm in found.arms.items():
        good = {seed: run for seed, run in arm.runs.items() if run.failed is None}
        if good:
            runs = {seed: run.without("unscored") for seed, run in good.items()}
            arms.setdefault(name, arm).runs = runs
    for name in study.arms:
        # A run that finished just before its study was killed has its result in its own folder,
        # with its configuration, which `refuse_another` compares.
        own = [seed for seed, config in runs_begun(out, name).items() if config is not None]
        for seed in (n for n in own if n < seeds and str(n) not in arms[name].runs):
            with suppress(InputError):  # a damaged result; the run itself will report it
                if (run := result_of(run_folder(out, name, seed))) is not None:
                    arms[name].runs[str(seed)] = run
    drop_stale(arms, judges, found.judges)
    return arms


def result_of(run: Path) -> Run | None:
    """What a study keeps of a run; None if it has not finished.

    Raises:
        InputError: its result is damaged.
    """
    summary = read_summary(run)
    if summary is None:
        return None
    names = ("tokens", "updates", "parameters", "exaflop", "memory_bytes", "joules")
    kept = {name: value for name in names if (value := getattr(summary, name)) is not None}
    if summary.early_end is not None:
        kept["ended_at"] = summary.early_end.share
    return Run.model_validate({**summary.heldout, **kept, "seconds": summary.charged_seconds})


def left_runs(
    study: Study, seeds: int, arms: Mapping[str, Arm], out: Path, judges: Sequence[Judge]
) -> list[Left]:
    """The runs that are to be trained or judged.

    They come seed by seed, so that a study that is cut short has complete seeds.

    Args:
        arms: as `begun_arms` returns them.
    """
    left = []
    for seed in range(seeds):
        for arm in study.arms:
            folder, entry = run_folder(out, arm, seed), arms[arm].runs.get(str(seed))
            ended = (folder / "summary.json").exists() and not (folder / "checkpoints").exists()
            if not ended:  # the result was removed to train the run again, or a kill came between
                entry = None
            scores = entry.scores if entry is not None else {}
            wanted = tuple(judge for judge in judges if judge.lacks(scores))
            if entry is None or wanted:
                left.append(Left(arm, seed, folder, entry, wanted))
    return left


class Chooser:
    """Chooses, once, what a study's base or an arm with its own recipe leaves open.

    A study that is resumed takes these values from its folder.

    Args:
        threads: CPU threads of each run, unless the recipe sets them.

    Attributes:
        chosen: for ``study.json``, by name of the arm or `BASE`: ``values`` by key, the measured
            ``flops_per_second`` (None where none was needed), and the ``identity`` of the rest of
            the configuration that they were chosen for.
    """

    def __init__(self, out: Path, threads: int, progress: Progress) -> None:
        self.chosen: dict[str, dict[str, Any]] = {}
        self._threads = threads
        self._progress = progress
        self._out = out
        self._before = read_result(out).chosen

    def __call__(self, arm: str, asked: Asked, rows: int | None) -> RunConfig:
        """The configuration with its open values chosen; see `Choose`."""
        if not asked.open:
            return asked.config
        wanted = asked.config.identity()  # with the recipe's values for what is open
        try:
            before = self._before.get(arm)
            if before is not None and before["identity"] == wanted:
                self.chosen[arm] = before
                return with_values(asked.config, before["values"])
        except (KeyError, TypeError, AttributeError, ValueError, InputError) as error:
            raise InputError(
                f"{self._out / RESULT} does not hold the results of a study: restore it from a "
                "copy, or choose another --out"
            ) from error
        made = self._choose(asked, rows)
        self.chosen[arm] = {
            "identity": wanted,
            "values": made.values,
            "flops_per_second": made.choice.flops_per_second,
        }
        return made.config

    def tokenizer(self, asked: Asked, rows: float) -> TokenizerConfig:
        """The tokenizer for about this many rows of text, with its vocabulary chosen."""
        tokenizer = self._choose(asked, rows).config.tokenizer
        self._progress.line(f"vocabulary  {tokenizer.vocab_size:,}, from the study's base")
        return tokenizer

    def _choose(self, asked: Asked, rows: float | None) -> Chosen:
        threads = asked.config.compute.threads or self._threads
        own = replace(asked, config=with_values(asked.config, {"compute.threads": threads}))
        return settle(own, rows, device_of(own.nominally(rows), rows), self._progress)


def going_on(study: Study, asked: Study, out: Path) -> Study:
    """The study with the words that ``study.json`` has for arms that have begun, and those typed.

    Args:
        study: as loaded, with what follows from the budget and from today's recipes.
        asked: as read, with the words of the command in its base.

    Raises:
        InputError: ``study.json`` is damaged, or an arm that has begun asks for another text, or
            for what another arm asks for.
    """
    before = read_result(out).arms
    base = before[study.baseline].words if study.baseline in before else []
    moved = {_key(word) for word in study.words(study.baseline) if not _is_in(word, base)}
    moved -= _typed(study.baseline, study, asked)  # what is left follows from today's recipe
    _refuse_merged(study, asked, before, out)
    arms = dict(study.arms)
    for arm in arms.keys() & before.keys():
        if _has_begun(arm, before[arm], out):
            own, keys = before[arm].words, _typed(arm, study, asked, but=moved)
            known = {*map(_key, study.words(arm))}
            if lost := [word for word in own if decides_corpus(word) and _key(word) not in known]:
                raise _another(out, f"arm {arm} has {lost[0]} there, and not here")
            words = [word for word in study.words(arm) if _key(word) in keys]
            # Corpora are known by the words that ask for them, as they are written today.
            new = (word for word in words if decides_corpus(word) or not _is_in(word, own))
            arms[arm] = tuple(merged((*own, *new)))
    return study.model_copy(update={"arms": arms})


def _refuse_merged(study: Study, asked: Study, before: Mapping[str, Arm], out: Path) -> None:
    """Refuse an arm that has begun, and was then edited so that it equals another and is left out.

    One that only today's recipe makes equal to another stays as it began.
    """
    own = {arm: asked.arms.get(_own_name(arm, study.budgets), ()) for arm in before}

    def agrees(words: Iterable[str], arm: str) -> bool:
        return all(_is_in(word, before[arm].words) for word in words)

    left_out = asked.arms.keys() - {_own_name(arm, study.budgets) for arm in study.arms}
    for arm in before:
        if _own_name(arm, study.budgets) in left_out and _has_begun(arm, before[arm], out):
            edited = not agrees((word for word in own[arm] if not has_factor(word)), arm)
            others = study.arms.keys() & before.keys()
            if edited or any(agrees(own[arm], each) and agrees(own[each], arm) for each in others):
                raise _another(
                    out,
                    f"arm {arm} began with other settings, and is the same as another arm now",
                    "restore it, or choose another --out",
                )


def _typed(arm: str, study: Study, asked: Study, but: Collection[str] = ()) -> set[str]:
    """The keys that an arm sets, and those that it multiplies, but for some of these."""
    words = asked.words(_own_name(arm, study.budgets))
    multiplied = {_key(word).removesuffix("*") for word in words if has_factor(word)}
    return {_key(word) for word in words if not has_factor(word)} | (multiplied - {*but})


def _key(word: str) -> str:
    return word.partition("=")[0]


def _is_in(word: str, words: Sequence[str]) -> bool:
    """Whether words have this one, or its value in another form, such as 0.002 for 2e-3."""
    alike = [[each] for each in words if "=" in word and _key(each) == _key(word)]
    return word in words or parse_overrides([word]) in map(parse_overrides, alike)


def runs_begun(out: Path, arm: str) -> dict[int, RunConfig | None]:
    """The configurations of an arm's runs in the folder, by seed; None if one is unreadable."""
    found: dict[int, RunConfig | None] = {}
    for file in out.glob(f"{glob.escape(arm)}-*/config.json"):
        seed = file.parent.name.removeprefix(f"{arm}-")
        if seed.isdecimal():
            found[int(seed)] = None
            with suppress(InputError):  # the run itself will say why
                found[int(seed)] = read_config(file.parent)
    return found


def refuse_foreign(out: Path) -> None:
    """Check that the folder is not of another kind, with whose files those of a study would mix.

    Raises:
        InputError: it is a run, a model, an evaluation or a corpus.
    """
    for file in ("config.json", "evaluation.json", "manifest.json"):
        if (out / file).exists():
            raise InputError(
                f"{out} is not the folder of a study (it holds {file}): choose another --out"
            )


def refuse_another(study: Study, corpora: Corpora, budget: Budget, seeds: int, out: Path) -> None:
    """Check that the folder holds nothing, or this study with any arms and seeds.

    Runs are compared as ``crammed pretrain`` compares them before it resumes one; if their folders
    are gone, the words of their arm are compared.

    Raises:
        InputError: it holds runs with another budget, corpus, baseline or configuration of an arm;
            or a recipe has changed, and runs are to begin.
    """
    refuse_foreign(out)
    found = read_result(out)
    finished = {name: arm for name, arm in found.arms.items() if arm.values_of("seconds")}
    if finished and found.corpus != corpora.base.sha256:
        raise _another(out, "it was trained on another corpus")
    _compare_budgets(found, study, budget, out)
    baseline = _own_name(found.baseline, found.budgets) if finished else ""
    if baseline and baseline not in {_own_name(arm, study.budgets) for arm in study.arms}:
        raise _another(out, f"its baseline {baseline} is no arm here")
    changed: dict[str, tuple[Any, Any]] = {}
    complete = True
    for arm in study.arms:
        runs, done = runs_begun(out, arm), finished[arm].runs if arm in finished else {}
        complete &= all(seed in runs or str(seed) in done for seed in range(seeds))
        if not runs and done:
            _compare_words(finished[arm].words, study.words(arm), arm, out)
        today = config_of(study, arm, corpora, budget) if runs else None
        for seed, run in runs.items():
            if run is not None and today is not None:
                _compare_run(run, seed, study, arm, corpora, budget, out)
                changed |= differing(run, today.model_copy(update={"seed": seed}))
    if changed and not complete:
        key, (was, now) = next(iter(changed.items()))
        others = f" and {counted(len(changed) - 1, 'other')}" if len(changed) > 1 else ""
        raise InputError(
            f"recipes have changed since {out} was begun ({key} {was} -> {now}{others}), and runs "
            f"have yet to start: type {key}={was} to start them with the old value, "
            "or choose another --out"
        )


def config_of(
    study: Study, arm: str, corpora: ArmCorpora, budget: Budget, threads: int | None = None
) -> RunConfig:
    """The configuration of an arm's runs, except for the seed.

    Args:
        threads: CPU threads of each run, unless the arm or its recipe sets them; None is all.
    """
    words, limit = split(study.words(arm), budget)
    recipe, *overrides = of_training(words)
    fixed = corpora.fixed(words, limit)
    config = load_config(recipe, overrides, fixed, rows=corpora.rows(fixed.get("corpus")))
    return with_values(config, {"compute.threads": config.compute.threads or threads})


def _compare_run(
    run: RunConfig, seed: int, study: Study, arm: str, corpora: Corpora, budget: Budget, out: Path
) -> None:
    own, limit = split(study.words(arm), budget)
    recipe, *overrides = of_training(own)
    fixed = {**corpora.fixed(own, limit), "seed": seed}
    if run.corpus != fixed["corpus"]:
        raise _another(out, "it was trained on another corpus")
    if different := disagreements(run, typed(recipe, overrides, fixed)):
        raise _another(out, f"arm {arm}, {', '.join(different[:3])}")


def _compare_budgets(found: StudyResult, study: Study, budget: Budget, out: Path) -> None:
    begun = [name for name, arm in found.arms.items() if _has_begun(name, arm, out)]
    here = {"": budget, **limits(study.budgets, budget)}
    for label, text in {"": found.budget, **found.budgets}.items():
        now = here.get(label)
        same = now is not None and text != "" and Budget.parse(text) == now
        if not same and any(arm.endswith(at("", label) if label else "") for arm in begun):
            key = f"budgets.{label}" if label else "budget"
            raise _another(out, f"{key}: {text} there, {now.text if now else 'none'} here")


def _own_name(arm: str, budgets: Mapping[str, Any]) -> str:
    """The name of an arm in the study's file, without that of one of its budgets."""
    return arm.rpartition("@")[0] if budgets else arm


def _has_begun(name: str, arm: Arm, out: Path) -> bool:
    return bool(arm.values_of("seconds") or runs_begun(out, name))


def _compare_words(old: list[str], new: list[str], arm: str, out: Path) -> None:
    there, here = (
        {word for word in words if not word.startswith("compute.")} for words in (old, new)
    )
    if there != here:
        lists = (" ".join(sorted(words)) or "nothing" for words in (there - here, here - there))
        raise _another(out, "arm {}, {} there, {} here".format(arm, *lists))


def _another(out: Path, difference: str, instead: str = "choose another --out") -> InputError:
    return InputError(f"{out} holds another study ({difference}): {instead}")
