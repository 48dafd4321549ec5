"""The folder of an evaluation: what it is of, and what it refuses."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from crammed.config import ComputeConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.evaluation import suite
from crammed.evaluation.backbones.spec import local_digest
from crammed.evaluation.comparison import compare_models
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.finetuning.jobs import Failures, FinetuneJob, FinetuneSetup, run_jobs
from crammed.evaluation.finetuning.task import SplitWriter
from crammed.evaluation.folder import EvaluationFolder, default_folder, scores_folder
from crammed.evaluation.protocol import load_protocol
from crammed.files.writing import read_json, write_json
from crammed.report.page import write_report
from crammed.terminal.progress import SILENT, Progress
from support.evaluation import Ask, make_model, tasks_of
from support.tasks import write_task


def test_a_folder_is_of_one_model_and_one_protocol(
    tmp_path: Path, ask: Ask, corpus: Corpus
) -> None:
    write_task(tmp_path, "cola", rows=40)
    evaluate(ask(seeds=1, untrained=False), SILENT)
    other = make_model(tmp_path / "other", corpus, 1)
    with pytest.raises(InputError, match="scores of another model, model"):
        evaluate(ask(model=str(other)), SILENT)
    with pytest.raises(InputError, match=r"another protocol \(epochs 2 there, 5 here"):
        evaluate(ask(protocol="cramming"), SILENT)
    apart = tmp_path / "apart"
    evaluate(ask(seeds=1, untrained=False, protocol="small", into=apart), SILENT)
    with pytest.raises(InputError, match=r"another protocol \(pairs apart there, joint here"):
        evaluate(ask(protocol="cramming", into=apart), SILENT)
    # What a process killed before it wrote anything has left is no obstacle.
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / ".lock").touch()
    (killed / ".evaluation.json.tmp").write_text("{")
    evaluate(ask(seeds=1, untrained=False, into=killed), SILENT)
    (killed / "scores.json").unlink()
    assert "cola" in tasks_of(evaluate(ask(seeds=1, untrained=False, into=killed), SILENT))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("dear")
    with pytest.raises(InputError, match="is not an evaluation folder"):
        evaluate(ask(into=tmp_path / "full"), SILENT)
    assert default_folder(str(other), None) == other / "evaluation"
    assert default_folder(str(other), "bert-base") == other / "evaluation-bert-base"
    assert default_folder("org/name", None) == Path("evaluations/org-name")


def test_a_failed_evaluation_removes_only_what_it_has_made(tmp_path: Path, ask: Ask) -> None:
    """The folder may be under version control."""
    scores = tmp_path / "scores"
    (scores / ".git").mkdir(parents=True)
    (scores / ".git" / "config").write_text("[core]")
    with pytest.raises(InputError, match="no BLiMP data at"):
        evaluate(ask(suite="blimp", data=str(tmp_path / "none"), jobs=None), SILENT)
    assert [each.name for each in scores.iterdir()] == [".git"]
    assert (scores / ".git" / "config").read_text() == "[core]"


def opened(path: Path) -> EvaluationFolder:
    backbone: Any = SimpleNamespace(name="a", sha256="0", parameters=1, max_length=8)
    return EvaluationFolder(path, backbone, load_protocol("small"))


def test_a_file_is_no_folder_of_scores(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=r"notes.txt is not a folder: choose another .*--into"):
        opened(tmp_path / "notes.txt")


def test_a_folder_that_could_not_be_opened_is_not_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stopped = Mock(side_effect=KeyboardInterrupt)
        patch.setattr("crammed.evaluation.folder.write_json", stopped)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path)
    with opened(tmp_path):
        pass


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    deep = tmp_path / "predictions" / "s" / "t"
    deep.mkdir(parents=True)
    ours = [deep / ".trained-0.npz.71.tmp", tmp_path / ".scores.json.9.tmp"]
    theirs = [tmp_path / ".notes.2.tmp", tmp_path / ".git.json.tmp", deep / "a.npz.71.tmp"]
    for file in (*ours, *theirs):
        file.touch()
    with opened(tmp_path):
        assert not any(file.exists() for file in ours)
        assert all(file.exists() for file in theirs)


def test_models_of_the_same_name_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / "runs" / name / "export").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    a, b = (default_folder(f"runs/{name}/export", None) for name in ("a", "b"))
    assert (a, b) == (Path("evaluations/runs-a-export"), Path("evaluations/runs-b-export"))
    assert default_folder(str(tmp_path / "runs/a/export"), None) == a
    monkeypatch.chdir(tmp_path / "runs" / "b")
    assert default_folder("../a/export", "mine.yaml") == Path("evaluations/a-export-mine")
    assert default_folder("export", None) == Path("evaluations/export")
    assert default_folder("की/का", None) == Path("evaluations/की-का")


def test_scores_of_another_model_are_not_taken_for_a_models_own(
    tmp_path: Path, model: Path, corpus: Corpus
) -> None:
    described = {"model": {"name": "model", "sha256": local_digest(model)}, "protocol": {}}
    (model / "evaluation").mkdir()
    write_json(model / "evaluation" / "evaluation.json", described)
    assert scores_folder(str(model), None) == model / "evaluation"
    other = make_model(tmp_path / "other", corpus, 1)
    shutil.copytree(model / "evaluation", other / "evaluation")
    with pytest.raises(InputError, match=r"holds scores of another model, model, not of .*other"):
        scores_folder(str(other), None)


MODEL = {"name": "model", "sha256": "0"}


@pytest.mark.parametrize(
    "described",
    [{}, {"model": MODEL}, {"protocol": {}}, {"model": {"name": "model"}, "protocol": {}}],
)
def test_a_folder_that_does_not_say_what_it_is_of_is_refused_in_one_line(
    tmp_path: Path, ask: Ask, described: dict[str, Any]
) -> None:
    write_task(tmp_path, "cola", rows=40)
    scores = tmp_path / "scores"
    write_json(scores / "evaluation.json", described)
    write_json(scores / "scores.json", {"suites": {"glue": {"tasks": {}, "means": []}}})
    words = "evaluation.json is damaged: it says no model or no protocol; restore it from a copy"
    with pytest.raises(InputError, match=words):
        evaluate(ask(), SILENT)
    with pytest.raises(InputError, match=words):
        compare_models(tmp_path / "other", scores, "glue")
    with pytest.raises(InputError, match=words):
        write_report([scores], tmp_path / "report.html")


def test_scores_say_what_their_folder_is_of_even_if_a_task_failed_at_first(
    tmp_path: Path, ask: Ask
) -> None:
    """The number of threads is settled only when something can be fine-tuned."""
    write_task(tmp_path, "cola", rows=40)
    scratch = tmp_path / "scratch"
    request = ask(seeds=1, untrained=False)
    evaluate(request, SILENT)
    file = tmp_path / "scores" / "scores.json"
    whole = without_time(file)
    shutil.rmtree(tmp_path / "scores")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SplitWriter, "write", lambda *_: refuse(scratch))
        assert "failed" in tasks_of(evaluate(request, SILENT))["cola"]
    evaluate(request, SILENT)
    assert without_time(file) == whole


def without_time(file: Path) -> Any:
    values = read_json(file)
    assert values is not None
    assert values["environment"].pop("started")
    return values


def refuse(file: Path) -> None:
    raise InputError(f"{file} cannot be written")


def test_an_evaluation_goes_on_with_the_threads_that_it_began_with(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever would suit the jobs that are left: other threads round otherwise."""
    write_task(tmp_path, "cola", rows=40)
    setups: list[FinetuneSetup] = []

    def noting(jobs: Sequence[FinetuneJob], setup: FinetuneSetup, *given: Any) -> Failures:
        setups.append(setup)
        return run_jobs(jobs, setup, *given)

    monkeypatch.setattr(suite, "run_jobs", noting)
    described = tmp_path / "scores" / "evaluation.json"
    for seeds, usual, used in ((1, 1, 1), (2, 3, 1), (3, 3, None)):
        monkeypatch.setattr(suite, "usual_threads", lambda *_, usual=usual: usual)
        if used is None:  # as an older version described an evaluation
            found = read_json(described) or {}
            assert found.pop("threads") == 1
            write_json(described, found)
        evaluate(ask(seeds=seeds, untrained=False), SILENT)
        assert setups[-1].threads == used
    write_json(described, {**(read_json(described) or {}), "threads": "two"})
    with pytest.raises(InputError, match="its 'threads' are 'two'; restore it from a copy"):
        evaluate(ask(seeds=4, untrained=False), SILENT)


def test_scores_of_several_devices_or_number_formats_are_said_to_be(
    tmp_path: Path, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path, "cola", rows=40)
    for seeds, dtype in ((1, "float32"), (2, "float32"), (2, "bfloat16"), (3, "bfloat16")):
        compute = ComputeConfig.model_validate({"device": "cpu", "dtype": dtype})
        with Progress(sys.stderr) as progress:
            evaluate(ask(seeds=seeds, untrained=False, compute=compute), progress)
        said = "has models fine-tuned on cpu in float32, and these are on cpu in bfloat16"
        assert (said in " ".join(capsys.readouterr().err.split())) == (seeds == 3)
    described = read_json(tmp_path / "scores" / "evaluation.json") or {}
    assert described["numerics"] == ["cpu in float32", "cpu in bfloat16"]
    write_json(tmp_path / "scores" / "evaluation.json", {**described, "numerics": 5})
    with pytest.raises(InputError, match="its 'numerics' are 5; restore it from a copy"):
        evaluate(ask(seeds=4, untrained=False), SILENT)
