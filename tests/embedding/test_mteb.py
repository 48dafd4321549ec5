"""The call of MTEB in docs/embedding.md, where mteb is installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import crammed
from support.command import python
from support.text import write_jsonl, write_rows

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"
SUBJECTS = ("foxes", "boats", "clocks", "letters")


def test_the_documented_call_gives_the_score_of_rated_pairs(
    tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    pytest.importorskip("mteb")
    pytest.importorskip("sentence_transformers")
    (code,) = re.findall(r"```python\n(import datasets.*?)```", PAGE.read_text(), re.DOTALL)
    rows = [
        {"sentence1": f"the {a}", "sentence2": f"my {b} ran", "score": float(n % 5)}
        for n, (a, b) in enumerate((a, b) for a in SUBJECTS for b in SUBJECTS)
    ]
    pairs = write_rows(tmp_path / "pairs.jsonl", rows)
    texts = [f"The {n} foxes ran. Then {n} boats sank. At last {n} clocks rang." for n in range(99)]
    made = crammed.embed(
        model_folders["bert"],
        data=write_jsonl(tmp_path / "text.jsonl", texts),
        out=tmp_path / "vectors",
        budget="1updates",
        pairs=pairs,
        batch=4,
        length=16,
        device="cpu",
    )
    (tmp_path / "call.py").write_text(code)
    done = python("call.py", cwd=tmp_path, env={"HF_HOME": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    expected = made.result["after"]["spearman"] / 100
    assert float(done.stdout.split()[-1]) == pytest.approx(expected, abs=1e-3)
