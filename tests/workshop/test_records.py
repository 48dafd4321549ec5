"""The tables of README and docs say what the records say, and the README's words are true."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from crammed.config.yamlfile import Loader
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.writing import write_json
from crammed.machine.device import Device
from crammed.pipeline import train_and_export
from crammed.rules.recipe import load_config
from crammed.runs.directory import RunDir
from crammed.study import scaling
from crammed.study.arms import Study, study_names
from crammed.study.result import read_result
from crammed.terminal.progress import SILENT
from support.command import crammed, python
from support.text import tiny

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "records.py"
sys.path.insert(0, str(TOOL.parent))

import layout  # noqa: E402
import records  # noqa: E402


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


@pytest.mark.parametrize("folder", RECORDS, ids=lambda folder: folder.name)
def test_every_file_that_a_record_names_is_there(folder: Path) -> None:
    words = re.findall(r"[\w./-]+", (folder / "README.md").read_text("utf-8"))
    named = [word for word in words if re.match(r"(records|benchmarks|tools)/.*\.\w+$", word)]
    assert [word for word in named if not (ROOT / word).exists()] == []


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_every_study_can_be_run_again(folder: Path) -> None:
    """Its arms lie beside its result, and each is still a configuration."""
    result = json.loads((folder / "study.json").read_text("utf-8"))
    assert read_result(folder).baseline in result["arms"]
    if named := re.fullmatch(r"[\d-]{10}-study-(\w+)", folder.name):
        _is_built_in(named[1], result)
        return
    study = Study.model_validate(yaml.load((folder / "arms.yaml").read_text("utf-8"), Loader))
    assert f"records/{folder.name}/arms.yaml" in (folder / "README.md").read_text("utf-8")
    assert result["baseline"] == study.baseline
    assert result["arms"].keys() <= study.arms.keys()
    for arm in study.arms:
        recipe, *overrides = study.words(arm)
        load_config(recipe, overrides, {"budget": {"limit": "6e5tok"}}, speed=1e11, rows=10_000)


def _is_built_in(name: str, result: dict[str, Any]) -> None:
    """A study of today, or one that had these arms before."""
    assert f"crammed study {name}" in result["command"]
    for entry in result["arms"].values():
        recipe, *overrides = entry["words"]
        load_config(recipe, overrides, {"budget": {"limit": "6e5tok"}}, speed=1e11, rows=10_000)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A README and documents without tables: each takes its time."""
    for name in ("docs", "records", "benchmarks/results"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "README.md").write_text("")
    return tmp_path


@pytest.fixture
def first_runs(copy: Path) -> Path:
    """The same with a page that shows the oldest record."""
    shutil.copytree(ROOT / "records" / OLDEST, copy / "records" / OLDEST)
    page = (ROOT / "docs" / "records.md").read_text("utf-8")
    found = re.search(rf"<!-- records: {OLDEST} -->.*?<!-- end of records -->\n", page, re.DOTALL)
    assert found is not None
    (copy / "README.md").write_text(found[0], "utf-8")
    return copy


def test_a_page_that_names_no_result_is_refused(copy: Path) -> None:
    page = copy / "docs" / "any.md"
    page.write_text("<!-- finetune: gone.json -->\n<!-- end of finetune -->\n", "utf-8")
    assert "a page names gone.json" in _tables(copy, check=True)


HALF = 500_000
"""Tokens of a run."""


def test_a_page_shows_a_study(copy: Path) -> None:
    runs: dict[str, Any] = {
        arm: {"words": [],
              "runs": {str(n): {"loss@0.15": loss + n / 100, "loss@0.25": loss + 0.1,
                                "tokens": HALF, "seconds": 60.0} for n in range(2)}}
        for arm, loss in (("adamw", 4.0), ("muon", 3.5))
    }  # fmt: skip
    runs["broken"] = {"words": [], "runs": {"0": {"failed": "it crashed"}}}
    runs["later"] = {"words": [], "runs": {}}
    study = {"budget": "5e5tok", "baseline": "adamw", "arms": runs}
    folder = copy / "records" / "any"
    folder.mkdir()
    made = {"environment": {"cores": 2, "commit": "abc"}}
    (folder / "study.json").write_text(json.dumps({**study, **made}), "utf-8")
    page = copy / "docs" / "any.md"
    page.write_text("<!-- study: any -->\n<!-- end of study -->\n", "utf-8")
    assert not _tables(copy)
    text = page.read_text("utf-8")
    assert text.index("| muon | 2 | 3.505 ± 0.007 |") < text.index("| adamw | 2 | 4.005 ± 0.007 |")
    assert "| -0.500 (-0.5" in text
    assert "| broken | 0 | it crashed |" in text
    assert "| later | 0 | not run |" in text


