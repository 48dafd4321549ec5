"""A model is fine-tuned, kept, loaded by transformers, and used on rows that it has not seen."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save

import crammed
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.evaluation.backbones.huggingface import HuggingFaceBackbone
from crammed.evaluation.backbones.huggingface_files import PAIR_LAYER
from crammed.evaluation.evaluation import Request
from crammed.evaluation.finetuning import jobs
from crammed.evaluation.finetuning.arrays import load_arrays, save_arrays
from crammed.evaluation.folder import default_folder, outputs_file, read_outputs
from crammed.evaluation.scores.predictions import probabilities
from crammed.evaluation.suite import median_seed
from crammed.export.card import Metadata, with_metadata
from crammed.export.huggingface import export
from crammed.files.writing import write_json
from crammed.finetuned import keeping
from crammed.finetuned.card import describe
from crammed.finetuned.folder import DESCRIPTION, Description, read_description, write_model
from crammed.finetuned.keeping import keep
from crammed.finetuned.prediction import Predictor
from crammed.tasks.read import read_task
from crammed.tasks.rows import Rows
from crammed.tasks.task import Task, load_suite
from crammed.terminal.progress import SILENT
from support import command
from support.backbones import RECIPES
from support.models import change, untrained
from support.pages import front_matter, python_blocks
from support.text import documents, tiny

PROTOCOL = "{epochs: 1, batch: 8, lr: 2e-3, max_length: 24}"
COLUMNS: dict[str, dict[str, Any]] = {
    "classification": {"text": "text", "metric": "accuracy"},
    "regression": {"text": ["text", "other"], "metric": "pearson", "label": "value"},
    "multi-label": {"text": "text", "metric": "micro-f1", "label": "tags"},
    "tokens": {"text": "words", "metric": "accuracy", "label": "kinds"},
    "choice": {"text": "text", "metric": "accuracy", "label": "best", "choices": "ends"},
}


def row(number: int, text: str) -> dict[str, Any]:
    words = text.split()[:8]
    return {
        "text": f"{'harbour' if number % 2 else 'garden'} {text[:40]}",
        "other": text[40:80],
        "label": ("wet", "dry")[number % 2],
        "value": float(number % 5),
        "tags": ["odd"] if number % 2 else ["even", "whole"],
        "words": words,
        "kinds": ["long" if len(word) > 4 else "short" for word in words],
        "best": number % 3,
        "ends": ["one end", "another", "a third end"],
    }


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> dict[str, Path]:
    """Runs with exports of each format."""
    place = tmp_path_factory.mktemp("encoders")
    for recipe in RECIPES:
        config = tiny(recipe)
        final = untrained(corpus.tokenizer, config.model)
        final.save(place / recipe / "final")
        write_json(place / recipe / "config.json", config.model_dump(mode="json"))
        export(final, place / recipe / "export")
    return {recipe: place / recipe for recipe in RECIPES}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The rows of a task of every kind, and a suite.yaml of them."""
    folder = tmp_path / "rows"
    folder.mkdir()
    texts = documents(64)
    for split, part in (("train", texts[:48]), ("validation", texts[48:])):
        lines = (json.dumps(row(number, text)) for number, text in enumerate(part))
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    for kind, columns in COLUMNS.items():
        define(folder, kind, mine={"kind": kind, **columns})
    (tmp_path / "protocol.yaml").write_text(PROTOCOL)
    return folder


def define(data: Path, kind: str = "classification", **tasks: Any) -> None:
    """Have the suite of a kind hold these tasks."""
    (data.parent / f"{kind}.yaml").write_text(json.dumps({"tasks": tasks}))


def request(data: Path, encoder: Path, kind: str = "classification", **values: Any) -> Request:
    here = data.parent
    given = {"seeds": 1, "untrained": False, "jobs": 1, "into": here / "scores", **values}
    return Request(
        model=str(encoder),
        suite=str(here / f"{kind}.yaml"),
        data=str(data),
        protocol=str(here / "protocol.yaml"),
        **given,
    )


