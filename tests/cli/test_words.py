"""What the verbs say: the next command, what was written, and how many of it there are."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.cli import corpora
from crammed.cli.models import _score_parts
from crammed.doctor import TINY
from crammed.evaluation.scores.table import cut_text, longest_sequence, show
from support.text import documents, write_jsonl


@pytest.mark.parametrize(
    ("words", "budget", "following"),
    [
        (TINY, None, " --budget 24h"),
        (("crammed-2022", *TINY), "2h 30m", " --budget '2h 30m'"),
        ((*TINY, "budget.limit=3e5tok"), None, " --budget 3e5tok"),
    ],
)
def test_after_preparing_the_next_command_has_the_same_recipe_and_budget(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    budget: str | None,
    following: str,
) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(300))
    out = tmp_path / "corpus"
    limit = None if budget is None else Budget.parse(budget)
    corpora.prepare([*words], [str(text)], limit, out, None)
    own = [word for word in words if not word.startswith(("data.", "tokenizer.", "budget."))]
    expected = f"crammed pretrain {' '.join(own)} --corpus {out}{following}"
    assert capsys.readouterr().out.splitlines()[-1].split() == ["next", *expected.split()]


HELDOUT = {
    **{"rows": 1, "length": 128, "tokens_per_character": 0.25},
    **{"loss@0.15": 3.0, "loss@0.25": 3.5},
    **{"bits_per_character@0.15": 1.08, "bits_per_character@0.25": 1.26},
}
BLIMP = {"paradigms": 1, "pairs": 1, "official": False, "blimp": 50.0, "interval": [0.0, 100.0]}


def evaluated(**values: Any) -> str:
    """What `crammed evaluate` prints."""
    stream = io.StringIO()
    show(_score_parts({"folder": "scores", "protocol": {}, "max_length": 128, **values}), stream)
    return stream.getvalue()


def test_scores_without_fine_tuning_have_words_for_names_and_no_predictions() -> None:
    said = evaluated(suites={"heldout": HELDOUT, "blimp": {**BLIMP, "phenomena": {}}})
    assert said.startswith(
        "held-out loss\n"
        "3.000 nats per masked token with 15 % masked, 3.500 with 25 %\n"
        "1.080 bits per character with 15 % masked, 1.260 with 25 %\n"
        "measured on 1 row of 128 tokens; 0.250 tokens per character\n"
    )
    assert "BLiMP, 1 paradigm, 1 pair: partial" in said
    alone = {"document_loss@0.15": 3.25, "document_loss@0.25": 3.75}
    parts = {"by_position@0.15": [3.5, None, *[3.0] * 6]}
    said = evaluated(suites={"heldout": {**HELDOUT, **alone, **parts}})
    assert "3.250 nats on documents by themselves, 3.750 with 25 %\n" in said
    assert "in each eighth of a row: 3.500, none, 3.000, " in said
    assert said.endswith("\nscores are in scores\n")
    assert evaluated(suites={"glue": {"tasks": {}, "means": []}}).endswith(
        "\nscores and predictions are in scores\n"
    )


@pytest.mark.parametrize(
    ("missing", "words"), [(["AX.tsv", "b"], "; the leaderboard will miss AX.tsv, b"), ([], "")]
)
def test_a_submission_is_said_to_be_written(missing: list[str], words: str) -> None:
    said = evaluated(suites={}, submission="mine.zip", missing=missing)
    assert f"the submission is in mine.zip{words}\n" in said


def test_sequences_that_were_cut_are_counted_with_the_length_they_were_cut_to() -> None:
    cut = {"cut": {"train": 3, "other": 0, "reviews": 1000}}
    assert longest_sequence({"max_length": 128}, {"max_length": 64}) == 64
    assert cut_text(cut, 64) == "cut to 64 tokens: 3 sequences of train, 1,000 of reviews"
    assert cut_text({"cut": {"train": 1}}, None) == "cut: 1 sequence of train"
    assert cut_text({"cut": {"train": 0}}, 64) == ""
