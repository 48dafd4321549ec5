"""Tasks that have training rows alone are cross-validated."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crammed.evaluation import suite as suites
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.finetuning.jobs import FinetuneJob, run_jobs
from crammed.evaluation.folder import read_outputs
from crammed.evaluation.prepared import remarks
from crammed.evaluation.scores.table import score_tables
from crammed.tasks.folds import parts_of
from crammed.tasks.read import read_task
from crammed.tasks.task import load_suite
from crammed.terminal.progress import SILENT
from crammed.terminal.table import show
from support.evaluation import Ask
from support.text import documents, write_rows

SUITE = "tasks: {mail: {text: text, metric: accuracy%s}}"


def test_each_part_is_scored_by_models_of_the_others(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by hand, with the parts as training and validation rows; and goes on where it stopped."""
    rows = [{"text": text[:40], "label": n % 2} for n, text in enumerate(documents(30))]
    write_rows(tmp_path / "mail" / "train.jsonl", rows)
    (tmp_path / "mine.yaml").write_text(SUITE % ", folds: 3")
    request = ask(suite=str(tmp_path / "mine.yaml"), untrained=False)
    scored = evaluate(request, SILENT)["suites"]["mine"]
    mail = scored["tasks"]["mail"]
    assert (mail["rows"], mail["folds"]) == ({"train": 30}, 3)
    assert mail["cut"].keys() == {"train"}
    assert mail["linear"] < 90.0, "a model that had read the rows would know them"
    show(score_tables("mine", scored, {}, None), shown := io.StringIO())
    assert "30 in 3 folds" in shown.getvalue()

    suite = load_suite(str(tmp_path / "mine.yaml"))
    first = next(parts_of(read_task(suite.tasks["mail"], tmp_path, suite)))
    by_hand = tmp_path / "by-hand" / "mail"
    own = set(first.places.tolist())
    for split, part in (("validation", own), ("train", {*range(30)} - own)):
        write_rows(by_hand / f"{split}.jsonl", [rows[n] for n in sorted(part)])
    (tmp_path / "hand.yaml").write_text(SUITE % "")
    hand = {"suite": str(tmp_path / "hand.yaml"), "data": str(by_hand), "into": tmp_path / "other"}
    evaluate(ask(**hand, untrained=False), SILENT)
    for seed in range(2):
        outputs = read_outputs(tmp_path / "scores", "mine", "mail", seed)["mail"]
        slow = read_outputs(tmp_path / "other", "hand", "mail", seed)["mail"]
        assert outputs.shape == (30, 2)
        np.testing.assert_allclose(outputs[first.places], slow, rtol=1e-3, atol=1e-4)

    folder = tmp_path / "scores" / "predictions" / "mine" / "mail"
    (folder / "trained-1.npz").unlink()
    (folder / "fold-2" / "trained-1.npz").unlink()
    files: list[Path] = []

    def run_and_note(jobs: list[FinetuneJob], *others: Any) -> dict[str, str]:
        files.extend(job.file for job in jobs)
        return run_jobs(jobs, *others)

    monkeypatch.setattr(suites, "run_jobs", run_and_note)
    assert evaluate(request, SILENT)["suites"]["mine"] == scored
    assert files == [folder / "fold-2" / "trained-1.npz"]


def test_rows_whose_text_another_part_has_are_counted(tmp_path: Path) -> None:
    rows = [{"text": f"Letter {n}.", "label": n % 2} for n in range(28)]
    write_rows(tmp_path / "mail" / "train.jsonl", [*rows, *rows[:2]])
    (tmp_path / "mine.yaml").write_text(SUITE % ", folds: 15")
    suite = load_suite(str(tmp_path / "mine.yaml"))
    mail = suite.tasks["mail"]
    read = read_task(mail, tmp_path, suite)
    known = sum(part.rows.known_from(part.train) for part in parts_of(read))
    assert 0 < known <= 4
    said = list(remarks(mail, read))
    words = "have the same text as a training row, so they say nothing about new text"
    assert said == [f"{known} of 30 rows of train {words}"]
