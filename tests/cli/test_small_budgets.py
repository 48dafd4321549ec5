"""A budget that one update exceeds is refused before anything starts, where that can be known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from crammed.budget import Budget
from crammed.cli import planning, studies, training
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.doctor import TINY
from crammed.errors import InputError
from crammed.rules.sizing import with_values
from crammed.training.plan import refuse_too_little
from support.study import write_study
from support.text import MODEL, tiny

WORK = (
    "crammed.pipeline.prepare",
    "crammed.study.running.preparing.prepare",
    "crammed.runs.directory.RunDir.open",
    "crammed.study.running.runner.FolderLock",
    "crammed.planning.parts.measure_speed",
    "crammed.planning.settling.training_speed",
)
"""What verbs begin with, once all that was typed is found to be valid."""
Call = Callable[[Budget], None]


@pytest.fixture
def calls(tmp_path: Path, corpus: Corpus, text_file: Path) -> dict[str, Call]:
    """Commands, by what they are."""
    data, out = [str(text_file)], tmp_path / "out"
    study = write_study(tmp_path, {"plain": [], "high": ["masking.rate=0.5"]})
    return {
        "run text": lambda budget: training.run([*TINY], budget, data, out=out),
        "run corpus": lambda budget: training.run([*MODEL], budget, corpus=corpus.path, out=out),
        "pretrain": lambda budget: training.pretrain([*MODEL], corpus.path, budget, out=out),
        "plan": lambda budget: planning.plan([*TINY], None, budget),
        "plan corpus": lambda budget: planning.plan(None, corpus.path, budget),
        "plan card": lambda budget: planning.plan([*TINY], None, budget, device="RTX 4090"),
        "study text": lambda budget: studies.study(
            study, [*TINY], budget=budget, out=out, data=data
        ),
        "study corpus": lambda budget: studies.study(
            study, corpus=corpus.path, budget=budget, out=out
        ),
    }


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WORK:
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("something has started"))


@pytest.mark.usefixtures("nothing_starts")
def test_a_budget_below_one_update_is_refused_before_anything_starts(
    calls: dict[str, Call], tmp_path: Path
) -> None:
    for budget, said in (("10tok", "10 tokens"), ("1flop", "1 FLOP")):
        for name, call in calls.items():
            end = ".*; nothing was started$" if name.startswith("study") else ""
            message = f"a budget of {said} ends before one update of{end}"
            with pytest.raises(InputError, match=message):
                call(Budget.parse(budget))
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("nothing_starts")
def test_a_text_that_may_not_be_read_once_is_refused_before_anything_starts(
    corpus: Corpus, tmp_path: Path
) -> None:
    own = [word for word in MODEL if not word.startswith("budget.")]
    words, hour = [*own, "budget.most_epochs=0.001"], Budget.parse("1h")
    with pytest.raises(InputError, match=r"than budget\.most_epochs allows"):
        training.pretrain(words, corpus.path, hour, out=tmp_path / "out")


def of(limit: str) -> RunConfig:
    return with_values(tiny(), {"budget.limit": limit})


def test_nothing_is_refused_that_could_be_trained() -> None:
    """Nobody knows how long an update takes, nor how many words a text will have."""
    one = of("1updates")
    refuse_too_little(one)
    refuse_too_little(of("0.001s"))
    update = one.data.row_length * one.batch.rows
    assert [fits(of(f"{count}tok")) for count in (update - 1, update)] == [False, True]
    enough = next(f"{2**n}flop" for n in range(99) if fits(of(f"{2**n}flop")))
    assert not fits(of(enough), 8192)


def fits(config: RunConfig, vocab_size: int | None = None) -> bool:
    try:
        refuse_too_little(config, vocab_size)
    except InputError:
        return False
    return True