def validation(data: Path, kind: str) -> Rows:
    suite = load_suite(str(data.parent / f"{kind}.yaml"))
    return read_task(suite.tasks["mine"], data, suite).scored["mine"]


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_kind_predicts_as_it_was_judged(
    data: Path, encoders: dict[str, Path], kind: str
) -> None:
    done = keep(request(data, encoders["crammed"], kind), data.parent / "kept", SILENT)
    predictor = Predictor.load(data.parent / "kept")
    assert "scale" not in json.loads((data.parent / "kept" / DESCRIPTION).read_text())
    rows = validation(data, kind)
    wanted = read_outputs(data.parent / "scores", kind, "mine", done["seed"])["mine"]
    np.testing.assert_allclose(predictor.outputs(rows)[0], wanted, atol=1e-5)
    answers = [answer for _, answer in predictor.predict(data / "validation.jsonl")]
    assert len(answers) == len(rows)
    hub = {"tokens": "token-classification", "choice": "multiple-choice"}
    card = (data.parent / "kept" / "README.md").read_text("utf-8")
    assert f"pipeline_tag: {hub.get(kind, 'text-classification')}\n" in card
    model = crammed.load(data.parent / "kept", "cpu")
    if kind == "choice":
        with pytest.raises(InputError, match="crammed predict DIR --data FILE"):
            model.predict(["a text"])
    else:
        assert model.predict(rows.texts) == answers
    if kind in ("classification", "regression"):
        takes, wrong = ("single texts", ("a", "b")) if kind == "classification" else ("pairs", "a")
        with pytest.raises(InputError, match=f"text 1 is .*, but the model takes {takes}"):
            model.predict([wrong])
    if kind == "regression":
        np.testing.assert_allclose([each["predicted"] for each in answers], wanted[:, 0], atol=1e-5)
    elif kind == "tokens":
        assert [len(each["predicted"]) for each in answers] == [len(t) for t in rows.texts]
        assert model.predict([" ".join(words) for words in rows.texts]) == answers
        columns: Any = {"words": ["the fox"]}
        with pytest.raises(InputError, match="give a list of texts"):
            model.predict(columns)
    else:
        shares = [list(each["probabilities"].values()) for each in answers]
        several = kind == "multi-label"
        np.testing.assert_allclose(shares, probabilities(wanted, several=several), atol=1e-5)
        assert set(answers[0]["probabilities"]) == {
            "classification": {"wet", "dry"},
            "multi-label": {"odd", "even", "whole"},
            "choice": {"0", "1", "2"},
        }.get(kind)


@pytest.mark.parametrize("folds", [None, 2])
def test_values_of_any_size_are_predicted(
    data: Path, encoders: dict[str, Path], folds: int | None
) -> None:
    """A head would take thousands of steps to reach them."""
    large = {**COLUMNS["regression"], "kind": "regression", "label": "large", "folds": folds}
    define(data, "regression", mine=large)
    for split in ("train", "validation"):
        lines = map(json.loads, (data / f"{split}.jsonl").read_text().splitlines())
        rows = (json.dumps({**each, "large": 1000.0 + each["value"]}) for each in lines)
        (data / f"{split}.jsonl").write_text("\n".join(rows))
    kept = data.parent / "kept"
    done = keep(request(data, encoders["crammed"], "regression"), kept, SILENT)
    scored = read_outputs(data.parent / "scores", "regression", "mine", done["seed"])["mine"]
    predictor = Predictor.load(kept)
    predicted, _ = predictor.outputs(validation(data, "regression"))
    for outputs in (scored, predicted):
        assert outputs.mean() == pytest.approx(1002.0, abs=3.0)
    if not folds:
        np.testing.assert_allclose(predicted, scored, rtol=1e-6)
    scale = predictor.description.scale
    assert (scale.mean, scale.deviation) == pytest.approx((1002.0, 2.0**0.5), rel=0.05)
    said = f"multiply its output by {scale.deviation:.6g} and add {scale.mean:.6g}, as this"
    assert said in (kept / "README.md").read_text()


