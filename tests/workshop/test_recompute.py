"""What is published about studies agrees with a recomputation that shares no code with ours."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recompute
import recomputed

ROOT = Path(__file__).resolve().parents[2]

THREE_SEEDS, SEVERAL_BUDGETS = "2026-11-22-study-objective", "2026-11-23-study-main"


def remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which computes each result once: only pages are changed here."""
    known: dict[str, Any] = {}

    def remembered(*given: Any) -> Any:
        key = json.dumps(given)
        if key not in known:
            known[key] = function(*given)
        return known[key]

    return remembered


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Folders like that of the project, each with one record."""
    monkeypatch.setattr(recomputed, "DRAWS", 150)
    monkeypatch.setattr(recompute, "POINTS", 15.0)
    for name in ("power", "laws"):
        monkeypatch.setattr(recomputed, name, remembering(getattr(recomputed, name)))
    lines = (ROOT / "docs" / "experiments.md").read_text("utf-8").split("\n")
    found = {name: tmp_path / name for name in (THREE_SEEDS, SEVERAL_BUDGETS)}
    for name, folder in found.items():
        shutil.copytree(ROOT / "records" / name, folder / "records" / name)
        (folder / "docs").mkdir()
        (folder / "README.md").touch()
        own = [line for line in lines if name in line]
        (folder / "docs" / "experiments.md").write_text("\n".join(own), "utf-8")
    return found


def test_a_planted_wrong_number_is_found(copies: dict[str, Path]) -> None:
    clean = [recompute.check_all(folder) for folder in copies.values()]
    assert [each.faults for each in clean] == [[], []]
    assert sum(each.count for each in clean) > 300
    wrong: list[tuple[str, str, str, str]] = [
        (THREE_SEEDS, "5.181 ± 0.049", "5.182 ± 0.049", "all-mask: held-out loss at 15 %"),
        (THREE_SEEDS, "± 0.049", "± 0.048", "all-mask: held-out loss at 15 %"),
        (THREE_SEEDS, "(-0.068 to", "(-0.067 to", "all-mask: difference"),
        (THREE_SEEDS, "| 0.259 |", "| 0.257 |", "all-mask: /p"),
        (THREE_SEEDS, "With 3 seeds, as arms", "As arms", "power is said"),
        (THREE_SEEDS, "need 33 seeds", "need 9 seeds", "seeds needed"),
        (THREE_SEEDS, "need 33 seeds", "need 90 seeds", "seeds needed"),
        (SEVERAL_BUDGETS, "6.4 (7.5)", "6.4 (7.6)", "crammed-2022: CoLA by once"),
        (SEVERAL_BUDGETS, "C^-0.074", "C^-0.075", "crammed-2022: exponent"),
        (SEVERAL_BUDGETS, "to 1.81 times", "to 2.36 times", "crammed: worth"),
        (SEVERAL_BUDGETS, "types: leads only", "types: no leads", "types are leads"),
    ]
    for name, old, new, fault in wrong:
        page = copies[name] / "records" / name / "README.md"
        text = page.read_text("utf-8")
        before, mark, after = text.rpartition(old) if "C^" in old else text.partition(old)
        assert mark
        page.write_text(before + new + after, "utf-8")
        found = recompute.check_all(copies[name]).faults
        assert len(found) == 1
        assert fault in found[0]
        page.write_text(text, "utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (THREE_SEEDS, "2 no difference", "1 worse, 1 no"),
        ("2026-11-28-study-main", "a6000: 1 better", "a6000: 2 better"),  # one of its budgets
    ],
)
def test_a_planted_wrong_verdict_is_found(tmp_path: Path, name: str, old: str, new: str) -> None:
    page = tmp_path / "docs" / "experiments.md"
    shutil.copytree(ROOT / "records" / name, tmp_path / "records" / name)
    page.parent.mkdir()
    lines = (ROOT / "docs" / "experiments.md").read_text("utf-8").split("\n")
    (line,) = (line for line in lines if name in line)
    for text, faults in ((line, 0), (line.replace(old, new), 1)):
        page.write_text(text, "utf-8")
        check = recompute.Check()
        recompute.check_experiments(check, tmp_path)
        assert len(check.faults) == faults
        assert all("verdict" in fault for fault in check.faults)


@pytest.mark.parametrize(
    ("old", "new", "arm"),
    [
        ("| agrees |", "| cannot tell: 0.01 nats better is not ruled out |", "latest-average"),
        ("+0.164 (+0.047", "+0.164 (+0.048", "dropout"),
        ("cannot tell: 0.17 nats", "cannot tell: 0.18 nats", "batches-by-cosine"),
        ("cannot tell: still on the plateau", "agrees", "gated-attention"),
    ],
)
def test_a_planted_wrong_answer_beside_the_paper_is_found(old: str, new: str, arm: str) -> None:
    folder = ROOT / "records" / "2026-11-26-options"
    study = json.loads((folder / "study.json").read_text("utf-8"))
    page = (folder / "README.md").read_text("utf-8")
    table = page.partition("<!-- verdicts: 2026-11-26-options -->\n")[2].partition("<!--")[0]
    for text, faults in ((table, 0), (table.replace(old, new, 1), 1)):
        check = recompute.Check()
        recompute.check_beside_paper(check, "", study, text)
        assert len(check.faults) == faults
        assert all(arm in fault for fault in check.faults)


def test_it_shares_no_code_with_ours() -> None:
    for file in ("recompute.py", "recomputed.py"):
        tree = ast.parse((ROOT / "tools" / file).read_text("utf-8"))
        names = [each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
        names += [n.name for e in ast.walk(tree) if isinstance(e, ast.Import) for n in e.names]
        known = {"numpy", "scipy", "recomputed", *sys.stdlib_module_names}
        assert {name.partition(".")[0] for name in names} <= known
