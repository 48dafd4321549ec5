"""Models of others that ask for code, or for sizes that no model has."""

from __future__ import annotations

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
from support.models import change

HUGE = 10**9


@pytest.fixture
def bert(tmp_path: Path, model_folders: dict[str, Path]) -> Path:
    return shutil.copytree(model_folders["bert"], tmp_path / "bert")


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
    change(bert / "tokenizer.json", {"normalizer": normalizer})
    with suppress(InputError):  # nothing else, and no panic; some tables do nothing
        BackboneSpec(str(bert), 0.1).load().tokenize([("é ﬁ \u0301 text",)], 16, words=False)


@pytest.mark.parametrize("name", ["plain", "it's", 'a "b"', "$(touch x)", "`touch x`", "a\\b"])
def test_code_for_a_shell_is_one_word(name: str) -> None:
    import shlex

    code = f"print({name!r})"
    assert shlex.split(_quoted(code)) == [code]
    quoted = _quoted(code)
    assert quoted.startswith("'") or not re.search(r"[$`]", quoted)
