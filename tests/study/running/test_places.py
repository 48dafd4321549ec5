"""Where runs are trained: processes with a GPU each, and tasks on a Ray cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from crammed.budget import Budget
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.locks import is_locked
from crammed.runs.logs import read_lines
from crammed.study.running.places import Processes, RayTasks, default_jobs, gpus, opened
from crammed.study.running.runner import run_study
from crammed.study.spec.arms import load_study
from crammed.terminal.progress import SILENT
from crammed.tracking import following
from support.command import PATIENCE, crammed, prepared, started, wait_for
from support.study import write_study

ENDLESS = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} ")
time.sleep(1e6)
"""
TAKE = """
import os, pathlib, sys, time
folder, device = pathlib.Path(sys.argv[1]), os.environ["CUDA_VISIBLE_DEVICES"]
(folder / device).touch(exist_ok=False)
while len(list(folder.iterdir())) < 2:
    time.sleep(0.01)
print(device)
"""
"""Takes a device for itself, and holds it until another process has taken one."""


def test_runs_at_the_same_time_have_different_gpus(tmp_path: Path) -> None:
    place = Processes(2, ["GPU-a", "7"])
    with ThreadPoolExecutor(place.slots) as pool:
        ended = [pool.submit(place.run, ["-c", TAKE, str(tmp_path)]) for _ in range(2)]
        found = [each.result(PATIENCE) for each in ended]
    assert {each.code for each in found} == {0}, found
    assert {each.out.strip() for each in found} == {"GPU-a", "7"}


def test_more_runs_than_gpus_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    shown = ["-c", "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"]
    place = Processes(3, ["0", "1"])
    assert [place.run(shown).out.strip() for _ in range(4)] == ["0", "1", "0", "0"]
    assert Processes(3).run(shown).out.strip() == "None"


@pytest.mark.parametrize(
    ("named", "found"), [("3, GPU-b", ["3", "GPU-b"]), ("", []), (None, ["0", "1"])]
)
def test_gpus_are_those_that_are_visible(
    monkeypatch: pytest.MonkeyPatch, named: str | None, found: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    if named is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert gpus() == found
    assert default_jobs() == max(1, len(found))


def test_a_missing_ray_is_said_before_anything_is_made(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(following, "find_spec", lambda _: None)  # the cluster may have a tracker
    arms = {**ARMS, "seen": ["compute.track=wandb", "optim.lr=2e-3"]}
    study = load_study(write_study(tmp_path, arms), corpus, BUDGET)
    message = r"--ray needs ray: pip install 'crammed\[ray\]', or leave --ray out"
    with pytest.raises(InputError, match=message):
        run_study(study, corpus, BUDGET, 1, tmp_path / "out", 1, SILENT, cluster="10.0.0.5:6379")
    assert not (tmp_path / "out").exists()


BUDGET = Budget.parse("4updates")
ARMS: dict[str, list[str]] = {"plain": [], "wide": ["batch.rows=4"]}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A Ray cluster of two machines with a core each, all of which are this one."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        made.add_node(num_cpus=1)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_tasks_of_ray_end_with_their_study(tmp_path: Path, cluster: Any) -> None:
    with opened(4, 2, on_gpus=True, cluster=cluster.address) as place:
        assert isinstance(place, RayTasks)
        given = "import os, sys; print(os.environ['NAMED']); sys.exit('error: so it is')"
        done = place.run(["-c", given], {"NAMED": "value"})
        assert done[:3] == (1, "value\n", "error: so it is\n")
        assert done.seconds > 0.0
        named = tmp_path / "process"
        with ThreadPoolExecutor(1) as pool:
            endless = pool.submit(place.run, ["-c", ENDLESS, str(named)])
            wait_for(lambda: named.exists() and named.read_text().endswith(" "))
            process = int(named.read_text())
            assert is_alive(process)
            place.stop()
            ended = endless.result(PATIENCE)
        wait_for(lambda: not is_alive(process))
    assert ended.code
    assert ended.error.startswith("error: the task on the Ray cluster ended: ")


HANGS = """
import itertools, pathlib, time
import crammed.training.signals as signals, crammed.training.distributed as loop
calls = itertools.count(1)
def hang(received):
    if next(calls) == 3:
        pathlib.Path("hangs").touch()
        while not received:
            time.sleep(0.01)
    signals.leave_update(received)
loop.leave_update = hang
"""
"""A run that waits in its third update, until it is asked to end."""
STARTS_RUNS_THAT_HANG = f"""
from crammed.study.running.places import Processes
start = Processes._run
Processes._run = lambda self, words, env: start(self, {prepared(HANGS)!r} + words[2:], env)
"""


def test_runs_end_with_a_study_that_is_killed_and_the_same_command_goes_on(
    tmp_path: Path, corpus: Corpus
) -> None:
    words = ["study", write_study(tmp_path, ARMS), "--corpus", str(corpus.path)]
    words += ["--budget", "4updates", "--seeds", "1", "--out", "out", "--json"]
    run = tmp_path / "out" / "plain-0"
    with started(*prepared(STARTS_RUNS_THAT_HANG), *words, cwd=tmp_path) as study:
        wait_for((tmp_path / "hangs").exists, study)
        assert is_locked(run)
        study.kill()
        study.wait()
    again = crammed(*words, cwd=tmp_path)  # which waits for the run to end
    assert again.returncode == 0, again.stderr
    events = read_lines(run / "events.jsonl")
    assert [each["update"] for each in events if each["event"] == "resume"] == [2]
    arms = json.loads(again.stdout)["arms"]
    assert [each["runs"]["0"]["updates"] for each in arms.values()] == [4, 4]


@pytest.mark.long
def test_a_study_on_a_cluster_gives_the_same_losses(
    tmp_path: Path, corpus: Corpus, cluster: Any
) -> None:
    study = load_study(write_study(tmp_path, ARMS), corpus, BUDGET)
    address = cluster.address
    far = run_study(study, corpus, BUDGET, 2, tmp_path / "far", 4, SILENT, cluster=address)
    here = run_study(study, corpus, BUDGET, 2, tmp_path / "here", 4, SILENT)
    for arm, entry in here.arms.items():
        for seed, run in entry.runs.items():
            other = far.arms[arm].runs[seed]
            measured = dict.fromkeys(("seconds", "whole_seconds", "memory_bytes", "joules"), 0.0)
            assert {**other.values(), **measured} == {**run.values(), **measured}
    again = run_study(study, corpus, BUDGET, 2, tmp_path / "far", 1, SILENT)
    assert again == far
