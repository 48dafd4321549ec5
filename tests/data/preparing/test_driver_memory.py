"""What the main process holds does not grow with the text, but for a little per shard and file."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crammed.config import ComputeConfig, DataConfig
from crammed.data import shards
from crammed.data.preparing.read.cleaned import Block
from crammed.data.preparing.read.ingest import read_and_clean
from crammed.data.preparing.read.source import open_sources
from crammed.data.preparing.select.duplicates import among
from crammed.data.preparing.select.given_heldout import GivenHeldout
from crammed.data.preparing.select.selection import select_documents
from crammed.data.shards import block_path, write_documents
from crammed.machine.engine import open_engine
from crammed.terminal.progress import SILENT
from support.text import documents, write_jsonl


def _held(work: Callable[[], Any]) -> int:
    """Bytes that what `work` returns keeps allocated."""
    work()  # what is allocated once, such as caches
    tracemalloc.start()
    try:
        kept = work()
        gc.collect()
        with_it, _ = tracemalloc.get_traced_memory()
        del kept
        gc.collect()
        return with_it - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def _peak(work: Callable[[], Any]) -> int:
    """Most bytes that are allocated at a time while `work` is done."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_shard_takes_less_than_a_kilobyte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 400)
    draw = random.Random(0)
    words = " ".join(documents(5)).split()

    def held(count: int) -> tuple[int, int]:
        texts = [" ".join(draw.choices(words, k=20)) for _ in range(4 * count)]
        file = write_jsonl(tmp_path / f"{count}.jsonl", texts)
        data = DataConfig.model_validate({"sources": [{"path": str(file)}], "heldout_rows": 1})
        with open_engine(ComputeConfig(workers=1)) as engine:

            def selected() -> tuple[Any, Any]:
                text = read_and_clean(open_sources(data), data, tmp_path / "work", engine, SILENT)
                return text, select_documents(text, data, engine, tmp_path / "work")

            return _held(selected), len(selected()[0].shards)

    (few, some), (many, more) = held(10), held(60)
    assert more > some + 40
    assert many - few < 900 * (more - some)


def test_a_file_takes_less_than_half_a_kilobyte(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"document-{number:05d}.txt").write_text("One or two words.")
    data = DataConfig.model_validate({"sources": [{"path": str(tmp_path)}]})
    assert _held(lambda: open_sources(data)) < 200 * 400


def test_what_is_known_is_neither_copied_nor_sorted_for_each_block(tmp_path: Path) -> None:
    texts = documents(50)
    encoded = [text.encode() for text in texts]
    digests = write_documents(block_path(tmp_path, 0), encoded, [len(text) for text in texts])
    block = Block(tmp_path, 0, 0, 100, 40, "")
    some = [0, 7, 39, 45]  # the last is beyond those that are used
    others = np.random.default_rng(0).integers(1 << 64, size=50_000, dtype=np.uint64)
    known = np.sort(np.append(others, digests[some, 0]))
    held = [*(f"Held out {number}." for number in range(20_000)), *(texts[n] for n in some)]
    given = GivenHeldout(write_jsonl(tmp_path / "held.jsonl", held), "", None, 0, 0)
    for find in (partial(among, block, known), partial(given.among, block)):
        assert sorted(find()) == [100, 107, 139]
        assert _peak(find) < 100_000
    assert not len(among(block, known[:0]))


def test_pandas_is_not_imported(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="it is not there to be imported")
    file = write_jsonl(tmp_path / "text.jsonl", documents(100))
    code = f"""
import sys
from pathlib import Path
from crammed.config import ComputeConfig, DataConfig, TokenizerConfig
from crammed.data.preparing.driver import prepare
from crammed.terminal.progress import SILENT
data = DataConfig.model_validate({{"sources": [{{"path": {str(file)!r}}}], "heldout_rows": 1}})
out = Path({str(tmp_path / "out")!r})
prepare(data, TokenizerConfig(vocab_size=300), out, SILENT, ComputeConfig(workers=1))
print("pandas" in sys.modules)
"""  # by a new interpreter, as workers are
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
