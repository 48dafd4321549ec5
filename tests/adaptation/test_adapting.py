"""Models of others, trained further: the updates, the run, the export, what is refused."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from crammed.adaptation.adapting import ask_for
from crammed.adaptation.objective import step_of
from crammed.adaptation.original import Original
from crammed.budget import Work
from crammed.config import RunConfig
from crammed.config.optim import MuonConfig
from crammed.data.corpus import Corpus
from crammed.data.masking import Masker
from crammed.data.preparing.driver import prepare
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import InputError
from crammed.evaluation.backbones.huggingface import HuggingFaceBackbone
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.export.huggingface import export
from crammed.interface.lines import run_lines
from crammed.loaded import load
from crammed.machine.device import Device
from crammed.model.trained import load_trained
from crammed.rules.sizing import MATRIX_RATE
from crammed.runs.directory import read_config
from crammed.runs.listing import list_runs
from crammed.terminal.progress import SILENT, Progress
from crammed.training.update.planned import Update
from support.adapting import FAMILIES, SMALL, adapt, save_family
from support.models import change, save_model, save_tokenizer, untrained, word_pieces
from support.text import tiny
from support.training import interrupt_at

FIXTURES = Path(__file__).parents[1] / "fixtures" / "2026-11-21"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("originals")
    found = {family: save_family(place / family, family) for family in FAMILIES}
    return found | {"squeezebert": save_with_pooler(place / "squeezebert")}


def save_with_pooler(folder: Path) -> Path:
    """Save a small SqueezeBERT, on whose pooler no logit depends."""
    import transformers

    shape: dict[str, Any] = dict.fromkeys(("hidden_size", "embedding_size"), 32)
    shape |= dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 2)
    shape |= {"intermediate_size": 48, "max_position_embeddings": 40, "vocab_size": 150}
    return saved(folder, transformers.SqueezeBertConfig(**shape))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Path:
    """A finished run that adapted an encoder without a head."""
    place = tmp_path_factory.mktemp("adapted")
    save_model(place / "headless", "bert", "AutoModel")
    adapt(place / "headless", text_file, place / "run", "train.heldout_every=0.5")
    return place / "run"


def plain_update(folder: Path, ids: Tensor, labels: Tensor, rate: float) -> dict[str, Tensor]:
    """The weights after one update by a loop as people write it, without dropout."""
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(folder).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, rate, betas=(0.9, 0.98), eps=1e-6)
    model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return dict(model.named_parameters())


def test_both_rates_of_muon_follow_the_width_of_the_model(
    originals: dict[str, Path], text_file: Path
) -> None:
    original = Original.find(str(originals[FAMILIES[0]]))
    fixed = {"data": {"sources": [str(text_file)]}}

    def asked(*words: str) -> RunConfig:
        return ask_for(original, [*SMALL, "optim.name=muon", *words], fixed).config

    def rates(*words: str) -> tuple[float, float]:
        optim = asked(*words).optim
        assert isinstance(optim, MuonConfig)
        return optim.lr, optim.matrix_lr

    rate = 1e-4 * (768 / asked().model.width) ** 0.5
    assert rates() == pytest.approx((rate, MATRIX_RATE * rate))
    assert rates("optim.lr=1e-3") == pytest.approx((1e-3, MATRIX_RATE * 1e-3))
    assert rates("optim.matrix_lr=1e-3") == pytest.approx((rate, 1e-3))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_update_is_that_of_a_plain_loop(
    originals: dict[str, Path], tmp_path: Path, text_file: Path, cpu: Device, family: str
) -> None:
    original = Original.find(str(originals[family]))
    fixed = {"data": {"sources": [str(text_file)]}}
    asked = ask_for(original, [*SMALL, "model.dropout=0", "optim.lr=1e-3"], fixed)
    config = asked.config
    tokenizer = original.tokenizer_config(tmp_path / "tokenizer", config.tokenizer)
    corpus = prepare(config.data, tokenizer, tmp_path / "corpus", SILENT)
    parts = dataclasses.replace(cpu, microbatch_rows=3)  # an update of two unequal parts
    step = step_of(original.model(config), config, corpus, parts)
    rows = torch.from_numpy(corpus.read(torch.arange(4).numpy()))
    step.gradients(rows, Update(0, 0, 4, 0.5, 0.15, Work()))
    step.apply(0.5)

    specials = Specials.of(corpus.tokenizer)
    masker = Masker(config.seed, "80-10-10", specials.mask, specials.ids, corpus.vocab_size)
    masked = masker(rows, torch.arange(4), 5)
    labels = torch.full_like(rows, -100).scatter(1, masked.positions, masked.labels)
    expected = plain_update(originals[family], masked.ids, labels, 0.5 * 1e-3)
    ours = dict(step.model.model.named_parameters())
    assert ours.keys() == expected.keys()
    before = dict(original.model(config).model.named_parameters())
    changed = 0
    for name, parameter in expected.items():
        torch.testing.assert_close(ours[name], parameter, rtol=1e-5, atol=2e-6, msg=name)
        changed += not torch.equal(parameter, before[name])
    assert changed > 10


@pytest.mark.parametrize("family", FAMILIES)
def test_the_export_is_of_the_same_class_with_the_same_tokenizer(
    originals: dict[str, Path], tmp_path: Path, text_file: Path, family: str
) -> None:
    from transformers import AutoConfig, AutoModelForMaskedLM

    folder, out = originals[family], tmp_path / "run"
    result = adapt(folder, text_file, out)
    assert result["export"]["format"] == type(AutoModelForMaskedLM.from_pretrained(folder)).__name__
    assert result["export"]["logit_difference"] < 1e-5
    assert (out / "export" / "tokenizer.json").read_bytes() == (
        folder / "tokenizer.json"
    ).read_bytes()
    one, other = (AutoConfig.from_pretrained(each).to_dict() for each in (folder, out / "export"))
    assert {k for k in one if one[k] != other[k]} <= {
        "_name_or_path",
        "dtype",
        "torch_dtype",
        "reference_compile",  # transformers 4 sets it when it loads a ModernBERT
    }
    # transformers 4 knows some values, such as global_rope_theta, by names that 5 leaves out.
    before, after = (json.loads((f / "config.json").read_text()) for f in (folder, out / "export"))
    assert {**before, **after}.keys() - after.keys() <= {"dtype", "torch_dtype"}
    assert result["adapted"]["random_weights"] == 0
    assert result["heldout"] != result["adapted"]["heldout"]
    assert not list(out.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("bert", ()),  # in our engine
        ("distilbert", ()),  # in that of transformers
        ("squeezebert", ("train.average=0.5",)),  # whose pooler is not trained
        ("squeezebert", ("optim.name=library", "optim.of=Lion")),
    ],
)
def test_interrupted_and_repeated_it_ends_in_the_same_weights(
    originals: dict[str, Path],
    tmp_path: Path,
    text_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    more: tuple[str, ...],
) -> None:
    words = ("train.checkpoint_seconds=1e-9", "train.log_seconds=1e-9", *more)
    whole = adapt(originals[family], text_file, tmp_path / "whole", *words, budget="5updates")
    interrupt_at(monkeypatch, 4)
    with pytest.raises(KeyboardInterrupt):
        adapt(originals[family], text_file, tmp_path / "run", *words, budget="5updates")
    again = adapt(originals[family], text_file, tmp_path / "run", *words, budget="5updates")
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert events.count('"resume"') == 1
    one, other = (
        load_file(tmp_path / name / "export" / "model.safetensors") for name in ("whole", "run")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole["heldout"] == again["heldout"]
    assert whole["adapted"] == again["adapted"]


def test_a_run_says_everywhere_what_it_was_adapted_from(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["adapted"]["model"] == "headless"
    assert summary["adapted"]["random_weights"] > 0
    assert "adapted from headless" in summary["outside_rules"]
    card, page = ((run / n).read_text() for n in ("export/README.md", "report.html"))
    for text in (card, page):
        assert "outside the rules" in text.lower()
        assert "adapted from headless" in text.lower()
    assert "began at random" in page
    (listed,) = list_runs(run)
    assert listed.recipe_text == "adapt (outside the rules)"
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    points = [(e["u"], e["loss@0.15"]) for e in events if e["event"] == "heldout"]
    assert points[0] == (0.0, summary["adapted"]["heldout"]["loss@0.15"])
    assert [u for u, _ in points] == [0.0, 0.5, 1.0]


def test_other_commands_take_the_run_for_its_exported_model(run: Path) -> None:
    backbone = BackboneSpec(str(run)).load()
    assert backbone.name == "run"
    assert backbone.mask is not None
    backbone.masked_lm(torch.device("cpu"))  # it has a head now
    again = Original.find(str(run))
    assert again.lacks == set()
    with pytest.raises(InputError, match=r"adapted a pretrained model, which .*export holds"):
        load_trained(run)


def test_a_damaged_result_of_a_run_of_ours_is_named_before_training(tmp_path: Path) -> None:
    save_model(tmp_path / "first" / "export", "bert")
    (tmp_path / "first" / "config.json").write_text("{}")
    (tmp_path / "first" / "summary.json").write_text("[]")
    with pytest.raises(InputError, match=r"summary\.json is damaged"):
        Original.find(str(tmp_path / "first" / "export"))


def test_going_on_with_a_run_of_ours_says_what_both_were_charged(
    tmp_path: Path, corpus: Corpus, text_file: Path
) -> None:
    config, first, shown = tiny("bert-base", "model.dropout=0"), tmp_path / "first", io.StringIO()
    export(untrained(corpus.tokenizer, config.model), first / "export", "auto")
    wide = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    change(first / "export" / "config.json", wide)  # as exports of wide models say
    (first / "config.json").write_text(config.model_dump_json())
    summary = json.loads((FIXTURES / "finished" / "summary.json").read_text())
    summary |= {"charged_seconds": 3600.0, "tokens": 1_000_000}
    (first / "summary.json").write_text(json.dumps(summary))
    results = []
    for model, out in ((first / "export", "more"), (tmp_path / "more" / "export", "again")):
        progress = Progress(shown)
        results.append(
            adapt(model, text_file, tmp_path / out, budget="2updates", progress=progress)
        )
        assert read_config(tmp_path / out).model.dropout == 0.0
        assert json.loads((model / "config.json").read_text())["hidden_dropout_prob"] == 0.1
    assert " ".join(shown.getvalue().split()).count("dropout 0, as in its own run") == 2
    theirs = Original.find(str(first / "export")).model(read_config(tmp_path / "more"))
    assert {m.p for m in theirs.modules() if isinstance(m, torch.nn.Dropout)} == {0.0}
    for result, before in zip(results, (summary, results[0]), strict=True):
        seconds, tokens = before["charged_seconds"], before["tokens"]
        if before is not summary:
            seconds, tokens = seconds + 3600.0, tokens + 1_000_000
        assert result["adapted"]["earlier"] == {"seconds": seconds, "tokens": tokens}
        assert result["adapted"]["in_all"] == {
            "seconds": seconds + result["charged_seconds"],
            "tokens": tokens + result["tokens"],
        }
    run = tmp_path / "more"
    words = f"1h in all, and {1_000_000 + results[0]['tokens']:,} tokens"
    assert words in dict(run_lines(results[0]))["in all"]
    for file in ("export/README.md", "report.html"):
        assert words in (run / file).read_text()
    said = r"type crammed adapt \S+/more, with --data, --budget and --out$"
    with pytest.raises(InputError, match=said):
        adapt(first / "export", text_file, run, budget="3updates")


def test_a_model_that_was_tuned_keeps_its_own_length(tmp_path: Path, text_file: Path) -> None:
    folder = save_model(tmp_path / "embedder", "bert")
    change(folder / "tokenizer_config.json", {"model_max_length": 16})
    change(folder / "embedding.json", {})
    adapt(folder, text_file, tmp_path / "run", budget="1updates")  # rows of 32 tokens
    assert BackboneSpec(str(tmp_path / "run")).load().max_length == 40


def test_a_pooler_is_kept(run: Path) -> None:
    from transformers import AutoModel

    before = AutoModel.from_pretrained(run.parent / "headless")
    after, info = AutoModel.from_pretrained(run / "export", output_loading_info=True)
    assert not info["missing_keys"]
    assert torch.equal(after.pooler.dense.weight, before.pooler.dense.weight)
    assert not torch.equal(after.embeddings.LayerNorm.weight, before.embeddings.LayerNorm.weight)


def test_a_missing_head_depends_on_the_seed_alone(tmp_path: Path) -> None:
    save_model(tmp_path / "headless", "bert", "AutoModel")
    original = Original.find(str(tmp_path / "headless"))

    def head(seed: int) -> Tensor:
        torch.manual_seed(seed + 7)  # earlier draws must not matter
        config = ask_for(original, [f"seed={seed}", "data.row_length=32"], {}).config
        parameter: Tensor = original.model(config).model.cls.predictions.transform.dense.weight
        return parameter.detach()

    assert torch.equal(head(1), head(1))
    assert not torch.equal(head(1), head(2))


def test_dropout_is_the_models_own_unless_it_is_set(originals: dict[str, Path]) -> None:
    original = Original.find(str(originals["bert"]))

    def found(*words: str) -> set[float]:
        model = original.model(ask_for(original, ["data.row_length=32", *words], {}).config)
        return {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)}

    assert found() == {0.1}
    assert found("model.dropout=0.25") == {0.25}


def test_weights_that_transformers_loses_are_noticed_before_training(
    originals: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Original.find(str(originals["bert"]))
    load = HuggingFaceBackbone.masked_lm_to_train

    def lose(*given: Any) -> Any:
        model, missing = load(*given)
        torch.nn.init.ones_(model.model.cls.predictions.bias)
        return model, missing

    monkeypatch.setattr(HuggingFaceBackbone, "masked_lm_to_train", lose)
    with pytest.raises(InputError, match=r"loads cls\.predictions\.\S*bias of bert wrongly: pip"):
        original.model(tiny())


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    save_model(tmp_path / "bert", "bert", "AutoModelForMaskedLM")
    file = tmp_path / "bert" / "model.safetensors"
    weights = load_file(file)
    weights["cls.predictions.bias"][0] = torch.nan
    save_file(weights, file, metadata={"format": "pt"})
    original = Original.find(str(tmp_path / "bert"))
    for use in (lambda: original.model(tiny()), lambda: load(original.folder).fill("a [MASK]")):
        with pytest.raises(InputError, match=r"bert are damaged: cls\.predictions\.\S*bias is not"):
            use()


def saved(folder: Path, config: Any, **settings: Any) -> Path:
    """A model of transformers of another kind, with a tokenizer."""
    import transformers

    save_tokenizer(folder, word_pieces(), model_max_length=40, **settings)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


def test_models_that_fill_no_masks_are_refused(tmp_path: Path) -> None:
    import transformers as t

    small: dict[str, Any] = {"vocab_size": 150, "n_positions": 40, "n_embd": 8}
    gpt = saved(tmp_path / "gpt", t.GPT2Config(**small, n_layer=1, n_head=2))
    shape: dict[str, Any] = {"vocab_size": 150, "d_model": 8, "d_kv": 4, "d_ff": 8}
    t5 = saved(tmp_path / "t5", t.T5Config(**shape, num_layers=1, num_heads=2))
    plain: dict[str, Any] = {"vocab_size": 150, "hidden_size": 8, "intermediate_size": 8}
    fnet = saved(tmp_path / "fnet", t.FNetConfig(**plain, num_hidden_layers=1))
    for folder, kind, why in (
        (gpt, "gpt2", "does not fill masks"),
        (t5, "t5", "does not fill masks"),
        (fnet, "fnet", "has no num_attention_heads"),
    ):
        with pytest.raises(InputError, match=f"is a {kind} model, which {why}"):
            Original.find(str(folder))


def test_a_tokenizer_without_a_mask_is_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "bert", "bert")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (file := folder / name).exists():
            values = json.loads(file.read_text())
            values.pop("mask_token", None)
            file.write_text(json.dumps(values))
    with pytest.raises(InputError, match="the tokenizer of bert has no mask token"):
        Original.find(str(folder))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.layers=3", "model: the adapted model decides it"),
        ("tokenizer.kind=bpe", "tokenizer: the adapted model decides it"),
        ("adapts=x", "adapts: the adapted model decides it"),
        ("data.row_length=64", "row_length=64 is more than the 40 tokens that bert takes: set"),
        ("finetune.max_length=41", "max_length=41 is more than the 40 tokens that bert takes: set"),
        ("train.attention=document", "train.attention=document is for models trained here"),
        ("compute.lanes=2", "compute.lanes=2 is for models trained here"),
    ],
)
def test_what_the_model_cannot_follow_is_refused(
    originals: dict[str, Path], word: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ask_for(Original.find(str(originals["bert"])), [word], {})


def shaped(**shape: Any) -> Any:
    """What `ask_for` knows of a model for 512 tokens."""
    shape = {f"model.{key}": value for key, value in {"max_length": 512, **shape}.items()}
    backbone = SimpleNamespace(max_length=512)
    return SimpleNamespace(name="m", sha256="0", shape=shape, backbone=backbone, recomputes=False)


def test_a_corpus_with_rows_too_long_for_the_model_is_to_be_left_out() -> None:
    fixed = {"corpus": "0" * 64, "data": {"row_length": 1024}}
    said = r"row_length=1024 is more than the 512 tokens that m takes: name the text with --data$"
    with pytest.raises(InputError, match=said):
        ask_for(shaped(), [], fixed)


def test_code_that_another_version_exported_is_to_be_written_anew() -> None:
    run = FIXTURES / "finished-custom"
    named = re.escape(str(run))
    said = f"/export was written by another version, .* crammed export {named} --to {named}/export$"
    with pytest.raises(InputError, match=said):
        Original.find(str(run))


def test_lengths_of_up_to_that_of_the_model_are_taken() -> None:
    config = ask_for(shaped(), ["finetune.max_length=256"], {}).config
    assert (config.finetune.max_length, config.data.row_length) == (256, 128)
    assert config.model.max_length == 512


def test_what_no_model_of_this_shape_can_follow_is_one_line() -> None:
    with pytest.raises(InputError, match="attention=document is for models trained here, and m"):
        ask_for(shaped(mixer="fourier"), ["train.attention=document"], {})


def test_activations_are_recomputed_only_where_the_model_can(
    originals: dict[str, Path], corpus: Corpus, cpu: Device
) -> None:
    original = Original.find(str(originals["squeezebert"]))
    with pytest.raises(InputError, match="cannot recompute the activations of squeezebert: leave"):
        ask_for(original, ["compute.recompute=on"], {})
    config = ask_for(original, [*SMALL], {}).config
    step = step_of(original.model(config), config, corpus, cpu)
    assert step.device.recomputes is False
    step.fit(1 << 40, lambda rows: rows << 50)  # with no memory to spare
    assert not step.recomputes
    assert Original.find(str(originals["deberta"])).recomputes


def test_a_corpus_of_another_tokenizer_is_refused(
    originals: dict[str, Path], corpus: Corpus
) -> None:
    original, said = Original.find(str(originals["bert"])), "another tokenizer than that of bert"
    file = re.escape(str(originals["bert"]))
    advice = f"name the text with --data, or prepare it with tokenizer.file={file}$"
    with pytest.raises(InputError, match=f"{said}: {advice}"):
        original.check_corpus(corpus)
    with pytest.raises(InputError, match=f"{said} with its new words: name the text with --data$"):
        original.with_words(("tokamak",)).check_corpus(corpus)


def test_a_run_of_another_model_is_not_continued(
    originals: dict[str, Path], tmp_path: Path, text_file: Path, run: Path
) -> None:
    shutil.copytree(run, tmp_path / "copy")
    with pytest.raises(InputError, match="holds a run with another configuration"):
        adapt(originals["bert"], text_file, tmp_path / "copy", "train.heldout_every=0.5")
