from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from crammed.data.corpus import Corpus
from crammed.data.tokenization.tokenizer import CLS, SEP
from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.backbones.tokens import Tokenized
from crammed.export.huggingface import export
from crammed.files import HASHES, write_hashes
from crammed.model.encoder import TokenClassifier
from crammed.model.trained import load_trained
from support.models import FAMILIES, byte_pairs, save_model, save_tokenizer, untrained, word_pieces
from support.text import tiny

RECIPES = ("crammed", "bert-base", "crammed-2022")
TEXTS = [
    ("two boats at night", "the old sailor counts every letter in the garden"),
    ("the red fox",),
    ("my neighbour repairs seven lanterns under the bridge", "a quiet girl"),
]
Load = Callable[[str], Backbone]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> dict[str, Path]:
    """Runs of our recipes and models of transformers."""
    place = tmp_path_factory.mktemp("models")
    for recipe in RECIPES:
        untrained(corpus.tokenizer, tiny(recipe).model).save(place / recipe / "final")
    for family in FAMILIES:
        save_model(place / family, family)
    return {name: place / name for name in (*RECIPES, *FAMILIES)}


@pytest.fixture(scope="module")
def load(folders: dict[str, Path]) -> Load:
    return lambda name: BackboneSpec(str(folders[name]), 0.1).load()


def row(tokens: Tokenized, n: int) -> tuple[Tensor, Tensor | None]:
    part = slice(tokens.offsets[n], tokens.offsets[n + 1])
    types = None if tokens.types is None else torch.from_numpy(tokens.types[part]).long()
    return torch.from_numpy(tokens.ids[part]).long(), types


def batch(
    tokens: Tokenized, which: list[int], pad: int, width: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    ids = torch.full((len(which), width), pad)
    mask = torch.zeros(len(which), width, dtype=torch.bool)
    types = torch.zeros_like(ids)
    for place, n in enumerate(which):
        one, kinds = row(tokens, n)
        ids[place, : len(one)] = one
        mask[place, : len(one)] = True
        if kinds is not None:
            types[place, : len(one)] = kinds
    return ids, mask, None if tokens.types is None else types


@pytest.mark.parametrize("every_token", [False, True])
@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_a_rows_logits_depend_neither_on_padding_nor_on_other_rows(
    load: Load, name: str, every_token: bool
) -> None:
    encoder = load(name)
    model = encoder.classifier(3, 7, trained=True, every_token=every_token)
    assert model.training
    model.eval()
    tokens = encoder.tokenize(TEXTS, 32, words=False)
    assert len(tokens) == 3
    with torch.inference_mode():
        together = model(*batch(tokens, [0, 1, 2], encoder.pad, 32))
        for n in range(3):
            length = len(row(tokens, n)[0])
            alone = model(*batch(tokens, [n], encoder.pad, length))
            padded = model(*batch(tokens, [n], encoder.pad, length + 2))
            for other in (padded[0], together[n]):
                seen = other[:length] if every_token else other
                torch.testing.assert_close(seen, alone[0], rtol=1e-4, atol=1e-4)
    assert together.shape == ((3, 32, 3) if every_token else (3, 3))
    assert together.std(0).max() > 1e-3  # the rows do differ


@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_token_types_are_passed_exactly_where_the_model_has_them(load: Load, name: str) -> None:
    encoder = load(name)
    tokens = encoder.tokenize(TEXTS, 32, words=False)
    assert (tokens.types is not None) == (name in ("bert", "bert-base"))
    if tokens.types is None:
        return
    ids, types = row(tokens, 0)
    assert types is not None
    assert types.tolist() == sorted(types.tolist())
    assert types[-1] == 1
    model = encoder.classifier(2, 0, trained=True, every_token=False).eval()
    with torch.inference_mode():
        mask = torch.ones_like(ids[None], dtype=torch.bool)
        typed, plain = model(ids[None], mask, types[None]), model(ids[None], mask)
    assert (typed - plain).abs().max() > 1e-4


@pytest.mark.parametrize("length", [8, 13, 40])
@pytest.mark.parametrize("name", FAMILIES)
def test_token_ids_are_those_of_transformers(
    folders: dict[str, Path], load: Load, name: str, length: int
) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folders[name])
    encoder = load(name)
    ours = encoder.tokenize(TEXTS, length, words=False)
    whole = 0
    for n, texts in enumerate(TEXTS):
        expected = theirs(*texts, truncation=True, max_length=length)
        ids, types = row(ours, n)
        assert ids.tolist() == expected["input_ids"]
        if types is not None:
            assert types.tolist() == expected["token_type_ids"]
        whole += theirs(*texts)["input_ids"] == expected["input_ids"]
    assert ours.cut == len(TEXTS) - whole
    assert (
        list(encoder.plain_ids("the fox " * 40))
        == theirs("the fox " * 40, add_special_tokens=False)["input_ids"]
    )


