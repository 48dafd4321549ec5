from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from crammed.config import TokenizerConfig
from crammed.data.corpus import Corpus
from crammed.data.tokenization.named import given_vocabulary, named_tokenizer
from crammed.errors import InputError
from support.command import crammed
from support.text import documents, write_jsonl

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the hub: OWNER/NAME is a folder in it."""
    folder = tmp_path / "hub"
    (folder / "someone" / "words").mkdir(parents=True)
    shutil.copy(corpus.path / "tokenizer.json", folder / "someone" / "words")
    (folder / "someone" / "weights").mkdir()

    def snapshot_download(name: str, *, allow_patterns: list[str]) -> str:
        assert "tokenizer.json" in allow_patterns
        assert not any("*" in pattern for pattern in allow_patterns)  # no weights
        if not (folder / name).is_dir():
            raise OSError(f"404: no repository {name}\nAsk its owner.")
        return str(folder / name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("name", ["hub:someone/words", "someone/words", "~/someone/words"])
def test_a_tokenizer_of_the_hub_or_of_a_folder(
    hub: Path, corpus: Corpus, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(hub))
    assert named_tokenizer(name).to_str() == corpus.tokenizer.to_str()
    assert given_vocabulary(TokenizerConfig(file=name)) == corpus.vocab_size
    assert given_vocabulary(TokenizerConfig()) is None


def test_a_path_that_exists_is_no_name_of_the_hub(hub: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer at hub/someone"):
        named_tokenizer("hub/someone")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hub:someone/else", r"^cannot fetch the tokenizer hub:someone/else: 404.*else; tokenizer"),
        ("hub:someone/weights", r"^hub:someone/weights has no tokenizer\.json"),
        ("toks/tokenizer.json", "^no file or folder toks/tokenizer.json: cannot fetch"),
        ("words", "no tokenizer at words"),
    ],
)
def test_what_is_missing_is_one_line(hub: Path, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        named_tokenizer(name)
    assert "\n" not in str(caught.value)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"^tokenizer.*crammed\[hf\]"):
        named_tokenizer("hub:someone/words")
    with pytest.raises(InputError, match=r"^no file or folder toks/a: tokenizer.*\[hf\]"):
        named_tokenizer("toks/a")


def test_with_a_given_tokenizer_preparing_measures_nothing(tmp_path: Path, corpus: Corpus) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(300))
    file = corpus.path / "tokenizer.json"
    out = tmp_path / "corpus"
    options = ["--data", str(text), "--budget", "1h", "--out", str(out)]
    done = crammed("prepare", f"tokenizer.file={file}", "data.heldout_rows=2", *options)
    assert done.returncode == 0, done.stderr
    size = f"{corpus.vocab_size:,}"
    assert f"vocabulary  {size}, of the tokenizer in tokenizer.file" in done.stderr
    assert "measuring" not in done.stderr
    assert f"{size}, " in done.stdout
