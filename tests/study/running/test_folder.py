"""The folder of a study: other studies in it, another process, places that cannot be written to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.cli import studies
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError, TaskFailed
from crammed.files.locks import FolderLock
from crammed.files.writing import write_json
from crammed.rules.recipe import load_config
from crammed.runs.directory import RunDir
from crammed.study.result import Run, read_result
from crammed.study.running import folder
from crammed.study.running.preparing import planned_corpora
from crammed.study.running.request import Request, run
from crammed.study.running.runner import run_study
from crammed.study.spec.arms import Study, load_study
from crammed.study.spec.corpora import Corpora
from crammed.terminal.progress import SILENT
from support.study import SUMMARY, run_of, write_study
from support.text import MODEL, documents

BUDGET = Budget.parse("6updates")
ARMS: dict[str, list[str]] = {"plain": [], "muon": ["optim.weight_decay=0.5"]}
MORE = {**ARMS, "small": ["model.layers=1"]}


def study(tmp_path: Path, corpus: Corpus, arms: Any = ARMS, budget: Budget = BUDGET) -> Study:
    return load_study(write_study(tmp_path, arms), corpus, budget)


@pytest.fixture
def out(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished study with two seeds, whose runs took no training."""

    def train(run: Any, *_: Any) -> Run:
        config = folder.config_of(all_arms, run.arm, Corpora(corpus), BUDGET)
        with RunDir.open(run.folder, config.model_copy(update={"seed": run.seed})):
            write_json(run.folder / "summary.json", {})
        return run_of(4.0 + run.seed)

    all_arms = study(tmp_path, corpus, MORE)
    monkeypatch.setattr("crammed.study.running.runner._train", train)
    run_study(study(tmp_path, corpus), corpus, BUDGET, 2, tmp_path / "out", 1, SILENT)
    return tmp_path / "out"


