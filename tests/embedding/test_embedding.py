"""Sentence embeddings: the passages, the loss, the folder, what is refused."""

from __future__ import annotations

import json
import random
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import crammed
from crammed.budget import Budget
from crammed.embedding.card import TOO_FEW, card, score_lines
from crammed.embedding.folder import write_embedder
from crammed.embedding.passages import Passages, cut
from crammed.embedding.scoring import read_pairs, retrieval
from crammed.embedding.tuning import TEMPERATURE, Tuning, batches, contrastive_loss
from crammed.errors import CrammedError, InputError
from crammed.evaluation.scores.metrics import measure
from crammed.export.card import Metadata
from crammed.export.huggingface import export
from crammed.files.folders import new_folder
from crammed.model.trained import load_trained
from crammed.sentences import sentences
from crammed.terminal.progress import SILENT
from support.command import crammed as command
from support.models import change
from support.pages import front_matter
from support.text import write_jsonl, write_rows

NAMES = ("lanterns", "clock", "stone", "letter", "boats", "fox", "sailor", "girl")


def on_a_subject(number: int) -> str:
    """A document that keeps to one word, by which its passages can be told from others."""
    draw, name = random.Random(number), NAMES[number % len(NAMES)]
    verbs = ("counts", "paints", "forgets", "carries", "repairs")
    return " ".join(f"Day {n}: the {name} {draw.choice(verbs)} the {name}." for n in range(6))


def embed(model: Path, text: Path, out: Path, **values: Any) -> crammed.Embedder:
    """Tune for two updates, on the CPU."""
    small: dict[str, Any] = {"budget": "2updates", "batch": 16, "length": 24, "device": "cpu"}
    return crammed.embed(model, data=text, out=out, **{**small, **values})


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(
        tmp_path_factory.mktemp("text") / "text.jsonl", [on_a_subject(n) for n in range(400)]
    )


@pytest.fixture
def rated(tmp_path: Path) -> Path:
    """Pairs that are alike if they are on the same subject."""
    rows = [(a, b) for a in NAMES for b in NAMES]
    values = [
        {"sentence1": f"the {a}", "sentence2": f"a {b}", "score": float(a == b), "label": "?"}
        for a, b in rows
    ]
    return write_rows(tmp_path / "pairs.jsonl", values)


def test_the_loss_is_that_of_each_row_by_itself() -> None:
    one, other = torch.randn(2, 5, 7)
    found = []
    for a, b in ((one, other), (other, one)):
        for n in range(5):
            cosines = [torch.cosine_similarity(a[n], row, dim=0) / TEMPERATURE for row in b]
            found.append(-torch.stack(cosines).log_softmax(0)[n])
    torch.testing.assert_close(contrastive_loss(one, other), torch.stack(found).mean())