def test_arms_with_other_vocabularies_are_shown_in_bits_per_character(copy: Path) -> None:
    arms = {
        arm: {"corpus": arm, "words": [],
              "runs": {str(n): {"loss@0.15": loss, "loss@0.25": loss, "tokens": HALF,
                                "bits_per_character@0.15": bits + n / 100, "seconds": 60.0,
                                "bits_per_character@0.25": bits + 0.1} for n in range(2)}}
        for arm, loss, bits in (("large", 4.0, 2.0), ("small", 3.0, 2.5))
    }  # fmt: skip
    study = {"budget": "5e5tok", "baseline": "large", "arms": arms}
    made = {"environment": {"cores": 2, "commit": "abc"}}
    write_json(copy / "records" / "any" / "study.json", {**study, **made})
    page = copy / "docs" / "any.md"
    page.write_text("<!-- study: any -->\n<!-- end of study -->\n", "utf-8")
    assert not _tables(copy)
    head, _, first, second = page.read_text("utf-8").splitlines()[1:5]
    assert "| bits per character at 15 % masking | at 25 % masking |" in head
    assert first.startswith("| large | 2 | 2.005 ± 0.007 | 2.100 ± 0.000 |")
    assert second.startswith("| small | 2 | 2.505 ± 0.007 | 2.600 ± 0.000 | +0.500 (")


