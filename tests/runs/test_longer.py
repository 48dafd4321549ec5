from __future__ import annotations

from pathlib import Path

import pytest

from crammed.runs.directory import RunDir
from crammed.runs.longer import train_longer
from crammed.runs.summary import Summary
from support.study import LOSSES, SUMMARY
from support.text import tiny


def summary(loss: float, epochs: float = 1.0) -> Summary:
    of_text = {"bits_per_character@0.15": 1.0, "bits_per_character@0.25": 1.2}
    losses = {**LOSSES, **of_text, "loss@0.15": loss}
    return Summary.model_validate({**SUMMARY, "heldout": losses, "epochs": epochs})


def said(
    folder: Path, loss: float, epochs: float = 1.0, rate: str = "1e-3", fell: float = 0.0
) -> str | None:
    """What is said of a run whose text has a unigram cross-entropy of 5 nats."""
    with RunDir.open(folder / "run", tiny("crammed-2022", f"optim.lr={rate}")) as run:
        for update, u, each in ((4, 0.8, 3.5 + fell), (5, 0.9, 3.5), (6, 1.0, 4.0)):
            run.event("heldout", update=update, u=u, **{"loss@0.15": each})
    return train_longer(run.path, summary(loss, epochs))


@pytest.mark.parametrize(
    ("loss", "epochs", "rate", "words"),
    [
        (5.0, 3.9, "1e-3", "a larger budget"),
        (5.2, 16.0, "1e-3", "more text"),
        (5.2, 16.0, "1e3", "optim.lr=0.0049"),
    ],
)
def test_a_model_that_knows_no_more_than_frequencies_is_told_apart(
    tmp_path: Path, loss: float, epochs: float, rate: str, words: str
) -> None:
    note = f"it predicts no better than word frequencies alone: train with {words}"
    assert said(tmp_path, loss, epochs, rate) == note


def test_a_run_on_the_plateau_is_told_so(tmp_path: Path) -> None:
    words = said(tmp_path, 4.1)
    assert words is not None
    assert words.startswith("it is still on the plateau, where ")
    assert words.endswith(" occur: train with a larger budget")


def test_a_loss_that_still_falls_at_the_end_is_told(tmp_path: Path) -> None:
    """From the last two measurements on the same rows, not from that after training."""
    assert said(tmp_path / "a", 3.9, fell=0.04) is None
    words = (
        "its held-out loss was still falling, by 0.06 nats between 80 % and 90 % of the budget: "
    )
    assert said(tmp_path / "b", 3.9, fell=0.06) == f"{words}a larger budget would lower it further"
    both = "a larger budget and more text would lower it further"
    assert said(tmp_path / "c", 3.9, epochs=16.0, fell=0.06) == words + both
    (tmp_path / "c" / "run" / "events.jsonl").write_text("[]")
    assert train_longer(tmp_path / "c" / "run", summary(3.9)) is None
