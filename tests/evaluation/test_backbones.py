"""What the models compute, whatever their origin."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.export.huggingface import export
from crammed.model.classifiers import TokenClassifier
from crammed.model.trained import load_trained
from support.backbones import RECIPES, TEXTS, Load, batch, row
from support.models import FAMILIES, change, save_model, save_tokenizer, untrained, word_pieces
from support.text import tiny


@pytest.mark.parametrize("every_token", [False, True])
@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_a_rows_logits_depend_neither_on_padding_nor_on_other_rows(
    load_model: Load, name: str, every_token: bool
) -> None:
    encoder = load_model(name)
    model = encoder.classifier(3, 7, trained=True, every_token=every_token)
    assert model.training
    model.eval()
    tokens = encoder.tokenize(TEXTS, 32, words=False)
    assert len(tokens.offsets) == 4
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


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("every_token", [False, True])
@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_the_untrained_model_shares_only_the_shape_and_the_head(
    load_model: Load, name: str, every_token: bool
) -> None:
    encoder = load_model(name)

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
    model_folders: dict[str, Path], load_model: Load, name: str, every_token: bool
) -> None:
    import transformers

    kind = f"AutoModelFor{'Token' if every_token else 'Sequence'}Classification"
    theirs = getattr(transformers, kind).from_pretrained(model_folders[name], num_labels=3).eval()
    encoder = load_model(name)
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


@pytest.mark.parametrize("asked", [False, None])
def test_a_configuration_that_asks_for_tuples_changes_nothing(
    tmp_path: Path, model_folders: dict[str, Path], load_model: Load, asked: bool | None
) -> None:
    folder = shutil.copytree(model_folders["bert"], tmp_path / "bert")
    change(folder / "config.json", {"return_dict": asked})
    encoders = BackboneSpec(str(folder)).load(), load_model("bert")
    ids = torch.arange(10, 20)[None]
    cpu = torch.device("cpu")
    with torch.inference_mode():
        for make in (
            lambda e: e.encoder()(ids, None, None),
            lambda e: e.encoder(untrained=1)(ids, None, None),
            lambda e: e.classifier(2, 0, trained=True, every_token=False).eval()(ids),
            lambda e: e.masked_lm(cpu)(ids, torch.tensor([[1, 2]])),
            lambda e: e.untrained_masked_lm(cpu)(ids, torch.tensor([[1, 2]])),
        ):
            torch.testing.assert_close(*map(make, encoders))


def test_drawing_a_classifier_leaves_the_random_state_alone(load_model: Load) -> None:
    for name in ("crammed", "bert"):
        before = torch.get_rng_state()
        load_model(name).classifier(2, 3, trained=True, every_token=False)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_classifier_that_the_folder_brings_is_not_taken(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "bert", "bert", "AutoModelForSequenceClassification")
    encoder = BackboneSpec(str(folder)).load()
    own = encoder.classifier(2, 0, trained=True, every_token=False)
    fresh = encoder.classifier(2, 0, trained=False, every_token=False)
    assert torch.equal(
        parameters(own)["model.classifier.weight"], parameters(fresh)["model.classifier.weight"]
    )
    assert not torch.equal(
        parameters(own)["model.bert.pooler.dense.weight"],
        parameters(fresh)["model.bert.pooler.dense.weight"],
    )


def test_a_classifier_that_would_read_padding_is_refused(tmp_path: Path) -> None:
    """As that of XLNet, whose own tokenizer pads on the left."""
    import transformers

    tokenizer = word_pieces()
    save_tokenizer(tmp_path, tokenizer, model_max_length=40)
    config = transformers.XLNetConfig(
        vocab_size=tokenizer.get_vocab_size(), d_model=32, n_layer=1, n_head=2, d_inner=48
    )
    transformers.XLNetLMHeadModel(config).save_pretrained(tmp_path)
    encoder = BackboneSpec(str(tmp_path)).load()
    with pytest.raises(InputError, match="reads the last position, as XLNet's does"):
        encoder.classifier(2, 0, trained=True, every_token=False)
    encoder.classifier(2, 0, trained=True, every_token=True)


def test_a_model_that_takes_no_mask_is_refused(tmp_path: Path) -> None:
    import transformers

    tokenizer = word_pieces()
    save_tokenizer(tmp_path, tokenizer, model_max_length=40)
    config = transformers.FNetConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=8, num_hidden_layers=1
    )
    transformers.FNetForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="is a fnet model, which takes no attention_mask"):
        BackboneSpec(str(tmp_path)).load()


@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_dropout_is_what_is_asked_for_whatever_the_configuration_says(
    load_model: Load, name: str
) -> None:
    encoder = load_model(name)
    for dropout in (0.3, 0.0):
        model = encoder.classifier(2, 0, trained=True, every_token=False, dropout=dropout)
        ends = encoder.encoder_ends_to_tune(0, trained=False, dropout=dropout)
        for each in (model, ends):
            shares = {m.p for m in each.modules() if isinstance(m, nn.Dropout)}
            assert dropout in shares
            assert shares <= {0.0, dropout}


def test_dropout_has_other_names_and_switches_are_none(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "bert", "bert")
    change(folder / "config.json", {"resid_pdrop": 0.2, "dropout_rate": 0, "token_dropout": True})
    known = BackboneSpec(str(folder)).load().dropouts()
    assert known.keys() - {"hidden_dropout_prob", "attention_probs_dropout_prob"} == {
        "resid_pdrop",
        "dropout_rate",
    }


def test_weights_are_not_rounded_whatever_the_configuration_says(
    tmp_path: Path, load_model: Load, model_folders: dict[str, Path]
) -> None:
    folder = shutil.copytree(model_folders["bert"], tmp_path / "bert")
    change(folder / "config.json", {"dtype": "float16", "torch_dtype": "float16"})
    named = BackboneSpec(str(folder)).load()
    for seed in (None, 0):
        found, wanted = (parameters(each.encoder(seed)) for each in (named, load_model("bert")))
        torch.testing.assert_close(found, wanted, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_the_masked_lm_decodes_chosen_positions_and_ignores_padding(
    model_folders: dict[str, Path], load_model: Load, name: str
) -> None:
    from transformers import AutoModelForMaskedLM

    encoder = load_model(name)
    cpu = torch.device("cpu")
    model = encoder.masked_lm(cpu)
    tokens = encoder.tokenize([texts[:1] for texts in TEXTS], 32, words=False)
    ids, mask, _ = batch(tokens, [0, 1, 2], encoder.pad, 24)
    positions = torch.tensor([[1, 3], [2, 0], [0, 1]])
    if name in RECIPES:
        everywhere = load_trained(model_folders[name]).masked_lm(cpu)(ids, mask=mask)
    else:
        theirs = AutoModelForMaskedLM.from_pretrained(model_folders[name]).eval()
        everywhere = theirs(input_ids=ids, attention_mask=mask.long()).logits
    with torch.inference_mode():
        sparse = model(ids, positions, mask)
        short, _ = row(tokens, 1)
        alone = model(short[None], positions[1:2])
    expected = torch.stack([everywhere[n, positions[n]] for n in range(3)])
    torch.testing.assert_close(sparse, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(alone[0], sparse[1], rtol=1e-4, atol=1e-4)


def test_a_model_without_its_pretraining_head_can_be_fine_tuned_only(tmp_path: Path) -> None:
    encoder = BackboneSpec(str(save_model(tmp_path / "bert", "bert", "AutoModel"))).load()
    assert encoder.classifier(2, 0, trained=True, every_token=True)
    with pytest.raises(InputError, match=r"bert has no masked-language-model head.*lack cls\."):
        encoder.masked_lm(torch.device("cpu"))


def test_the_exported_model_is_the_run(tmp_path: Path, corpus: Corpus) -> None:
    """A run and its export give the same results, custom code included."""
    for recipe in RECIPES:
        final = untrained(corpus.tokenizer, tiny(recipe).model)
        final.save(tmp_path / recipe / "final")
        done = export(final, tmp_path / recipe / "export")
        ours = BackboneSpec(str(tmp_path / recipe)).load()
        theirs = BackboneSpec(str(done.path)).load()
        model = final.config
        # ModernBERT has a bias after attention where it has those of queries, keys and values.
        added = model.layers * model.width if model.qkv_bias > model.linear_bias else 0
        assert theirs.parameters == ours.parameters + added
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
    specs = BackboneSpec(str(tmp_path)), BackboneSpec(str(export(final, tmp_path / "export").path))
    ours, theirs = (s.load().classifier(3, 0, trained=True, every_token=True) for s in specs)
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
    model_folders: dict[str, Path], load_model: Load, name: str
) -> None:
    from transformers import AutoModelForMaskedLM

    encoder = load_model(name)
    assert encoder.max_length == 40  # RoBERTa: of 42 positions
    model = AutoModelForMaskedLM.from_pretrained(model_folders[name])
    assert encoder.parameters == sum(p.numel() for p in model.parameters())
    with pytest.raises(InputError, match=f"41 tokens are too long for {name}: .*40"):
        encoder.tokenize(TEXTS, 41, words=False)
    longest = encoder.tokenize([("fox " * 99,)], 40, words=False)
    ids, _ = row(longest, 0)
    assert len(ids) == 40
    model = encoder.classifier(2, 0, trained=True, every_token=False)
    assert model(ids[None]).isfinite().all()
