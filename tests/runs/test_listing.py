"""`crammed runs`: every run below a folder in one line, whatever state it is in."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from crammed.cli.machine import runs
from crammed.errors import InputError
from crammed.files.locks import FolderLock, is_locked
from crammed.runs.listing import Listed, list_runs

FIXTURES = Path(__file__).parents[1] / "fixtures" / "2026-11-21"


def copied(name: str, to: Path) -> Path:
    """A run without what makes copying it slow."""
    heavy = shutil.ignore_patterns("corpus", "export", "checkpoints", "final", "predictions")
    shutil.copytree(FIXTURES / name, to, ignore=heavy)
    return to


def one(folder: Path) -> Listed:
    (found,) = list_runs(folder)
    return found


def test_runs_of_every_state_are_found_below_a_folder(tmp_path: Path) -> None:
    copied("finished", tmp_path / "deep" / "er" / "finished")
    copied("stopped", tmp_path / "stopped")
    copied("study", tmp_path / "study")
    shutil.copytree(FIXTURES / "finished" / "export", tmp_path / "exported")  # is no run
    found = {each.path: each for each in list_runs(tmp_path)}
    arms = [f"study/{arm}-{seed}" for arm in ("muon", "plain") for seed in (0, 1)]
    assert list(found) == ["deep/er/finished", "stopped", *arms]
    finished = found["deep/er/finished"]
    assert (finished.state, finished.state_text) == ("finished", "finished")
    assert (finished.recipe, finished.budget, finished.seed) == ("crammed", "300updates", 0)
    assert finished.heldout_loss == pytest.approx(4.122, abs=0.001)
    assert finished.scores_text == "mean of stsb, rte 26.5"
    evaluated = tmp_path / "deep" / "er" / "finished" / "evaluation"
    shutil.copytree(evaluated, evaluated.with_name("evaluation-mine"))
    both = "mean of stsb, rte 26.5; mean of stsb, rte by mine 26.5"
    assert one(tmp_path / "deep").scores_text == both
    stopped = found["stopped"]
    assert (stopped.state_text, stopped.heldout_loss) == ("stopped at 40 %", None)
    assert one(tmp_path / "stopped").path == str(tmp_path / "stopped")


def test_scores_of_the_same_name_are_named_after_their_suites(tmp_path: Path) -> None:
    run = copied("finished", tmp_path / "run")
    scores = {"glue": {"rte": 55.0, "cola": 20.0}, "superglue": {"rte": 71.0, "cb": 80.0}}
    suites = {
        suite: {"tasks": {name: {"median": value} for name, value in tasks.items()}}
        for suite, tasks in scores.items()
    }
    (run / "evaluation" / "scores.json").write_text(json.dumps({"suites": suites}))
    assert one(tmp_path).scores == {
        **{"glue.rte": 55.0, "cola": 20.0},
        **{"superglue.rte": 71.0, "cb": 80.0},
    }


def test_a_run_that_a_process_works_on_is_running(tmp_path: Path) -> None:
    run = copied("stopped", tmp_path / "run")
    assert not is_locked(run)
    with FolderLock(run):
        assert one(tmp_path).state_text == "running at 40 %"
    assert one(tmp_path).state_text == "stopped at 40 %"


def test_a_run_that_failed_says_why(tmp_path: Path) -> None:
    run = copied("stopped", tmp_path / "study" / "plain-0")
    failed = {"arms": {"plain": {"runs": {"0": {"failed": "does not fit into memory"}}}}}
    (tmp_path / "study" / "study.json").write_text(json.dumps(failed))
    assert one(tmp_path).problem == "does not fit into memory"
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "diverged", "reason": "the loss is not finite"}\n{"event": "cut')
    assert (one(tmp_path).state_text, one(tmp_path).problem) == (
        "failed at 40 %",
        "the loss is not finite",
    )
    with (run / "events.jsonl").open("a") as file:
        file.write('\n{"event": "back", "update": 300}\n')
    (tmp_path / "study" / "study.json").unlink()
    assert one(tmp_path).state == "stopped"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", "{"),
        ("summary.json", "{}"),
        ("config.json", "[]"),
        ("config.json", '{"recipe": "crammed", "seed": 0, "budget": 3}'),
        ("config.json", '{"recipe": "crammed", "seed": 1e999, "budget": {"limit": "1h"}}'),
        ("config.json", None),
        ("evaluation/scores.json", '{"suites": []}'),
        ("evaluation/scores.json", '{"suites": {"glue": {"means": [{"name": 1, "value": NaN}]}}}'),
        ("evaluation/scores.json", f'{{"suites": {{"blimp": {{"blimp": 1{"0" * 400}}}}}}}'),
    ],
)
def test_a_damaged_run_is_one_line(tmp_path: Path, name: str, content: str | None) -> None:
    run = copied("finished", tmp_path / "run")
    copied("stopped", tmp_path / "other")
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_text(content)
    other, damaged = list_runs(tmp_path)
    assert other.state == "stopped"
    assert damaged.state == "damaged"
    assert f"{name} is damaged" in (damaged.problem or "")


@pytest.mark.parametrize(
    "log", [b"", b"\xff\n", b'{"u": "half"}\n', b"[1]\n{", b'{"u": 1' + b"0" * 400 + b"}"]
)
def test_a_log_that_says_nothing_is_a_run_at_its_beginning(tmp_path: Path, log: bytes) -> None:
    run = copied("stopped", tmp_path / "run")
    (run / "metrics.jsonl").write_bytes(log)
    assert one(tmp_path).state_text == "stopped at 0 %"


def test_the_list_is_printed_for_people_and_for_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied("finished", tmp_path / "[bold]")
    copied("stopped", tmp_path / "stopped")
    (tmp_path / "stopped" / "config.json").write_text("{")
    runs(tmp_path)
    text = capsys.readouterr().out
    assert "[bold]" in text
    assert "4.122" in text
    assert "damaged: " in text
    assert text.splitlines()[-1] == f"2 runs below {tmp_path}"
    runs(tmp_path, as_json=True)
    listed = json.loads(capsys.readouterr().out)["runs"]
    assert [each["state"] for each in listed] == ["finished", "damaged"]
    assert listed[0]["heldout_loss"] == pytest.approx(4.122, abs=0.001)
    with pytest.raises(InputError, match="is not a folder"):
        list_runs(tmp_path / "nothing")


def test_names_do_not_act_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied("stopped", tmp_path / os.fsdecode(b"\x1b[2J\xff"))
    runs(tmp_path)
    text = capsys.readouterr().out
    assert "␛[2J� " in text
    assert "\x1b" not in text
