"""A study: arms that differ in a few values, several seeds each, all with the same budget.

A study is a YAML file, built in or the user's:

    base: [crammed, model.layers=4]      # recipe and overrides of every arm
    baseline: adamw
    arms:
      adamw: []
      muon: [optim.name=muon]            # a recipe here replaces that of the base

What follows from the budget does so once, for the base: arms of its recipe have its size, batch and
rates, but for what they set themselves. Every arm and seed is a run of ``crammed pretrain``: a
study that is stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated

from pydantic import Field

from crammed.budget import Budget
from crammed.config import RunConfig, Section
from crammed.config.yamlfile import names_in, read_section
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.recipe import load_config
from crammed.sizing import FOLLOWERS

Overrides = Annotated[tuple[str, ...], Field(strict=False)]


class Study(Section):
    """The file above."""

    base: Overrides = ()
    baseline: str
    arms: Annotated[dict[str, Overrides], Field(min_length=2)]

    def words(self, arm: str) -> list[str]:
        """Recipe and overrides of an arm: its own values replace those of the base."""
        return joined((*self.base, *self.arms[arm]))


def study_names() -> list[str]:
    """Names of the built-in studies, sorted."""
    return names_in(_folder())


def load_study(name: str, corpus: Corpus, budget: Budget, words: Sequence[str] = ()) -> Study:
    """Read a study and check every arm on the corpus and the budget that it is for.

    Args:
        name: of a built-in study, or the path of a .yaml file.
        words: a recipe or overrides on top of the study's base.

    Raises:
        InputError: it cannot be read, or an arm is no valid configuration.
    """
    study = read_section("study", name, _folder(), Study)
    if study.baseline not in study.arms:
        raise InputError(f"study {name}: baseline {study.baseline} is none of its arms")
    fixed = {**corpus.settings(), "budget": {"limit": budget}}
    recipe, *overrides = joined((*study.base, *words))
    base = load_config(recipe, overrides, fixed, rows=corpus.rows)
    followed = _followed(base)
    arms = {
        arm: own if any("=" not in word for word in own) else (*followed, *own)
        for arm, own in study.arms.items()
    }
    study = study.model_copy(update={"base": (recipe, *overrides), "arms": arms})
    for arm in study.arms:
        recipe, *overrides = study.words(arm)
        if taken := [word for word in overrides if word.startswith(("data.", "tokenizer."))]:
            raise InputError(
                f"study {name}, arm {arm}: {taken[0]} is a matter of the corpus: prepare another"
            )
        try:
            load_config(recipe, overrides, fixed)
        except InputError as error:
            raise InputError(f"study {name}, arm {arm}: {error}") from error
    return study


def _folder() -> Traversable:
    return resources.files("crammed") / "study" / "studies"


def _followed(config: RunConfig) -> list[str]:
    """What may have followed from the budget, as overrides; the corpus has its own vocabulary."""
    values = config.model_dump(mode="json")
    keys = [key.split(".") for key in FOLLOWERS if not key.startswith("tokenizer.")]
    return [f"{section}.{name}={values[section][name]}" for section, name in keys]


def joined(words: Iterable[str]) -> list[str]:
    """A recipe and its overrides; of those that come twice, the last."""
    recipe, values = "crammed", {}
    for word in words:
        key, equals, _ = word.partition("=")
        if equals:
            values[key] = word
        else:
            recipe = word
    return [recipe, *values.values()]
