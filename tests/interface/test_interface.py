"""What commands do, called from Python."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import crammed
from crammed.config import RunConfig
from crammed.config.arguments import File, Seeds, checked
from crammed.data.corpus import Corpus
from crammed.doctor import TINY
from crammed.errors import InputError
from crammed.files.locks import is_locked
from crammed.interface import asking, training
from crammed.interface.asking import Tasks, configure, words_of
from crammed.interface.lines import table_html
from crammed.interface.results import Evaluation
from crammed.interface.turn import own_turn
from crammed.machine.device import Device
from crammed.rules.choosing import Asked, Chosen
from crammed.rules.recipe import parse_overrides
from crammed.rules.sizing import with_values
from crammed.runs.directory import RunDir, read_config
from crammed.terminal.quiet import quiet_transformers
from support.adapting import SMALL
from support.html import check_balanced
from support.pages import python_blocks
from support.scores import score
from support.tasks import write_task
from support.text import MODEL, documents, write_jsonl

VALUES: dict[str, Any] = {
    "optim.lr": 1e-5,
    "model.layers": np.int64(3),
    "budget.most_epochs": None,
    "data.sep": False,
    "tokenizer.file": Path("a b/ü.json"),
    "data.clean": {"languages": ["en", "no"]},
    "description": "yes: [a] # 1e3",
}


@pytest.mark.parametrize("turn", [own_turn, quiet_transformers])
def test_threads_take_turns(turn: Callable[[], AbstractContextManager[object]]) -> None:
    began = Event()

    def other() -> None:
        with turn():
            began.set()

    with turn():
        thread = Thread(target=other)
        thread.start()
        assert not began.wait(0.2)
    thread.join()
    assert began.is_set()


def test_runs_of_several_threads_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*words: Any, **values: Any) -> Any:
        found = configure(*words, **values)
        if current_thread() is other:
            other_has_looked.set()
        return found

    def work(asked: Asked, out: Path, *_: object) -> None:
        folders.append(out)
        if current_thread() is not other:
            other.start()
            assert not other_has_looked.wait(0.3)
        out.mkdir(parents=True)

    def train(seed: int) -> None:
        crammed.run(overrides=TINY, data=text, budget="3updates", seed=seed)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(asking, "configure", look)
    monkeypatch.setattr(training, "run_everything", work)
    text = write_jsonl(tmp_path / "text.jsonl", documents(3))
    folders: list[Path] = []
    other, other_has_looked = Thread(target=train, args=(1,)), Event()
    train(0)
    other.join()
    assert len({*folders}) == 2


def test_a_turn_leaves_the_random_numbers_of_the_program_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[int] = []  # of CUDA, which has not begun
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with own_turn():
        torch.manual_seed(8)
    assert torch.equal(torch.get_rng_state(), before)
    assert seeds == [8, 7]


def test_a_text_in_place_of_a_list_of_overrides_is_read_as_typed() -> None:
    assert words_of("optim.lr=1e-3 model.layers=2") == ["optim.lr=1e-3", "model.layers=2"]


def test_settings_of_a_corpus_may_be_said_again_but_not_otherwise(corpus: Corpus) -> None:
    def asked_with(word: str) -> None:
        configure("crammed", [word], {}, "1e6tok", corpus_dir=corpus.path)

    own = corpus.row_length
    asked_with(f"data.row_length={own}")
    asked_with("tokenizer={kind: wordpiece}")
    asked_with("data.clean.entities=null")  # its default, which manifests leave out
    for word, words in (
        (f"data.row_length={2 * own}", f"the corpus was prepared with data.row_length={own}"),
        ("tokenizer.kind=bpe", 'the corpus was prepared with tokenizer.kind="wordpiece"'),
        ("data.rowlength=8", "the corpus was not prepared with this setting"),
        ("data.clean={nothing: 1}", "the corpus was not prepared with this setting"),
    ):
        with pytest.raises(InputError, match=re.escape(f"{word}: {words}")):
            asked_with(word)


def test_values_reach_the_recipe_as_they_are() -> None:
    assert parse_overrides(words_of(VALUES)) == {
        "optim": {"lr": 1e-5},
        "model": {"layers": 3},
        "budget": {"most_epochs": None},
        "data": {"sep": False, "clean": {"languages": ["en", "no"]}},
        "tokenizer": {"file": "a b/ü.json"},
        "description": "yes: [a] # 1e3",
    }
    assert words_of(["a.b=1"]) == ["a.b=1"]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the page names, and a recipe of seconds."""
    folder = tmp_path_factory.mktemp("page")
    write_jsonl(folder / "my-text.jsonl", documents(600))
    write_task(folder / "glue_data", "rte", 40)
    values = parse_overrides([*TINY, "finetune.seeds=2", "finetune.epochs=1"])
    (folder / "tiny.yaml").write_text(yaml.safe_dump({"extends": "crammed", **values}))
    return folder


