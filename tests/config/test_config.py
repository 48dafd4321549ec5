from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from crammed.config import ModelConfig, RunConfig
from crammed.config.optim import AdamWConfig
from crammed.errors import InputError
from crammed.rules.recipe import ask, load_config, recipe_names
from crammed.runs.resuming import asked_in
from crammed.schedule import Triangle


def refused(recipe: str, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_config(recipe, overrides)
    return str(caught.value)


@pytest.mark.parametrize("name", recipe_names())
def test_built_in_recipes_resolve_and_round_trip(name: str) -> None:
    config = load_config(name)
    assert config.recipe == name
    assert config.description
    again = RunConfig.model_validate(config.model_dump(mode="json"))
    assert again == config
    assert again.identity() == config.identity()


def test_the_paper_s_recipe_is_exact() -> None:
    config = load_config("crammed-2022")
    assert config.optim == AdamWConfig(
        lr=1e-3, beta1=0.9, beta2=0.98, eps=1e-12, weight_decay=0.01, clip=0.5
    )
    assert (config.batch.rows, config.batch.ramp, config.batch.ramp_quantum) == (8192, 0.6, 128)
    assert config.schedule == Triangle(start=0.25, falling=0.25)
    assert (config.masking.rate, config.masking.corruption) == (0.25, "80-10-10")
    assert config.data.clean.max_tokens_per_character == 0.25
    assert config.finetune.lr == 4e-5


def test_overrides_change_single_values() -> None:
    config = load_config("crammed-2022", ["optim.lr=5e-4", "model.width=256", "optim.clip=null"])
    assert config.optim.lr == 5e-4
    assert config.model.width == 256
    assert config.model.heads == 4
    assert config.model.ffn_width == 1024
    assert config.optim.clip is None
    assert config.optim == AdamWConfig(lr=5e-4, clip=None)


def test_several_faults_are_reported_at_once_with_path_and_allowed_values() -> None:
    text = refused("crammed-2022", "model.layrs=3", "optim.lr=fast", "model.qk_norm=middle")
    assert text.splitlines()[0].endswith("3 faults:")
    assert len(text.splitlines()) == 4
    assert "model.layrs: no such key; did you mean model.layers?" in text
    assert "optim.lr:" in text
    assert "'fast'" in text
    assert "model.qk_norm: input should be 'none' or 'rms', not 'middle'" in text


def test_a_column_may_be_typed_as_a_number() -> None:
    config = load_config("crammed", ["data.text_field=2"])
    assert config.data.text_field == "2"
    config = load_config("crammed", ["data.sources=[{path: a.csv, text_field: 1}]"])
    assert config.data.sources[0].text_field == "1"


def test_a_model_takes_rows_as_long_as_the_data_s() -> None:
    for fixed in ({}, {"data": {"row_length": 512}}):  # typed, or that of a corpus
        words = [] if fixed else ["data.row_length=512"]
        config = load_config("crammed-2022", words, fixed)
        assert (config.data.row_length, config.model.max_length) == (512, 512)
    assert load_config("crammed-2022", ["data.row_length=64"]).model.max_length == 128
    words = ["data.row_length=512", "model.max_length=1024"]
    assert load_config("crammed-2022", words).model.max_length == 1024
    words[1] = "model.max_length=256"
    assert "longer than model.max_length 256: set model.max_length=512" in refused(
        "crammed-2022", *words
    )


def test_unknown_recipes_and_unreadable_files(tmp_path: Path) -> None:
    assert "did you mean crammed-2022?" in refused("crammed-202")
    assert "cannot read" in refused(str(tmp_path / "none.yaml"))
    broken = tmp_path / "broken.yaml"
    broken.write_text("model: {width: 3\n")
    assert "not valid YAML" in refused(str(broken))
    broken.write_text("model:\n  layers: 3\n  width: 64\n  layers: 4\n")
    assert refused(str(broken)).endswith("the key layers is on line 2 and again on line 4")
    broken.write_text("just words\n")
    assert "must be a YAML mapping" in refused(str(broken))


def test_a_recipe_file_works_like_a_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one in the home folder, of which ``~`` is short."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: ~/base.yaml\nmodel: {layers: 3}\nschedule: {shape: dive}\n")
    (tmp_path / "base.yaml").write_text("extends: crammed-2022\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    config = load_config("~/mine.yaml", ["optim.lr=2e-3"])
    assert config == load_config(str(mine), ["optim.lr=2e-3"])
    assert config.recipe == "mine"
    assert config.model.layers == 3
    assert config.model.width == 768
    assert config.schedule.shape == "dive"
    assert config.optim.lr == 2e-3


def test_a_recipe_that_extends_itself_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"extends: {mine}\n")
    assert "extends itself" in refused(str(mine))


