"""A study: arms that differ in a few values, with the same budget and several seeds each.

A study is a YAML file, built in (``studies/``) or the user's:

    description: Muon and AdamW          # what `crammed study` lists; may be left out
    base: [crammed, model.layers=4]      # recipe and overrides of every arm
    baseline: muon
    arms:
      muon: []
      adamw: [optim.name=adamw]          # a recipe here replaces the base's

What follows from the budget is chosen once, for the base. Arms with the base's recipe get its size,
batch and learning rates unless they set their own; an arm with another ``data.row_length`` keeps
the number of tokens per update. Every arm has the base's `budget.most_epochs`, so that none may
train longer than the others. In a study that prepares its own text, arms may also set ``data`` and
``tokenizer``; a number in ``data.sources`` stands for one of the texts given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from crammed.budget import Budget
from crammed.config import Names, PositiveFloat, RunConfig, Section
from crammed.config.kinds import overlaid
from crammed.config.yamlfile import names_in, read_section
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.folders import expanded
from crammed.files.hashes import json_hash
from crammed.rules.choosing import Asked, values_of
from crammed.rules.recipe import ask, parse_overrides
from crammed.rules.sizing import FOLLOWERS, head_dim
from crammed.study.spec.budgets import BudgetText, at, check_names, with_each
from crammed.study.spec.corpora import (
    ArmCorpora,
    Corpora,
    decides_corpus,
    is_of_corpus,
    of_training,
)
from crammed.study.spec.judging import OWN, parted
from crammed.study.spec.small import (
    has_factor,
    in_proportion,
    in_rows_of,
    resolved,
    scaled_down,
    scaled_words,
    typed_keys,
)

BASE = ""
"""Stands for a study's base in place of an arm's name."""

Choose = Callable[[str, Asked, int | None], RunConfig]
"""Chooses what the base, or an arm with another recipe, leaves open, given the arm's name (`BASE`
for the base), what is asked for, and the number of rows of text, if that is known."""


def _listed(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list such as [crammed, optim.lr=5e-4], not {value!r}")
    return value


Overrides = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(strict=False)]


class Study(Section):
    """The contents of a study's file."""

    description: str = ""
    base: Overrides = ()
    small: Overrides | None = None
    """Overrides for budgets that are too small for the base, at which all recipes are scaled down
    in proportion (`small`); null takes the recipes as they are at every budget."""
    budget: BudgetText | None = None
    """What every run gets, unless the command line says otherwise."""
    budgets: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Multiples of the budget, by label; every arm is trained at each of them (`budgets`)."""
    judges: Names = ("heldout",)
    """What runs are judged by (`judges`); the command line may name others."""
    blimp: str | None = None
    """Data of the judge of this name: a path relative to the study's file, unless the command line
    names another. Likewise `tasks_data`, the folder of tasks."""
    tasks_data: str | None = Field(None, validation_alias=AliasChoices("tasks_data", "glue"))
    baseline: str
    arms: Annotated[dict[str, Overrides], Field(min_length=2)]

    @model_validator(mode="before")
    @classmethod
    def _named_once(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and {"glue", "tasks_data"} <= values.keys():
            raise ValueError("glue and tasks_data are the same: leave glue out")
        return values

    def words(self, arm: str) -> list[str]:
        """Recipe and overrides of an arm, whose own values replace the base's."""
        return merged((*self.base, *self.arms[arm]))

    @property
    def usual_budget(self) -> Budget | None:
        """The budget that the file names."""
        return None if self.budget is None else Budget.parse(self.budget)

    @property
    def judge_data(self) -> dict[str, Path]:
        """The data of judges that the file names: of ``blimp`` and of ``tasks``."""
        named = {"blimp": self.blimp, "tasks": self.tasks_data}
        return {kind: Path(data) for kind, data in named.items() if data is not None}


def study_names() -> list[str]:
    """Names of the built-in studies, sorted."""
    return names_in(_folder())


def read_study(name: str) -> Study:
    """A built-in study by its name, or one of the user's by the path of its .yaml file.

    Raises:
        InputError: there is no such study, or it is not valid.
    """
    study = read_section("study", name, _folder(), Study)
    if study.baseline not in study.arms:
        raise InputError(f"study {name}: baseline {study.baseline} is not one of its arms")
    if taken := [word for word in study.small or () if decides_corpus(word)]:
        raise InputError(
            f"study {name}: small: {taken[0]}: the corpus is the same at every budget: set it in "
            "the base"
        )
    if others := [word for word in study.small or () if "=" not in word]:
        raise InputError(f"study {name}: small: {others[0]} is not a KEY=VALUE pair")
    for arm, words in study.arms.items():
        if factors := [word for word in words if has_factor(word) and is_of_corpus(word)]:
            raise InputError(
                f"study {name}, arm {arm}: {factors[0]}: a factor does not apply to text and "
                "tokenizer: set a value"
            )
    try:
        check_names(study.arms, study.budgets)
    except InputError as error:
        raise error.within(f"study {name}") from error
    return _located(study, expanded(name).parent)


