"""What is in a model's folder: whole, copied, broken, hostile or not there."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from crammed.errors import InputError
from crammed.evaluation.backbones.huggingface_files import loading, model_files
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.export.huggingface import comes_with_our_code, export
from crammed.files.hashes import HASHES, write_hashes
from support.models import byte_pairs, change, save_tokenizer, untrained, word_pieces
from support.text import tiny


def test_the_digest_is_of_the_content_alone(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    from safetensors.torch import load_file, save_file

    for name in ("bert", "crammed"):
        copy = shutil.copytree(model_folders[name], tmp_path / name)
        (copy / "README.md").write_text("words")
        first = BackboneSpec(str(model_folders[name])).load().sha256
        assert BackboneSpec(str(copy)).load().sha256 == first
        (file,) = copy.rglob("model.safetensors")
        weights = load_file(file)
        next(iter(weights.values())).add_(1.0)
        save_file(weights, file, metadata={"format": "pt"})
        if (file.parent / HASHES).exists():
            write_hashes(file.parent)
        assert BackboneSpec(str(copy)).load().sha256 != first


def test_nothing_is_written_on_the_terminal(
    model_folders: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    encoder = BackboneSpec(str(model_folders["bert"])).load()
    encoder.classifier(3, 0, trained=True, every_token=False)
    encoder.masked_lm(torch.device("cpu"))
    encoder.plain_ids("the red fox " * 500)
    assert capfd.readouterr() == ("", "")


HUGE = 10**9
REMOTE = {"model_type": "bort", "auto_map": {"AutoConfig": "m.C", "AutoModel": "m.M"}}
KERNEL, QUANTIZED = "someone/kernel", {"quantization_config": {"quant_method": "mxfp4"}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tokenizer.json": None, "tokenizer_config.json": None}, "holds no tokenizer"),
    ({"model.safetensors": None}, "holds no weights"),
    (
        {"model.safetensors": "\x10" + 100 * "\0"},
        "model of bert cannot be loaded: .*; restore it from a copy, or download it again$",
    ),
    (
        {"model.safetensors": None, "pytorch_model.bin": "\x80\x02c"},
        "bert cannot be loaded: pytorch_model.bin is damaged, or holds code, .*; restore it from a",
    ),
    ({"tokenizer.json": None}, r"holds no tokenizer \(such as tokenizer.json\)"),
    ({"tokenizer_config.json": {"model_max_length": 7}}, "takes only 7 tokens at a time"),
    ({"config.json": {"hidden_size": 64}}, "weights of bert do not match its config.json: they la"),
    (
        {"config.json": {"num_hidden_layers": 1}},
        r"do not match its config.json: they have more than 1 layers, such as bert.encoder.layer.1",
    ),
    (
        {"config.json": {"num_hidden_layers": 3}},
        r"do not match its config.json: they lack (bert\.)?encoder\.layer\.2.* more",
    ),
    ({"config.json": None}, r"neither a finished run .* nor a Hugging Face folder"),
    ({"config.json": "{"}, "not a JSON object"),
    ({"config.json": "{}"}, "no model_type"),
    ({"config.json": {"model_type": "bort"}}, r"configuration of bert cannot be loaded.*bort"),
    (
        {"config.json": REMOTE, "m.py": "raise SystemExit('ran')"},
        r"bert comes with its own Python code.*--trust-remote-code",
    ),
    *(
        ({"config.json": values}, r"asks for the code .* remove that key")
        for values in (
            {"attn_implementation": KERNEL},
            {"_attn_implementation": KERNEL},
            {"attn_implementation": {"text_config": KERNEL}},
            {"text_config": {"experts_implementation": KERNEL}},
            {"attn_implementation": "flash_attention_2"},  # which a library would download
        )
    ),
    *(
        ({"config.json": values}, "asks for the code of a quantization")
        for values in (QUANTIZED, {"text_config": QUANTIZED})
    ),
    (
        {"config.json": {"configuration_files": ["config.4.0.0.json"]}},
        "another file read in its pl",
    ),
    ({"adapter_config.json": {"base_model_name_or_path": "a/b"}}, "bert holds an adapter: merge"),
    *(
        ({"config.json": values}, f"no model has so large a {key}")
        for key in ("num_labels", "vocab_size")
        for values in ({key: HUGE}, {"text_config": {key: HUGE}})
    ),
    *(
        ({name: values}, f"{name} has a token with the id 1,000,000,000")
        for name, values in {
            "tokenizer.json": {"added_tokens": [{"id": HUGE, "content": "x"}]},
            "tokenizer_config.json": {"added_tokens_decoder": {str(HUGE): {"content": "x"}}},
            "added_tokens.json": {"x": HUGE},
            "vocab.json": {"x": HUGE},
        }.items()
    ),
]
"""Files that are gone, have another content, or other values beside their own; what is said."""


@pytest.fixture
def bert(tmp_path: Path, model_folders: dict[str, Path]) -> Path:
    return shutil.copytree(model_folders["bert"], tmp_path / "bert")


def refused(folder: Path, words: str) -> None:
    """Check that the folder is refused in one line with these words."""
    with pytest.raises(InputError, match=words) as caught:
        BackboneSpec(str(folder)).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("files", "words"), WRONG)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(
    bert: Path, files: dict[str, Any], words: str
) -> None:
    for name, content in files.items():
        if content is None:
            (bert / name).unlink()
        elif isinstance(content, str):
            (bert / name).write_text(content)
        else:
            change(bert / name, content)
    refused(bert, words)


def test_a_link_to_a_missing_file_is_named(bert: Path) -> None:
    (bert / "tokenizer.json").rename(bert.parent / "blob")
    (bert / "tokenizer.json").symlink_to("../blob")
    assert model_files(bert)
    (bert.parent / "blob").unlink()
    refused(bert, "tokenizer.json is a link to a missing file: copy the model with cp -rL")


def test_folders_are_no_files_of_a_model(bert: Path) -> None:
    before = BackboneSpec(str(bert)).load().sha256
    for name in ("tokenizer", "vocab_old", "model-old.safetensors"):
        (bert / name).mkdir()
    assert BackboneSpec(str(bert)).load().sha256 == before


@pytest.mark.parametrize("kind", [torch.int8, torch.int64, torch.bool, torch.complex64])
def test_weights_that_are_no_floating_point_numbers_are_refused(
    bert: Path, kind: torch.dtype
) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(bert / "model.safetensors")
    whole = {**weights, "bert.embeddings.position_ids": torch.arange(40)}
    save_file(whole, bert / "model.safetensors", metadata={"format": "pt"})
    BackboneSpec(str(bert)).load()
    key = "bert.encoder.layer.0.output.dense.weight"
    weights[key] = weights[key].to(kind)
    save_file(weights, bert / "model.safetensors", metadata={"format": "pt"})
    refused(bert, f"not floating-point numbers: {key} is .*: name|weights of bert")


@pytest.fixture(scope="module")
def custom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that comes with our code."""
    model = untrained(word_pieces(), tiny().model)
    return export(model, tmp_path_factory.mktemp("custom") / "export", "custom").path


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil/repo--evil.Tok", None]}}),
        ("tokenizer_config.json", {"auto_map": ["evil/repo--evil.Tok", None]}),
        ("preprocessor_config.json", {"auto_map": {"AutoProcessor": "evil/repo--evil.P"}}),
        ("config.json", {"text_config": {"auto_map": {"AutoConfig": "evil/repo--evil.C"}}}),
        ("config.json", {"auto_map": {"AutoConfig": "modeling_crammed.x--m.C"}}),
    ],
)
def test_our_code_does_not_let_the_code_of_others_through(
    tmp_path: Path, custom: Path, file: str, values: dict[str, Any]
) -> None:
    copy = shutil.copytree(custom, tmp_path / "copy")
    assert comes_with_our_code(copy)
    change(copy / file, values)
    assert not comes_with_our_code(copy)
    refused(copy, r"comes with its own Python code.*--trust-remote-code")


