"""What the verbs say: the next command, what was written, and how many of it there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from crammed.budget import Budget
from crammed.cli import corpora
from crammed.doctor import TINY
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