def test_the_same_key_twice_is_refused() -> None:
    assert "set twice" in refused("crammed", "seed=1", "seed=2")


def test_identity_ignores_compute_alone() -> None:
    base = load_config("crammed")
    assert load_config("crammed", ["compute.microbatch_rows=7"]).identity() == base.identity()
    words = ("seed=1", "optim.lr=1e-4", "budget.limit=1h", "data.sources=[a]")
    for override in (*words, "train.grad_init.updates=3"):
        assert load_config("crammed", [override]).identity() != base.identity()


def test_identities_of_earlier_versions_stay_as_they_are() -> None:
    """A change of a default changes this hash, and a new option must not (`Later`)."""
    assert RunConfig(recipe="any").identity() == "3455658a9b7a8e86"


def test_a_later_option_is_saved_only_where_it_is_set() -> None:
    plain = load_config("crammed-2022").model
    other = load_config("crammed-2022", ["model.norm_kind=rms", "model.norm_bias=false"]).model
    assert "norm_kind" not in plain.model_dump()
    assert other.model_dump()["norm_kind"] == "rms"
    assert plain.complete()["norm_kind"] == "layer"
    assert plain.complete().keys() == set(ModelConfig.model_fields)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("budget.charge=[checkpoint]", "charge needs `step`"),
        (
            "model.width=100",
            "crammed-2022: model.width=100 is not a multiple of model.head_dim=64: set another",
        ),
        ("data.orders=a", "data.orders: must be a list such as [one, two], not 'a'"),
        ("batch.rows=8.5", "batch.rows: input should be a valid integer"),
        ("budget.limit=soon", "budget.limit: 'soon' is not a budget"),
        ("masking.rate=0.95", "above 0.9"),
        ("seed=-1", "seed: input should be greater than or equal to 0"),
        ("model.classifier=head-transform", "needs model.head_transform=true"),
        ("optim.lr=nan", "optim.lr: input should be"),
        (
            "finetune.dropout=1",
            "finetune.dropout: input should be less than 1 or 'by-width', not 1",
        ),
        ("data.text_field=[a]", "data.text_field: input should be a valid string"),
        ("order.by=none", "order.by: input should be 'random', 'sentence-length'"),
        ("model.norm_kind=rms", "set model.norm_bias=false"),
        ("model.mixer=fourier train.attention=document", "train.attention=row"),
        ("model.mixer=fourier model.zero_outputs=true", "set model.zero_outputs=false"),
        ("model.mixer=none model.value_embeddings=true", "set model.value_embeddings=false"),
        ("model.key_heads=5", "do not divide 12 heads"),
        ("model.mixer=gated-attention model.gated=false", "needs model.gated=true"),
        ("model.mixer=gated-attention model.positions=t5", "positions other than alibi and t5"),
        ("model.mixer=none model.scope=causal", "model.scope=row"),
        ("train.grow_at=[0.5] train.latest.every=1", "do not go together"),
        ("model.norm=deepnorm", "set model.final_norm=false"),
        (
            "model.norm=deepnorm model.final_norm=false model.ffn_every=2",
            "or model.ffn_every=1 and",
        ),
        ("model.norm=deepnorm model.final_norm=false model.mixer=none", "and another model.mixer"),
        ("model.blocks=parallel model.norm=sandwich", "needs model.norm=pre"),
        ("train.grow_at=[0.5,0.25]", "increasing numbers above 0"),
        (
            "train.grow_at=[0.5] model.layers=5",
            "1/2 of the layers: set model.layers to a multiple of 2, not 5",
        ),
        ("train.sharpness=1e30", "train.sharpness: input should be less than or equal to 100"),
        ("train.grow_at=[0.5] model.ffn_every=2", "set model.ffn_every=1"),
        ("train.grow_at=[0.5] compute.fp8=on", "compute.fp8=off"),
        ("train.drop_tokens=0.5 model.mixer=none", "needs model.mixer=attention"),
        ("train.drop_tokens=0.5 model.layers=2", "at least 3 layers"),
        ("train.learned_passes=1", "needs model.passes above it"),
        ("train.grad_init.updates=9 compute.fp8=on", "leave it out, or leave out compute.fp8"),
        ("train.grad_init.updates=9 train.grow_at=[0.5]", "a model from scratch with all of its"),
        ("train.grad_init.rows=0", "train.grad_init.rows: input should be"),
        ("train.learned_passes=1 model.passes=2", "model.residual_scalars=true"),
        ("objective.name=script train.drop_tokens=0.5", "no train.drop_tokens"),
        ("objective.name=causal-first model.mixer=fourier", "set objective.name=masked"),
        ("objective.name=script train.early_stop.loss=6.0", "is a cross-entropy"),
        ("objective.name=script loss.name=embedding", "a loss.name other than embedding"),
        ("batch.adaptive.test=norm batch.rows=100 batch.quantum=64", "set batch.quantum to half"),
        ("batch.adaptive.test=norm train.sharpness=0.05", "updates of one pass"),
        ("batch.adaptive.test=norm compute.microbatch_rows=8", "leave out compute.microbatch_rows"),
        ("schedule.shape=dive schedule.warmup=0.6 schedule.falling=0.5", "lower one of them"),
        ("order.share=0.5", "no effect with order.by=random"),
        ("order.pool=0.5 order.reshuffle=false", "no effect with order.by=random"),
        ("objective.name=contrast batch.adaptive.test=norm batch.quantum=8", "a multiple of"),
        ("objective.name=contrast train.early_stop.loss=6.0", "is a cross-entropy"),
        ("objective.name=contrast data.row_length=127", "data.row_length to an even number"),
        ("objective.name=contrast objective.rows=1", "objective.rows: input should be"),
        ("objective.name=electra train.early_stop.loss=6.0", "is a cross-entropy"),
        ("objective.name=electra train.drop_tokens=0.5", "no train.drop_tokens"),
        ("objective.name=electra objective.masked=0.0", "objective.masked: input should be"),
        ("objective.name=electra objective.masked=0.99", "leaves none to replace"),
        ("objective.name=electra masking.final_rate=0.01", "masking 0.01 of 128 tokens leaves"),
        ("objective.name=electra model.ffn_ratio=0.026", "makes no generator (ffn_ratio gives 5"),
        ("finetune.max_length=129", "model.max_length 128: lower it, or set model.max_length=129"),
        ("model.ffn_every=17", "more than there are layers"),
        ("masking.unit=word tokenizer.kind=wordlevel", "leave out masking.unit"),
        ("loss.name=focal train.early_stop.loss=6.0", "is a cross-entropy"),
        ("loss.name=embedding masking.z_loss=1e-4", "set masking.z_loss=0"),
        ("model.mixer=none model.positions=t5", "positions other than alibi, rotary and t5"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(typed: str, told: str) -> None:
    said = refused("crammed-2022", *typed.split())
    assert told in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["tokenizer.file=x", "tokenizer.lowercase=false"], "leave tokenizer.lowercase out"),
        (["tokenizer={file: x, kind: bpe, vocab_size: 300}"], "kind, tokenizer.vocab_size out"),
        (["data.mix.most_readings=8"], "no effect unless the sources have shares or data.mix.temp"),
        (["data.mix.most_readings=8", "data.mix.temperature=2"], None),
        (["data.mix.most_readings=8", "data.sources=[{path: a, share: 1}]"], None),
    ],
)
def test_words_without_effect_are_refused_in_one_command(
    typed: list[str], told: str | None
) -> None:
    """But not in an arm of a study, of which some may be in the base."""
    ask("crammed", typed)
    if told is None:
        asked_in(None, None, typed, {})
        return
    with pytest.raises(InputError, match=re.escape(told)):
        asked_in(None, None, typed, {})


