"""Arrays that an evaluation keeps."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest

from crammed.evaluation.finetuning.arrays import Arrays, load_arrays, save_arrays


def test_what_describes_them_may_hold_a_date(tmp_path: Path) -> None:
    save_arrays(tmp_path / "kept.npz", {"a": np.ones(1)}, {"index": [{"of": date(2026, 1, 2)}]})
    loaded = load_arrays(tmp_path / "kept.npz")
    assert loaded is not None
    assert loaded[1] == {"index": [{"of": "2026-01-02"}]}


def test_what_is_kept_is_read_back_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deep" / "kept.npz"
    arrays: Arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "test/B.tsv": np.ones(2),
        **{name: np.zeros(1) for name in ("about", "file", "allow_pickle")},
    }
    save_arrays(file, arrays, {"key": "k"})
    loaded = load_arrays(file)
    assert loaded is not None
    assert loaded[1] == {"key": "k"}
    assert {name: array.tolist() for name, array in loaded[0].items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    assert [path.name for path in file.parent.iterdir()] == ["kept.npz"]
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # as if killed: nothing is cleared
    monkeypatch.setattr(Path, "replace", lambda *_: None)
    save_arrays(file, arrays, {"key": "k"})
    assert len(list(file.parent.iterdir())) == 2
    monkeypatch.undo()
    save_arrays(file, arrays, {"key": "k"})
    assert [path.name for path in file.parent.iterdir()] == ["kept.npz"]
    file.write_bytes(file.read_bytes()[:100])
    assert load_arrays(file) is None
    assert load_arrays(tmp_path / "none.npz") is None