@pytest.mark.parametrize("recipe", ["crammed", "bert-base", "crammed-2022"])
def test_transformers_loads_it(data: Path, encoders: dict[str, Path], recipe: str) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    custom = recipe == "crammed-2022"
    card = encoders[recipe] / "export" / "README.md"
    card.write_text(with_metadata(card.read_text(), Metadata("mit", base_model="owner/encoder")))
    keep(request(data, encoders[recipe]), data.parent / "kept", SILENT)
    folder = data.parent / "kept"
    told = front_matter(folder)
    assert (told["license"], told["base_model"]) == ("mit", "owner/encoder")
    assert told["tags"] == (["crammed", "custom_code"] if custom else ["crammed"])
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=custom)
    assert model.config.id2label == {0: "dry", 1: "wet"}
    assert model.config.problem_type == "single_label_classification"
    assert type(model).__name__ == model.config.architectures[0]
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=custom)
    (text,), *_ = validation(data, "classification").texts
    assert len(tokenizer("the fox " * 99, truncation=True).input_ids) == 24  # as in training
    with torch.inference_mode():
        batch = tokenizer(text, return_tensors="pt", truncation=True)
        theirs = model(**batch).logits.softmax(-1)[0].tolist()
    again = HuggingFaceBackbone("kept", folder, trust_remote_code=custom)
    assert again.max_length == 32  # as long as its encoder, to be tuned once more
    predictor = Predictor.load(folder)  # the package's own code needs no trust
    _, ours = next(predictor.predict(data / "validation.jsonl"))
    assert ours["probabilities"] == pytest.approx({"dry": theirs[0], "wet": theirs[1]}, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "labels", "names"),
    [
        ("multi-label", ("spam",), {"0": "spam"}),
        ("regression", (), {"0": "mine"}),
        ("choice", ("one end", "another"), {"0": "mine"}),
    ],
)
def test_the_configuration_is_of_what_is_kept(
    tmp_path: Path, model_folders: dict[str, Path], kind: Any, labels: Any, names: dict[str, str]
) -> None:
    """Not of the encoder, whose weights may be in a 16-bit format."""
    source = shutil.copytree(model_folders["bert"], tmp_path / "source")
    change(source / "config.json", {"dtype": "float16", "torch_dtype": "float16"})
    (tmp_path / "weights").write_bytes(save({"model.x": torch.ones(1)}))
    (tmp_path / "kept").mkdir()
    task = Task.model_validate({"name": "mine", "kind": kind, **COLUMNS[kind]})
    about = Description(task=task, labels=labels, max_length=9, encoder="x", seed=0, scores={})
    write_model(tmp_path / "kept", source, tmp_path / "weights", about)
    config = json.loads((tmp_path / "kept" / "config.json").read_text())
    assert config["id2label"] == names
    assert not {"dtype", "torch_dtype"} & {*config}


