"""What a run says about its size and its text before it trains is true."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from crammed.config import RunConfig
from crammed.config.corpus import LEAST_TOKENS
from crammed.data.corpus import Corpus
from crammed.machine.device import Device
from crammed.planning.settling import announce
from crammed.rules.choosing import Asked, Choice, choose, reasons
from crammed.rules.sizing import FOLLOWERS, SHAPES, with_values
from crammed.terminal.progress import Progress
from support.corpora import VOCABULARY, write_corpus
from support.text import tiny

LAPTOP = 1.6e11


def announced(
    corpus: Corpus, cpu: Device, budget: str, speed: float | None = None, **values: object
) -> str:
    said = io.StringIO()
    config = with_values(tiny(budget={"limit": budget}), values)
    announce(config, Choice(flops_per_second=speed), corpus, cpu, Progress(said))
    return said.getvalue()


def test_epochs_are_counted_where_the_budget_says_how_many(corpus: Corpus, cpu: Device) -> None:
    tokens = corpus.rows * corpus.row_length
    assert "will be read about 12.0 times" in announced(corpus, cpu, f"{12 * tokens}tok")
    assert "times" not in announced(corpus, cpu, f"{2 * tokens}tok").partition("model")[0]


def test_tokens_cost_what_the_vocabulary_of_the_corpus_makes_them_cost(
    corpus: Corpus, cpu: Device
) -> None:
    asked = {"tokenizer.vocab_size": 50 * corpus.vocab_size}
    said = announced(corpus, cpu, "1e12flop", **asked)
    assert "will be read about " in said
    assert said == announced(corpus, cpu, "1e12flop")


def test_a_text_of_few_different_words_is_announced(tmp_path: Path, cpu: Device) -> None:
    """Fewer than any vocabulary that could be asked for."""
    assert len(VOCABULARY) < LEAST_TOKENS
    corpus = write_corpus(tmp_path / "corpus", [np.full((40, 32), 6)], characters=9999)
    assert "will be read about 12.0 times" in announced(corpus, cpu, f"{12 * 40 * 32}tok")


def test_a_budget_of_time_counts_them_where_the_speed_was_measured(
    corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crammed.rules.sizing.nominal_speed", lambda compute: 1e14)
    assert "corpus  " not in announced(corpus, cpu, "1h")  # a nominal speed foretells nothing
    slow, fast = (announced(corpus, cpu, "1h", speed) for speed in (1e8, 1e10))
    times = [float(words.split("read about ")[1].split()[0]) for words in (slow, fast)]
    assert times[1] == pytest.approx(100 * times[0], rel=0.01)


def why(budget: str, rows: float | None, speed: float = LAPTOP, **fixed: object) -> str:
    asked = Asked(with_values(RunConfig(recipe="any"), {"budget.limit": budget, **fixed}))
    if not any(key.startswith("model.") for key in fixed):
        asked = Asked(asked.config, FOLLOWERS)
    chosen = choose(asked, rows, lambda config: speed)
    return reasons(chosen.config, chosen.choice, rows)


def test_what_would_help_most_follows_from_the_rule() -> None:
    time = why("1h", 10**9)
    assert time.startswith("the largest that gets 20 tokens per parameter of its layers (1h at ")
    assert "tokens/s, measured); more time would help most, more text would not" in time
    assert why("30d", 10_000).endswith("more text would help most, more time less")
    ends = {"budget.most_epochs": 32.0}
    assert why("30d", 10_000, **ends).endswith("more text would help most, more time would not")
    assert why("1e14flop", 10).endswith("more text would help most, a larger budget less")
    assert why("1e14flop", 10**9).endswith("a larger budget would help most, more text would not")
    largest = why("1e24flop", 10**13)
    assert "a larger model (model.layers, model.width) would help most, more text would" in largest
    assert why("1h", None).endswith("more time would help most, given enough text")


def test_a_size_that_was_set_is_compared_with_the_rule() -> None:
    layers, width = SHAPES[0]
    small = {"model.layers": layers, "model.width": width}
    assert "as set; the rule would take 16 x 768: the largest" in why("2e18flop", 10**9, **small)
    odd = {"model.width": 56, "model.head_dim": 56}
    assert why("2e18flop", 10**9, **odd) == "as set (2 exaFLOP)"
    assert why("1h", 10**9, **small) == "as set; crammed plan measures what suits 1h"
