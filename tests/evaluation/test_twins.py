"""Untrained twins that evaluations share; what was fine-tuned is kept whatever fails."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.finetuning import jobs as jobs_module
from crammed.evaluation.finetuning.arrays import load_arrays, save_arrays
from crammed.evaluation.finetuning.jobs import Failures, FinetuneJob
from crammed.evaluation.finetuning.task import FinetuneTask, TokenizedSplit
from crammed.evaluation.twins import SharedTwins
from crammed.files.locks import FolderLock
from crammed.terminal.progress import SILENT, Progress
from support.evaluation import Ask, make_model, tasks_of
from support.tasks import write_task


def test_models_of_one_shape_share_their_untrained_twin(
    tmp_path: Path, corpus: Corpus, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path, "rte", rows=40)
    other = make_model(tmp_path / "other", corpus, 1)
    narrower = make_model(tmp_path / "narrower", corpus, 0, "model.ffn_ratio=2")
    ran: list[str] = []

    def run_jobs(jobs: Sequence[FinetuneJob], *rest: Any) -> Failures:
        ran.extend("trained" if job.trained else "untrained" for job in jobs)
        return jobs_module.run_jobs(jobs, *rest)

    monkeypatch.setattr("crammed.evaluation.suite.run_jobs", run_jobs)

    def scores_of(model: Path, into: str, twins: Path | None) -> dict[str, Any]:
        ran.clear()
        result = evaluate(ask(model=str(model), into=tmp_path / into, twins=twins), SILENT)
        values: dict[str, Any] = tasks_of(result)["rte"]
        return values

    twins = tmp_path / "twins"
    scores_of(tmp_path / "model", "first", twins)
    assert sorted(ran) == ["trained"] * 2 + ["untrained"] * 2
    shared = scores_of(other, "second", twins)
    assert ran == ["trained"] * 2
    alone = scores_of(other, "third", None)  # as if it had been fine-tuned again
    assert shared == {k: v for k, v in alone.items() if not k.startswith("linear")}
    scores_of(narrower, "fourth", twins)
    assert sorted(ran) == ["trained"] * 2 + ["untrained"] * 2


@pytest.mark.parametrize("trouble", ["a file in its path", "in use"])
def test_what_cannot_be_shared_is_scored_all_the_same(
    tmp_path: Path, ask: Ask, trouble: str
) -> None:
    write_task(tmp_path, "rte", rows=40)
    twins = tmp_path / "twins"
    said = io.StringIO()
    with contextlib.ExitStack() as held:
        if trouble == "in use":
            evaluate(ask(twins=twins, into=tmp_path / "first"), SILENT)
            (shape,) = twins.iterdir()
            shutil.rmtree(shape / "predictions")
            held.enter_context(FolderLock(shape))
        else:
            (tmp_path / "file").write_text("mine")
            twins = tmp_path / "file" / "twins"
        scores = tasks_of(evaluate(ask(twins=twins, into=tmp_path / "second"), Progress(said)))
    assert scores["rte"]["untrained"]
    assert "untrained  not shared: " in said.getvalue()


def twin_job(folder: Path) -> FinetuneJob:
    split = TokenizedSplit(folder / "rte.npz", 1)
    task = FinetuneTask("rte", "classification", 2, split, {"rte": split}, {}, 100)
    return FinetuneJob(task, 0, False, folder / "untrained-0.npz", "key")


def test_one_twin_is_given_by_several_at_once(tmp_path: Path) -> None:
    jobs = [twin_job(tmp_path / f"own-{number}") for number in range(4)]
    for job in jobs:
        save_arrays(job.file, {"rte": np.arange(3.0)}, {"key": job.key})
    shared = SharedTwins(tmp_path / "twins")
    with ThreadPoolExecutor(len(jobs)) as pool:
        given = [pool.submit(_given, shared, job) for job in jobs for _ in range(20)]
        done = sum(each.result() for each in given)
    assert done > 0  # the others found it in use
    files = [file.name for file in (tmp_path / "twins").rglob("*") if file.is_file()]
    assert sorted(files) == [".lock", "untrained-0.npz"]
    fresh = twin_job(tmp_path / "fresh")
    shared.take("glue", [fresh])
    assert fresh.finished()


def _given(shared: SharedTwins, job: FinetuneJob) -> bool:
    """Whether the folder was free."""
    try:
        shared.give("glue", [job])
    except InputError as error:
        if "in use" not in str(error):
            raise
        return False
    return True


def test_damaged_predictions_are_none(tmp_path: Path) -> None:
    file = tmp_path / "kept.npz"
    save_arrays(file, {"a": np.arange(6.0)}, {"key": "k"})
    whole, refused = file.read_bytes(), 0
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        loaded = load_arrays(file)
        refused += loaded is None
        if loaded is not None:  # nothing reads that byte, or it hides an array
            arrays, description = loaded
            assert description == {"key": "k"}
            assert arrays.keys() <= {"a"}
            assert all(np.array_equal(each, np.arange(6.0)) for each in arrays.values())
    assert refused > 0.5 * len(whole)
    for about in ("[]", "null", "3"):
        np.savez(file, about=np.array(about))
        assert load_arrays(file) is None
    job = twin_job(tmp_path)
    save_arrays(job.file, {"rte": np.arange(3.0)}, {})
    assert not job.finished()
    with (tmp_path / "one.npy").open("wb") as stream:
        np.save(stream, np.arange(3))
    assert load_arrays(tmp_path / "one.npy") is None


def test_damaged_scores_are_one_line(tmp_path: Path, ask: Ask) -> None:
    write_task(tmp_path, "rte", rows=40)
    evaluate(ask(untrained=False), SILENT)
    words = r"scores\.json is damaged: remove it, and evaluate again"
    for suites in ("[]", '{"glue": {"tasks": {"rte": 3}}}', '{"glue": 1}', "{"):
        (tmp_path / "scores" / "scores.json").write_text(f'{{"suites": {suites}}}')
        with pytest.raises(InputError, match=words):
            evaluate(ask(untrained=False), SILENT)
        assert list((tmp_path / "scores" / "predictions").rglob("*.npz"))