@pytest.mark.parametrize("name", ["crammed", "bert", "roberta"])
def test_each_word_begins_at_its_first_token(load: Load, name: str) -> None:
    encoder = load(name)
    sentence = ("the", "unforgettable", "\u200b\n", "sailor's", "boats")
    tokens = encoder.tokenize([sentence, ("fox",) * 60, ()], 32, words=True)
    assert tokens.words is not None
    first = tokens.words[: tokens.offsets[1]]
    assert first[first >= 0].tolist() == [0, 1, 2, 3, 4]
    assert first[0] == first[-1] == -1  # special tokens
    assert (first < 0).sum() > 2  # later pieces of a word
    second = tokens.words[tokens.offsets[1] : tokens.offsets[2]]
    assert second[second >= 0].tolist() == list(range((second >= 0).sum()))
    assert tokens.cut == 1
    assert (tokens.words[tokens.offsets[2] :] == -1).all()


@pytest.mark.parametrize("name", ["crammed", "bert", "roberta"])
def test_words_become_the_tokens_of_their_sentence(load: Load, name: str) -> None:
    encoder = load(name)
    sentence = "the old sailor counts seven lanterns"
    split = encoder.tokenize([tuple(sentence.split())], 32, words=True)
    assert np.array_equal(split.ids, encoder.tokenize([(sentence,)], 32, words=False).ids)


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("every_token", [False, True])
@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_the_untrained_model_shares_only_the_shape_and_the_head(
    load: Load, name: str, every_token: bool
) -> None:
    encoder = load(name)

    def made(seed: int, trained: bool) -> dict[str, Tensor]:
        torch.manual_seed(seed + trained)  # earlier draws must not matter
        return parameters(encoder.classifier(2, seed, trained=trained, every_token=every_token))

    trained, fresh, other = made(5, True), made(5, False), made(6, True)
    same = {key for key in trained if torch.equal(trained[key], fresh[key])}
    assert any("classifier" in key and key.endswith("weight") for key in same)
    assert not any("embed" in key or "tokens." in key or "layer" in key for key in same)
    changed = {key for key in trained if not torch.equal(trained[key], other[key])}
    assert any("classifier" in key and key.endswith("weight") for key in changed)
    assert all("classifier" in key or "pooler" in key for key in changed)
    again = made(5, True)
    assert all(torch.equal(trained[key], again[key]) for key in trained)


@pytest.mark.parametrize("every_token", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_classifier_is_that_of_transformers(
    folders: dict[str, Path], load: Load, name: str, every_token: bool
) -> None:
    import transformers

    kind = f"AutoModelFor{'Token' if every_token else 'Sequence'}Classification"
    theirs = getattr(transformers, kind).from_pretrained(folders[name], num_labels=3).eval()
    encoder = load(name)
    ours = encoder.classifier(3, 0, trained=True, every_token=every_token).eval()
    heads = {
        key.removeprefix("model."): value
        for key, value in ours.state_dict().items()
        if "classifier" in key or "pooler" in key
    }
    theirs.load_state_dict(heads, strict=False)
    ids, mask, types = batch(encoder.tokenize(TEXTS, 32, words=False), [0, 1, 2], encoder.pad, 32)
    extra = {} if types is None else {"token_type_ids": types}
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=mask.long(), **extra).logits
        torch.testing.assert_close(ours(ids, mask, types), expected, rtol=1e-5, atol=1e-5)


