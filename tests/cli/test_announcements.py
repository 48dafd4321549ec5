"""What a run says about its size and its text before it trains is true."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from crammed.data.corpus import Corpus
from crammed.device import Device
from crammed.pipeline import announce, announce_suited_size
from crammed.progress import Progress
from crammed.sizing import with_values
from support.text import tiny


def announced(corpus: Corpus, cpu: Device, budget: str) -> str:
    said = io.StringIO()
    announce(tiny(budget={"limit": budget}), corpus, cpu, Progress(said))
    return said.getvalue()


def test_epochs_are_counted_where_the_budget_says_how_many(corpus: Corpus, cpu: Device) -> None:
    tokens = corpus.rows * corpus.row_length
    assert "will be read about 12.0 times" in announced(corpus, cpu, f"{12 * tokens}tok")
    assert "times" not in announced(corpus, cpu, f"{2 * tokens}tok")


def test_a_budget_of_time_names_the_measurement_and_no_number(
    corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crammed.sizing.nominal_speed", lambda compute: 1e14)
    words = announced(corpus, cpu, "1h")
    assert f"crammed plan --corpus {corpus.path} measures it" in words
    assert "read about" not in words


def test_a_size_chosen_before_the_text_was_known_is_compared() -> None:
    said = io.StringIO()
    large = with_values(tiny(), {"model.layers": 4, "model.width": 256})
    announce_suited_size(large, tiny(), Path("run/corpus"), Progress(said))
    assert said.getvalue().strip().split("model  ")[1] == (
        "4 x 256 follows from the budget alone; 2 x 32 suits this text better, and "
        "crammed pretrain --corpus run/corpus trains that"
    )
    announce_suited_size(large, large, Path("run/corpus"), Progress(nothing := io.StringIO()))
    assert nothing.getvalue() == ""
