"""A corpus is compared with its hashes before it is trained on, and not each time again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from crammed.cli.corpora import data_verify
from crammed.data.corpus import Corpus
from crammed.data.verification import verify_once
from crammed.errors import InputError
from crammed.terminal.progress import SILENT
from support.command import crammed
from support.text import MODEL


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """The corpora whose files were read, with an empty cache folder."""
    monkeypatch.setenv("CRAMMED_CACHE", str(tmp_path / "cache"))
    read: list[Path] = []
    original = Corpus.damaged

    def noting(self: Corpus) -> Iterator[str]:
        read.append(self.path)
        return original(self)

    monkeypatch.setattr(Corpus, "damaged", noting)
    return read


def copy(corpus: Corpus, to: Path) -> Corpus:
    shutil.copytree(corpus.path, to)
    return Corpus(to)


def flip(file: Path) -> None:
    """Change a bit, and leave size and times as they are."""
    before, content = file.stat(), bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_corpus_is_compared_once(tmp_path: Path, corpus: Corpus, compared: list[Path]) -> None:
    mine = copy(corpus, tmp_path / "mine")
    for _ in range(3):
        verify_once(Corpus(mine.path), SILENT)
    assert compared == [mine.path]
    verify_once(copy(corpus, tmp_path / "other"), SILENT)  # its files are others
    assert len(compared) == 2
    (mine.path / "tokenizer.json").touch()
    verify_once(mine, SILENT)
    assert len(compared) == 3


def test_damage_is_named_and_not_remembered(
    tmp_path: Path, corpus: Corpus, compared: list[Path]
) -> None:
    mine = copy(corpus, tmp_path / "mine")
    flip(mine.path / "rows-00000.bin")
    for _ in range(2):
        with pytest.raises(InputError, match=r"mine is damaged: rows-00000\.bin; delete "):
            verify_once(Corpus(mine.path), SILENT)
    assert len(compared) == 2


def test_a_note_that_is_damaged_or_cannot_be_written_only_costs_time(
    tmp_path: Path, corpus: Corpus, compared: list[Path]
) -> None:
    mine = copy(corpus, tmp_path / "mine")
    verify_once(mine, SILENT)
    (note,) = (tmp_path / "cache" / "corpora").iterdir()
    note.write_text("{")
    verify_once(mine, SILENT)
    assert len(compared) == 2
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("a file where the folder should be")
    for _ in range(2):
        verify_once(mine, SILENT)
    assert len(compared) == 4


def test_pretraining_refuses_a_damaged_corpus(tmp_path: Path, corpus: Corpus) -> None:
    mine = copy(corpus, tmp_path / "mine")
    flip(mine.path / "rows-00000.bin")
    out = tmp_path / "runs" / "run"
    words = ("--corpus", mine.path, "--budget=2updates", "--out", out)
    done = crammed("pretrain", *MODEL, *words)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"error: corpus {mine.path} is damaged: rows-00000.bin; delete {mine.path} and prepare it "
        "again"
    )
    assert not out.exists()


def test_the_name_of_a_corpus_does_not_act_on_the_terminal(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_verify(copy(corpus, tmp_path / "corpus\x1b[2J").path)
    assert "corpus␛[2J is intact: " in capsys.readouterr().out
