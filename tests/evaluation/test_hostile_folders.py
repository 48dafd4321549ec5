"""Models of others that ask for code, or for sizes that no model has."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from crammed.errors import InputError
from crammed.evaluation.backbones.huggingface_files import loading, model_files
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.interface.lines import _quoted

HUGE = 10**9


def changed(folder: Path, name: str, values: dict[str, Any]) -> None:
    file = folder / name
    found = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**found, **values}))


@pytest.fixture
def bert(tmp_path: Path, model_folders: dict[str, Path]) -> Path:
    return shutil.copytree(model_folders["bert"], tmp_path / "bert")


@pytest.mark.parametrize(
    "values",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": "someone/kernel"},
        {"attn_implementation": {"text_config": "someone/kernel"}},
        {"text_config": {"experts_implementation": "someone/kernel"}},
        {"attn_implementation": "flash_attention_2"},  # a library downloads what is not installed
    ],
)
def test_code_that_a_configuration_names_is_refused(bert: Path, values: dict[str, Any]) -> None:
    changed(bert, "config.json", values)
    with pytest.raises(InputError, match=r"asks for the code .* remove that key"):
        BackboneSpec(str(bert), 0.1).load()


@pytest.mark.parametrize("inside", [False, True])
def test_a_quantization_is_refused(bert: Path, inside: bool) -> None:
    values = {"quantization_config": {"quant_method": "mxfp4"}}
    changed(bert, "config.json", {"text_config": values} if inside else values)
    with pytest.raises(InputError, match="asks for the code of a quantization"):
        BackboneSpec(str(bert), 0.1).load()


def test_an_adapter_is_refused(bert: Path) -> None:
    changed(bert, "adapter_config.json", {"base_model_name_or_path": "someone/model"})
    with pytest.raises(InputError, match="bert holds an adapter: merge it"):
        BackboneSpec(str(bert), 0.1).load()


def test_implementations_of_pytorch_are_taken(bert: Path) -> None:
    changed(bert, "config.json", {"attn_implementation": "eager"})
    assert model_files(bert)


@pytest.mark.parametrize("key", ["num_labels", "vocab_size"])
def test_a_size_that_no_model_has_ends_at_once(bert: Path, key: str) -> None:
    for values in ({key: HUGE}, {"text_config": {key: HUGE}}):
        changed(bert, "config.json", values)
        with pytest.raises(InputError, match=f"no model has so large a {key}"):
            BackboneSpec(str(bert), 0.1).load()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tokenizer.json", {"added_tokens": [{"id": HUGE, "content": "x"}]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {str(HUGE): {"content": "x"}}}),
        ("added_tokens.json", {"x": HUGE}),
        ("vocab.json", {"x": HUGE}),
    ],
)
def test_an_id_that_no_vocabulary_has_ends_at_once(
    bert: Path, name: str, values: dict[str, Any]
) -> None:
    changed(bert, name, values)
    with pytest.raises(InputError, match=f"{name} has a token with the id 1,000,000,000"):
        BackboneSpec(str(bert), 0.1).load()


def framed(folder: Path, number: int) -> None:
    piece = [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    second = [{"Sequence": {"id": "B", "type_id": 0}}]
    tokens = {"x": {"id": "x", "ids": [number], "tokens": ["x"]}}
    processor = {"type": "TemplateProcessing", "single": piece, "pair": [*piece, *second]}
    changed(folder, "tokenizer.json", {"post_processor": {**processor, "special_tokens": tokens}})


@pytest.mark.parametrize("number", [HUGE, 2**32 - 1])
def test_ids_of_a_frame_have_embeddings(
    tmp_path: Path, model_folders: dict[str, Path], number: int
) -> None:
    run = shutil.copytree(model_folders["crammed"], tmp_path / "run")
    framed(run / "final", number)
    (run / "final" / "hashes.json").unlink()
    changed(run / "final", "config.json", {"schema": 1})
    with pytest.raises(InputError, match=r"tokenizer.json is not a readable tokenizer"):
        BackboneSpec(str(run), 0.1).load()


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
        BackboneSpec(str(bert), 0.1).load()


class PanicException(BaseException):
    """As the tokenizers library raises it."""


def test_a_panic_of_a_library_is_one_line() -> None:
    with pytest.raises(InputError, match="tokenizer of x cannot be loaded: index out of bounds"):
        with loading("x", "tokenizer"):
            raise PanicException("index out of bounds")


@pytest.mark.parametrize("charsmap", ["", "AAAA", "/////w==", "BAAAAP////8="])
def test_a_damaged_table_of_a_normalizer_is_one_line(bert: Path, charsmap: str) -> None:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    changed(bert, "tokenizer.json", {"normalizer": normalizer})
    with suppress(InputError):  # nothing else, and no panic; some tables do nothing
        BackboneSpec(str(bert), 0.1).load().tokenize([("é ﬁ \u0301 text",)], 16, words=False)


@pytest.mark.parametrize("name", ["plain", "it's", 'a "b"', "$(touch x)", "`touch x`", "a\\b"])
def test_code_for_a_shell_is_one_word(name: str) -> None:
    import shlex

    code = f"print({name!r})"
    assert shlex.split(_quoted(code)) == [code]
    quoted = _quoted(code)
    assert quoted.startswith("'") or not re.search(r"[$`]", quoted)
