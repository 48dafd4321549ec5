"""No path that is read from a file leads out of the folder of that file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.evaluation.backbones.huggingface_files import model_files
from crammed.evaluation.folder import outputs_file, read_gold
from crammed.files.folders import inside
from crammed.study.result import run_folder
from crammed.study.spec.arms import read_study
from crammed.tasks.task import load_suite
from support.corpora import numbered_files, write_corpus

OUTSIDE = ["../secret", "a/../../secret", "/secret", "..", "", "a\0b"]


@given(st.text(st.sampled_from("ab./\0~ ")))
def test_a_name_that_is_accepted_stays_inside(name: str) -> None:
    try:
        path = inside(Path("/data/folder"), name, "listing")
    except InputError:
        return
    assert os.path.normpath(path).startswith("/data/folder")


@pytest.mark.parametrize("name", [*OUTSIDE, None, 3, ["a"]])
def test_what_leads_out_is_refused(name: object) -> None:
    with pytest.raises(InputError, match=r"^list\.json names .*, which leads out of its folder"):
        inside(Path("folder"), name, "list.json")


def test_names_of_files_and_of_folders_below_are_fine() -> None:
    for name in ("a.bin", "below/a.bin", "..a", "a..b", ".a", "./a"):
        assert inside(Path("folder"), name, "list.json") == Path("folder") / name


def _manifest(folder: Path, name: str) -> None:
    path = write_corpus(folder / "corpus", numbered_files([3])).path
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"][name] = {"bytes": 6, "sha256": ""}
    file.write_text(json.dumps(manifest))
    Corpus(path)


def _index(folder: Path, name: str) -> None:
    for file in ("model.safetensors", "model.safetensors.index.json", "config.json"):
        weights = {"weight_map": {"a": "model.safetensors", "b": name}, "model_type": "bert"}
        (folder / file).write_text(json.dumps(weights))
    model_files(folder)


def _study(folder: Path, name: str) -> None:
    arms = {"a": [], name: ["seed=1"]}
    (folder / "mine.yaml").write_text(json.dumps({"baseline": "a", "arms": arms}))
    read_study(str(folder / "mine.yaml"))


def _arm(folder: Path, name: str) -> None:
    run_folder(folder, name, 0)


def _split(folder: Path, name: str) -> None:
    task = {"text": ["text"], "metric": ["accuracy"], "train": name}
    (folder / "mine.yaml").write_text(json.dumps({"tasks": {"a": task}}))
    load_suite(str(folder / "mine.yaml"))


def _gold(folder: Path, name: str) -> None:
    read_gold(folder / "evaluation", name, "x")


def _outputs(folder: Path, name: str) -> None:
    outputs_file(folder / "evaluation", "suite", name, 0, trained=True)


@pytest.mark.parametrize("read", [_manifest, _index, _study, _arm, _split, _gold, _outputs])
def test_every_reader_of_names_refuses_them(
    tmp_path: Path, read: Callable[[Path, str], None]
) -> None:
    (tmp_path / "secret").write_text("secret")
    refused = r"leads out of its folder|is not the name of a split|cannot name an arm"
    with pytest.raises(InputError, match=refused):
        read(tmp_path, "../../../secret")
