"""What is wrong with a study, before any run starts: arms that ``pretrain`` would refuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from crammed.budget import Budget
from crammed.config import RunConfig
from crammed.errors import InputError
from crammed.machine.device import choose_kind
from crammed.planning.settling import device_of
from crammed.study.running.folder import config_of
from crammed.study.running.judges import Judge
from crammed.study.spec.arms import Study
from crammed.study.spec.corpora import ArmCorpora, Corpora
from crammed.tracking.following import check_tracker
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
        with _named(arm):
            check_size(corpus, config.batch.rows)
            if config.order.by != "random":
                corpus.order(config.order.by)
            refuse_too_little(config, corpus.vocab_size, corpus.rows)
            if here:
                settings = config.compute.model_dump_json()
                if settings not in seen:
                    device_of(config)
                    check_tracker(config.compute.track)
                    seen.add(settings)
                refuse_too_large(config, corpus.vocab_size, choose_kind(config.compute, []))


def check_budgets(study: Study, corpora: ArmCorpora, budget: Budget, *, trackers: bool) -> None:
    """Check every arm's budget, as far as that is possible before text is read.

    Args:
        study: as `load_study` returns it.
        trackers: whether to check as well that this machine has the arms' trackers.

    Raises:
        InputError: a budget ends before the first update of an arm, which is named, or its tracker
            is missing.
    """
    for arm in study.arms:
        with _named(arm):
            config = config_of(study, arm, corpora, budget)
            refuse_too_little(config)
            if trackers:
                check_tracker(config.compute.track)


@contextmanager
def _named(arm: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"arm {arm}: {error}; nothing was started") from error


def tuned_differently(
    configs: Mapping[str, RunConfig], baseline: str, judges: Iterable[Judge]
) -> str | None:
    """A sentence about an arm fine-tuned differently from the baseline; None if there is none."""
    if not any(judge.tasks and judge.protocol is None for judge in judges):
        return None
    protocols = {
        arm: config.finetune.at_width(config.model.width).hyperparameters()
        for arm, config in configs.items()
    }
    base = protocols[baseline]
    for arm, own in protocols.items():
        both = dict.fromkeys((*base, *own))  # each leaves out what has its default
        if keys := [key for key in both if key != "lr" and own.get(key) != base.get(key)]:
            return (
                f"note  {arm} is fine-tuned differently from {baseline} ({', '.join(keys)}), which "
                "task scores reflect, too; to compare the encoders alone, name one protocol for "
                "all, as in glue.cola@cramming"
            )
    return None
