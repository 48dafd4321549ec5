"""Models in Python: `crammed.load`."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import crammed
from crammed.errors import InputError
from crammed.files.writing import write_json
from crammed.finetuned.folder import DESCRIPTION
from crammed.machine.device import choose_device
from crammed.tasks.task import Task
from support.backbones import RECIPES
from support.models import FAMILIES, change, save_model, untrained, word_pieces
from support.text import tiny

TEXTS = ["the red fox", "my neighbour repairs seven lanterns under the bridge", "a"]


@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_a_text_is_the_mean_of_its_tokens(model_folders: dict[str, Path], name: str) -> None:
    model = crammed.load(model_folders[name], "cpu")
    for limit in (model.backbone.max_length, 4):
        vectors = model.encode(TEXTS, limit)
        assert vectors.shape == (len(TEXTS), model.backbone.width)
        for text, vector in zip(TEXTS, vectors, strict=True):  # each by itself, without padding
            ids = model.backbone.tokenize([(text,)], limit, words=False).ids
            row = torch.from_numpy(ids.astype(np.int64))[None]
            with torch.inference_mode():
                hidden = model.model(row, torch.ones_like(row, dtype=torch.bool), None)
            np.testing.assert_allclose(vector, hidden[0].mean(0), atol=1e-4)
    assert model.encode([]).shape == (0, model.backbone.width)


@pytest.mark.parametrize("name", ["crammed", "crammed-2022", "roberta"])
def test_gaps_are_filled_as_the_model_says(model_folders: dict[str, Path], name: str) -> None:
    model = crammed.load(model_folders[name], "cpu")
    assert model.backbone.mask is not None
    mask = model.tokenizer.decode([model.backbone.mask], skip_special_tokens=False).strip()
    gaps = model.fill(f"the {mask} fox {mask}", count=3)
    assert [len(gap) for gap in gaps] == [3, 3]
    ids = model.backbone.tokenize([(f"the {mask} fox {mask}",)], 32, words=False).ids
    row = torch.from_numpy(ids.astype(np.int64))[None]
    places = torch.arange(row.shape[1])[None]
    with torch.inference_mode():
        logits = model.backbone.masked_lm(torch.device("cpu"))(row, places)[0].softmax(-1)
    for place, gap in zip(np.flatnonzero(ids == model.backbone.mask), gaps, strict=True):
        best = logits[place].topk(3)
        assert [p for _, p in gap] == pytest.approx(best.values.tolist(), abs=1e-6)
        assert [text for text, _ in gap] == [
            model.tokenizer.decode([number], skip_special_tokens=False)
            for number in best.indices.tolist()
        ]
    with pytest.raises(InputError, match="the text has no gap: write"):
        model.fill("no gap here")
    model.backbone.mask = None
    with pytest.raises(InputError, match="has no mask token: load a masked-language model"):
        model.fill("a [MASK]")


def test_a_model_leaves_the_precision_of_others_alone(
    model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def choosing(*given: Any) -> Any:
        torch.set_float32_matmul_precision("high")  # as for a GPU
        return chosen(*given)

    chosen = choose_device
    monkeypatch.setattr("crammed.loaded.choose_device", choosing)
    assert crammed.load(model_folders["bert"], "cpu").encode(["a"]).size
    assert torch.get_float32_matmul_precision() == "highest"


def test_threads_that_fill_gaps_take_turns(model_folders: dict[str, Path]) -> None:
    model = crammed.load(model_folders["bert"], "cpu")
    inside, wrapped = [0], model._masked_lm.forward

    def forward(*args: Any) -> Any:
        inside[0] += 1
        sleep(0.02)
        assert inside == [1], "two threads compute at a time"
        inside[0] -= 1
        return wrapped(*args)

    model._masked_lm.forward = forward
    with ThreadPoolExecutor(4) as threads:
        filled = [*threads.map(model.fill, ["the [MASK] fox"] * 8)]
    assert filled == filled[:1] * 8


def test_threads_load_a_model_once(
    model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> Any:
        times.append(1)
        sleep(0.1)
        return encoder()

    model, times = crammed.load(model_folders["bert"], "cpu"), list[int]()
    encoder = model.backbone.encoder
    monkeypatch.setattr(model.backbone, "encoder", made)
    with ThreadPoolExecutor(4) as threads:
        assert len([*threads.map(model.encode, [TEXTS] * 4)]) == 4
    assert times == [1]


def test_a_model_leaves_the_random_numbers_of_the_program_alone(
    model_folders: dict[str, Path],
) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    for name in ("crammed", "bert"):
        model = crammed.load(model_folders[name], "cpu")
        model.encode(TEXTS)
        model.fill("the [MASK] fox")
        assert torch.equal(torch.get_rng_state(), before)


def test_texts_longer_than_the_rows_of_training(tmp_path: Path) -> None:
    config = tiny("bert-base", "model.max_length=32").model
    final = replace(untrained(word_pieces(), config), row_length=8)
    final.save(tmp_path / "run" / "final")
    model = crammed.load(tmp_path / "run", "cpu")
    with pytest.warns(UserWarning, match="2 texts longer than 8 tokens were truncated") as warned:
        vectors = model.encode([" ".join(["fox"] * 20), "the fox", " ".join(["fox"] * 30)])
    assert [each.filename for each in warned] == [__file__]
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-5)
    model.encode(["fox " * 20], 6)  # a limit of one's own is no surprise
    with pytest.raises(InputError, match="was trained on texts of at most 8 tokens: choose"):
        model.encode(["fox"], 9)
    with pytest.raises(
        InputError, match="the text is longer than the 8 tokens that the model run was"
    ):
        model.fill("fox " * 20 + "[MASK]")


def test_texts_are_what_a_column_of_a_file_would_hold(model_folders: dict[str, Path]) -> None:
    """A task's template is filled in."""
    model = crammed.load(model_folders["crammed"], "cpu")

    def read(text: list[str], row: tuple[str, str]) -> Any:
        task = Task.model_validate({"name": "a", "text": text, "metric": "accuracy"})
        predictor = Mock(description=Mock(task=task), answers=Mock(return_value=([], 0)))
        model.__dict__["_predictor"] = predictor
        model.predict([row])
        return predictor.answers.call_args.args[0].texts

    assert read(["premise", "So: {end} {{{end}}}"], ("Rain.", "{wet}")) == [
        ("Rain.", "So: {wet} {{wet}}")
    ]
    with pytest.raises(InputError, match="a model of texts of several columns takes a file"):
        read(["premise", "{question} {end}"], ("Rain.", "What? wet"))


