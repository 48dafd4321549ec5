"""What tuned vectors are compared with: BM25, and another model's vectors."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import crammed
from crammed.config import ComputeConfig
from crammed.embedding import beside
from crammed.embedding.beside import Beside, bm25_retrieval, pooling_of
from crammed.embedding.card import card, score_lines, score_table
from crammed.embedding.scoring import vectors
from crammed.errors import InputError
from crammed.evaluation.finetuning.engine import Numerics
from crammed.export.card import Metadata
from crammed.machine.device import choose_device
from crammed.terminal.progress import SILENT, Progress
from support.text import write_jsonl

TEXTS = ["the red fox", "my neighbour repairs seven lanterns under the bridge", "?"]
PASSAGES = [("a red fox ran", "the fox hid"), ("two boats", "boats sank"), ("Clocks!", "CLOCKS?")]


def test_bm25_finds_the_passage_that_shares_words() -> None:
    pytest.importorskip("bm25s")
    found = bm25_retrieval(PASSAGES, SILENT)
    assert found == {"among": 3, "recall@1": 100.0, "mrr": 100.0}
    other = bm25_retrieval([*PASSAGES, ("? !", "no word of it")], SILENT)
    assert other is not None
    assert other["recall@1"] == 75.0
    assert bm25_retrieval([("? !", "?"), ("a fox", "!")], SILENT) is None


def test_bm25_finds_passages_without_spaces_by_their_characters() -> None:
    pytest.importorskip("bm25s")
    pairs = [
        ("红色的狐狸跑了", "那只狐狸藏了起来"),
        ("两条船在港口", "港口的船沉了"),
        ("所有的钟都停了", "钟不走了"),
    ]
    assert bm25_retrieval(pairs, SILENT) == {"among": 3, "recall@1": 100.0, "mrr": 100.0}


def test_bm25_is_left_out_in_one_line_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(beside, "find_spec", lambda name: None)
    assert bm25_retrieval(PASSAGES, Progress(sys.stderr)) is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "BM25  left out: pip install 'crammed[embed]'" in said
    assert bm25_retrieval(PASSAGES[:1], SILENT) is None


def in_library(folder: Path, pooling: dict[str, Any]) -> Path:
    """The folder as sentence-transformers keeps it, with vectors of length 1."""
    kinds, paths = ("Transformer", "Pooling", "Normalize"), ("", "1_Pooling", "2_Normalize")
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "2_Normalize").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    limits = {"max_seq_length": 6, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    return folder


def pooled(width: int, mode: str) -> dict[str, Any]:
    keys = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
    chosen = {f"pooling_mode_{key}": name == mode for name, key in keys.items()}
    return {"word_embedding_dimension": width, **chosen}


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_vectors_of_others_are_pooled_as_their_folder_says(
    tmp_path: Path, model_folders: dict[str, Path], mode: str
) -> None:
    plain = Path(shutil.copytree(model_folders["bert"], tmp_path / "model"))
    assert pooling_of(plain) == "mean"
    hidden = crammed.load(plain, "cpu")
    width = hidden.backbone.width
    assert width is not None
    folder = in_library(plain, pooled(width, mode))
    other = Beside.load(str(folder), trust_remote_code=False)
    assert other.longest == 6
    numerics = Numerics.on(choose_device(ComputeConfig(device="cpu")))
    found = vectors(other.model.eval(), other.backbone, TEXTS, other.longest, numerics)
    tokens = hidden.backbone.tokenize([(text,) for text in TEXTS], 6, words=False)
    pools = {"mean": lambda h: h.mean(0), "cls": lambda h: h[0], "max": lambda h: h.amax(0)}
    for n, vector in enumerate(found):
        ids = torch.tensor(tokens.ids[tokens.offsets[n] : tokens.offsets[n + 1]].astype(np.int64))
        with torch.inference_mode():
            expected = pools[mode](hidden.model(ids[None])[0])
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)
    if find_spec("sentence_transformers"):  # as in `make test-all`
        library = import_module("sentence_transformers")
        theirs = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
        unit = found / np.linalg.norm(found, axis=1, keepdims=True)
        np.testing.assert_allclose(theirs, unit, atol=1e-4)


@pytest.mark.parametrize(
    ("module", "pooling", "words"),
    [
        ("sentence_transformers.models.Dense", {}, "go through Dense, which is unknown here"),
        (None, {"pooling_mode_lasttoken": True}, "are pooled by lasttoken, which is unknown"),
        (None, {"pooling_mode": ["mean", "cls"]}, "are pooled by mean and cls"),
        (None, {}, "are pooled by nothing that is named"),
        (None, {"pooling_mode": None}, "are pooled by None, which is unknown"),
        (None, {"pooling_mode": [["mean"]]}, "which is unknown here"),
    ],
)
def test_vectors_that_cannot_be_made_here_are_refused(
    tmp_path: Path, module: str | None, pooling: dict[str, Any], words: str
) -> None:
    in_library(tmp_path, pooling)
    if module is not None:
        listed = json.loads((tmp_path / "modules.json").read_text())
        listed[2]["type"] = module
        (tmp_path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(InputError, match=words):
        pooling_of(tmp_path)


@pytest.mark.parametrize("listed", ["{", "[1]", '[{"type": "x"}]'])
def test_a_damaged_list_of_modules_is_named(tmp_path: Path, listed: str) -> None:
    (tmp_path / "modules.json").write_text(listed)
    with pytest.raises(InputError, match=r"modules\.json is not a list of modules"):
        pooling_of(tmp_path)


def test_pooling_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "../other"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="leads out of its folder"):
        pooling_of(tmp_path)


def test_pooling_is_read_in_the_form_of_newer_versions(tmp_path: Path) -> None:
    in_library(tmp_path, {"embedding_dimension": 8, "pooling_mode": "cls"})
    assert pooling_of(tmp_path) == "cls"


def test_another_model_is_scored_on_the_same_texts(
    tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    rated = tmp_path / "pairs.csv"
    rated.write_text("sentence1,sentence2,score\na fox,the fox,5\nboats,a clock,1\nfox,boats,2\n")
    texts = [f"The {n} foxes ran. Then {n} boats sank. At last {n} clocks rang." for n in range(99)]
    made = crammed.embed(
        model_folders["bert"],
        data=write_jsonl(tmp_path / "text.jsonl", texts),
        out=tmp_path / "out",
        budget="1updates",
        pairs=rated,
        beside=model_folders["bert"],
        batch=4,
        length=16,
        device="cpu",
    )
    result = made.result
    before, beside = result["before"], result["beside"]
    assert beside["name"] == "bert"
    for name in ("retrieval", "unrelated", "spearman"):  # the untuned model itself, by the mean
        assert beside[name] == before[name]
    assert f"{before['spearman']:.1f}" in dict(made.lines)["rated pairs, Spearman"]
    assert "| bert |" in (tmp_path / "out" / "README.md").read_text()


def made_up(spearman: float) -> dict[str, Any]:
    """What one model scored."""
    return {
        "retrieval": {"among": 9, "recall@1": 10.0, "mrr": 20.0},
        "unrelated": {"5 %": 0.1, "50 %": 0.2, "95 %": 0.3},
        "spearman": spearman,
    }


@pytest.mark.parametrize("name", ["tuned", "BM25"])
def test_a_model_may_be_called_as_a_column_is(name: str) -> None:
    bm25 = {"among": 9, "recall@1": 11.0, "mrr": 21.0}
    both = {"before": made_up(1.0), "after": made_up(2.0), "bm25": bm25}
    names, rows = score_table({**both, "beside": {**made_up(3.0), "name": name}})
    assert names == ["untuned", "tuned", "BM25", name]
    assert dict(rows)["rated pairs, Spearman"] == ["1.0", "2.0", "-", "3.0"]


def test_the_table_has_a_column_for_each_and_gaps_where_there_is_no_score() -> None:
    scores = made_up(30.0)
    bm25 = {"among": 9, "recall@1": 11.0, "mrr": 21.0}
    result: dict[str, Any] = {"before": scores, "after": scores, "bm25": bm25, "beside": None}
    names, rows = score_table(result)
    assert names == ["untuned", "tuned", "BM25"]
    assert dict(rows)["rated pairs, Spearman"] == ["30.0", "30.0", "-"]
    lines = dict(score_lines(result))
    assert lines["next passage among 9, recall@1"] == "10.0 -> 10.0; BM25 11.0"
    assert lines["rated pairs, Spearman"] == "30.0 -> 30.0"
    about = {"model": "m", "partners": "denoise", "updates": 1, "batch": 2, "length": 3}
    shown = card(
        {**result, **about, "beside": {**scores, "name": "other"}}, Metadata(), trust=False
    )
    assert "updates of 2 texts" in " ".join(shown.split())
    assert "| in percent, except cosines | untuned | tuned | BM25 | other |" in shown
    same = "0.10 to 0.30"
    assert f"| cosines of unrelated texts | {same} | {same} | - | {same} |" in shown