def test_what_is_wrong_with_a_tokenizer_is_said_in_one_line(bert: Path) -> None:
    save_tokenizer(bert, word_pieces(), pad_token=None)
    refused(bert, "has no padding token")
    save_tokenizer(bert, byte_pairs())
    refused(bert, "ids up to 349, but the model has only 150 embeddings")


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
def test_hostile_files_of_a_folder_are_read_or_refused(bert: Path, name: str) -> None:
    one_line = 0
    for content in hostile((bert / name).read_bytes()):
        (bert / name).write_bytes(content)
        try:
            BackboneSpec(str(bert)).load()
        except InputError as error:
            one_line += "\n" not in str(error)
    assert one_line >= 5


def test_implementations_of_pytorch_are_taken(bert: Path) -> None:
    change(bert / "config.json", {"attn_implementation": "eager"})
    assert model_files(bert)


def framed(folder: Path, number: int) -> None:
    piece = [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    second = [{"Sequence": {"id": "B", "type_id": 0}}]
    tokens = {"x": {"id": "x", "ids": [number], "tokens": ["x"]}}
    processor = {"type": "TemplateProcessing", "single": piece, "pair": [*piece, *second]}
    change(folder / "tokenizer.json", {"post_processor": {**processor, "special_tokens": tokens}})


@pytest.mark.parametrize("number", [HUGE, 2**32 - 1])
def test_ids_of_a_frame_have_embeddings(
    tmp_path: Path, model_folders: dict[str, Path], number: int
) -> None:
    run = shutil.copytree(model_folders["crammed"], tmp_path / "run")
    framed(run / "final", number)
    (run / "final" / "hashes.json").unlink()
    change(run / "final" / "config.json", {"schema": 1})
    with pytest.raises(InputError, match=r"tokenizer.json is not a readable tokenizer"):
        BackboneSpec(str(run)).load()


def test_ids_of_another_models_frame_have_embeddings(bert: Path, monkeypatch: Any) -> None:
    import transformers
    from tokenizers import Tokenizer

    framed(bert, HUGE)

    def load(folder: Path, **_: Any) -> Any:  # whichever class this version would choose
        library = Tokenizer.from_file(str(folder / "tokenizer.json"))
        names = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]"}
        return transformers.PreTrainedTokenizerFast(tokenizer_object=library, **names)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", load)
    with pytest.raises(InputError, match="frames sentences in the id 1,000,000,000"):
        BackboneSpec(str(bert)).load()


