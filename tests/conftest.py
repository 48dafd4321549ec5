"""Fixtures of small data. Each process has one thread, which leaves the other cores to xdist."""

from __future__ import annotations

import importlib
import os
import random
import shutil
import tempfile

from support.text import write_rows

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp(prefix="crammed-tests-")
os.environ["CRAMMED_CACHE"] = tempfile.mkdtemp(prefix="crammed-tests-")

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from crammed.config import ComputeConfig
from crammed.data.corpus import Corpus
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.evaluation import Request
from crammed.machine import waiting
from crammed.machine.caches import COMPILED
from crammed.machine.device import Device, choose_device
from support import command, disk
from support.backbones import RECIPES, Load
from support.corpora import prepared
from support.evaluation import PROTOCOL, Ask, make_model
from support.models import FAMILIES, save_model, untrained
from support.tasks import PAIR, write_task
from support.text import documents, tiny, write_jsonl

OF_A_TERMINAL = {"COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
UNSEEN = {"adaptation", "config", "tracking", "test_deciding.py", "test_security.py"}
"""Folders and files of tests that make reports, and look at no drawing in them."""

disk.wait_for_nothing()
waiting.TASKS = Path(os.devnull)  # what else runs here must not show in a test
torch.set_num_threads(1)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, commands would ignore it
# The time of an example depends on how busy the machine is, not on the code.
settings.register_profile("fresh", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A change is judged by the same examples before and after; `make test-all` looks for new ones.
settings.register_profile("same", settings.get_profile("fresh"), derandomize=True)
settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    """Forget what a person has set for their terminal, which changes what is printed. For all
    processes of xdist, name one folder of compiled code, and start one server while they collect
    the tests."""
    for name in OF_A_TERMINAL:
        os.environ.pop(name, None)
    os.environ["TERM"] = "xterm"
    if COMPILED not in os.environ:
        os.environ[COMPILED] = folder = tempfile.mkdtemp(prefix="crammed-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    if command.FORKS and config.getoption("numprocesses", None):
        command.start_server()


def pytest_unconfigure() -> None:
    """Remove the code of models that transformers copied, and our own notes."""
    for name in ("HF_MODULES_CACHE", "CRAMMED_CACHE"):
        shutil.rmtree(os.environ[name], ignore_errors=True)


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """A test draws the same numbers whichever tests its process ran before."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(autouse=True, scope="module")
def _unseen_drawings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Draw nothing where no test looks at it, because drawing takes longer than the run itself."""
    figures = sys.modules.get("matplotlib.figure")  # to import it would cost more
    empty = "<svg></svg>"
    with pytest.MonkeyPatch.context() as patch:
        if figures is not None and UNSEEN & {request.path.name, request.path.parent.name}:
            patch.setattr(figures.Figure, "savefig", lambda _, file, **__: file.write(empty))
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_core() -> Iterator[None]:
    """Start no data workers, whose imports take seconds, unless a test asks for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crammed.machine.engine.cores", lambda: 1)
        yield


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of benchmarks/."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "benchmarks")
    return importlib.import_module


@pytest.fixture(scope="session")
def cpu() -> Device:
    return choose_device(ComputeConfig(device="cpu", dtype="float32"))


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("text") / "text.jsonl", documents(600))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Corpus:
    return prepared(tmp_path_factory.mktemp("corpus") / "corpus", text_file)


@pytest.fixture
def make_corpus(tmp_path: Path) -> Callable[..., Corpus]:
    """Prepares a corpus from documents, with overrides of the tiny configuration."""

    def make(texts: list[str], *overrides: str) -> Corpus:
        source = write_jsonl(tmp_path / "source.jsonl", texts)
        return prepared(tmp_path / "made", source, *overrides)

    return make


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> dict[str, Path]:
    """Runs of our recipes and models of transformers."""
    place = tmp_path_factory.mktemp("models")
    for recipe in RECIPES:
        untrained(corpus.tokenizer, tiny(recipe).model).save(place / recipe / "final")
    for family in FAMILIES:
        save_model(place / family, family)
    return {name: place / name for name in (*RECIPES, *FAMILIES)}


@pytest.fixture(scope="session")
def load_model(model_folders: dict[str, Path]) -> Load:
    return lambda name: BackboneSpec(str(model_folders[name])).load()


@pytest.fixture
def model(tmp_path: Path, corpus: Corpus) -> Path:
    """The part of a run directory that evaluation needs."""
    return make_model(tmp_path / "model", corpus, 0)


@pytest.fixture
def ask(tmp_path: Path, model: Path) -> Ask:
    """A request for the model, in this process unless `jobs` says otherwise."""
    protocol = tmp_path / "quick.yaml"
    protocol.write_text(PROTOCOL)

    def request(**values: Any) -> Request:
        base = {
            "model": str(model),
            "suite": "glue",
            "data": str(tmp_path),
            "protocol": str(protocol),
            "into": tmp_path / "scores",
            "jobs": 1,
            "compute": ComputeConfig(device="cpu"),
        }
        return Request(**{**base, **values})

    return request


@pytest.fixture
def blimp(tmp_path: Path) -> Path:
    """Data of the judge of the same name."""
    return write_rows(tmp_path / "blimp.jsonl", [PAIR])


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """Two small tasks."""
    for task in ("cola", "rte"):
        write_task(tmp_path / "glue", task, 40)
    return tmp_path / "glue"