def test_scores_of_runs_have_columns_beside_their_twins(copy: Path) -> None:
    def runs(arm: str, blimp: float) -> dict[str, Any]:
        run = {"loss@0.15": 4.0, "loss@0.25": 4.1, "tokens": HALF, "seconds": 60.0}
        scores = {"glue.cola@bert-base": 20.0, "untrained.glue.cola@bert-base": 5.0}
        judged = {"scores": {"blimp": blimp, **(scores if arm == "plain" else {})}}
        return {str(n): {**run, **judged} for n in range(2)}

    arms = {
        arm: {"words": [], "runs": runs(arm, blimp)}
        for arm, blimp in (("plain", 60.0), ("other", 55.0))
    }
    made = {"environment": {"cores": 2, "commit": "abc"}, "budget": "5e5tok"}
    write_json(copy / "records" / "any" / "study.json", {"baseline": "plain", "arms": arms, **made})
    page = copy / "docs" / "any.md"
    page.write_text("<!-- study: any -->\n<!-- end of study -->\n", "utf-8")
    assert not _tables(copy)
    head, _, *lines = page.read_text("utf-8").splitlines()[1:5]
    assert head.endswith("| p | BLiMP | CoLA by bert-base (untrained) | tokens |")
    plain, other = sorted(lines, reverse=True)
    assert plain.endswith("| 60.0 ± 0.0 | 20.0 ± 0.0 (5.0) | 500 k |")
    assert other.endswith("| 55.0 ± 0.0 |  | 500 k |")


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw less for intervals and p-values of laws, where a test looks at the page alone."""
    monkeypatch.setattr(scaling, "DRAWS", 20)
    monkeypatch.setattr(scaling, "SHUFFLES", 199)


def _made(root: Path, date: str, loss: float, seeds: int = 3) -> Path:
    """The record of a study with two budgets, in which `bert.one` ends 0.1 above the baseline."""
    arms = {}
    for label, flops in (("x1", 1e13), ("x2", 2e13)):
        for number, arm in enumerate(("gated.one", "bert.one", "bert.half")):
            one = loss - 0.2 * (label == "x2") + 0.1 * number + 2.0 * (arm == "bert.half")
            runs = {
                str(n): {"loss@0.15": one + n / 100, "loss@0.25": one, "tokens": HALF,
                         "seconds": 60.0, "parameters": 10, "exaflop": flops / 1e18}
                for n in range(seeds)
            }  # fmt: skip
            arms[f"{arm}@{label}"] = {"words": ["crammed-2022"], "runs": runs}
    values = {"budget": "1e13flop", "budgets": {"x1": "1e13flop", "x2": "2e13flop"}}
    made = {"environment": {"cores": 2, "commit": "abc"}, "baseline": "gated.one@x1"}
    folder = root / "records" / f"{date}-study-scaling"
    folder.mkdir()
    write_json(folder / "study.json", {**values, **made, "arms": arms, "unigram": loss + 2.0})
    marker = f"<!-- experiment: {folder.name} -->\n<!-- end of experiment -->\n"
    said = f"- **The paper:** type\n  hardly matters.\n- **Ours:** {date}.\n\n"
    (folder / "README.md").write_text(said + marker, "utf-8")
    return folder


@pytest.mark.usefixtures("few_draws")
def test_a_record_shows_what_its_study_found_at_each_budget(copy: Path) -> None:
    folder = _made(copy, "2000-01-02", 4.0)
    assert not _tables(copy)
    lines = (folder / "README.md").read_text("utf-8").splitlines()
    assert "With x2, 20 TFLOP:" in lines
    assert "Worse than `gated.one`: `bert.one` (+0.100), `bert.half` (+2.200)." in lines
    assert "![Differences from gated.one](differences-x2.svg)" in lines
    drawn = ElementTree.fromstring((folder / "differences-x2.svg").read_text("utf-8"))
    assert {"bert.one", "gated.one", "+0.100"} <= set(drawn.itertext())
    assert any(line.startswith("| gated.one | 3 | 3.810 ± 0.010 |") for line in lines)
    assert any(line.startswith("- gated: loss ") for line in lines)
    assert any(line.startswith("- types differ: ") for line in lines)
    assert not _tables(copy, check=True)
    (folder / "differences-x2.svg").unlink()
    assert "differences-x2.svg" in _tables(copy, check=True)


@pytest.mark.usefixtures("few_draws")
def test_the_page_of_experiments_has_a_line_for_the_latest_record_of_each(copy: Path) -> None:
    page = copy / "docs" / "any.md"
    page.write_text("<!-- experiments: scaling -->\n<!-- end of experiments -->\n", "utf-8")
    assert not _tables(copy)
    assert page.read_text("utf-8").splitlines()[3].endswith("|  |  | Not measured yet. |")
    _made(copy, "2000-01-01", 4.0, seeds=1)
    assert not _tables(copy)
    assert (
        page.read_text("utf-8")
        .splitlines()[3]
        .endswith("| one seed: no difference can be told from chance |")
    )
    _made(copy, "2000-01-02", 4.0)
    assert not _tables(copy)
    (line,) = page.read_text("utf-8").splitlines()[3:-1]
    assert line.startswith("| [scaling](../records/2000-01-02-study-scaling/README.md) | Types and")
    assert "| type hardly matters. | 2000-01-02. |" in line
    assert line.endswith("| 1 worse, 1 still on the plateau, so not comparable |")


def test_every_built_in_study_has_its_line_on_the_page_of_experiments() -> None:
    page = (ROOT / "docs" / "experiments.md").read_text("utf-8")
    (named,) = re.findall(r"<!-- experiments: (.*) -->", page)
    assert sorted(named.split()) == study_names()


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_the_page_of_every_study_shows_its_table(folder: Path) -> None:
    page = (folder / "README.md").read_text("utf-8")
    markers = ("study", "experiment", "documents")
    assert any(f"<!-- {marker}: {folder.name} -->" in page for marker in markers)


def test_a_study_keeps_what_its_runs_score_on_documents_by_themselves(copy: Path) -> None:
    losses = {"row": (4.0, 4.1), "document": (4.2, 3.9)}  # in packed rows, by themselves
    arms: dict[str, Any] = {
        arm: {"words": [arm], "runs": {str(n): {"loss@0.15": rows + n / 100, "loss@0.25": 5.0,
                                                "tokens": HALF, "seconds": 60.0} for n in range(2)}}
        for arm, (rows, _) in losses.items()
    }  # fmt: skip
    made = {"environment": {"cores": 1, "commit": "abc"}, "budget": "5e5tok", "baseline": "row"}
    for arm, (_, alone) in losses.items():
        for seed in range(2):
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
    assert first.startswith("| document | 2 | 3.905 ± 0.007 | -0.200 (")
    assert second == "| row | 2 | 4.105 ± 0.007 |  |  | 4.005 ± 0.007 |  |  |"


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


def test_runs_are_shown_by_position_in_the_row(copy: Path) -> None:
    record = copy / "records" / "any"
    record.mkdir()
    for length in (512, 64):
        found = {"length": length, "loss@0.15": 4.25, "by_position@0.15": [4.5, *[4.0] * 7]}
        run = {"summary": {"tokens": 2e6}, "scores": {"suites": {"heldout": found}}}
        write_json(record / f"rows-{length:04d}.json", run)
    page = copy / "docs" / "any.md"
    page.write_text("<!-- positions: any -->\n<!-- end of positions -->\n", "utf-8")
    assert not _tables(copy)
    lines = page.read_text("utf-8").splitlines()
    assert lines[3] == "| 64 | 2 M | 4.250 | 4.500 |" + 7 * " 4.000 |"
    assert lines[4].startswith("| 512 | ")
    assert {line.count("|") for line in lines[1:-1]} == {12}


def test_a_run_evaluated_by_two_protocols_keeps_the_scores_of_both(
    copy: Path, corpus: Corpus, cpu: Device
) -> None:
    config = tiny("crammed", budget={"limit": "2updates"})
    with RunDir.open(copy / "run", config) as run:
        train_and_export(run, corpus, cpu, SILENT)
    values = {"metric": "accuracy", "seeds": [60.0], "median": 60.0, "official": True}
    for folder, suite in (("evaluation", "glue"), ("evaluation-superglue", "superglue")):
        (copy / "run" / folder).mkdir()
        scores = {"schema": 2, "suites": {suite: {"tasks": {f"{suite}-task": values}}}}
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
    assert "glue-task 60.0, one seed; superglue-task 60.0, one seed" in text
    assert str(copy) not in (record / "run.json").read_text("utf-8")  # data by name and hash


def test_tables_are_current() -> None:
    assert not _tables(ROOT, check=True)


def test_a_changed_number_is_noticed_and_put_right(first_runs: Path) -> None:
    readme = first_runs / "README.md"
    right = readme.read_text("utf-8")
    number = re.findall(r"\d\.\d{3} \(", right)[-1]
    readme.write_text(right.replace(number, "0.001 ("), "utf-8")
    assert "README.md" in _tables(first_runs, check=True)
    assert not _tables(first_runs)
    assert readme.read_text("utf-8") == right


def test_records_of_today_read_like_those_of_old(first_runs: Path) -> None:
    (file,) = (first_runs / "records").glob("*/demo.json")
    record = json.loads(file.read_text("utf-8"))
    old = record["scores"]
    record["scores"] = {"schema": 2, "suites": {"docs": {"tasks": old["tasks"], "means": []}}}
    file.write_text(json.dumps(record), "utf-8")
    before = (first_runs / "README.md").read_text("utf-8")
    assert not _tables(first_runs)
    assert (first_runs / "README.md").read_text("utf-8") == before

    tasks = record["scores"]["suites"]["docs"]["tasks"]
    tasks["docs-order"] = {"metric": "accuracy", "failed": "no data"}
    tasks["docs-package"] = {**tasks["docs-package"], "seeds": [50.0], "median": 50.0}
    tasks["docs-package"] |= {"official": False, "untrained": {"failed": "constant"}}
    record["scores"]["suites"]["blimp"] = {"blimp": 61.25, "official": True}
    file.write_text(json.dumps(record), "utf-8")
    assert not _tables(first_runs)
    page = (first_runs / "README.md").read_text("utf-8")
    assert "docs-package 50.0, one seed, partial; docs-order failed; BLiMP 61.2" in page


def test_readme_names_what_exists() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    targets = re.findall(r"^make (\w+)", text, re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all(f"\n{target}:" in makefile for target in targets)
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (ROOT / link).exists(), link
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
    for verb, rest in commands:
        assert verb in verbs, verb
        shown = crammed(verb, "--help").stdout
        for option in re.findall(r"--[\w-]+", rest):
            assert option in shown, f"{verb} {option}"