def test_passages_are_whole_sentences_in_order() -> None:
    document = " ".join(on_a_subject(number) for number in range(20))
    passages = list(cut(document, 400, random.Random(1)))
    assert " ".join(passages) == " ".join(sentence for sentence, _ in sentences(document))
    assert max(map(len, passages)) < 400 + 100
    assert len({len(p) // 50 for p in passages}) > 3  # of many lengths
    assert passages == list(cut(document, 400, random.Random(1)))


@pytest.mark.parametrize(
    ("sentence", "between"),
    [
        ("我们今天去学校学习语言。", ""),
        ("今日は学校で言葉を習います。", ""),
        ("오늘은 학교에서 말을 배웁니다.", " "),
        ("오늘은 학교에서 말을 배움", " "),
        ("แมวนอนอยู่บนเสื่อและหมาวิ่งในสวน", " "),
    ],
)
def test_passages_of_scripts_with_wide_characters_or_without_spaces(
    sentence: str, between: str
) -> None:
    assert list(cut(f"{sentence}\n" * 3, 1, random.Random(1))) == [sentence] * 3
    (passage,) = cut(f"{sentence}\n" * 3, 10**6, random.Random(1))
    assert passage == between.join([sentence] * 3)


def test_nothing_is_learned_of_held_out_documents_and_their_copies(tmp_path: Path) -> None:
    texts = [on_a_subject(n).replace(": the", f" of {n}: the") for n in range(300)]
    file = write_jsonl(tmp_path / "text.jsonl", [*texts, *texts])
    found = Passages.read([str(file)], 10, 0, SILENT)
    assert 3 < len(found.heldout) < 40
    learned = "\n".join(found.texts)
    assert not [passage for pair in found.heldout for passage in pair if passage in learned]
    whole = {*texts}
    for a, b in found.pairs[:50]:
        assert any(f"{found.texts[a]} {found.texts[b]}" in text for text in whole)


def test_every_pair_comes_once_before_any_comes_again() -> None:
    tuning = Tuning(Budget.parse("9updates"), batch=4)
    pairs = np.arange(20).reshape(10, 2)
    drawn = batches(pairs, tuning)
    first = np.concatenate([next(drawn), next(drawn)])
    assert len({*first[:, 0].tolist()}) == 8
    assert not np.array_equal(first, np.concatenate([next(drawn), next(drawn)]))


def test_ranks_count_ties_against_the_model() -> None:
    cosines = np.array([[0.9, 0.1, 0.2], [0.5, 0.5, 0.1], [0.8, 0.7, 0.6]], np.float32)
    assert retrieval(cosines) == {
        "among": 3,
        "recall@1": pytest.approx(100 / 3),
        "mrr": pytest.approx(100 * (1 + 1 / 2 + 1 / 3) / 3),
    }


@pytest.mark.parametrize(
    ("name", "partners"),
    [("bert", "neighbours"), ("modernbert", "dropout"), ("bert", "denoise")],
)
def test_texts_are_told_apart_afterwards(
    tmp_path: Path,
    model_folders: dict[str, Path],
    text: Path,
    rated: Path,
    name: str,
    partners: str,
) -> None:
    out = tmp_path / "vectors"
    asked: dict[str, Any] = {"budget": "40updates", "partners": partners, "pairs": rated}
    made = embed(model_folders[name], text, out, **asked)
    before, after = made.result["before"], made.result["after"]
    assert made.result["updates"] == 40
    pairs = read_pairs(rated)
    for folder, scores in ((model_folders[name], before), (out, after)):
        encoded = crammed.load(folder, "cpu").encode([*chain.from_iterable(pairs.texts)])
        unit = encoded / np.linalg.norm(encoded, axis=1, keepdims=True)
        cosines = (unit[::2] * unit[1::2]).sum(1, keepdims=True)
        assert scores["spearman"] == pytest.approx(measure("spearman", cosines, pairs, ()), abs=0.5)
    assert after["unrelated"] != before["unrelated"]
    if partners != "denoise":
        assert after["unrelated"]["50 %"] < before["unrelated"]["50 %"]
    if partners == "neighbours":
        assert after["retrieval"]["mrr"] > before["retrieval"]["mrr"]
    assert json.loads((out / "embedding.json").read_text()) == made.result
    assert made.result["sources"] == ["text.jsonl"]  # without the folders, as it may be uploaded
    assert "Spearman" in made._repr_html_()
    check_folder(out)


def test_a_batch_that_does_not_fit_into_memory_is_one_line(
    tmp_path: Path, model_folders: dict[str, Path], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("crammed.embedding.tuning.contrastive_loss", full)
    with pytest.raises(InputError, match=r"^a batch does not fit into memory: lower --batch or"):
        embed(model_folders["bert"], text, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tuning_that_diverges_is_not_the_encoders_fault(
    tmp_path: Path, model_folders: dict[str, Path], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(objective: torch.nn.Module, *_: object) -> Any:
        for weight in objective.parameters():
            torch.nn.init.constant_(weight, torch.nan)
        return Mock()

    monkeypatch.setattr("crammed.embedding.making.tune", diverge)
    with pytest.raises(InputError, match=r"^tuning diverged, .*: try a larger --batch, or --dtype"):
        embed(model_folders["bert"], text, tmp_path / "out")


def test_a_folder_that_differs_costs_no_budget(
    tmp_path: Path, model_folders: dict[str, Path], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    differs = Mock(side_effect=CrammedError("the vectors differ"))
    monkeypatch.setattr("crammed.embedding.making.difference", differs)
    monkeypatch.setattr("crammed.embedding.making.tune", lambda *_: pytest.fail("it was tuned"))
    with pytest.raises(CrammedError, match=r"^the vectors differ$"):
        embed(model_folders["bert"], text, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("budget", ["1updates", "100tok"])
def test_the_first_update_has_a_rate(
    tmp_path: Path,
    model_folders: dict[str, Path],
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    budget: str,
) -> None:
    rates, real = [], torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, *given: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return real(self, *given)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    made = embed(model_folders["bert"], text, tmp_path / "out", budget=budget, length=9999)
    assert len(rates) == 1
    assert rates[0] > 0
    said = f"texts are truncated at {made.result['length']} tokens, which the model was trained on"
    assert said in capsys.readouterr().err


def check_folder(folder: Path, *, trust: bool = False) -> None:
    """transformers and sentence-transformers compute the vectors that `crammed.load` does."""
    from transformers import AutoTokenizer

    texts = ["the red fox", "my neighbour repairs seven lanterns under the bridge"]
    ours = crammed.load(folder, "cpu", trust_remote_code=trust).encode(texts, 24)
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling"]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == ours.shape[1]
    assert pooling["pooling_mode_mean_tokens"]
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 24
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
    assert len(tokenizer("the fox " * 99, truncation=True).input_ids) == 24
    if find_spec("sentence_transformers"):  # as in `make test-all`
        library = import_module("sentence_transformers")
        model = library.SentenceTransformer(str(folder), device="cpu", trust_remote_code=trust)
        np.testing.assert_allclose(model.encode(texts), ours, atol=1e-4)


def test_the_folder_is_checked_in_single_precision_whatever_it_was_tuned_in(
    tmp_path: Path, model_folders: dict[str, Path], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is how sentence-transformers computes."""
    checked = Mock(return_value=0.0)
    monkeypatch.setattr("crammed.embedding.making.difference", checked)
    out = tmp_path / "vectors"
    embed(model_folders["bert"], text, out, dtype="bfloat16")
    _, texts, ours = checked.call_args.args
    np.testing.assert_allclose(ours, crammed.load(out, "cpu").encode(texts, 24), atol=1e-5)


def test_the_configuration_does_not_say_that_weights_are_in_16_bits(
    tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    source = shutil.copytree(model_folders["bert"], tmp_path / "source")
    change(source / "config.json", {"dtype": "float16", "torch_dtype": "float16"})
    (tmp_path / "out").mkdir()
    write_embedder(tmp_path / "out", source, torch.nn.Linear(2, 2), 24, 2)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "bert"
    assert not {"dtype", "torch_dtype"} & {*config}


def test_the_command_takes_a_model_with_code(
    tmp_path: Path, model_folders: dict[str, Path], text: Path
) -> None:
    metadata = Metadata("mit", base_model="owner/encoder")
    final = load_trained(model_folders["crammed"])
    export(final, tmp_path / "model", "custom", metadata=metadata)
    texts = (("the fox " * 30, "the boat", 1.0), ("a clock", "a girl", 0.0))
    rows = [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in texts]
    pairs = write_rows(tmp_path / "long.jsonl", rows)
    done = command(
        *("embed", tmp_path / "model", "--data", text, "--out", tmp_path / "a", "--batch", "8"),
        *("--pairs", pairs, "--license", "apache-2.0"),
        *("--budget", "2updates", "--length", "24", "--device", "cpu"),
    )
    assert done.returncode == 0, done.stderr
    assert "next passage among 18, MRR" in done.stdout
    assert "note  --pairs: 1 text longer than 24 tokens was truncated" in done.stderr
    next_words = done.stdout.splitlines()[-1]
    assert f"crammed.load('{tmp_path / 'a'}', trust_remote_code=True).encode(" in next_words
    assert "trust_remote_code=True" in (tmp_path / "a" / "README.md").read_text()
    told = front_matter(tmp_path / "a")
    assert (told["license"], told["base_model"]) == ("apache-2.0", "owner/encoder")
    check_folder(tmp_path / "a", trust=True)


def test_too_little_text_to_score_on_is_said() -> None:
    none = {"retrieval": None, "unrelated": None, "spearman": None}
    about = {"model": "m", "partners": "dropout", "updates": 1, "batch": 2, "length": 8}
    result = {"before": none, "after": none, "bm25": None, "beside": None, **about}
    assert score_lines(result) == [("note", TOO_FEW)]
    assert card(result, Metadata(), trust=False).endswith("\n\nIt was not scored.\n")


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_text_in_another_field_is_to_be_renamed(tmp_path: Path, name: str) -> None:
    text = {"rows.csv": "review\na\n", "rows.jsonl": '{"review": "a"}\n'}[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(
        InputError, match=r"'text' \(it has: review\); embed reads .*: rename yours"
    ):
        Passages.read([str(tmp_path / name)], 16, 0, SILENT)


def test_code_of_others_is_not_run_because_it_lies_in_a_run(
    tmp_path: Path, model_folders: dict[str, Path], text: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(model_folders["crammed"] / "final", run / "final")
    export(load_trained(run), run / "export", "custom")
    file = run / "export" / "modeling_crammed.py"
    file.write_text(f"{file.read_text()}\nopen({str(tmp_path / 'run-by-us')!r}, 'w')\n")
    with pytest.raises(InputError, match="comes with its own Python code"):
        embed(run, text, tmp_path / "out")
    assert {*tmp_path.iterdir()} == {run}


def test_what_is_wrong_leaves_nothing(
    tmp_path: Path, model_folders: dict[str, Path], text: Path, rated: Path
) -> None:
    few, unrated, empty = (tmp_path / name for name in ("few.txt", "unrated.csv", "empty.csv"))
    few.write_text("Hi.")
    single = write_jsonl(tmp_path / "single.jsonl", [f"A single sentence, {n}." for n in range(99)])
    unrated.write_text("sentence1,sentence2\na,b\n")
    empty.write_text("sentence1,sentence2,score\n")
    alike = tmp_path / "alike.csv"
    alike.write_text("sentence1,sentence2,score\na,b,3\nc,d,3\n")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"budget": "1e9flop"}, "name time, tokens or updates"),
        ({"partners": "both"}, "no partners 'both'"),
        ({"text": few}, "1 document, too little to learn from"),
        ({"text": single}, r"^no document has two passages: add --partners dropout$"),
        ({"pairs": unrated}, "has no column score or label"),
        ({"pairs": empty}, "empty.csv holds no pairs: give each a row"),
        ({"pairs": alike}, "all ratings are the same, so there is no correlation: name"),
        ({"batch": 5000, "out": tmp_path / "made" / "out"}, "fewer than one batch of 5000"),
        ({"batch": 0}, "--batch takes a number from 2 to 65536"),
        ({"seed": 2**63}, "--seed takes a number from 0"),
        ({"out": tmp_path}, "exists already"),
        ({"license": "my own"}, "--license is 'my own', not a code"),
        ({"out": few / "out"}, "few.txt/out: Not a directory"),
    ]
    for values, words in wrong:
        given = {"text": text, "out": tmp_path / "out", **values}
        with pytest.raises(InputError, match=words):
            embed(model_folders["bert"], **given)
    assert {*tmp_path.iterdir()} == {few, single, unrated, empty, alike, rated}


def test_a_folder_that_another_process_is_making_costs_no_budget(
    tmp_path: Path, model_folders: dict[str, Path], text: Path
) -> None:
    with new_folder(tmp_path / "out"), pytest.raises(InputError, match="by another process"):
        embed(model_folders["bert"], text, tmp_path / "out", budget="9h")


@pytest.mark.parametrize("fault", ["ImportError", "RuntimeError"])
def test_a_check_that_cannot_be_made_costs_no_budget(
    tmp_path: Path,
    model_folders: dict[str, Path],
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    (tmp_path / "sentence_transformers.py").write_text(f"raise {fault}('no such version')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sentence_transformers", raising=False)
    monkeypatch.setattr("crammed.embedding.making.tune", Mock(side_effect=AssertionError))
    with pytest.raises(InputError, match=r"cannot be imported \(no such version\): pip install"):
        embed(model_folders["bert"], text, tmp_path / "out")
