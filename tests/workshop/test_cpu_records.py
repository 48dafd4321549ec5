"""Records on a CPU: who takes part, in which order, what is kept, and how the tables read it."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import cpu_tables
import layout
from crammed.data.corpus import Corpus
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import CrammedError, InputError
from crammed.files.writing import read_json, write_json
from support.command import PATIENCE, crammed, python
from support.models import save_model
from support.text import MODEL, documents, tiny, write_jsonl

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def heldout(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "heldout.jsonl.gz", documents(150, seed=7))


class Stage:
    """`cpu_records` with processes that are played, or fail."""

    def __init__(self, folder: Path, corpus: Corpus, heldout: Path, module: Any) -> None:
        self.out, self.module = folder / "out", module
        self.calls: list[list[str]] = []
        self.fails = False
        text = {"corpus": corpus.path, "heldout": heldout}
        self.options: dict[str, Any] = {**text, "out": self.out, "cores": ["0"]}

    def play(self, words: list[str], name: str) -> dict[str, Any]:
        """What a process with these words prints."""
        self.calls.append(words)
        if self.fails:
            raise CrammedError(f"{name} ended with exit code 1")
        if "--suite" in words:
            suite = words[words.index("--suite") + 1]
            tasks = {"rte": {"metric": "accuracy", "median": 52.5}}
            grammar = {"blimp": 61.5, "official": False}
            found = grammar if suite == "blimp" else {"tasks": tasks}
            return {"model": "where it lay", "suites": {suite: found}}
        if words[1].endswith("heldout_masked_lm.py"):
            loss = 4.0 + len(self.calls) / 100
            return {"loss@0.15": loss, "loss@0.25": loss + 0.1}
        folder = Path(words[words.index("--out") + 1])
        folder.mkdir(parents=True)
        if "pretrain" in words:
            write_json(folder / "config.json", tiny().model_dump(mode="json"))
        return {"tokens": 5000, "updates": 20, "parameters": 30_000, "secret": folder.name}

    def do(self, contest: str, **options: Any) -> list[dict[str, Any]]:
        """Run a contest; the runs in its file."""
        getattr(self.module, contest)(**{**self.options, **options})
        values = read_json(self.out / f"{contest.replace('_', '-')}.json") or {"runs": []}
        runs: list[dict[str, Any]] = values["runs"]
        return runs


@pytest.fixture
def stage(
    tmp_path: Path,
    corpus: Corpus,
    heldout: Path,
    benchmark: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stage]:
    played = Stage(tmp_path, corpus, heldout, benchmark("cpu_records"))
    contest = benchmark("contest")
    monkeypatch.setattr(contest.Contest, "_call", lambda _, *words: played.play(*words[:2]))
    monkeypatch.setattr(contest, "separate", list)
    monkeypatch.setattr(benchmark("lanes"), "pinned", list)
    threads = torch.get_num_threads()
    yield played
    torch.set_num_threads(threads)


def names(runs: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(run["name"], run["seed"]) for run in runs]


def test_contestants_take_turns_with_the_best_of_the_sweep(stage: Stage) -> None:
    plain = "2x32:1e-3:8,start=random,masks=0.3,loop=plain,optimizer=muon,pace=9.5"
    plain += ",schedule=trapezoid"
    other = "4x64:1e-3:4,architecture=roformer,loop=plain"
    points = ["2x32:2e-3:8", "2x32:1e-3:8", plain, other]
    swept = stage.do("sweep", point=points)  # later runs have higher losses here
    assert [run["settings"]["masks"] for run in swept] == [0.25, 0.25, 0.3, 0.25]
    runs = stage.do("ten_minutes", seeds=2)
    peers = ["ModernBERT 2x32", "ModernBERT 2x32, plain loop, Muon", "RoFormer 4x64, plain loop"]
    turn = ["ours", "ours, a fifth of the time", "ours, a tenth of the time", *peers]
    paper = "crammed-2022, small form"
    everyone = [(name, seed) for seed in (0, 1) for name in turn]
    assert names(runs) == [*everyone, (paper, 0), (paper, 1)]
    assert [run["seconds"] for run in runs[:4]] == [600, 120, 60, 600]
    assert runs[3]["settings"]["rate"] == 2e-3
    assert "--budget 600s --seed 0" in runs[0]["command"]
    asked = "--rate 0.001 --batch 8 --start random --loop plain --optimizer muon --pace 9.5"
    assert asked in runs[4]["command"]
    assert runs[0]["train"]["layers"] == 2
    assert "secret" not in runs[0]["train"]
    assert str(stage.out) not in runs[0]["command"]
    assert "--corpus $CORPUS --budget" in runs[0]["command"]
    assert {"source", "benchmarks"} <= set(runs[0]["environment"])
    words = runs[-1]["settings"]["words"]  # a rate of 1e-3 is for a width of 768
    assert words[:4] == ["crammed-2022", "model.layers=2", "model.width=32", "model.head_dim=16"]
    assert {"model.positions=rotary", f"optim.lr={24**0.5 / 1000:g}"} <= set(words)
    more = stage.do("ten_minutes", seeds=3, only=[*turn[:4], paper])[len(runs) :]
    assert names(more) == [(name, 2) for name in (*turn[:4], paper)]


def test_ours_alone_needs_no_sweep(stage: Stage) -> None:
    assert names(stage.do("ten_minutes", seeds=1, only=["ours"])) == [("ours", 0)]
    with pytest.raises(InputError, match="run sweep with the same --out first"):
        stage.do("ten_minutes", seeds=1)


def test_the_paper_waits_for_our_size(stage: Stage) -> None:
    with pytest.raises(InputError, match="let 'ours' finish first"):
        stage.do("ten_minutes", seeds=1, only=["crammed-2022, small form"])


def test_a_contest_continues_with_what_is_missing(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    points = ["2x32:2e-3:8", "2x32:1e-3:8"]
    assert stage.do("sweep", point=points, dry_run=True) == []
    assert "2 of 2 runs to go, about 24 min on cores 0 (0.4 core-hours)" in capsys.readouterr().out
    stage.do("sweep", point=points[:1])
    stage.fails = True
    with pytest.raises(CrammedError, match="2x32-1e-3-8-0 ended"):
        stage.do("sweep", point=points)
    stage.fails = False
    before = len(stage.calls)
    first = stage.do("sweep", point=points)
    assert len(stage.calls) == before + 2  # a training and a judge
    del first[1]["heldout"]
    values = read_json(stage.out / "sweep.json")
    write_json(stage.out / "sweep.json", {**(values or {}), "runs": first})
    again = stage.do("sweep", point=points)
    assert len(stage.calls) == before + 3
    assert {**again[1], "heldout": None} == {**first[1], "heldout": None}


def test_the_hour_has_the_best_peer_and_the_paper_in_our_size(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir()
    data = {"blimp": stage.options["heldout"], "tasks_data": tmp_path / "small"}
    with pytest.raises(InputError, match="run ten-minutes with the same --out first"):
        stage.do("hour", **data)
    assert names(stage.do("hour", **data, only=["ours"])) == [("ours", 0)]
    typed_twice = ["2x32:2e-3:8"] * 2
    assert len(stage.do("sweep", point=typed_twice, cores=["0", "1"])) == 1
    stage.do("ten_minutes", seeds=1)
    runs = stage.do("hour", **data, tasks="trec", seeds=2)
    paper = "crammed-2022, small form"
    turns = [(name, seed) for seed in (0, 1) for name in ("ours", "ModernBERT 2x32")]
    assert names(runs) == [*turns, (paper, 0), (paper, 1)]
    assert "model.width=32" in runs[-1]["settings"]["words"]
    assert runs[1]["blimp"]["suites"]["blimp"]["blimp"] == 61.5
    assert "where it lay" not in json.dumps(runs)
    monkeypatch.setattr(layout, "RECORDS", tmp_path)
    table = cpu_tables.hour_table(stage.out.name)
    assert "| BLiMP, partial | RTE |" in table
    assert table.count("| 61.5 | 52.5 |") == 3


def test_two_lanes_train_side_by_side(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    both, play = threading.Barrier(2, timeout=PATIENCE), stage.play

    def wait(words: list[str], name: str) -> dict[str, Any]:
        both.wait()
        return play(words, name)

    monkeypatch.setattr(stage, "play", wait)
    stage.options["cores"] = ["0", "1"]
    points = ["2x32:2e-3:8", "2x32:1e-3:8", "4x64:1e-3:8", "4x64:2e-3:8"]
    runs = stage.do("sweep", point=points)
    assert sorted(run["name"] for run in runs) == sorted(points)
    assert {run["lanes"] for run in runs} == {2}
    assert all("heldout" in run for run in runs)


def test_lanes_have_equally_many_cores_of_their_own(
    benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = benchmark("lanes")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert lanes.separate([[1, 0], [2, 3]]) == [[0, 1], [2, 3]]
    for wrong, why in (([[0], [0]], "share"), ([[0, 1], [2]], "as many"), ([[9]], "choose from")):
        with pytest.raises(InputError, match=why):
            lanes.separate(wrong)


def test_when_one_lane_fails_the_others_end(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    processes, sleep, log = benchmark("lanes").Processes(), ["sleep", "600"], tmp_path / "log"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(processes.run, sleep, log)
        while not processes._running:
            assert not running.done()
        processes.stop()
        assert "ended with exit code -9" in str(running.exception(PATIENCE))
        with pytest.raises(CrammedError, match="ended with exit code -9"):
            processes.run(sleep, log)


def test_a_command_that_is_terminated_ends_what_its_lanes_run(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import common, lanes

processes = lanes.Processes()

def work(item: int) -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    return processes.run(["sleep", "100000"], pathlib.Path("log"))

def main() -> None:
    list(lanes.in_lanes([[{min(os.sched_getaffinity(0))}]], [0], work, processes.stop))

common.run(main)
"""
    done = python("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (75, "error: stopped; the same command continues\n")


def test_a_process_that_fails_is_named_with_its_log(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    words, log = [sys.executable, "-c", "exit('wrong')"], tmp_path / "log"
    said = f"log ended with exit code 1: wrong (full output: {log}); the same command tries again"
    with pytest.raises(CrammedError, match=re.escape(said)):
        benchmark("lanes").Processes().run(words, log)


def test_results_of_other_settings_are_not_mixed(stage: Stage) -> None:
    stage.do("sweep", point=["4x64:1e-3:4"])
    with pytest.raises(InputError, match="ours has chosen 2x32, and the sweep has ModernBERT 4x64"):
        stage.do("ten_minutes")
    with pytest.raises(InputError, match="'ours', seed 0, was made with other settings"):
        stage.do("ten_minutes", ours="crammed optim.name=muon")
    stage.options["heldout"] = stage.options["corpus"] / "heldout.jsonl.gz"
    with pytest.raises(InputError, match="another heldout_sha256: choose another --out"):
        stage.do("sweep", point=["4x64:1e-3:4"])


@pytest.mark.long  # a busy machine needs seconds for a fifth of the time
def test_ours_is_trained_and_judged_in_processes_of_its_own(
    tmp_path: Path, corpus: Corpus, heldout: Path
) -> None:
    pytest.importorskip("transformers")
    out, core = tmp_path / "out", min(os.sched_getaffinity(0))
    out.mkdir()
    point = {"layers": 2, "width": 32, "rate": 1e-3, "batch": 8, "masks": 0.25}
    swept = {"settings": point, "heldout": {"loss@0.15": 4.0, "loss@0.25": 4.1}}
    write_json(out / "sweep.json", {"runs": [swept]})
    words: list[str | Path] = [BENCHMARKS / "cpu_records.py", "ten-minutes"]
    words += ["--corpus", corpus.path, "--heldout", heldout, "--out", out]
    words += ["--ours", " ".join(["crammed", *MODEL]), "--seeds", "1", "--seconds", "20"]
    refused = python(*words, "--cores", "99")
    assert (refused.returncode, "--cores: choose from" in refused.stderr) == (2, True)
    done = python(*words, "--cores", str(core))
    values = read_json(out / "ten-minutes.json")
    assert values is not None, done.stderr
    ours = values["runs"][0]
    assert ours["cores"] == 1
    assert ours["train"]["heldout"].keys() <= ours["heldout"].keys()
    assert ours["train"]["charged_seconds"] > 0
    assert ours["train"]["accounts"]["step"] > 0
    assert ours["heldout"]["loss@0.15"] == pytest.approx(ours["heldout"]["loss@0.25"], abs=0.3)
    assert not list((out / "models").glob("*.compiled"))
    if importlib.util.find_spec("accelerate") is None:
        assert done.returncode == 1
        assert "needs accelerate: pip install 'crammed[hf]'" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert values["runs"][3]["train"]["train_seconds"] > 0


def test_the_judge_agrees_with_crammed_evaluate(tmp_path: Path, heldout: Path) -> None:
    pytest.importorskip("transformers")
    model = save_model(tmp_path / "modernbert", "modernbert")
    judge = BENCHMARKS / "heldout_masked_lm.py"
    printed = python(judge, model, "--data", heldout, "--length", "40")
    theirs = json.loads(printed.stdout)
    options = ("--suite", "heldout", "--data", heldout, "--into", tmp_path / "scores", "--json")
    ours = json.loads(crammed("evaluate", model, *options).stdout)["suites"]["heldout"]
    assert theirs["rows"] == ours["rows"] > 100
    for rate in ("loss@0.15", "loss@0.25", "bits_per_character@0.15"):
        assert theirs[rate] == pytest.approx(ours[rate], abs=1e-4)


def test_the_peer_masks_exactly_and_follows_the_clock(
    corpus: Corpus, benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    peer = benchmark("peer")
    specials = Specials.of(corpus.tokenizer)
    rows = peer.Rows(corpus).__getitems__(list(range(200)))
    batch = peer.Masks(corpus.vocab_size, specials, 0.25)(rows)
    chosen = batch["labels"] != peer.IGNORED
    assert chosen.sum(1).unique().tolist() == [8]
    assert torch.equal(rows[chosen], batch["labels"][chosen])
    assert torch.equal(rows[~chosen], batch["input_ids"][~chosen])
    assert not torch.isin(rows[chosen], torch.tensor(specials.ids)).any()
    masked = (batch["input_ids"][chosen] == specials.mask).float().mean()
    assert 0.75 < masked < 0.85
    now = 0.0
    monkeypatch.setattr(peer.time, "perf_counter", lambda: now)
    shapes = {
        "linear": ((0.0, 0.0), (5.0, 0.5), (10.0, 1.0), (55.0, 0.5), (100.0, 0.0)),
        "triangle": ((0.0, 0.0), (25.0, 0.5), (50.0, 1.0), (75.0, 0.5), (100.0, 0.0)),
        "trapezoid": ((0.0, 0.0), (5.0, 0.5), (50.0, 1.0), (75.0, 0.5), (100.0, 0.0)),
    }
    for name, factors in shapes.items():
        schedule = peer.Schedule(name).curve(0.1)
        now = 0.0
        clock, paced = peer.Clock(100.0, 0, schedule), peer.Clock(1.0, 200, schedule)
        clock.on_train_begin()
        for now, factor in factors:
            assert clock.factor(0) == pytest.approx(factor), (name, now)
            assert paced.factor(int(2 * now)) == pytest.approx(factor), (name, now)
        assert [clock.over(step) for step in (1, 99)] == [True, True]
        assert [paced.over(step) for step in (199, 200)] == [False, True]


def test_a_plain_loop_trains_with_either_optimizer_and_start(
    tmp_path: Path,
    corpus: Corpus,
    heldout: Path,
    benchmark: Callable[[str], Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("accelerate")
    peer, judge = benchmark("peer"), benchmark("heldout_masked_lm")
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)

    shape = {"layers": 2, "width": 64, "batch": 8, "rate": 3e-3}
    usual = {**shape, "schedule": peer.Schedule.TRAPEZOID, "loop": peer.Loop.PLAIN, "seconds": 1.0}

    def loss(
        updates: int, optimizer: str = "adamw", start: str = "random", kind: str = "modernbert"
    ) -> float:
        peer.main(
            corpus.path,
            out=tmp_path / "peer",
            compile=kind == "roformer",
            pace=float(updates),
            architecture=peer.Architecture(kind),
            optimizer=peer.Optimizer(optimizer),
            start=peer.Start(start),
            **usual,
        )
        printed = json.loads(capsys.readouterr().out)
        assert printed["updates"] == updates
        judge.main(str(tmp_path / "peer"), data=heldout, rows=100, length=32)
        return float(json.loads(capsys.readouterr().out)["loss@0.15"])

    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(type(self)))
    untrained = loss(1)
    assert loss(1, start="cooccurrence") != untrained
    trained = {loss(60), loss(60, optimizer="muon"), loss(60, start="cooccurrence")}
    trained |= {loss(60, "muon", kind=older) for older in ("roformer", "bert")}
    for format in (torch.bfloat16, None):  # PyTorch's Muon, and ours
        monkeypatch.setattr(peer, "native_half", lambda _, format=format: format)
        trained.add(loss(60, "muon", "cooccurrence"))
    assert len(trained) == 7
    assert [kind.__name__ for kind in compiled] == ["RoFormerModel"]
    assert max(trained) < untrained - 0.5


def test_an_encoder_is_trained_further_as_run_mlm_does(tmp_path: Path, heldout: Path) -> None:
    pytest.importorskip("accelerate")
    model, run, out = save_model(tmp_path / "bert", "bert"), tmp_path / "run", tmp_path / "out"
    words = ("--data", heldout, "--budget", "2updates", "--out", run)
    done = crammed("adapt", model, *words, "data.row_length=32", "batch.rows=4")
    assert done.returncode == 0, done.stderr
    program = BENCHMARKS / "run_mlm.py"
    given = ("--out", out, "--seconds", "1", "--pace", "20", "--rate", "1e-3")
    done = python(program, model, run / "corpus", *given)
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["updates"] == 20
    assert values["tokens"] == 20 * 8 * 32
    before = (read_json(run / "summary.json") or {})["adapted"]["heldout"]
    assert values["heldout"]["loss@0.15"] < before["loss@0.15"]


def test_serving_times_every_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    models = {name: save_model(tmp_path / name, name) for name in ("bert", "modernbert")}
    words = [f"{name}={folder}" for name, folder in models.items()]
    core = str(min(os.sched_getaffinity(0)))
    options = ["--cores", core, "--lengths", "8,16", "--threads", "1", "--rounds", "1"]
    done = python(BENCHMARKS / "serving.py", *words, *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (tmp_path / "serving.json").write_text(done.stdout)
    monkeypatch.setattr(layout, "RECORDS", tmp_path.parent)
    assert cpu_tables.serving_table(tmp_path.name).count("\n| bert |") == 1
    for name, folder in models.items():
        found = result["models"][name]
        assert found["bytes"] == (folder / "model.safetensors").stat().st_size
        timed = [(time["length"], time["batch"]) for time in found["times"]]
        assert timed == [(8, 1), (8, 32), (16, 1), (16, 32)]
        assert all(time["seconds"] > 0 for time in found["times"])