@pytest.fixture(scope="module")
def page(here: Path) -> Iterator[dict[str, Any]]:
    """What the page's names stand for at its end; tests/finetuned has its block on a classifier."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setattr("crammed.rules.recipe.DEFAULT", "tiny.yaml")
        torch.manual_seed(7)
        values: dict[str, Any] = {"random before": torch.get_rng_state()}
        for block in python_blocks():
            code = block.replace('"1h"', '"3updates"').replace('"crammed", {', '"tiny.yaml", {')
            if "classifier" not in code:
                exec(compile(code, "docs/python.md", "exec"), values)
        values["random after"] = torch.get_rng_state()
        yield values


def test_the_page_is_true(here: Path, page: dict[str, Any]) -> None:
    run, trial = page["run"], page["trial"]
    assert json.loads((here / "runs/mine/config.json").read_text())["budget"]["limit"] == "3updates"
    assert run.folder == here / "runs/mine"
    assert run.summary.updates == 3
    assert run.result["heldout_loss"] == run.summary.heldout["loss@0.15"]
    assert trial.folder == here / "runs/0.002"
    assert json.loads((here / "runs/0.002/config.json").read_text())["optim"]["lr"] == 2e-3
    assert [*page["losses"].columns] == ["update", "tokens", "loss"]
    assert page["losses"]["update"].iloc[-1] == 3
    assert page["measured"]["loss@0.15"].iloc[-1] == run.summary.heldout["loss@0.15"]
    rte = page["evaluation"].scores["rte"]
    assert len(rte["seeds"]) == 2
    assert rte["median"] == pytest.approx(np.median(rte["seeds"]))
    assert run.scores == page["evaluation"].scores
    assert page["kept"].scores["rte"]["median"] == run.scores["rte"]["median"]
    assert page["vectors"].shape[0] == 2


def test_the_page_leaves_the_random_numbers_of_the_program_alone(page: dict[str, Any]) -> None:
    assert torch.equal(page["random before"], page["random after"])


def test_results_and_errors_have_names(page: dict[str, Any]) -> None:
    kinds: dict[str, type] = {"run": crammed.Run, "corpus": crammed.Prepared}
    kinds |= {"evaluation": crammed.Evaluation, "kept": crammed.FineTuned, "model": crammed.Model}
    assert {name: type(page[name]) for name in kinds} == kinds
    code = "import crammed; crammed.errors.Interrupted"
    subprocess.run([sys.executable, "-c", code], check=True)  # nothing has imported it before


def test_results_are_found_from_another_folder(
    page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, corpus, kept = (page[name] for name in ("run", "corpus", "kept"))
    assert run.summary.updates == 3
    assert run.result["run_dir"] == "runs/mine"  # as it was named
    assert run.result["report"] == "runs/mine/report.html"
    assert dict(corpus.lines)["corpus"] == ["corpus"]
    for folder in (run.export, corpus.folder, page["evaluation"].folder, kept.folder, kept.model):
        assert folder.is_dir()


def test_a_notebook_shows_what_came_out(page: dict[str, Any]) -> None:
    for name, words in (
        ("run", ("held-out loss", "nats with 15 % masked", "<svg", "unigram model")),
        ("corpus", ("vocabulary", "my-text.jsonl")),
        ("evaluation", ("rte", "untrained model", "evaluation")),
        ("kept", ("rte", "model", "entailment")),
    ):
        shown = page[name]._repr_html_()
        check_balanced(shown)
        assert [word for word in words if word not in shown] == []
    assert "&lt;b&gt;" in table_html([("a <b>", ["<b>", "c"])])


def test_a_notebook_shows_scores_without_an_untrained_model() -> None:
    entry = score(60.0)
    del entry["untrained"]
    shown = Evaluation(Path("x"), {"suites": {"s": {"tasks": {"rte": entry}, "means": []}}})
    assert "60.0 f1" in shown._repr_html_()


def test_the_same_call_again_returns_the_finished_run(
    here: Path, page: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    again = crammed.pretrain(
        "tiny.yaml", {"optim.lr": 1e-3}, corpus="corpus", budget="3updates", out="runs/0.001"
    )
    assert again.result == crammed.read_run("runs/0.001").result
    with pytest.raises(InputError, match="holds a run with another configuration"):
        crammed.pretrain("tiny.yaml", {"optim.lr": 3e-3}, corpus="corpus", out="runs/0.001")


def test_a_run_is_trained_on_the_device_that_suits_the_size_that_is_chosen(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settle(asked: Asked, *_: object) -> Chosen:
        return Chosen(with_values(asked.config, {"batch.rows": 3}))

    def device_of(config: RunConfig, *_: object) -> Device:
        return dataclasses.replace(cpu, name=f"for {config.batch.rows} rows")

    def train(run: object, corpus: object, device: Device, *_: object) -> None:
        trained.append(device.name)

    trained: list[str] = []
    for function in (settle, device_of):
        monkeypatch.setattr(training, function.__name__, function)
    monkeypatch.setattr(training, "train_and_export", train)
    out, limit = tmp_path / "run", "3updates"
    crammed.pretrain("crammed", MODEL, corpus=corpus.path, budget=limit, out=out)
    assert trained == ["for 3 rows"]


def test_an_encoder_of_others_is_adapted(
    tmp_path: Path, model_folders: dict[str, Path], text_file: Path
) -> None:
    run = crammed.adapt(
        model_folders["bert"], SMALL, data=text_file, budget="2updates", out=tmp_path / "run"
    )
    assert run.summary is not None
    assert run.summary.adapted is not None
    assert run.summary.updates == 2


def test_a_run_that_has_not_finished(tmp_path: Path, page: dict[str, Any], here: Path) -> None:
    for name in ("config.json", "metrics.jsonl", "events.jsonl"):
        (tmp_path / name).write_bytes((here / "runs/mine" / name).read_bytes())
    run = crammed.read_run(tmp_path)
    assert run.summary is None
    assert "which has not finished" in run._repr_html_()
    with pytest.raises(InputError, match="has not finished: repeat its command"):
        run.result  # noqa: B018
    assert len(run.log) == len(crammed.read_run(here / "runs/mine").log)
    with pytest.raises(InputError, match="is not a run"):
        crammed.read_run(here)


def test_the_result_of_a_run_has_scores_that_came_later(
    tmp_path: Path, page: dict[str, Any], here: Path
) -> None:
    """Also those of another suite that has a task of the same name."""
    run = crammed.read_run(shutil.copytree(here / "runs/mine", tmp_path / "run"))
    file = run.folder / "evaluation" / "scores.json"
    before, scores = run.result["tasks"]["rte"]["median"], json.loads(file.read_text())
    scores["suites"]["glue"]["tasks"]["rte"]["median"] = before + 1.0
    file.write_text(json.dumps(scores))
    assert run.result["tasks"]["rte"]["median"] == before + 1.0
    assert run.scores["rte"]["median"] == before + 1.0
    other = {**scores["suites"]["glue"]["tasks"]["rte"], "median": 7.0}
    scores["suites"]["mine"] = {"tasks": {"rte": other, "own": other}, "means": []}
    file.write_text(json.dumps(scores))
    medians = {"glue.rte": before + 1.0, "mine.rte": 7.0, "own": 7.0}
    for found in (run.scores, run.result["tasks"]):
        assert {name: score["median"] for name, score in found.items()} == medians


def test_without_pandas(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"needs pandas: pip install 'crammed\[pandas\]'"):
        page["run"].log  # noqa: B018


def test_arguments_get_the_types_of_their_annotations() -> None:
    def given(tasks: Tasks, seeds: Seeds = 1, file: File = "a") -> list[object]:
        if seeds > 8:
            raise PermissionError(13, "Permission denied", file)
        return [tasks, type(seeds), file]

    call: Any = checked(given)
    names = (str(n) for n in range(2))
    assert call(names, np.int64(3), Path("b")) == [["0", "1"], int, Path("b")]
    with pytest.raises(InputError, match="cannot read or write a: Permission denied"):
        call("cola", 9)


def test_a_tilde_stands_for_the_home_folder(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a run's own protocol, its folder of scores and its row length are looked up."""
    text = write_jsonl(tmp_path / "heldout.jsonl", documents(40))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    home, run = Path("~"), read_config(model)
    done = crammed.evaluate(home / model.name, "heldout", data=home / text.name, device="cpu")
    assert done.folder == model / "evaluation"
    assert done.result["protocol"]["epochs"] == run.finetune.epochs
    assert done.result["suites"]["heldout"]["length"] == run.data.row_length
    assert crammed.load("~/model").path == model
    with pytest.raises(InputError, match=r"no such .*: ~no-such-user/x"):
        crammed.load("~no-such-user/x")


