"""Three ways to an encoder, judged by one's own tasks: the command, its page, what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import yaml

import crammed
from crammed.data.corpus import Corpus
from crammed.doctor import TINY
from crammed.errors import InputError
from crammed.export.huggingface import export
from crammed.rules.recipe import parse_overrides
from support.adapting import save_family
from support.command import crammed as command
from support.models import untrained
from support.text import tiny, write_rows

SMALL = [*TINY, "compute.workers=1", "compute.dtype=float32"]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A suite of one's own, whose label says which of two words a text contains."""
    folder = tmp_path / "tasks"
    rows = [{"text": f"the {('boat', 'fox')[n % 2]} number {n}", "label": n % 2} for n in range(96)]
    for split, part in (("train", rows[:48]), ("validation", rows[48:])):
        write_rows(folder / f"{split}.jsonl", part)
    scored = "{animals: validation, hard: test}"  # there is no split of the second
    (tmp_path / "mine.yaml").write_text(
        f"tasks: {{animals: {{text: text, metric: accuracy, scored: {scored}}}}}\n"
    )
    (tmp_path / "quick.yaml").write_text("{seeds: 2, epochs: 1, batch: 8, max_length: 32}\n")
    return folder


def test_all_three_are_trained_scored_and_shown(
    tmp_path: Path, tasks: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_family(tmp_path / "encoder", "bert")
    words: list[str | Path] = ["decide", "encoder", *SMALL, "--data", text_file]
    words += ["--suite", "mine.yaml", "--tasks-data", tasks, "--protocol", "quick.yaml"]
    words += ["--task-adaptive", "--budget", "4updates", "--out", "out"]
    words += ["--device", "cpu", "--json"]
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ways = found["scores"]["animals"]["ways"]
    assert set(ways) >= {"as it is", "adapted", "from scratch"}
    assert found["decision"] in found["scores"]["animals"]["level"]
    assert (tmp_path / "out/from-scratch/summary.json").exists()
    for way in ("from-scratch", "adapted"):
        config = json.loads((tmp_path / "out" / way / "config.json").read_text())
        assert config["compute"]["device"] == "cpu"
        assert (tmp_path / "out/evaluations" / f"{way}-quick/scores.json").exists()
    adapted = json.loads((tmp_path / "out/adapted/summary.json").read_text())
    assert "adapted from encoder" in adapted["outside_rules"]
    scratch, other = (
        json.loads((tmp_path / "out" / way / "config.json").read_text())["data"]["sources"]
        for way in ("from-scratch", "adapted")
    )
    assert other == [*scratch, {**scratch[0], "path": str(tasks), "suite": f"{tmp_path}/mine.yaml"}]
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert 'href="from-scratch/report.html"' in page
    assert f"{ways['adapted']['score']:.1f}" in page

    again = command(*words[:-1], cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "animals" in again.stdout
    assert "report    out/report.html" in again.stdout
    assert again.stderr.count("pretraining  finished earlier") == 2

    monkeypatch.chdir(tmp_path)
    repeat = partial(
        crammed.decide,
        "encoder",
        overrides=SMALL,
        data=text_file,
        suite="mine.yaml",
        tasks_data=tasks,
        protocol="quick.yaml",
        task_adaptive=True,
        budget="4updates",
        out="out",
        device="cpu",
    )
    made = repeat()
    assert made.result == found
    assert "animals" in made._repr_html_()

    (tmp_path / "quick.yaml").write_text("{seeds: 2, epochs: 3, batch: 8, max_length: 32}\n")
    with pytest.raises(
        InputError, match=r"epochs 1 there, 3 here\): save a changed protocol under"
    ):
        repeat()


def test_faults_are_found_before_anything_is_trained(
    tmp_path: Path, tasks: Path, text_file: Path
) -> None:
    save_family(tmp_path / "encoder", "bert")
    (tasks / "train.jsonl").write_text('{"text": "no label"}\n' * 9)
    words: list[str | Path] = ["decide", "encoder", *SMALL, "--data", text_file, "--out", "out"]
    words += ["--tasks-data", tasks, "--budget", "4updates"]
    for suite, said in (
        (["mine.yaml"], "task animals: "),
        (["mine.yaml", "data.text_field=body"], "no field 'body'"),
        (["blimp"], "nothing is fine-tuned on blimp: "),
        (["mine.yaml", "--task-adaptive", "--tasks", "animals"], "leave out --tasks"),
    ):
        done = command(*words, "--suite", *suite, cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "out").exists()


def test_a_task_without_its_training_split_is_refused_before_anything_is_trained(
    tmp_path: Path, tasks: Path, text_file: Path
) -> None:
    save_family(tmp_path / "encoder", "bert")
    (tmp_path / "data").mkdir()
    tasks.rename(tmp_path / "data" / "animals")
    write_rows(tmp_path / "data" / "plants" / "training.jsonl", [{"text": "a", "label": 0}])
    task = "{text: text, metric: accuracy}"
    (tmp_path / "two.yaml").write_text(f"tasks: {{animals: {task}, plants: {task}}}\n")
    words: list[str | Path] = ["decide", "encoder", *SMALL, "--data", text_file, "--out", "out"]
    words += ["--suite", "two.yaml", "--tasks-data", "data", "--budget", "4updates"]
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "task plants: data/plants has no train split, as" in done.stderr
    assert not (tmp_path / "out").exists()


def test_our_own_code_needs_no_trust_and_whole_sections_are_for_both_runs(
    tmp_path: Path, tasks: Path, text_file: Path, corpus: Corpus
) -> None:
    shape, out = tiny("crammed-2022").model, tmp_path / "out"
    made = crammed.decide(
        export(untrained(corpus.tokenizer, shape), tmp_path / "ours", "custom").path,
        overrides={
            **parse_overrides(SMALL),
            "batch": {"rows": 4},
            "budget": {"limit": "4updates", "most_epochs": None},
            "train.divergence.then": "lower",
        },
        data=text_file,
        suite=tmp_path / "mine.yaml",
        tasks_data=tasks,
        protocol=tmp_path / "quick.yaml",
        out=out,
        device="cpu",
    )
    assert set(made.scores["animals"]["ways"]) >= {"as it is", "adapted", "from scratch"}
    for way in ("from-scratch", "adapted"):
        config = json.loads((out / way / "config.json").read_text())
        assert config["batch"]["rows"] == 4
        assert config["budget"]["limit"] == "4updates"
        assert config["train"]["divergence"]["then"] == "lower"


@pytest.mark.parametrize(("budget", "rows"), [("31tok", "1 row"), ("33tok", r"\d\d rows")])
def test_a_budget_below_one_update_of_either_model_is_refused_before_anything_starts(
    tmp_path: Path,
    tasks: Path,
    text_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    budget: str,
    rows: str,
) -> None:
    """The recipe has updates of one row, and those that adapt a model are larger."""
    monkeypatch.setattr("crammed.deciding.run_everything", lambda *_: pytest.fail("it starts"))
    values = {**parse_overrides(SMALL), "batch": {"rows": 1}}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({"extends": "crammed", **values}))
    with pytest.raises(InputError, match=f"ends before one update of {rows} is done"):
        crammed.decide(
            save_family(tmp_path / "encoder", "bert"),
            str(tmp_path / "one.yaml"),
            data=text_file,
            suite=tmp_path / "mine.yaml",
            tasks_data=tasks,
            budget=budget,
            out=tmp_path / "out",
            device="cpu",
        )
    assert not (tmp_path / "out").exists()