def _located(study: Study, folder: Path) -> Study:
    """The study with the paths in its file, which are relative to this folder, made usable here."""

    def here(path: str) -> str:
        return str(folder / expanded(path))

    judges = (
        f"{here(kind) if OWN.fullmatch(kind) else kind}{at}{here(p) if Path(p).suffix else p}"
        for kind, at, p in map(parted, study.judges)
    )
    located = {
        "judges": tuple(judges),
        "blimp": None if study.blimp is None else here(study.blimp),
        "tasks_data": None if study.tasks_data is None else here(study.tasks_data),
    }
    return study.model_copy(update=located)


def load_study(
    name: str,
    corpus: Corpus | ArmCorpora,
    budget: Budget,
    read: Study | None = None,
    choose: Choose | None = None,
) -> Study:
    """Check every arm of a study against its corpus and its budget.

    Args:
        corpus: one for all arms, or what is known about the study's corpora.
        read: the study as it was read, with words in its base; None reads it.
        choose: called once for the base and once for each arm with another recipe. None chooses
            by the nominal speed of this machine.

    Returns:
        the study with what follows from the budget set in each arm.
        Arms that come out the same as the baseline or an earlier arm are left out (`left_out`).

    Raises:
        InputError: as `read_study`, or an arm is not a valid configuration.
    """
    study = with_words(read or read_study(name), ())
    corpora: ArmCorpora = Corpora(corpus) if isinstance(corpus, Corpus) else corpus

    def chosen(arm: str, asked: Asked) -> RunConfig:
        rows = corpora.rows(asked.config.corpus)
        asked = asked.of_corpus(corpora.vocabulary(asked.config.corpus))
        return choose(arm, asked, rows) if choose is not None else asked.nominally(rows)

    base = _base(study, corpora.fixed(study.base, budget), chosen)
    study = study.model_copy(update={"base": base.words})
    arms: dict[str, tuple[str, ...]] = {}
    made: dict[str, str] = {}
    for arm in study.arms:
        try:
            _refuse_decided(study.words(arm))
            fixed = corpora.fixed(study.words(arm), budget)
            arms[arm], made[arm] = _arm(study, arm, base, fixed, chosen)
        except InputError as error:
            raise error.within(f"study {name}, arm {arm}") from error
    # What an arm changes may be the recipe's own value, or that of another arm by other words.
    trained = {made[arm]: arm for arm in (*reversed(arms), study.baseline)}
    arms = {arm: words for arm, words in arms.items() if trained[made[arm]] == arm}
    first = next(iter(study.budgets), None)
    baseline = study.baseline if first is None else at(study.baseline, first)
    arms = with_each(arms, study.budgets, budget)
    return study.model_copy(update={"arms": arms, "baseline": baseline})


def left_out(read: Study, study: Study) -> list[str]:
    """The arms of a study that `load_study` has left out of it."""
    labels = list(study.budgets)
    names = {arm: at(arm, labels[0]) if labels else arm for arm in read.arms}
    return [arm for arm, loaded in names.items() if loaded not in study.arms]


@dataclass(frozen=True)
class _Base:
    """The base of a study.

    Attributes:
        full: the configuration as the recipe has it.
        config: what arms take values from: `full`, or its scaled-down form at a small budget.
        heads_follow: whether the width of its heads follows from that of the model.
    """

    words: tuple[str, ...]
    full: RunConfig
    config: RunConfig
    heads_follow: bool


def _base(
    study: Study, fixed: Mapping[str, Any], choose: Callable[[str, Asked], RunConfig]
) -> _Base:
    recipe, *overrides = of_training(study.base)
    asked = ask(recipe, overrides, fixed)
    full = choose(BASE, asked)
    as_it_is = _Base(study.base, full, full, "model.head_dim" in asked.open)
    if study.small is None or "model.width" in asked.open:
        return as_it_is
    typed = typed_keys(overrides)
    added = [word for word in study.small if typed.isdisjoint(typed_keys([word]))]
    asked = ask(recipe, [*overrides, *added], fixed, fit=True)
    small = scaled_down(full, choose(BASE, asked), typed)
    if small == full:
        return as_it_is
    return _Base((*study.base, *added), full, small, "model.head_dim" in asked.open)


def _arm(
    study: Study,
    arm: str,
    base: _Base,
    fixed: Mapping[str, Any],
    choose: Callable[[str, Asked], RunConfig],
) -> tuple[tuple[str, ...], str]:
    """The words of an arm, with what follows from the budget, and a hash of all its settings."""
    base_recipe, *_ = merged(study.base)
    own = [word for word in study.arms[arm] if word != base_recipe]
    if any("=" not in word for word in own):  # a recipe of its own
        recipe, *overrides = _settings(study, arm)
        same = _same_end(base.config, ask(recipe, overrides, fixed).config)
        recipe, *overrides = merged((recipe, *overrides, *same))
        asked = ask(recipe, overrides, fixed)
        words = (*same, *_alone(study, arm, base, asked, choose))
    else:
        words = _beside(own, base, proportional=study.small is not None)
    recipe, *overrides = of_training(merged((*study.base, *words)))
    config = ask(recipe, overrides, fixed).config
    if _same_end(base.config, config):
        raise InputError("budget.most_epochs is the same in all arms: set it in the base")
    # Settings of `compute` count: at equal time, speed is what they change.
    return words, json_hash(config.model_dump(mode="json", exclude={"description"}))