def content(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def changed(out: Path, corpus: Corpus, budget: str = BUDGET.text, arms: Any = ARMS) -> None:
    other = Budget.parse(budget)
    planned = study(out.parent, corpus, arms, other)
    run_study(planned, corpus, other, 2, out, 1, SILENT)


@pytest.mark.parametrize("gone", ["", "study.json", "plain-0 plain-1 muon-0 muon-1"])
def test_another_study_leaves_the_folder_as_it_is(
    out: Path, corpus: Corpus, make_corpus: Callable[..., Corpus], gone: str
) -> None:
    for name in gone.split():  # as after a kill before the first result, or to save space
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
    before = content(out)
    with pytest.raises(InputError, match=r"6updates there, 7updates here\): choose another --out"):
        changed(out, corpus, budget="7updates")
    rate = {"plain": [], "muon": ["optim.name=muon", "optim.lr=0.25"]}
    with pytest.raises(InputError, match=r"another study \(arm muon, .*optim\.lr.*0\.25"):
        changed(out, corpus, arms=rate)
    with pytest.raises(InputError, match="another corpus"):
        changed(out, make_corpus(documents(200)))
    assert content(out) == before


def test_arms_and_seeds_can_be_added_and_left_out(
    tmp_path: Path, out: Path, corpus: Corpus
) -> None:
    both = study(tmp_path, corpus)
    more = study(tmp_path, corpus, MORE)
    result = run_study(more, corpus, BUDGET, 3, out, 1, SILENT)
    assert {arm: sorted(each.runs) for arm, each in result.arms.items()} == {
        arm: ["0", "1", "2"] for arm in ("plain", "muon", "small")
    }
    assert run_study(both, corpus, BUDGET, 1, out, 1, SILENT).arms == result.arms


@pytest.mark.parametrize(("there", "here"), [({}, {}), ({}, {"x1": 1}), ({"x1": 1}, {"x1": 1})])
def test_a_study_with_another_baseline_is_another(
    tmp_path: Path, call: Callable[..., Any], there: Any, here: Any
) -> None:
    call({"decay": ["optim.weight_decay=0.5"]}, budgets=there)
    before = content(tmp_path / "out")
    theirs = {"clipped": ["optim.clip=1"], "sharp": ["optim.clip=2"]}
    with pytest.raises(InputError, match=r"another study \(its baseline plain is no arm here\)"):
        call(theirs, baseline="clipped", budgets=here)
    assert content(tmp_path / "out") == before
    call({**theirs, "plain": []}, baseline="clipped", budgets=here)


def test_an_arm_that_never_began_may_change(
    tmp_path: Path, out: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, wrong = study(tmp_path, corpus), {**ARMS, "small": ["model.layers=3"]}
    with monkeypatch.context() as patch:
        patch.setattr("crammed.study.running.runner._train", lambda *_: Run(failed="no memory"))
        failed = run_study(study(tmp_path, corpus, wrong), corpus, BUDGET, 2, out, 1, SILENT)
    assert failed.arms["small"].runs["0"] == Run(failed="no memory")
    right = study(tmp_path, corpus, MORE)
    result = run_study(right, corpus, BUDGET, 2, out, 1, SILENT)
    assert not result.failed_runs()
    assert set(run_study(both, corpus, BUDGET, 2, out, 1, SILENT).arms) == {*ARMS, "small"}


BASE = ["crammed", *MODEL, "batch.rows=8"]


@pytest.fixture
def call(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a study whose runs take no training; returns the command that each was given."""

    def train(run: Any, command: list[str], *_: Any) -> Run:
        given[f"{run.arm}-{run.seed}"] = command
        recipe, *words = command[3 : command.index("--corpus")]
        budget = Budget.parse(command[command.index("--budget") + 1])
        fixed = {**corpus.settings(), "budget": {"limit": budget}, "seed": run.seed}
        with RunDir.open(run.folder, load_config(recipe, words, fixed, rows=corpus.rows)):
            write_json(run.folder / "summary.json", {})
        return run_of()

    def call(
        arms: Any, seeds: int = 1, base: Any = BASE, budget: str = "6updates", **values: Any
    ) -> dict[str, list[str]]:
        given.clear()
        arms = arms if "baseline" in values else {"plain": [], **arms}
        file = write_study(tmp_path, arms, base, **values)
        out = tmp_path / "out"
        run(Request(file, [], corpus.path, [], Budget.parse(budget), seeds, out, 1), SILENT)
        return given

    given: dict[str, list[str]] = {}
    monkeypatch.setattr("crammed.study.running.runner._train", train)
    return call


@pytest.mark.parametrize("budgets", [{}, {"x1": 1, "x2": 2}])
@pytest.mark.parametrize(
    "now",
    [
        {"other": []},
        {"other": ["optim.lr=1e-3"]},
        {"other": ["optim.weight_decay=0.5"]},
        {"other": ["optim.name=muon"]},  # the recipe's own
    ],
)
def test_an_arm_that_has_begun_is_not_edited_into_another(
    tmp_path: Path, call: Callable[..., Any], budgets: Any, now: Any
) -> None:
    base = [*BASE, "optim.lr=1e-3"]
    arms = {"decay": ["optim.weight_decay=0.5"], "other": ["optim.lr=2e-3", "optim.beta1=0.8"]}
    call(arms, base=base, budgets=budgets)
    before = content(tmp_path / "out")
    message = r"\(arm other(@x.)? began with other settings, and is the same .*\): restore it, or"
    with pytest.raises(InputError, match=message):
        call({**arms, **now}, base=base, budgets=budgets)
    assert content(tmp_path / "out") == before
    assert not call(arms, base=base, budgets=budgets)


@pytest.mark.parametrize("baseline", [[], ["optim.weight_decay=0.01"]])
def test_an_arm_that_a_changed_recipe_makes_the_same_stays_as_it_began(
    tmp_path: Path, call: Callable[..., Any], baseline: list[str]
) -> None:
    recipe = tmp_path / "mine.yaml"
    arms = {"plain": baseline, "other": [] if baseline else ["optim.weight_decay=0.01"]}
    recipe.write_text("extends: crammed\noptim: {weight_decay: 0.02}\n")
    call(arms, base=[str(recipe), *MODEL], baseline="plain")
    recipe.write_text("extends: crammed\n")
    assert not call(arms, base=[str(recipe), *MODEL], baseline="plain")
    assert {*read_result(tmp_path / "out").arms} == {"plain", "other"}


def test_a_value_of_the_base_that_an_arm_multiplies_is_no_other_study(
    call: Callable[..., Any],
) -> None:
    half = {"half": ["batch.rows*=0.5"]}
    assert "batch.rows=4" in call(half)["half-0"]
    assert "batch.rows=4" in call(half, 2)["half-1"]
    call({"half": ["batch.rows=4"]}, 2)  # which is the same
    with pytest.raises(InputError, match=r"arm half, batch\.rows: 4 there, 2 here"):
        call({"half": ["batch.rows*=0.25"]}, 3)


def test_a_multiplied_value_stays_where_the_base_is_chosen_anew(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    half = {"half": ["batch.rows*=0.5"]}
    base = ["crammed", *(word for word in MODEL if not word.startswith("batch."))]
    (rows,) = (word for word in call(half, base=base)["half-0"] if word.startswith("batch.rows="))
    monkeypatch.setattr("crammed.rules.sizing.SMALLEST_BATCH", 1024)
    monkeypatch.setattr(RunConfig, "identity", lambda _: "of another version")
    assert rows in call(half, 2, base)["half-1"]


def test_a_choice_that_the_folder_holds_damaged_is_named(
    tmp_path: Path, call: Callable[..., Any]
) -> None:
    base = ["crammed", *(word for word in MODEL if not word.startswith("batch."))]
    call({"decay": ["optim.weight_decay=0.5"]}, base=base)
    file = tmp_path / "out" / "study.json"
    kept = json.loads(file.read_text())
    kept["chosen"][""]["values"]["batch.rows"] = "many"
    file.write_text(json.dumps(kept))
    with pytest.raises(InputError, match=r"study\.json does not hold the results of a study"):
        call({"decay": ["optim.weight_decay=0.5"]}, base=base)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ({"x1": 1, "x2": 4}, r"budgets\.x2: 12updates there, 24updates here"),
        ({"x1": 1}, r"budgets\.x2: 12updates there, none here"),
        ({}, r"budgets\.x1: 6updates there, none here"),
    ],
)
def test_what_has_begun_keeps_its_budgets(
    tmp_path: Path, call: Callable[..., Any], budgets: Any, message: str, finished: bool
) -> None:
    arms = {"decay": ["optim.weight_decay=0.5"]}
    call(arms, budgets={"x1": 1, "x2": 2})
    if not finished:  # as if killed before the first result
        kept = read_result(tmp_path / "out")
        for arm in kept.arms.values():
            arm.runs.clear()
        write_json(tmp_path / "out" / "study.json", kept.values())
    with pytest.raises(InputError, match=rf"another study \({message}\)"):
        call(arms, 2, budgets=budgets)
    assert "plain@x4-0" in call(arms, budgets={"x4": 4, "x2": 2, "x1": 1})


@pytest.mark.parametrize("budgets", [{}, {"x1": 1, "x2": 2}])
def test_the_same_budget_may_be_written_otherwise(call: Callable[..., Any], budgets: Any) -> None:
    arms = {"decay": ["optim.weight_decay=0.5"]}
    first = call(arms, budget="1e9flop", budgets=budgets).copy()
    again = call(arms, 2, budget="1000000000flops", budgets=budgets)
    assert len(first) == len(again)


def test_a_second_study_in_the_folder_is_refused(tmp_path: Path, out: Path, corpus: Corpus) -> None:
    both = study(tmp_path, corpus)
    before = content(out)
    with FolderLock(out), pytest.raises(InputError, match="out is in use by another process"):
        run_study(both, corpus, BUDGET, 2, out, 1, SILENT)
    assert content(out) == before


@pytest.mark.parametrize("file", ["config.json", "evaluation.json", "manifest.json"])
def test_a_folder_of_another_kind_stays_as_it_is(tmp_path: Path, corpus: Corpus, file: str) -> None:
    planned, out = study(tmp_path, corpus), tmp_path / "run"
    write_json(out / file, {})
    (out / "report.html").write_text("kept")
    before = content(out)
    with pytest.raises(
        InputError, match=f"run is not the folder of a study .*{file}.*choose another"
    ):
        run_study(planned, corpus, BUDGET, 1, out, 1, SILENT)
    with pytest.raises(InputError, match="is not the folder of a study"):
        planned_corpora(planned, ["text.jsonl"], BUDGET, out)
    assert content(out) == before


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_in_the_way_is_one_line(tmp_path: Path, corpus: Corpus, place: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InputError, match=r"cannot write .*choose another place"):
        run_study(study(tmp_path, corpus), corpus, BUDGET, 1, tmp_path / place, 1, SILENT)
    assert (tmp_path / "file").read_text() == "kept"


def entry(seed: Any = "0", words: Any = ("crammed",), **more: Any) -> dict[str, Any]:
    run = {**run_of().values(), **more}
    return {"arms": {"plain": {"words": words, "runs": {seed: run}}}}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"arms": {"plain": {}}},
        entry("first"),
        entry(words="crammed"),
        entry(seconds=None),
        entry(scores=[60.0]),
        entry(scores={"blimp": "good"}),
        entry(unscored={"blimp": 3}),
        entry("0", ["crammed"], **{"loss@0.15": "4.0"}),
        entry("0", ["crammed"], **{"loss@0.15": float("nan")}),
        {**entry(), "chosen": []},
        {**entry(), "judges": 3},
        {**entry(), "budgets": ["x1"]},
    ],
)
def test_a_file_that_is_no_study_is_refused(tmp_path: Path, corpus: Corpus, values: Any) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "study.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"study\.json is damaged: .*; restore it from a copy$"):
        run_study(study(tmp_path, corpus), corpus, BUDGET, 1, tmp_path / "out", 1, SILENT)


def test_reasons_of_failures_are_below_the_table(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    reason = "a batch of 65536 rows is more than the corpus has [x]: " + "long " * 60 + "end"

    def train(run: Any, *_: Any) -> Run:
        return Run(failed=reason) if run.arm == "muon" else run_of()

    monkeypatch.setattr("crammed.study.running.runner._train", train)
    file = write_study(tmp_path, ARMS)
    with pytest.raises(TaskFailed, match="runs failed: muon, seed 0; muon, seed 1; the reasons"):
        studies.study(file, None, corpus.path, BUDGET, 2, tmp_path / "out", 1, False)
    table, _, below = capsys.readouterr().out.partition("\n\nmuon, seed 0 failed: ")
    page = f"page  {tmp_path / 'out' / 'report.html'}"
    assert below.splitlines() == [reason, f"muon, seed 1 failed: {reason}", page]
    rows, _, words = table.partition("\n\n")
    assert [line.split() for line in rows.splitlines()][-1] == ["muon", "0", "failed"]
    assert max(map(len, rows.splitlines())) < 120
    assert "could have seen" not in words


def test_a_study_ends_with_its_page(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("crammed.study.running.runner._train", lambda *_: run_of())
    file = write_study(tmp_path, ARMS)
    studies.study(file, None, corpus.path, BUDGET, 1, tmp_path / "o ut", 1, False)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"page  {tmp_path}/o ut/report.html"
    assert "<h1>o ut</h1>" in (tmp_path / "o ut" / "report.html").read_text("utf-8")


def test_a_result_without_a_configuration_is_not_adopted(out: Path, corpus: Corpus) -> None:
    found = read_result(out)
    found.arms["muon"].runs.clear()  # as if killed before their results were noted
    write_json(out / "study.json", found.values())
    for seed in (0, 1):
        write_json(out / f"muon-{seed}" / "summary.json", SUMMARY)
    (out / "muon-1" / "config.json").unlink()
    arms = folder.begun_arms(study(out.parent, corpus), 2, out, ())
    assert [*arms["muon"].runs] == ["0"]
    assert [*arms["plain"].runs] == ["0", "1"]