def fine_tuned(tmp_path: Path) -> Path:
    """A classifier in a folder, as `crammed finetune` keeps it."""
    kept = save_model(tmp_path / "kept", "bert", "AutoModelForSequenceClassification")
    task = {"name": "a", "text": "text", "metric": "accuracy"}
    described: dict[str, Any] = {"task": task, "labels": ["wet", "dry"], "max_length": 16}
    write_json(kept / DESCRIPTION, {**described, "encoder": "e", "seed": 0, "scores": {}})
    return kept


def test_threads_that_predict_count_their_own_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def together(*given: Any, **values: Any) -> Any:
        both.wait(60)
        tokens = tokenize(*given, **values)
        both.wait(60)
        return tokens

    model = crammed.load(fine_tuned(tmp_path), "cpu")
    both, tokenize, cut = Barrier(2), model._predictor.backbone.tokenize, list[int]()
    monkeypatch.setattr(model._predictor.backbone, "tokenize", together)
    monkeypatch.setattr("crammed.loaded._warn", lambda count, _: cut.append(count))
    with ThreadPoolExecutor(2) as threads:
        assert len([*threads.map(model.predict, [["fox"], ["fox " * 30]])]) == 2
    assert sorted(cut) == [0, 1]


@pytest.mark.parametrize("name", ["crammed", "bert", "kept"])
def test_a_model_that_was_named_from_another_folder_goes_on(
    model_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = {**model_folders, "kept": fine_tuned(tmp_path)}[name]
    monkeypatch.chdir(folder.parent)
    model = crammed.load(name, "cpu")
    monkeypatch.chdir(folder)
    assert model.path == folder
    there = crammed.load(folder, "cpu")
    np.testing.assert_array_equal(model.encode(TEXTS), there.encode(TEXTS))
    if name == "kept":
        assert model.predict(TEXTS) == there.predict(TEXTS)


def test_a_name_on_the_hub_predicts_as_its_folder_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = fine_tuned(tmp_path)
    change(kept / "tokenizer_config.json", {"model_max_length": 16})
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub_of(kept, tmp_path / "cached"))
    there, named = crammed.load(kept, "cpu"), crammed.load("owner/kept", "cpu")
    assert there.backbone.max_length == named.backbone.max_length == 40
    assert there.backbone.sha256 == named.backbone.sha256
    assert there.predict(TEXTS) == named.predict(TEXTS)
    (kept / DESCRIPTION).unlink()
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub_of(kept, tmp_path / "encoder"))
    with pytest.raises(InputError, match="owner/kept is not fine-tuned: make a model"):
        crammed.load("owner/kept", "cpu").predict(TEXTS)


def hub_of(folder: Path, cached: Path) -> Any:
    """A hub that has the files of a folder, and copies to another those that are asked for."""

    def download(_: str, *, allow_patterns: list[str]) -> str:
        cached.mkdir(exist_ok=True)
        for file in folder.iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copyfile(file, cached / file.name)
        return str(cached)

    return download


def test_what_is_not_there(model_folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a finished run"):
        crammed.load(tmp_path)
    with pytest.raises(InputError, match="is not fine-tuned: make a model with crammed finetune"):
        crammed.load(model_folders["crammed"]).predict(["a text"])
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        crammed.lod  # noqa: B018


def test_what_is_no_list_of_texts_is_refused_in_one_line(model_folders: dict[str, Path]) -> None:
    model = crammed.load(model_folders["crammed"], "cpu")
    wrong: list[tuple[Any, str]] = [
        ("a text", "give a list of texts, even for one"),
        (
            pytest.importorskip("pandas").DataFrame({"text": ["a"]}),
            r"of a data frame, frame\[COLUMN\]",
        ),
        (["a", None], "text 2 is None, not text"),
        ([5], "text 1 is"),
        (None, "give a list of texts"),
        ([b"a"], "text 1 is b'a', not text"),
        ([("a", "b", "c")], "not text or a pair of texts"),
    ]
    for texts, words in wrong:
        with pytest.raises(InputError, match=words):
            model.encode(texts)
    for length in (0, -1, "3"):
        with pytest.raises(InputError, match="but 3 or more"):
            model.encode(["a"], length)  # type: ignore[arg-type]
    gap = "the [MASK] \ud83d"
    for count in (-1, 0, 2.5):
        with pytest.raises(InputError, match="count: input should be"):
            model.fill(gap, count)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="text: input should be a valid string, not None"):
        model.fill(None)  # type: ignore[arg-type]
    assert len(model.fill(gap, np.int64(2))[0]) == 2  # type: ignore[arg-type]
    with pytest.raises(InputError, match="device: input should be"):
        crammed.load(model_folders["crammed"], "tpu")
    assert len(model.encode(["half a character: \ud83d", "another"])) == 2