class PanicException(BaseException):
    """As the tokenizers library raises it."""


def test_a_panic_of_a_library_is_one_line() -> None:
    with pytest.raises(InputError, match="tokenizer of x cannot be loaded: index out of bounds"):
        with loading("x", "tokenizer"):
            raise PanicException("index out of bounds")


@pytest.mark.parametrize("charsmap", ["", "AAAA", "/////w==", "BAAAAP////8="])
def test_a_damaged_table_of_a_normalizer_is_one_line(bert: Path, charsmap: str) -> None:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    change(bert / "tokenizer.json", {"normalizer": normalizer})
    with suppress(InputError):  # nothing else, and no panic; some tables do nothing
        BackboneSpec(str(bert)).load().tokenize([("é ﬁ \u0301 text",)], 16, words=False)


def test_models_that_are_nowhere_are_said_to_be(
    tmp_path: Path, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"no such run directory or Hugging Face folder: .*/none"):
        BackboneSpec(str(tmp_path / "none")).load()
    with pytest.raises(InputError, match=r"no such model: some/model is not a folder.*hub"):
        BackboneSpec("some/model").load()
    with pytest.raises(InputError, match="type the run directory"):
        BackboneSpec(str(model_folders["crammed"] / "final")).load()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install 'crammed\[hf\]'"):
        BackboneSpec(str(model_folders["bert"])).load()
