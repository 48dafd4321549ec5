"""The tables of README and docs say what the records say, and the README's words are true."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import layout
import records
from crammed.config import RunConfig
from crammed.config.yamlfile import Loader
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.writing import read_json, write_json
from crammed.machine.device import Device
from crammed.pretraining import train_and_export
from crammed.rules.recipe import load_config
from crammed.runs.directory import RunDir
from crammed.study.result import read_result
from crammed.study.spec.arms import Study, study_names
from crammed.study.spec.small import has_factor, resolved
from crammed.terminal.progress import SILENT
from support.command import crammed, python
from support.text import tiny

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "records.py"


def _tables(root: Path, *, check: bool = False) -> str:
    """Make or check the tables of a folder like that of the project; returns what is refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "ROOT", root)
        patch.setattr(layout, "RECORDS", root / "records")
        patch.setattr(layout, "BENCHMARKS", root / "benchmarks" / "results")
        try:
            records.tables(check=check)
        except SystemExit as refused:
            return str(refused)
    return ""


RECORDS = sorted(path.parent for path in (ROOT / "records").glob("*/README.md"))
OLDEST = "2026-11-21-first-runs"
STUDIES = [folder for folder in RECORDS if (folder / "study.json").exists()]


def _files_named(folder: Path) -> list[str]:
    """The files of the project that the page of a record names."""
    words = re.findall(r"[\w./-]+", (folder / "README.md").read_text("utf-8"))
    return [word for word in words if re.match(r"(records|benchmarks|tools)/.*\.\w+$", word)]


def test_there_are_records_and_studies_and_they_name_files() -> None:
    assert OLDEST in {folder.name for folder in RECORDS}
    assert STUDIES
    assert len([name for folder in RECORDS for name in _files_named(folder)]) > 20


