from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from crammed.config import ModelConfig
from crammed.data.corpus import Corpus
from crammed.data.tokenization.encoding import CorpusTokenizer
from crammed.data.tokenization.tokenizer import (
    NOT_ASCII,
    Specials,
    load_tokenizer,
    to_json,
    vocabulary_size,
)
from crammed.errors import CrammedError, InputError
from crammed.evaluation.fill_mask import fill_mask_examples
from crammed.export import native
from crammed.export.card import Metadata, _limits, _lost
from crammed.export.huggingface import export
from crammed.export.native import modernbert_obstacles
from crammed.files.hashes import sha256
from crammed.machine.device import Device
from crammed.model.classifiers import SequenceClassifier
from crammed.model.trained import load_trained, trained_model
from crammed.rules.recipe import recipe_names
from crammed.runs.summary import read_summary
from support.models import untrained
from support.pages import front_matter
from support.text import documents, tiny, write_jsonl
from support.training import train

FIXTURES = Path(__file__).parents[1] / "fixtures" / "2026-11-21"
ASCII = normalizers.Replace(Regex(NOT_ASCII), "")
FORMATS = {
    "crammed": "modernbert",
    "demo": "modernbert",
    "bert-base": "bert",
    "bert-original": "bert",
    "crammed-2022": "custom",
    "crammed-2022-v1": "custom",
    "izsak": "custom",
}


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_trains_and_exports_with_equal_logits(
    tmp_path: Path, corpus: Corpus, cpu: Device, recipe: str
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    config = tiny(recipe, budget={"limit": "4updates"})
    trained = train(config, corpus, tmp_path / "run", cpu)
    final = trained_model(trained.model, config.model, 32, corpus.tokenizer)
    done = export(final, tmp_path / "export")
    assert done.format == FORMATS[recipe]
    assert done.difference is not None
    assert done.difference < 1e-5

    trust = done.format == "custom"
    tokenizer = AutoTokenizer.from_pretrained(done.path)
    model, info = AutoModelForMaskedLM.from_pretrained(
        done.path, trust_remote_code=trust, output_loading_info=True
    )
    assert not info["missing_keys"]
    poolers = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert set(info["unexpected_keys"]) == (poolers if done.format == "bert" else set())
    batch = tokenizer(
        ["The red fox counts [MASK] lanterns.", "at night"], return_tensors="pt", padding=True
    )
    assert ("token_type_ids" in batch) == (config.model.token_types > 0)
    ours_tokens = corpus.tokenizer.encode("The red fox counts [MASK] lanterns.")
    assert batch["input_ids"][0].tolist() == ours_tokens.ids
    with torch.inference_mode():
        theirs = model.eval()(**batch).logits
        ours = trained.model.eval()(batch["input_ids"], mask=batch["attention_mask"].bool())
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(theirs[mask], ours[mask], rtol=1e-5, atol=1e-5)


def test_a_disk_that_a_tokenizer_fills_is_one_line(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library itself raises an error of no kind, and writes the same bytes."""
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    corpus.tokenizer.save(str(tmp_path / "tokenizer.json"))
    final.save(tmp_path / "final")
    export(final, tmp_path / "export")
    for folder in ("final", "export"):
        assert sha256(tmp_path / folder / "tokenizer.json") == sha256(tmp_path / "tokenizer.json")

    def full(descriptor: int) -> None:
        if "/.tokenizer.json." in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="the disk is full"):
        final.save(tmp_path / "a")
    with pytest.raises(InputError, match="the disk is full"):
        export(final, tmp_path / "b")


@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("recipe", ["crammed", "bert-base", "crammed-2022"])
def test_classifiers_are_those_of_the_exported_class(
    tmp_path: Path, corpus: Corpus, recipe: str, pooling: str
) -> None:
    """Fine-tuning here and in transformers is of the same function, head and all."""
    from transformers import AutoModelForSequenceClassification

    config = tiny(recipe, model={"pooling": pooling}).model
    final = untrained(corpus.tokenizer, config)
    done = export(final, tmp_path / "export")
    theirs = AutoModelForSequenceClassification.from_pretrained(
        done.path, num_labels=3, trust_remote_code=done.format == "custom"
    ).eval()
    ours = SequenceClassifier(config, final.vocab_size, 3).eval()
    own = ours.state_dict().keys()
    ours.load_state_dict({n: w for n, w in final.weights.items() if n in own}, strict=False)
    native = done.format == "bert"
    pooler = theirs.bert.pooler.dense if native else getattr(theirs, "pooler", None)
    with torch.no_grad():
        ours.classifier.weight.copy_(theirs.classifier.weight)
        ours.classifier.bias.copy_(theirs.classifier.bias)
        if pooler is not None:
            ours.pooler.weight.copy_(pooler.weight)
            ours.pooler.bias.copy_(pooler.bias)
    ids = torch.randint(5, final.vocab_size, (3, 20))
    mask = torch.arange(20).expand(3, 20) < torch.tensor([[20], [11], [4]])
    types = (torch.arange(20).expand(3, 20) >= 10).long() * (config.token_types > 0)
    extra: dict[str, Any] = {"token_type_ids": types} if config.token_types else {}
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=mask.long(), **extra).logits
        torch.testing.assert_close(ours(ids, mask, types), expected, rtol=1e-5, atol=1e-5)


def test_exported_configurations_carry_dropout_for_fine_tuning(
    tmp_path: Path, corpus: Corpus
) -> None:
    keys = {"crammed": "mlp_dropout", "bert-base": "hidden_dropout_prob", "crammed-2022": "dropout"}
    for recipe, name in keys.items():
        for width, expected in ((128, 0.0), (256, 0.1)):
            config = tiny(recipe, f"model.width={width}", "model.layers=1").model
            done = export(untrained(corpus.tokenizer, config), tmp_path / f"{recipe}-{width}")
            assert json.loads((done.path / "config.json").read_text())[name] == expected


@pytest.mark.parametrize("word", ["attention_dropout", "embedding_dropout", "layer_drop"])
def test_what_is_of_pretraining_alone_leaves_an_export_native(word: str) -> None:
    assert not modernbert_obstacles(tiny("crammed", f"model.{word}=0.1").model)


def test_a_format_that_cannot_hold_the_model_is_refused(tmp_path: Path, corpus: Corpus) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed-2022").model)
    with pytest.raises(InputError, match=r"modernbert cannot hold.*positions is scaled-sinusoidal"):
        export(final, tmp_path / "out", "modernbert")
    assert not (tmp_path / "out").exists()
    done = export(final, tmp_path / "out")
    assert any("positions" in reason for reason in done.reasons)
    with pytest.raises(InputError, match="exists already"):
        export(final, tmp_path / "out")


def test_a_wrong_export_is_not_left_behind(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    original = native.FORMATS["modernbert"]

    def wrong(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
        return {**original.config(config, vocab_size), "hidden_activation": "relu"}

    changed = dataclasses.replace(original, config=wrong)
    monkeypatch.setitem(native.FORMATS, "modernbert", changed)
    with pytest.raises(CrammedError, match="logits differ"):
        export(final, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_without_transformers_the_export_is_made_and_said_to_be_unchecked(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = export(untrained(corpus.tokenizer, tiny("crammed").model), tmp_path / "out")
    assert done.difference is None
    assert (done.path / "model.safetensors").exists()


def test_final_models_round_trip(tmp_path: Path, corpus: Corpus) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed-2022").model)
    final.save(tmp_path / "final")
    again = load_trained(tmp_path)
    assert again.config == final.config
    assert again.weights.keys() == final.weights.keys()
    assert all(torch.equal(again.weights[n], w) for n, w in final.weights.items())
    with pytest.raises(InputError, match="holds no trained model"):
        load_trained(tmp_path / "final")
    with pytest.raises(InputError, match="nowhere does not exist: name a run directory"):
        load_trained(tmp_path / "nowhere")


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_files_have_the_permissions_that_the_umask_gives(
    tmp_path: Path, corpus: Corpus, mask: int
) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed-2022").model)
    before = os.umask(mask)
    try:
        final.save(tmp_path / "final")
        export(final, tmp_path / "export")
    finally:
        os.umask(before)
    files = [*(tmp_path / "final").iterdir(), *(tmp_path / "export").iterdir()]
    assert len(files) > 10
    assert {file.stat().st_mode & 0o777 for file in files} == {0o666 & ~mask}


BERT = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
ROBERTA = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 119}


def brought_tokenizer(folder: Path, special: dict[str, int]) -> Tokenizer:
    """A word-level WordPiece tokenizer in which special tokens have these names and ids."""
    words = sorted({word for text in documents(60) for word in text.lower().split()})
    free = [n for n in range(len(words) + 120) if n not in special.values()]
    vocabulary = dict(zip((*"abcdefghijklmnopqrstuvwxyz.", *words), free, strict=False)) | special
    unknown = next(name for name in special if "unk" in name.lower())
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder / "tokenizer.json")


def brought_corpus(folder: Path, special: dict[str, int]) -> Corpus:
    """A corpus of documents under that tokenizer, written by hand."""
    folder.mkdir()
    tokenizer = brought_tokenizer(folder, special)
    (folder / "tokenizer.json").write_text(to_json(tokenizer), "utf-8")
    sep, texts = Specials.of(tokenizer).sep, documents(60)
    encoder = CorpusTokenizer(tokenizer)
    ids = [n for text in texts for n in (*encoder.encode_texts([text])[0].tolist(), sep)]
    rows = np.array(ids[: len(ids) // 32 * 32], "<u2")
    rows.tofile(folder / "rows-00000.bin")
    write_jsonl(folder / "heldout.jsonl.gz", texts)
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)}
        for file in folder.iterdir()
    }
    manifest = {
        "rows": len(rows) // 32,
        "row_length": 32,
        "vocab_size": vocabulary_size(tokenizer),
        "files": files,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return Corpus(folder)


@pytest.mark.parametrize("recipe", ["crammed", "bert-base", "crammed-2022"])
@pytest.mark.parametrize("special", [BERT, ROBERTA], ids=["bert", "roberta"])
def test_a_brought_tokenizer_keeps_its_special_tokens_through_training_and_export(
    tmp_path: Path, cpu: Device, recipe: str, special: dict[str, int]
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    corpus = brought_corpus(tmp_path / "corpus", special)
    config = tiny(recipe, budget={"limit": "4updates"})
    trained = train(config, corpus, tmp_path / "run", cpu)
    final = trained_model(trained.model, config.model, 32, corpus.tokenizer)
    final.save(tmp_path / "final")
    done = export(load_trained(tmp_path), tmp_path / "export")
    assert done.difference is not None

    tokenizer = AutoTokenizer.from_pretrained(done.path)
    model = AutoModelForMaskedLM.from_pretrained(
        done.path, trust_remote_code=done.format == "custom"
    )
    parts = {
        part: getattr(Specials.of(corpus.tokenizer), part)
        for part in ("pad", "unk", "cls", "sep", "mask")
    }
    assert sorted(parts.values()) == sorted(special.values())
    for part, number in parts.items():
        assert getattr(tokenizer, f"{part}_token_id") == number
        assert special[getattr(tokenizer, f"{part}_token")] == number
    assert model.config.pad_token_id == parts["pad"]
    assert model.config.mask_token_id == parts["mask"]
    mask = tokenizer.mask_token
    assert tokenizer(f"the {mask} fox")["input_ids"][2] == parts["mask"]
    examples = fill_mask_examples(final, corpus.heldout, cpu)
    assert examples
    assert all(len(example["guesses"]) == 5 for example in examples)


@pytest.mark.parametrize("recipe", ["crammed", "crammed-2022"])
def test_what_the_model_card_shows_runs(
    tmp_path: Path, corpus: Corpus, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    final = untrained(corpus.tokenizer, tiny(recipe).model)
    run = FIXTURES / "finished"
    metadata = Metadata.of_run(run, "apache-2.0", ("en", "no"))
    done = export(final, tmp_path / "export", "auto", read_summary(run), metadata)
    card = (done.path / "README.md").read_text()
    for shown in card.split("```python\n")[1:]:
        exec(shown.split("```")[0].replace("path/to/this/folder", str(done.path)), {})
    said = capsys.readouterr().out
    assert "'token_str'" in said
    assert "torch.Size([2, 32])" in said
    custom = FORMATS[recipe] == "custom"
    assert card.count("trust_remote_code=True") == (5 if custom else 0)
    assert re.search(r"held-out loss .*: \d.\d{3} with 15 % masked, \d.\d{3} with 25 % mask", card)
    assert "energy used by the device: not measured" in card
    assert "Inputs should not exceed 32 tokens" in card
    assert "- Its tokenizer drops capitals.\n" in card
    assert "- It was trained only on 118 documents of" in card
    summary = read_summary(run)
    assert summary is not None
    less = summary.model_copy(update={"epochs": 0.5})
    assert "trained only on part of 118 documents" in _limits(final, less)[0]
    given = front_matter(done.path)
    assert (given["license"], given["language"]) == ("apache-2.0", ["en", "no"])
    assert ("custom_code" in given["tags"]) == custom
    results = given["model-index"][0]["results"]
    assert {
        "task": {"type": "text-classification"},
        "dataset": {"type": "glue", "name": "rte (partial)"},
        "metrics": [{"type": "accuracy", "value": 50.0}],
    } in results


def test_a_card_says_what_its_tokenizer_drops() -> None:
    for normal, said in (
        (normalizers.BertNormalizer(strip_accents=False), "capitals"),
        (normalizers.BertNormalizer(), "capitals and accents"),
        (normalizers.Sequence([normalizers.Lowercase(), ASCII]), "capitals and characters out"),
    ):
        tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
        tokenizer.normalizer = normal
        (line,) = _lost(tokenizer)
        assert line.startswith(f"- Its tokenizer drops {said}")


def test_what_a_model_card_is_not_told_it_leaves_out(tmp_path: Path, corpus: Corpus) -> None:
    done = export(untrained(corpus.tokenizer, tiny().model), tmp_path / "export")
    given = front_matter(done.path)
    assert given.keys() == {"library_name", "pipeline_tag", "tags"}
    with pytest.raises(InputError, match=r"--license is 'my own', not a code such as apache-2\.0"):
        Metadata("my own")
    with pytest.raises(InputError, match="--language is 'English', not a code such as en"):
        Metadata(None, ("English",))
