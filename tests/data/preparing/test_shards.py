"""What a stage wrote and something has damaged since is made again, whichever file it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crammed.data import shards
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from support.corpora import prepared, stopping
from support.text import documents, write_jsonl


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Text of several shards."""
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 20_000)
    return write_jsonl(tmp_path / "text.jsonl", documents(250))


def _prepare(source: Path, name: str = "out") -> Corpus:
    options = ["compute.workers=1", "data.heldout_fraction=0.05", "data.orders=[fragments]"]
    return prepared(source.parent / name, source, *options)


def _files(work: Path) -> dict[str, Path]:
    """One intermediate file of each kind, the last by its name."""
    files = (each for each in sorted(work.rglob("*")) if each.is_file() and each.stat().st_size)
    return {re.sub(r"\d+[.-]", "", each.name): each for each in files}


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("stop", ["select_shard", "pack_tails", "publish"])
def test_a_flipped_bit_in_any_intermediate_file_is_made_good(source: Path, stop: str) -> None:
    whole = _prepare(source, "whole").sha256
    work = source.parent / ".out.preparing"
    with stopping(stop):
        _prepare(source)
    kinds = _files(work)
    assert {"documents.arrow", "clean.json", "read.json"} <= kinds.keys()
    assert stop == "select_shard" or {"codes.npy", "tail.npy", "rows-bin"} <= kinds.keys()
    for file in kinds.values():
        _flip(file)
        with stopping(stop):
            _prepare(source)
    for file in kinds.values():
        _flip(file)
    assert _prepare(source).sha256 == whole


@pytest.mark.parametrize("name", ["documents.arrow", "codes.npy", "chunks.arrow", "matches.npy"])
def test_damage_that_is_met_at_once_is_one_line_and_the_repeated_command_works(
    source: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What was written a moment ago is not checked before it is read."""
    whole = _prepare(source, "whole").sha256
    real = shards.finish_stage

    def finish(shard: Path, stage: str, result: dict[str, object], files: list[str]) -> None:
        real(shard, stage, result, files)
        if name in files:
            file = shards.shard_file(shard, name)
            file.write_bytes(file.read_bytes()[:-30])

    with monkeypatch.context() as patch:
        for module in ("read.cleaning_job", "select.selection_job"):
            patch.setattr(f"crammed.data.preparing.{module}.finish_stage", finish)
        with pytest.raises(InputError, match="is damaged: repeat the command") as caught:
            _prepare(source)
    assert "\n" not in str(caught.value)
    assert _prepare(source).sha256 == whole


def test_a_stage_that_has_begun_costs_none_that_is_finished(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def selected() -> dict[Path, int]:
        marks = source.parent.rglob("*.select.json")
        return {mark: mark.stat().st_mtime_ns for mark in marks}

    with monkeypatch.context() as patch:
        # The files of the selection are written by then.
        patch.setattr("crammed.data.preparing.pack.packing_job.Packed", None)
        with pytest.raises(TypeError):
            _prepare(source)
    before = selected()
    assert before
    with stopping("publish"):
        _prepare(source)
    assert selected() == before
