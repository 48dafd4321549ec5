"""What is in a model's folder: whole, copied, broken, hostile or not there."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from crammed.errors import InputError
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.files.hashes import HASHES, write_hashes
from support.models import byte_pairs, save_tokenizer, word_pieces


def test_the_digest_is_of_the_content_alone(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    from safetensors.torch import load_file, save_file

    for name in ("bert", "crammed"):
        copy = shutil.copytree(model_folders[name], tmp_path / name)
        (copy / "README.md").write_text("words")
        first = BackboneSpec(str(model_folders[name]), 0.1).load().sha256
        assert BackboneSpec(str(copy), 0.1).load().sha256 == first
        (file,) = copy.rglob("model.safetensors")
        weights = load_file(file)
        next(iter(weights.values())).add_(1.0)
        save_file(weights, file, metadata={"format": "pt"})
        if (file.parent / HASHES).exists():
            write_hashes(file.parent)
        assert BackboneSpec(str(copy), 0.1).load().sha256 != first


def test_a_spec_travels_to_other_processes(model_folders: dict[str, Path]) -> None:
    spec = BackboneSpec(str(model_folders["bert"]), 0.1)
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert again.load().sha256 == spec.load().sha256


def test_nothing_is_written_on_the_terminal(
    model_folders: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    encoder = BackboneSpec(str(model_folders["bert"]), 0.1).load()
    encoder.classifier(3, 0, trained=True, every_token=False)
    encoder.masked_lm(torch.device("cpu"))
    encoder.plain_ids("the red fox " * 500)
    assert capfd.readouterr() == ("", "")


def broken(folder: Path, what: str) -> None:
    config = folder / "config.json"
    values: dict[str, Any] = json.loads(config.read_text())
    if what == "no tokenizer":
        for file in folder.glob("tokenizer*"):
            file.unlink()
    elif what == "no weights":
        (folder / "model.safetensors").unlink()
    elif what == "damaged weights":
        (folder / "model.safetensors").write_bytes(b"\x10" + bytes(100))
    elif what == "other weights":
        config.write_text(json.dumps({**values, "num_hidden_layers": 3}))
    elif what == "other width":
        config.write_text(json.dumps({**values, "hidden_size": 64}))
    elif what == "no config":
        config.unlink()
    elif what == "damaged config":
        config.write_text("{")
    elif what == "no model type":
        config.write_text("{}")
    elif what == "unknown model type":
        config.write_text(json.dumps({**values, "model_type": "bort"}))
    elif what == "remote code":
        more = {"model_type": "bort", "auto_map": {"AutoConfig": "m.C", "AutoModel": "m.M"}}
        config.write_text(json.dumps({**values, **more}))
        (folder / "m.py").write_text("raise SystemExit('ran')")
    elif what == "no padding":
        save_tokenizer(folder, word_pieces(), pad_token=None)
    elif what == "other tokenizer":
        save_tokenizer(folder, byte_pairs())


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no tokenizer", "holds no tokenizer"),
        ("no weights", "holds no weights"),
        ("damaged weights", "model of bert cannot be loaded"),
        (
            "other weights",
            r"do not match its config.json: they lack (bert\.)?encoder\.layer\.2.* more",
        ),
        ("other width", "of bert"),
        ("no config", r"neither a finished run .* nor a Hugging Face folder"),
        ("damaged config", "not a JSON object"),
        ("no model type", "no model_type"),
        ("unknown model type", r"configuration of bert cannot be loaded.*bort"),
        ("remote code", r"bert comes with its own Python code.*--trust-remote-code"),
        ("no padding", "has no padding token"),
        ("other tokenizer", "ids up to 349, but the model has only 150 embeddings"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(
    tmp_path: Path, model_folders: dict[str, Path], what: str, words: str
) -> None:
    folder = shutil.copytree(model_folders["bert"], tmp_path / "bert")
    broken(folder, what)
    with pytest.raises(InputError, match=words) as caught:
        BackboneSpec(str(folder), 0.1).load()
    assert "\n" not in str(caught.value)


def hostile(content: bytes) -> Iterator[bytes]:
    """A file cut short, of another form, or with a value that no one writes."""
    yield from (b"", content[: len(content) // 2], content[:-1], b"\xff\xfe", b"null", b"[]", b"{}")
    yield b"[" * 100_000
    if content.startswith(b"{"):
        values = json.loads(content)
        for key in values:
            others: tuple[Any, ...] = (None, -1, 10**22, "x", {})
            for value in others:
                yield json.dumps({**values, key: value}).encode()
    else:  # safetensors: a header that is longer than the file, and one that claims more
        yield (2**40).to_bytes(8, "little") + content[8:]
        length = int.from_bytes(content[:8], "little")
        header = content[8 : 8 + length].replace(b'"shape":[', b'"shape":[9999999,')
        yield len(header).to_bytes(8, "little") + header + content[8 + length :]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_hostile_files_of_a_folder_are_read_or_refused(
    tmp_path: Path, model_folders: dict[str, Path], name: str
) -> None:
    folder = shutil.copytree(model_folders["bert"], tmp_path / "bert")
    refused = 0
    for content in hostile((model_folders["bert"] / name).read_bytes()):
        (folder / name).write_bytes(content)
        try:
            BackboneSpec(str(folder), 0.1).load()
        except InputError as error:
            refused += "\n" not in str(error)
    assert refused >= 5


def test_models_that_are_nowhere_are_said_to_be(
    tmp_path: Path, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"no such run directory or Hugging Face folder: .*/none"):
        BackboneSpec(str(tmp_path / "none"), 0.1).load()
    with pytest.raises(InputError, match=r"no such model: some/model is not a folder.*hub"):
        BackboneSpec("some/model", 0.1).load()
    with pytest.raises(InputError, match="type the run directory"):
        BackboneSpec(str(model_folders["crammed"] / "final"), 0.1).load()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install 'crammed\[hf\]'"):
        BackboneSpec(str(model_folders["bert"]), 0.1).load()