def test_scores_of_a_run_are_not_where_those_of_its_export_go(
    data: Path, encoders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which `crammed evaluate RUN/export` has by another protocol, unless one is named."""
    monkeypatch.chdir(data.parent)
    asked = Mock(side_effect=InputError("stop"))
    monkeypatch.setattr(keeping, "evaluate", asked)
    run = encoders["crammed"]
    given = request(data, run, into=None)
    for protocol in (None, given.protocol):
        with pytest.raises(InputError, match="stop"):
            keep(replace(given, protocol=protocol), data.parent / "kept", SILENT)
    own, named = (call.args[0].into for call in asked.call_args_list)
    assert own.name == "crammed-export-finetuned"
    assert own != default_folder(str(run / "export"), None)
    assert named == default_folder(str(run / "export"), given.protocol)


def test_the_weights_are_those_of_the_median_seed(data: Path, encoders: dict[str, Path]) -> None:
    done = keep(request(data, encoders["crammed"], seeds=3), data.parent / "kept", SILENT)
    (score,) = done["suites"]["classification"]["tasks"].values()
    assert score["seeds"][done["seed"]] == score["median"]
    outputs, _ = Predictor.load(data.parent / "kept").outputs(validation(data, "classification"))
    for seed in range(3):
        theirs = read_outputs(data.parent / "scores", "classification", "mine", seed)["mine"]
        assert np.allclose(outputs, theirs, atol=1e-5) == (seed == done["seed"])


def test_a_full_temporary_folder_is_said_in_one_line(
    data: Path, encoders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights wait there until the model is kept."""
    full = SafetensorError("I/O error: No space left on device (os error 28)")
    monkeypatch.setattr(jobs, "save_weights", Mock(side_effect=full))
    with pytest.raises(InputError, match=r"^task mine: the disk is full: free some space"):
        keep(request(data, encoders["crammed"]), data.parent / "kept", SILENT)
    assert not (data.parent / "kept").exists()


def test_a_model_is_kept_although_the_scored_one_was_rounded_otherwise(
    data: Path, encoders: dict[str, Path]
) -> None:
    """As on a GPU, where models are fine-tuned side by side."""
    asked = request(data, encoders["crammed"])
    before = keep(asked, data.parent / "kept", SILENT)
    file = outputs_file(data.parent / "scores", "classification", "mine", 0, trained=True)
    outputs, about = load_arrays(file) or pytest.fail("it has outputs")
    save_arrays(file, {name: each + 0.5 for name, each in outputs.items()}, about)
    after = keep(asked, data.parent / "again", SILENT)
    assert after["scores"]["mine"]["seeds"] == before["scores"]["mine"]["seeds"]
    weights = [data.parent / folder / "model.safetensors" for folder in ("kept", "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_task_is_reported_without_those_kept_earlier(
    data: Path, encoders: dict[str, Path]
) -> None:
    keep(request(data, encoders["crammed"]), data.parent / "kept", SILENT)
    define(data, other=COLUMNS["classification"])
    done = keep(request(data, encoders["crammed"]), data.parent / "more", SILENT)
    assert [*done["suites"]["classification"]["tasks"]] == ["other"]


def test_a_model_is_kept_of_all_rows_where_parts_of_them_are_scored(
    data: Path, encoders: dict[str, Path]
) -> None:
    define(data, mine={**COLUMNS["classification"], "folds": 2})
    done = keep(request(data, encoders["crammed"]), data.parent / "kept", SILENT)
    judged = read_outputs(data.parent / "scores", "classification", "mine", 0)["mine"]
    assert sum(each["rows"] for each in done["classes"]) == len(judged) == 48
    page = (data.parent / "kept" / "README.md").read_text()
    said = "The kept model was trained on all rows; the score comes from 2-fold cross-validation."
    assert said in page


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ([], "the only seed"),
        ([70.0], "the only seed"),
        (
            [70.0, 50.0, 60.0],
            "number 3 of the 3 seeds (`seed` 2 in task.json), whose score is the median",
        ),
        (
            [70.0, 50.0, 60.0, 80.0],
            "number 3 of the 4 seeds (`seed` 2 in task.json), whose score is the lower of the "
            "middle two",
        ),
    ],
)
def test_the_page_says_which_seed_is_kept(seeds: list[float], said: str) -> None:
    score: dict[str, Any] = {"metric": "accuracy", "seeds": seeds, "median": 65.0}
    described = Description(
        task=Task.model_validate({"name": "mine", "text": "text", "metric": "accuracy"}),
        max_length=16,
        encoder="a`b",
        seed=median_seed(score) if seeds else 0,
        scores={"mine": score} if seeds else {},
    )
    nothing = Mock(**{"classes.return_value": [], "mistakes.return_value": []})
    page = describe(described, nothing, Metadata(), trust=False)
    assert f"The weights are those of {said}. Inputs" in page
    assert "# `ab`, fine-tuned on mine" in page


def test_the_page_counts_what_the_model_says(data: Path, encoders: dict[str, Path]) -> None:
    done = keep(request(data, encoders["crammed"], untrained=True), data.parent / "kept", SILENT)
    rows = validation(data, "classification")
    outputs, _ = Predictor.load(data.parent / "kept").outputs(rows)
    guess, truth = outputs.argmax(-1), rows.labels
    for number, each in enumerate(done["classes"]):
        hits = int(((guess == number) & (truth == number)).sum())
        assert each["rows"] == int((truth == number).sum())
        assert each["recall"] == pytest.approx(100 * hits / each["rows"])
        said = int((guess == number).sum())
        assert each["precision"] == (pytest.approx(100 * hits / said) if said else None)
    page = (data.parent / "kept" / "README.md").read_text()
    wrong = int((guess != truth).sum())
    assert page.count(" % |") == min(wrong, 20)
    assert "without pretraining" in page