@pytest.mark.parametrize("folder", RECORDS, ids=lambda folder: folder.name)
def test_every_file_that_a_record_names_is_there(folder: Path) -> None:
    assert [name for name in _files_named(folder) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_every_study_can_be_run_again(folder: Path) -> None:
    """Its arms lie beside its result, and each is still a configuration."""
    result = json.loads((folder / "study.json").read_text("utf-8"))
    assert read_result(folder).baseline in result["arms"]
    if named := re.fullmatch(r"[\d-]{10}-study-(\w+)", folder.name):
        _is_built_in(named[1], result, folder)
        return
    study = _study(folder / "arms.yaml")
    assert f"records/{folder.name}/arms.yaml" in (folder / "README.md").read_text("utf-8")
    assert result["baseline"] == study.baseline
    assert result["arms"].keys() <= study.arms.keys()
    for arm in study.arms:
        words = study.words(arm)
        set_by_arm = [word for word in words if not has_factor(word)]
        factors = [word for word in words if has_factor(word)]
        _load([*set_by_arm, *resolved(factors, _load(set_by_arm), proportional=True)])


def _study(file: Path) -> Study:
    return Study.model_validate(yaml.load(file.read_text("utf-8"), Loader))


def _is_built_in(name: str, result: dict[str, Any], folder: Path) -> None:
    """A study of today, or one that had these arms before; or some arms of today's, in a file."""
    if (file := folder / "arms.yaml").exists():
        built_in = ROOT / "src" / "crammed" / "study" / "studies" / f"{name}.yaml"
        some, whole = map(_study, (file, built_in))
        assert f"crammed study records/{folder.name}/arms.yaml" in result["command"]
        assert (some.base, some.small, some.baseline) == (whole.base, whole.small, whole.baseline)
        assert some.arms.items() <= whole.arms.items()
        assert some.budgets.items() <= whole.budgets.items()
        parts = [arm.partition("@")[::2] for arm in result["arms"]]
        assert {arm for arm, _ in parts} == some.arms.keys()
        assert {label for _, label in parts} == (some.budgets.keys() or {""})
    else:
        assert f"crammed study {name}" in result["command"]
    for entry in result["arms"].values():
        _load(entry["words"])


def _load(words: Sequence[str]) -> RunConfig:
    recipe, *overrides = words
    limit = {"budget": {"limit": "6e5tok"}}
    return load_config(recipe, overrides, limit, speed=1e11, rows=10_000)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A README and documents without tables: each takes its time."""
    for name in ("docs", "records", "benchmarks/results"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "README.md").write_text("")
    return tmp_path


def test_a_page_that_names_no_result_is_refused(copy: Path) -> None:
    page = copy / "docs" / "any.md"
    page.write_text("<!-- finetune: gone.json -->\n<!-- end of finetune -->\n", "utf-8")
    assert "a page names gone.json" in _tables(copy, check=True)


@pytest.mark.parametrize("marker", ["<!-- finetune: any.json -->", "<!-- end of finetune -->"])
def test_a_marker_that_stands_alone_is_refused(copy: Path, marker: str) -> None:
    (copy / "docs" / "any.md").write_text(f"Text.\n\n{marker}\n\nMore text.\n", "utf-8")
    assert _tables(copy, check=True).strip() == f"docs/any.md: {marker} has no other end"


def test_every_built_in_study_has_its_line_on_the_page_of_experiments() -> None:
    page = (ROOT / "docs" / "experiments.md").read_text("utf-8")
    (named,) = re.findall(r"<!-- experiments: (.*) -->", page)
    assert sorted(named.split()) == study_names()


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_the_page_of_every_study_shows_its_table(folder: Path) -> None:
    page = (folder / "README.md").read_text("utf-8")
    markers = ("study", "experiment", "documents", "judged")
    assert any(f"<!-- {marker}: {folder.name} " in page for marker in markers)


def test_a_study_keeps_what_its_runs_score_on_documents_by_themselves(copy: Path) -> None:
    losses = {"row": (4.0, 4.1), "document": (4.2, 3.9)}  # in packed rows, by themselves
    arms: dict[str, Any] = {
        arm: {"words": [arm], "runs": {str(n): {"loss@0.15": rows + n / 100, "loss@0.25": 5.0,
                                                "tokens": 9, "seconds": 60.0} for n in range(3)}}
        for arm, (rows, _) in losses.items()
    }  # fmt: skip
    made = {"environment": {"cores": 1, "commit": "abc"}, "budget": "5e5tok", "baseline": "row"}
    for arm, (_, alone) in losses.items():
        for seed in range(3):
            found = {"loss@0.15": 9.0, "document_loss@0.15": alone + seed / 100}
            scores = {"schema": 2, "suites": {"heldout": found}}
            (copy / "done" / f"{arm}-{seed}" / "evaluation").mkdir(parents=True)
            write_json(copy / "done" / f"{arm}-{seed}" / "evaluation" / "scores.json", scores)
    write_json(copy / "done" / "study.json", {**made, "arms": arms})
    records.study(copy / "done", copy / "records" / "any", "typed")
    page = copy / "docs" / "any.md"
    page.write_text("<!-- documents: any -->\n<!-- end of documents -->\n", "utf-8")
    assert not _tables(copy)
    first, second = page.read_text("utf-8").splitlines()[3:5]
    assert first.startswith("| document | 3 | 3.910 ± 0.010 | -0.200 (")
    assert second == "| row | 3 | 4.110 ± 0.010 |  |  | 4.010 ± 0.010 |  |  |"


def test_an_adapted_run_is_no_record(copy: Path, corpus: Corpus, cpu: Device) -> None:
    with RunDir.open(copy / "run", tiny("crammed", budget={"limit": "2updates"})) as run:
        train_and_export(run, corpus, cpu, SILENT)
    summary = read_json(copy / "run" / "summary.json")
    assert summary is not None
    adapted = {"model": "somebody's", "sha256": "ab" * 32, "random_weights": 0}
    adapted["heldout"] = summary["heldout"]
    write_json(copy / "run" / "summary.json", {**summary, "adapted": adapted})
    with pytest.raises(InputError, match="adapted somebody's: records are of runs from scratch"):
        records.add(copy / "run", copy / "record", "typed", corpus=corpus.path)
    assert not (copy / "record").exists()


@pytest.mark.parametrize("verb", ["add", "study"])
@pytest.mark.parametrize("content", [None, "{}", "["])
def test_what_cannot_be_kept_is_one_line(tmp_path: Path, verb: str, content: str | None) -> None:
    folder, record = tmp_path / "done", tmp_path / "record"
    folder.mkdir()
    if content is not None:
        (folder / ("summary.json" if verb == "add" else "study.json")).write_text(content)
    with pytest.raises(InputError) as refused:
        getattr(records, verb)(folder, record, "typed")
    assert "\n" not in str(refused.value)
    assert not record.exists()


def test_the_tool_says_a_fault_in_one_line(tmp_path: Path) -> None:
    kept = python(TOOL, "add", tmp_path, tmp_path / "record", "--command", "typed")
    assert (kept.returncode, kept.stderr.count("\n")) == (2, 1), kept.stderr
    assert kept.stderr.startswith("error: ")


def test_a_run_evaluated_by_two_protocols_keeps_the_scores_of_both(
    copy: Path, corpus: Corpus, cpu: Device
) -> None:
    config = tiny("crammed", budget={"limit": "2updates"})
    with RunDir.open(copy / "run", config) as run:
        train_and_export(run, corpus, cpu, SILENT)
    values = {"metric": "accuracy", "seeds": [60.0], "median": 60.0, "official": False}
    both = {"metric": "accuracy", "seeds": [70.0], "median": 70.0, "official": False}
    for folder, suite in (("evaluation", "glue"), ("evaluation-superglue", "superglue")):
        (copy / "run" / folder).mkdir()
        tasks = {f"{suite}-task": values, "order": {"failed": "no data"}}
        scores: dict[str, Any] = {"schema": 2, "suites": {suite: {"tasks": tasks}}}
        if suite == "superglue":  # the run's own protocol has scored these
            scores["suites"]["glue"] = {"tasks": {"glue-task": both}}
        write_json(copy / "run" / folder / "scores.json", scores)
    record = copy / "records" / "both"
    manifest = copy / "corpus"  # of a run from another machine, whose rows stayed there
    manifest.mkdir()
    shutil.copy(corpus.path / "manifest.json", manifest)
    records.add(copy / "run", record, "typed", corpus=manifest)
    page = copy / "docs" / "both.md"
    page.write_text("<!-- records: both -->\n<!-- end of records -->\n", "utf-8")
    assert not _tables(copy)
    text = page.read_text("utf-8")
    assert "glue-task 60.0, one seed, partial; order failed; superglue-task 60.0" in text
    assert str(copy) not in (record / "run.json").read_text("utf-8")  # data by name and hash


def test_tables_are_current() -> None:
    assert not _tables(ROOT, check=True)


def test_a_changed_number_is_noticed_and_put_right(copy: Path) -> None:
    shutil.copytree(ROOT / "records" / OLDEST, copy / "records" / OLDEST)
    page = (ROOT / "docs" / "records.md").read_text("utf-8")
    found = re.search(rf"<!-- records: {OLDEST} -->.*?<!-- end of records -->\n", page, re.DOTALL)
    assert found is not None
    readme, right = copy / "README.md", found[0]
    number = re.findall(r"\d\.\d{3} \(", right)[-1]
    readme.write_text(right.replace(number, "0.001 ("), "utf-8")
    assert "README.md" in _tables(copy, check=True)
    assert not _tables(copy)
    assert readme.read_text("utf-8") == right


def test_readme_names_what_exists() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    targets = re.findall(r"(?:^|`)make (\w+)", text, re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all(f"\n{target}:" in makefile for target in targets)
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (ROOT / link).exists(), link


def test_the_map_of_the_code_names_what_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rooms = re.findall(r"^((?:src|records)/\S*(?:, \S+)*)  ", text, re.MULTILINE)
    assert len(rooms) > 5
    for first, *others in (room.split(", ") for room in rooms):
        assert (ROOT / first).exists(), first
        folder = (ROOT / first).parent
        assert all((folder / other).exists() for other in others), others


def test_readme_commands_parse() -> None:
    from crammed.cli.app import app

    text = (ROOT / "README.md").read_text("utf-8")
    commands = re.findall(r"^(?:\.venv/bin/)?crammed (\w+)(.*)$", text, re.MULTILINE)
    assert commands
    verbs = {command.name or command.callback.__name__ for command in app.registered_commands}  # type: ignore[union-attr]
    named = {verb for verb, _ in commands}
    assert named <= verbs
    shown = {verb: crammed(verb, "--help").stdout for verb in named}
    for verb, rest in commands:
        for option in re.findall(r"--[\w-]+", rest):
            assert option in shown[verb], f"{verb} {option}"