def test_drawing_a_classifier_leaves_the_random_state_alone(load: Load) -> None:
    for name in ("crammed", "bert"):
        before = torch.get_rng_state()
        load(name).classifier(2, 3, trained=True, every_token=False)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_classifier_that_the_folder_brings_is_not_taken(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "bert", "bert", "AutoModelForSequenceClassification")
    encoder = BackboneSpec(str(folder), 0.1).load()
    own = encoder.classifier(2, 0, trained=True, every_token=False)
    fresh = encoder.classifier(2, 0, trained=False, every_token=False)
    assert torch.equal(
        parameters(own)["model.classifier.weight"], parameters(fresh)["model.classifier.weight"]
    )
    assert not torch.equal(
        parameters(own)["model.bert.pooler.dense.weight"],
        parameters(fresh)["model.bert.pooler.dense.weight"],
    )


def test_dropout_is_the_protocols_for_runs_and_the_configurations_elsewhere(
    folders: dict[str, Path],
) -> None:
    for name, expected in (("crammed", 0.3), ("bert", 0.1)):
        encoder = BackboneSpec(str(folders[name]), 0.3).load()
        model = encoder.classifier(2, 0, trained=True, every_token=False)
        shares = {m.p for m in model.modules() if isinstance(m, nn.Dropout)} - {0.0}
        assert shares == {expected}