def test_what_cannot_be_kept_is_refused_in_one_line(data: Path, encoders: dict[str, Path]) -> None:
    encoder = encoders["crammed"]
    (data.parent / "kept").mkdir()
    (data.parent / "kept" / "mine.txt").touch()
    with pytest.raises(InputError, match="kept exists already: choose another --out"):
        keep(request(data, encoder), data.parent / "kept", SILENT)
    (data.parent / "kept" / "mine.txt").unlink()
    two: dict[str, Any] = {name: {**COLUMNS["classification"], "folder": "rows"} for name in "ab"}
    define(data, **two)
    with pytest.raises(InputError, match="choose one task with --task: a, b"):
        keep(request(data, encoder), data.parent / "kept", SILENT)
    with pytest.raises(InputError, match="no task 'c'"):
        keep(request(data, encoder, tasks=("c",)), data.parent / "kept", SILENT)
    two["b"]["train"] = "training"
    define(data, **two)
    above = replace(request(data, encoder), data=str(data.parent))
    with pytest.raises(InputError, match=r"task b: .*rows has no training split"):
        keep(above, data.parent / "kept", SILENT)
    with pytest.raises(InputError, match="holds no fine-tuned model: make one with"):
        Predictor.load(encoder)
    assert not list((data.parent / "kept").iterdir())


@pytest.mark.parametrize("recipe", ["crammed", "bert-base"])
def test_a_model_that_reads_two_texts_apart(
    data: Path, encoders: dict[str, Path], recipe: str
) -> None:
    from transformers import AutoModel

    (data.parent / "protocol.yaml").write_text(PROTOCOL.replace("}", ", pairs: by-width}"))
    kept = data.parent / "kept"
    done = keep(request(data, encoders[recipe], "regression"), kept, SILENT)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    rows, predictor = validation(data, "regression"), Predictor.load(kept)
    assert torch.equal(torch.get_rng_state(), before)  # the random numbers of the program
    wanted = read_outputs(data.parent / "scores", "regression", "mine", done["seed"])["mine"]
    np.testing.assert_allclose(predictor.outputs(rows)[0], wanted, atol=1e-5)
    answers = [answer for _, answer in predictor.predict(data / "validation.jsonl")]
    assert crammed.load(kept, "cpu").predict(rows.texts) == answers
    encoder = AutoModel.from_pretrained(kept)
    assert json.loads((kept / "config.json").read_text())["architectures"] == [
        type(encoder).__name__
    ]
    card = (kept / "README.md").read_text("utf-8")
    assert "pipeline_tag" not in card
    assert "It encodes the two texts separately" in card
    layer = kept / PAIR_LAYER
    of_another = save({"weight": torch.zeros(1, 12), "bias": torch.zeros(1)})
    for damage in (layer.read_bytes()[:-9], b"", of_another, None):
        layer.unlink()
        if damage is not None:
            layer.write_bytes(damage)
        with pytest.raises(InputError, match=r"pairs\.safetensors is missing or damaged: fine-"):
            Predictor.load(kept)
        layer.touch()
    other = request(data, encoders[recipe], into=data.parent / "others")
    single = keep(other, data.parent / "single", SILENT)
    assert not (data.parent / "single" / PAIR_LAYER).exists()
    assert single["protocol"]["pairs"] == "apart"


def test_a_folder_of_a_stranger(data: Path, encoders: dict[str, Path]) -> None:
    keep(request(data, encoders["crammed"]), data.parent / "kept", SILENT)
    described = data.parent / "kept" / DESCRIPTION
    whole = json.loads(described.read_text())
    damages: list[dict[str, Any]] = [{"labels": 7.5}, {"max_length": -1}, {"task": {}}, {"more": 1}]
    for damage in damages:
        described.write_text(json.dumps({**whole, **damage}))
        with pytest.raises(InputError, match=r"task\.json is damaged: fine-tune again"):
            read_description(data.parent / "kept")
    described.write_text(json.dumps({**whole, "labels": ["a", "b", "c"]}))
    with pytest.raises(InputError, match=r"3 labels, but its model has 2 outputs"):
        Predictor.load(data.parent / "kept")
    described.write_text(json.dumps(whole))
    damaged = Predictor.load(data.parent / "kept")
    with torch.no_grad():
        next(damaged.model.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="kept computes no finite numbers"):
        damaged.outputs(Rows([("some text",)], np.zeros(1, np.float32)))