def test_what_is_wrong_is_said_before_any_work(tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(3))
    package: Any = crammed
    for call, words in (
        (lambda: crammed.run(data=text, budget="1 fortnight"), "is not a budget"),
        (lambda: package.run(data=text, budget=60), "^'60' is not a budget: write it like 90m"),
        (lambda: package.embed("x", data=text, out="v", budget=60), "'60' is not a budget: write"),
        (lambda: crammed.run(overrides={"seed": 1}, data=text, seed=2), "seed is set twice"),
        (lambda: crammed.run(overrides={"optim.rate": 1}, data=text), "optim.rate"),
        (lambda: crammed.prepare(data=tmp_path / "no", out=tmp_path / "c"), "no"),
        (lambda: crammed.evaluate("x", data="y", dtype="float16"), "does no loss scaling"),
        (lambda: package.evaluate("x", data="y", seeds=2.5), "^seeds: .* integer.*, not 2.5$"),
        (lambda: package.evaluate("x", data="y", jobs=0), "^jobs: .* equal to 1, not 0$"),
        (lambda: package.evaluate("x", data="y", tasks=iter([])), "--tasks names no task"),
        (lambda: package.evaluate("x", data="y", tasks=[3]), "^tasks: .* string, not 3$"),
        (lambda: package.embed("x", data=[text], out=""), "^out: the name is empty"),
        (lambda: package.pretrain("crammed", None, corpus=3), "^(overrides|corpus): "),
        (lambda: crammed.read_run(tmp_path / "text.jsonl" / "run"), "text.jsonl"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    assert [*tmp_path.iterdir()] == [text]


@pytest.mark.parametrize("verb", ["run", "pretrain"])
def test_a_run_that_does_not_begin_is_removed_while_it_is_locked(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Else another process could be in it by then."""
    original, locked = RunDir.discard_if_new, list[bool]()

    def discarded(run: RunDir) -> None:
        locked.append(is_locked(run.path))
        original(run)

    def refused(*_: object, **__: object) -> None:
        raise InputError("no")

    monkeypatch.setattr(RunDir, "discard_if_new", discarded)
    for module in ("pipeline", "interface.training"):
        monkeypatch.setattr(f"crammed.{module}.train_and_export", refused)
    words = [*MODEL, "finetune.tasks=[]"]
    with pytest.raises(InputError, match=r"^no$"):
        getattr(training, verb)(
            "crammed", words, corpus=corpus.path, budget="2updates", out=tmp_path / "run"
        )
    assert locked == [True]
    assert not (tmp_path / "run").exists()


def test_what_trains_in_one_process_says_so_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**told, "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    for verb, model, words in (
        ("run", [], "run .*: start crammed pretrain with torchrun instead"),
        ("adapt", ["no"], "adapt .*: start it without torchrun"),
    ):
        with pytest.raises(InputError, match=f"^{words}$"):
            getattr(crammed, verb)(*model, data="no")