def _refuse_decided(words: Sequence[str]) -> None:
    given = parse_overrides([word for word in words if "=" in word])
    if "corpus" in given:
        raise InputError("corpus: all arms have that of --corpus or --data: leave it out")
    if "seed" in given:
        raise InputError("seed: runs have the seeds 0, 1, 2 ... up to --seeds: leave it out")
    if isinstance(given.get("budget"), Mapping) and "limit" in given["budget"]:
        raise InputError(
            "budget.limit: all arms have that of --budget: leave it out; for several budgets, "
            "write their multiples into the study, such as budgets: {x1: 1, x4: 4}"
        )


def _settings(study: Study, arm: str) -> list[str]:
    """Recipe and overrides of an arm, without its factors and what decides its corpus."""
    own = (word for word in study.arms[arm] if not has_factor(word))
    return of_training(merged((*study.base, *own)))


def _alone(
    study: Study, arm: str, base: _Base, asked: Asked, choose: Callable[[str, Asked], RunConfig]
) -> tuple[str, ...]:
    """The words of an arm with a recipe of its own; `_beside` has those of the others."""
    config = choose(arm, asked)
    followed = _followed(config, asked.open)
    is_small = base.config != base.full
    if is_small and not {*asked.open} & {*FOLLOWERS}:  # else its own rules have scaled it
        config = in_proportion(config, base.full, base.config)
        followed = scaled_words(config, but=typed_keys(_settings(study, arm)))
    return _beyond(resolved(study.arms[arm], config, study.small is not None), followed)


def _beside(own: Sequence[str], base: _Base, *, proportional: bool) -> tuple[str, ...]:
    like = in_rows_of(base.config, _row_length(own, base.config))
    own = resolved(own, like, proportional)
    return _beyond(own, _taken(like, of_training(own), base.heads_follow))


def _beyond(own: Sequence[str], others: Iterable[str]) -> tuple[str, ...]:
    """An arm's own words, and those of others whose keys it leaves open."""
    keys = typed_keys(own)
    return (*own, *(word for word in others if keys.isdisjoint(typed_keys([word]))))


def _row_length(own: Sequence[str], base: RunConfig) -> int:
    """The tokens of a row in an arm: the base's, unless the arm sets a usable number."""
    data = parse_overrides([word for word in own if is_of_corpus(word)]).get("data")
    length = data.get("row_length") if isinstance(data, Mapping) else None
    return length if isinstance(length, int) and length > 0 else base.data.row_length


def with_words(study: Study, words: Sequence[str]) -> Study:
    """The study with a recipe or overrides that replace those of its base."""
    return study.model_copy(update={"base": tuple(merged((*study.base, *words)))})


def _folder() -> Traversable:
    return resources.files("crammed") / "study" / "studies"


def _followed(config: RunConfig, keys: Iterable[str]) -> list[str]:
    """Overrides with the values of what may follow from the budget, without the tokenizer's."""
    values = values_of(config, [key for key in keys if not key.startswith("tokenizer.")])
    return [f"{key}={value}" for key, value in values.items()]


def _same_end(base: RunConfig, other: RunConfig) -> list[str]:
    """The override that a recipe needs to end after as many epochs as the base, if any."""
    most = base.budget.most_epochs
    if other.budget.most_epochs == most:
        return []
    return [f"budget.most_epochs={'null' if most is None else f'{most:g}'}"]


def _taken(base: RunConfig, own: Sequence[str], heads_follow: bool) -> list[str]:
    """What an arm takes from the base: no key that its optimizer lacks, and heads for its width."""
    laid = overlaid(base.model_dump(mode="json"), parse_overrides(own), RunConfig)
    if not all(isinstance(laid[section], Mapping) for section in ("model", "optim")):
        return []  # the check of the arm refuses this
    rates = {f"optim.{name}" for name in laid["optim"]}  # another optimizer's are not kept
    keys = [key for key in FOLLOWERS if key in rates or not key.startswith("optim.")]
    width = laid["model"]["width"]
    if width == base.model.width or not heads_follow or not isinstance(width, int):
        return _followed(base, keys)
    kept = _followed(base, [key for key in keys if key != "model.head_dim"])
    return [*kept, f"model.head_dim={head_dim(width)}"]


def merged(words: Iterable[str]) -> list[str]:
    """A recipe and its overrides; the last word for a key, or for the recipe, wins."""
    recipe, values = "crammed", {}
    for word in words:
        key, equals, _ = word.partition("=")
        if equals:
            values[key] = word
        else:
            recipe = word
    return [recipe, *values.values()]