def finetuned(data: Path, encoder: Path, *more: str) -> str:
    """What the command prints that keeps a model of one seed."""
    here = data.parent
    words: list[str | Path] = ["finetune", encoder, "--suite", here / "classification.yaml"]
    words += ["--data", data, "--out", here / "kept", "--protocol", here / "protocol.yaml"]
    done = command.crammed(*words, "--seeds", "1", "--no-untrained", *more, cwd=here)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_for_a_model_with_code_of_its_own_allow_it(
    data: Path, encoders: dict[str, Path]
) -> None:
    trust, kept = "--trust-remote-code", data.parent / "kept"
    printed = finetuned(data, encoders["crammed-2022"], trust)
    assert f"crammed predict {kept} {trust} --data FILE\n" in printed
    card = (kept / "README.md").read_text("utf-8")
    assert f"\ncrammed predict path/to/this/folder {trust} --data rows.csv\n" in card


def test_the_commands(data: Path, encoders: dict[str, Path]) -> None:
    here = data.parent
    printed = finetuned(data, encoders["crammed"])
    assert f"crammed predict {here / 'kept'} --data FILE\n" in printed
    card = (here / "kept" / "README.md").read_text("utf-8")
    assert "\ncrammed predict path/to/this/folder --data rows.csv\n" in card
    with (here / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "id"], ["the garden", 7], ["=a harbour", 8]])
    said = command.crammed("predict", here / "kept", "--data", here / "new.csv").stdout.splitlines()
    assert [json.loads(line)["id"] for line in said] == ["7", "8"]
    command.crammed("predict", here / "kept", "--data", here / "new.csv", "--out", here / "out.csv")
    with (here / "out.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [line["predicted"] for line in table] == [json.loads(each)["predicted"] for each in said]
    rows = "".join(json.dumps({"text": each["text"], "id": each["id"]}) + "\n" for each in table)
    piped = [sys.executable, "-m", "crammed", "predict", str(here / "kept"), "--data", "-"]
    assert subprocess.check_output(piped, input=rows, text=True).splitlines() == said
    (here / "long.jsonl").write_text(json.dumps({"text": "the garden " * 40}))
    long = command.crammed("predict", here / "kept", "--data", here / "long.jsonl")
    assert (long.returncode, len(long.stdout.splitlines())) == (0, 1)
    assert "note: 1 text longer than 24 tokens was truncated" in long.stderr.splitlines()
    for name, message in (
        ("no.csv", f"error: no such file: {here / 'no.csv'}"),
        ("kept", "is of no known format: name a file that ends in .jsonl, .csv"),
    ):
        refused = command.crammed("predict", here / "kept", "--data", here / name)
        assert message in refused.stderr
        assert refused.returncode == 2
    (here / "classifier").symlink_to(here / "kept")
    (block,) = (each for each in python_blocks() if "classifier" in each)
    shown = command.python("-c", f"import crammed\n{block}", cwd=here).stdout.split()
    assert shown[0] in ("wet", "dry")
    assert 0.5 <= float(shown[1]) <= 1.0
    (here / "bad.jsonl").write_text('{"txt": "a"}\n')
    refused = command.crammed("predict", here / "kept", "--data", here / "bad.jsonl")
    assert "bad.jsonl, line 1: no column 'text'" in refused.stderr
    refused = command.crammed(
        "predict", here / "kept", "--data", here / "new.csv", "--out", "out.txt"
    )
    assert "out.txt must end in .jsonl or .csv" in refused.stderr
    (here / "same.csv").symlink_to(here / "new.csv")
    refused = command.crammed(
        "predict", here / "kept", "--data", here / "same.csv", "--out", here / "new.csv"
    )
    assert f"{here / 'new.csv'} holds the rows themselves: name another file" in refused.stderr