@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_the_masked_lm_decodes_chosen_positions_and_ignores_padding(
    folders: dict[str, Path], load: Load, name: str
) -> None:
    from transformers import AutoModelForMaskedLM

    encoder = load(name)
    cpu = torch.device("cpu")
    model = encoder.masked_lm(cpu)
    tokens = encoder.tokenize([texts[:1] for texts in TEXTS], 32, words=False)
    ids, mask, _ = batch(tokens, [0, 1, 2], encoder.pad, 24)
    positions = torch.tensor([[1, 3], [2, 0], [0, 1]])
    if name in RECIPES:
        everywhere = load_trained(folders[name]).masked_lm(cpu)(ids, mask=mask)
    else:
        theirs = AutoModelForMaskedLM.from_pretrained(folders[name]).eval()
        everywhere = theirs(input_ids=ids, attention_mask=mask.long()).logits
    with torch.inference_mode():
        sparse = model(ids, positions, mask)
        short, _ = row(tokens, 1)
        alone = model(short[None], positions[1:2])
    expected = torch.stack([everywhere[n, positions[n]] for n in range(3)])
    torch.testing.assert_close(sparse, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(alone[0], sparse[1], rtol=1e-4, atol=1e-4)


def test_a_model_without_its_pretraining_head_can_be_fine_tuned_only(tmp_path: Path) -> None:
    encoder = BackboneSpec(str(save_model(tmp_path / "bert", "bert", "AutoModel")), 0.1).load()
    assert encoder.classifier(2, 0, trained=True, every_token=True)
    with pytest.raises(InputError, match=r"bert has no masked-language-model head.*lack cls\."):
        encoder.masked_lm(torch.device("cpu"))


def test_the_exported_model_is_the_run(tmp_path: Path, corpus: Corpus) -> None:
    """A run and its export give the same results, custom code included."""
    for recipe in RECIPES:
        final = untrained(corpus.tokenizer, tiny(recipe).model)
        final.save(tmp_path / recipe / "final")
        done = export(final, tmp_path / recipe / "export")
        ours = BackboneSpec(str(tmp_path / recipe), 0.1).load()
        theirs = BackboneSpec(str(done.path), 0.1, trust_remote_code=done.format == "custom").load()
        assert theirs.parameters == ours.parameters
        assert theirs.max_length == ours.max_length
        assert theirs.specials == ours.specials
        assert (theirs.pad, theirs.mask, theirs.sep) == (ours.pad, ours.mask, ours.sep)
        one, other = (e.tokenize(TEXTS, 16, words=False) for e in (ours, theirs))
        assert np.array_equal(one.ids, other.ids)
        assert (one.types is None) == (other.types is None)
        cpu = torch.device("cpu")
        ids, mask, _ = batch(one, [0, 1, 2], ours.pad, 16)
        at = torch.tensor([[1], [2], [3]])
        with torch.inference_mode():
            torch.testing.assert_close(
                ours.masked_lm(cpu)(ids, at, mask),
                theirs.masked_lm(cpu)(ids, at, mask),
                rtol=1e-4,
                atol=1e-4,
            )


@pytest.mark.parametrize("recipe", RECIPES)
def test_token_classifiers_are_those_of_the_exported_class(
    tmp_path: Path, corpus: Corpus, recipe: str
) -> None:
    config = tiny(recipe).model
    final = untrained(corpus.tokenizer, config)
    final.save(tmp_path / "final")
    done = export(final, tmp_path / "export")
    theirs = (
        BackboneSpec(str(done.path), 0.1, trust_remote_code=True)
        .load()
        .classifier(3, 0, trained=True, every_token=True)
    )
    ours = BackboneSpec(str(tmp_path), 0.0).load().classifier(3, 0, trained=True, every_token=True)
    assert isinstance(ours, TokenClassifier)
    head = theirs.get_submodule("model.classifier")
    assert isinstance(head, nn.Linear)
    ours.classifier.load_state_dict(head.state_dict())
    ids = torch.randint(5, final.vocab_size, (3, 20))
    mask = torch.arange(20).expand(3, 20) < torch.tensor([[20], [11], [4]])
    with torch.inference_mode():
        expected = theirs.eval()(ids, mask)
        torch.testing.assert_close(
            ours.eval()(ids, mask)[mask], expected[mask], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("name", FAMILIES)
def test_lengths_and_sizes_are_those_of_the_model(
    folders: dict[str, Path], load: Load, name: str
) -> None:
    from transformers import AutoModelForMaskedLM

    encoder = load(name)
    assert encoder.max_length == 40  # RoBERTa: of 42 positions
    model = AutoModelForMaskedLM.from_pretrained(folders[name])
    assert encoder.parameters == sum(p.numel() for p in model.parameters())
    with pytest.raises(InputError, match=f"41 tokens are too long for {name}: .*40"):
        encoder.tokenize(TEXTS, 41, words=False)
    longest = encoder.tokenize([("fox " * 99,)], 40, words=False)
    ids, _ = row(longest, 0)
    assert len(ids) == 40
    model = encoder.classifier(2, 0, trained=True, every_token=False)
    assert model(ids[None]).isfinite().all()


def test_the_digest_is_of_the_content_alone(tmp_path: Path, folders: dict[str, Path]) -> None:
    from safetensors.torch import load_file, save_file

    for name in ("bert", "crammed"):
        copy = shutil.copytree(folders[name], tmp_path / name)
        (copy / "README.md").write_text("words")
        first = BackboneSpec(str(folders[name]), 0.1).load().sha256
        assert BackboneSpec(str(copy), 0.1).load().sha256 == first
        (file,) = copy.rglob("model.safetensors")
        weights = load_file(file)
        next(iter(weights.values())).add_(1.0)
        save_file(weights, file, metadata={"format": "pt"})
        if (file.parent / HASHES).exists():
            write_hashes(file.parent)
        assert BackboneSpec(str(copy), 0.1).load().sha256 != first


def test_a_spec_travels_to_other_processes(folders: dict[str, Path]) -> None:
    spec = BackboneSpec(str(folders["bert"]), 0.1)
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert again.load().sha256 == spec.load().sha256


def test_nothing_is_written_on_the_terminal(
    folders: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    encoder = BackboneSpec(str(folders["bert"]), 0.1).load()
    encoder.classifier(3, 0, trained=True, every_token=False)
    encoder.masked_lm(torch.device("cpu"))
    encoder.plain_ids("the red fox " * 500)
    assert capfd.readouterr() == ("", "")


def test_a_tokenizer_without_first_and_last_tokens_works(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "bert", "bert")
    save_tokenizer(folder, word_pieces(framed=False), model_max_length=40)
    encoder = BackboneSpec(str(folder), 0.1).load()
    tokens = encoder.tokenize([("the red fox",), ("",)], 32, words=False)
    assert not {CLS, SEP} & set(tokens.ids.tolist())
    assert (
        tokens.offsets[2] - tokens.offsets[1] == 1
    )  # a sequence without tokens would have no logits
    model = encoder.classifier(2, 0, trained=True, every_token=False)
    assert model(row(tokens, 0)[0][None]).shape == (1, 2)


def test_tokenizers_written_in_python_give_the_same_as_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM, EsmConfig, EsmTokenizer

    names = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWC", "<mask>"]
    (tmp_path / "words.txt").write_text("\n".join(names))
    tokenizer = EsmTokenizer(str(tmp_path / "words.txt"), model_max_length=30)
    folder = tmp_path / "esm"
    tokenizer.save_pretrained(folder)
    config = EsmConfig(
        vocab_size=len(names),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=34,
        pad_token_id=1,
        mask_token_id=names.index("<mask>"),
    )
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    encoder = BackboneSpec(str(folder), 0.1).load()
    rows = [("L A G V S E R",), ("L A G V S E R", "T I D P"), ("K",)]
    tokens = encoder.tokenize(rows, 8, words=False)
    for n, texts in enumerate(rows):
        assert (
            row(tokens, n)[0].tolist()
            == tokenizer(*texts, truncation=True, max_length=8)["input_ids"]
        )
    assert tokens.cut == 2
    assert list(encoder.plain_ids("L A")) == [4, 5]
    split = encoder.tokenize([("L", "", "A G", "V")], 6, words=True)
    assert split.ids.tolist() == [0, 4, 3, 5, 6, 2]  # V was truncated; the empty word is unknown
    assert split.words is not None
    assert split.words.tolist() == [-1, 0, 1, 2, -1, -1]


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
        ("remote code", r"bert comes with Python code of its own.*--trust-remote-code"),
        ("no padding", "has no padding token"),
        ("other tokenizer", "ids up to 349, but the model has only 150 embeddings"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(
    tmp_path: Path, folders: dict[str, Path], what: str, words: str
) -> None:
    folder = shutil.copytree(folders["bert"], tmp_path / "bert")
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
    tmp_path: Path, folders: dict[str, Path], name: str
) -> None:
    folder = shutil.copytree(folders["bert"], tmp_path / "bert")
    refused = 0
    for content in hostile((folders["bert"] / name).read_bytes()):
        (folder / name).write_bytes(content)
        try:
            BackboneSpec(str(folder), 0.1).load()
        except InputError as error:
            refused += "\n" not in str(error)
    assert refused >= 5


def test_models_that_are_nowhere_are_said_to_be(
    tmp_path: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"no such run directory or Hugging Face folder: .*/none"):
        BackboneSpec(str(tmp_path / "none"), 0.1).load()
    with pytest.raises(InputError, match=r"no such model: some/model is not a folder.*hub"):
        BackboneSpec("some/model", 0.1).load()
    with pytest.raises(InputError, match="type the run directory"):
        BackboneSpec(str(folders["crammed"] / "final"), 0.1).load()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install 'crammed\[hf\]'"):
        BackboneSpec(str(folders["bert"]), 0.1).load()
