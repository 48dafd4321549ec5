"""Refuses a study with an arm that ``crammed pretrain`` would refuse, before any run starts."""

from __future__ import annotations

from collections.abc import Sequence

from crammed.budget import Budget
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.machine.device import choose_kind
from crammed.planning.settling import device_of
from crammed.study.running.folder import config_of
from crammed.study.spec.arms import Study
from crammed.study.spec.corpora import ArmCorpora, Corpora
from crammed.training.loop import check_size
from crammed.training.plan import refuse_too_little
from crammed.training.update.memory import refuse_too_large


def check_arms(
    study: Study, arms: Sequence[str], corpora: Corpora, budget: Budget, *, here: bool
) -> None:
    """Check the arms that are about to be trained.

    Args:
        here: whether they are trained on this machine, so that its devices and memory count.

    Raises:
        InputError: an arm cannot be trained; the first is named, with the reason.
    """
    seen: set[str] = set()
    for arm in arms:
        config, corpus = config_of(study, arm, corpora, budget), corpora.of(study.words(arm))
        try:
            _check_text(config, corpus)
            if here:
                _check_device(config, corpus, seen)
        except InputError as error:
            raise InputError(f"arm {arm}: {error}; nothing was started") from error


def check_budgets(study: Study, corpora: ArmCorpora, budget: Budget) -> None:
    """Check every arm's budget, as far as that is possible before text is read.

    Args:
        study: as `load_study` returns it.

    Raises:
        InputError: a budget ends before the first update of an arm, which is named.
    """
    for arm in study.arms:
        try:
            refuse_too_little(config_of(study, arm, corpora, budget))
        except InputError as error:
            raise InputError(f"arm {arm}: {error}; nothing was started") from error


def _check_text(config: RunConfig, corpus: Corpus) -> None:
    check_size(corpus, config.batch.rows)
    if config.order.by != "random":
        corpus.order(config.order.by)
    refuse_too_little(config, corpus.vocab_size, corpus.rows)


def _check_device(config: RunConfig, corpus: Corpus, seen: set[str]) -> None:
    """Check device and memory.

    Args:
        seen: device settings that have passed already; this arm's are added.
    """
    settings = config.compute.model_dump_json()
    if settings not in seen:
        device_of(config)
        seen.add(settings)
    refuse_too_large(config, corpus.vocab_size, choose_kind(config.compute, []))