def test_every_field_has_a_place_in_the_saved_file() -> None:
    assert set(load_config("demo").complete()) == set(RunConfig.model_fields)


def test_what_is_shown_to_others_has_no_folders() -> None:
    sources = ["/home/me/a.txt", "~/texts", "/home/me/*/b.jsonl", "hub:owner/name", "-"]
    own = {"suite": "/home/me/mine.yaml", "data": "/home/me/tasks"}
    given = {
        "data": {"sources": sources, "clean": {"downstream": ["/home/me/glue", own]}},
        "tokenizer": {"file": "/home/me/tokenizer.json"},
    }
    config = load_config("crammed", fixed=given)
    shown = config.without_folders()
    paths = [source["path"] for source in shown["data"]["sources"]]
    assert paths == ["a.txt", "texts", "b.jsonl", "hub:owner/name", "-"]
    assert shown["data"]["clean"]["downstream"] == [
        {"suite": "glue", "data": "glue", "words": None},
        {"suite": "mine", "data": "tasks", "words": None},
    ]
    assert shown["tokenizer"]["file"] == "tokenizer.json"
    assert config.model_dump(mode="json")["tokenizer"]["file"] == "/home/me/tokenizer.json"


# ---- worker processes import the configuration, and must not wait for torch


def test_a_configuration_is_there_without_torch() -> None:
    script = (
        "import sys\n"
        "import crammed.config, crammed.config.migration, crammed.config.yamlfile\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
