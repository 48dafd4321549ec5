from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import documents, tiny, write_jsonl
from crammed.config import FinetuneConfig
from crammed.data.corpus import Corpus
from crammed.data.tokenizer import MASK
from crammed.device import Device
from crammed.errors import InputError
from crammed.evaluate.fill_mask import fill_mask_examples
from crammed.evaluate.finetune import Encoded, Finetuner, encode, epoch_batches
from crammed.evaluate.heldout import heldout_loss, heldout_rows
from crammed.evaluate.metrics import score
from crammed.evaluate.suite import NINE, evaluate_tasks, glue_mean
from crammed.evaluate.tasks import TASKS, find_tasks, read_task, tasks_in
from crammed.export.huggingface import export
from crammed.progress import SILENT
from test_export import untrained


def protocol(**fields: Any) -> FinetuneConfig:
    base = {"seeds": 2, "epochs": 2, "batch": 8, "lr": 2e-3, "max_length": 32}
    return FinetuneConfig.model_validate({**base, **fields})


def write_task(folder: Path, name: str, rows: int = 96, **columns: Any) -> Path:
    """A task whose label says which of two words the first text has."""
    task = folder / name
    task.mkdir(parents=True)
    texts = documents(rows)
    for split, part in (("train", texts), (TASKS[name].validation, texts[: rows // 2])):
        with gzip.open(task / f"{split}.jsonl.gz", "wt") as file:
            for n, text in enumerate(part):
                row: dict[str, Any] = dict.fromkeys(TASKS[name].columns, text[:40])
                row[TASKS[name].columns[0]] = f"{'harbour' if n % 2 else 'garden'} {text[:30]}"
                file.write(json.dumps({**row, "label": n % 2, "idx": n, **columns}) + "\n")
    return folder


def rows_of(lengths: list[int]) -> Encoded:
    """Rows of these lengths, their content of no interest."""
    labels = np.zeros(len(lengths), np.float32)
    return Encoded([[1] * n for n in lengths], [[0] * n for n in lengths], labels, 0)


@given(st.lists(st.integers(1, 60), min_size=4, max_size=400), st.sampled_from([4, 16]))
@settings(max_examples=30, deadline=None)
def test_an_epochs_batches_hold_every_row_once(lengths: list[int], size: int) -> None:
    rows = rows_of(lengths)
    first, again, other = (epoch_batches(rows, size, np.random.default_rng(s)) for s in (0, 0, 1))
    assert first.shape == (len(lengths) // size, size)
    assert len(set(first.flatten().tolist())) == first.size
    assert np.array_equal(first, again)
    if len(lengths) > 50:
        assert not np.array_equal(first, other)


def test_batches_of_similar_length_need_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(5, 120, 2000)
    rows = rows_of(lengths.tolist())
    batches = epoch_batches(rows, 16, np.random.default_rng(1))
    padded = 16 * sum(lengths[batch].max() for batch in batches)
    assert padded < 1.1 * lengths.sum()
    # A batch is no neighbourhood of one length all the time: epochs differ in what they join.
    assert np.mean([np.ptp(lengths[batch]) for batch in batches]) > 2


def test_heldout_loss_equals_the_protocol_written_out_with_transformers(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    """The protocol again, on the exported model through transformers' tokenizer and class."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    final = untrained(corpus.tokenizer, tiny("crammed").model)
    exported = export(final, tmp_path / "export").path
    file = tmp_path / "held.jsonl.gz"
    texts = [*documents(40, seed=5), "many words " * 4000]  # one document of several pieces
    with gzip.open(file, "wt") as out:
        out.writelines(json.dumps({"text": text}) + "\n" for text in texts)

    rows = heldout_rows(final.tokenizer, file, 50, 32)
    ours = heldout_loss(final.masked_lm(cpu.torch), rows, MASK, cpu.torch, batch=7)

    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = AutoModelForMaskedLM.from_pretrained(exported).eval()
    ids: list[int] = []
    for text in texts:
        for start in range(0, len(text), 20_000):
            piece = text[start : start + 20_000]
            ids += tokenizer(piece, add_special_tokens=False)["input_ids"]
        ids.append(tokenizer.sep_token_id)
    cut = np.asarray(ids[: len(ids) // 32 * 32]).reshape(-1, 32)
    cut = cut[np.random.default_rng(0).permutation(len(cut))[:50]]
    assert np.array_equal(cut, rows.ids)
    for rate in (0.15, 0.25):
        count = round(rate * 32)
        where = np.argsort(np.random.default_rng(1).random(cut.shape), axis=1)[:, :count]
        labels, at = torch.from_numpy(cut), torch.from_numpy(where)
        with torch.inference_mode():
            masked = labels.scatter(1, at, tokenizer.mask_token_id)
            logits = model(input_ids=masked, attention_mask=torch.ones_like(masked)).logits
        chosen = logits.log_softmax(-1).gather(1, at[..., None].expand(-1, -1, logits.shape[-1]))
        loss = -chosen.gather(2, labels.gather(1, at)[..., None]).mean().item()
        assert ours[f"loss@{rate}"] == pytest.approx(loss, abs=1e-4)
        bits = loss * len(ids) / sum(map(len, texts)) / math.log(2)
        assert ours[f"bits_per_character@{rate}"] == pytest.approx(bits, rel=1e-4)


def test_heldout_files_of_another_form_are_refused(tmp_path: Path, corpus: Corpus) -> None:
    file = tmp_path / "held.jsonl"
    file.write_text('{"text": "fine"}\n{"body": "no"}\n')
    with pytest.raises(InputError, match="line 2"):
        heldout_rows(corpus.tokenizer, file, 10, 32)


def test_metrics_against_their_definitions() -> None:
    outputs = np.array([[2.0, 1.0], [0.0, 1.0], [0.0, 3.0], [5.0, 1.0], [0.0, 1.0]])
    gold = np.array([0.0, 1.0, 0.0, 1.0, 1.0])
    # Guesses 0 1 1 0 1: two true positives, one of each other kind.
    assert score("accuracy", outputs, gold) == pytest.approx(60.0)
    assert score("f1", outputs, gold) == pytest.approx(100 * 2 * 2 / (2 * 2 + 1 + 1))
    expected = (2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2)
    assert score("matthews", outputs, gold) == pytest.approx(100 * expected)
    values = np.array([[1.0], [2.0], [4.0]])
    truth = np.array([1.0, 3.0, 2.0])
    expected = np.corrcoef(values[:, 0], truth)[0, 1]
    assert score("pearson", values, truth) == pytest.approx(100 * expected)
    with pytest.raises(ValueError, match="undefined"):
        score("pearson", np.ones((3, 1)), truth)
    with pytest.raises(ValueError, match="no metric"):
        score("charm", outputs, gold)


def test_a_learnable_task_is_learned_and_repeats(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    folder = write_task(tmp_path, "cola")
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    finetuner = Finetuner(final, protocol(epochs=8, lr=3e-3), cpu)
    data = read_task(TASKS["cola"], folder / "cola")
    train, validation = finetuner.encode(data)
    outputs = finetuner.run(TASKS["cola"], train, validation, 0, trained=True)
    assert score("accuracy", outputs, validation.labels) > 90.0
    again = finetuner.run(TASKS["cola"], train, validation, 0, trained=True)
    assert np.array_equal(outputs, again)
    other = finetuner.run(TASKS["cola"], train, validation, 1, trained=True)
    assert not np.array_equal(outputs, other)


def test_the_untrained_twin_shares_only_the_shape(corpus: Corpus, cpu: Device) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    finetuner = Finetuner(final, protocol(), cpu)
    trained = finetuner.classifier(TASKS["rte"], 0, trained=True)
    twin = finetuner.classifier(TASKS["rte"], 0, trained=False)
    embedding = final.weights["encoder.tokens.weight"]
    assert torch.equal(trained.encoder.tokens.weight, embedding)
    assert torch.equal(trained.head.dense.weight, final.weights["head.dense.weight"])
    assert not torch.equal(twin.encoder.tokens.weight, embedding)
    assert torch.equal(trained.classifier.weight, twin.classifier.weight)


def test_pairs_are_framed_typed_and_cut_at_the_longer_text(corpus: Corpus) -> None:
    rows = [(("two boats", "at night " * 40), 1.0), (("the red fox",) * 2, 0.0)]
    encoded = encode(rows, corpus.tokenizer, 16)
    cls, sep = 2, 3
    first, types = encoded.ids[0], encoded.types[0]
    assert len(first) == 16
    assert first[0] == cls
    assert first.count(sep) == 2
    assert types[first.index(sep)] == 0
    assert types[-1] == 1
    short = corpus.tokenizer.encode("two boats", add_special_tokens=False).ids
    assert first[1 : 1 + len(short)] == short
    ids, mask, _, labels = encoded.batch(np.array([0, 1]), torch.device("cpu"))
    assert ids.shape == (2, 16)
    assert mask.sum(1).tolist() == [16, len(encoded.ids[1])]
    assert labels.tolist() == [1.0, 0.0]


def test_suite_reports_medians_spreads_and_the_twin(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    folder = write_task(tmp_path, "rte", rows=40)
    write_task(tmp_path, "stsb", rows=40)
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    saved: list[str] = []
    scores = evaluate_tasks(
        final,
        find_tasks(("rte", "stsb"), folder),
        protocol(),
        cpu,
        SILENT,
        save=lambda s: saved.append(json.dumps(s)),
    )
    rte = scores["tasks"]["rte"]
    assert len(rte["seeds"]) == len(rte["untrained"]["seeds"]) == 2
    assert rte["median"] == pytest.approx(np.median(rte["seeds"]))
    assert rte["spread"] == pytest.approx(np.ptp(rte["seeds"]))
    assert rte["rows"] == {"train": 40, "validation": 20}
    assert rte["official"] is False
    assert scores["mean"] is None
    assert len(saved) == 9  # one a job, and the end

    # Finished jobs are kept: only the third seed is new.
    again = evaluate_tasks(
        final,
        find_tasks(("rte",), folder),
        protocol(seeds=3),
        cpu,
        SILENT,
        json.loads(saved[-1]),
    )
    assert again["tasks"]["rte"]["seeds"][:2] == rte["seeds"]
    assert len(again["tasks"]["rte"]["seeds"]) == 3
    assert again["tasks"]["stsb"] == scores["tasks"]["stsb"]
    with pytest.raises(InputError, match="another protocol"):
        evaluate_tasks(final, [], protocol(lr=1e-5), cpu, SILENT, again)


def test_a_failing_task_is_shown_and_the_others_finish(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    folder = write_task(tmp_path, "rte", rows=40)
    write_task(tmp_path, "stsb", rows=40, label=1.0)  # constant: no correlation
    write_task(tmp_path, "cola", rows=40, label=7)
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    tasks = find_tasks(("stsb", "cola", "rte"), folder)
    scores = evaluate_tasks(final, tasks, protocol(seeds=1), cpu, SILENT)["tasks"]
    assert "constant" in scores["stsb"]["failed"]
    assert "label 7 is not one of 0 to 1" in scores["cola"]["failed"]
    assert "line 1" in scores["cola"]["failed"]
    assert "failed" not in scores["rte"]
    assert len(scores["rte"]["seeds"]) == 1


def test_wrong_tasks_are_refused_before_anything_runs(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "rte", rows=40)
    with pytest.raises(InputError, match=r"no task rta.*rte"):
        find_tasks(("rta",), folder)
    with pytest.raises(InputError, match="has no task cola"):
        find_tasks(("cola",), folder)
    (folder / "cola").mkdir()
    with pytest.raises(InputError, match="has no train"):
        find_tasks(("cola",), folder)
    with pytest.raises(InputError, match="need their data"):
        find_tasks(("rte",), None)
    assert find_tasks((), None) == []
    with pytest.raises(InputError, match="no folder"):
        tasks_in(tmp_path / "none")
    with pytest.raises(InputError, match="holds none of cola"):
        tasks_in(folder / "rte")
    assert tasks_in(folder) == ["cola", "rte"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"sentence1": "a", "label": 1}', "no column sentence2"),
        ('{"sentence1": 3, "sentence2": "b", "label": 1}', "must hold text"),
        ('{"sentence1": "a", "sentence2": "b", "label": "x"}', "is no number"),
        ("[]", "not a JSON object"),
        ("{", "not valid JSON"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, line: str, words: str) -> None:
    folder = write_task(tmp_path, "rte", rows=40) / "rte"
    (folder / "train.jsonl.gz").unlink()
    (folder / "train.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match=words):
        read_task(TASKS["rte"], folder)


def test_the_mean_is_of_nine_official_numbers_or_none() -> None:
    tasks = {name: {"median": float(n), "official": True} for n, name in enumerate(NINE)}
    assert glue_mean(tasks) == 4.0
    assert glue_mean({**tasks, "rte": {"median": 1.0, "official": False}}) is None
    assert glue_mean({name: entry for name, entry in tasks.items() if name != "mnli-mm"}) is None
    assert glue_mean({**tasks, "cola": {"failed": "why"}}) is None


def test_fill_mask_examples_rank_the_right_word(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    held = write_jsonl(tmp_path / "held.jsonl", documents(30, seed=9))
    examples = fill_mask_examples(final, held, cpu, count=4)
    assert len(examples) == 4
    for example in examples:
        assert 1 <= example["rank"] <= final.vocab_size
        probabilities = [p for _, p in example["guesses"]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert (example["rank"] == 1) == (example["guesses"][0][0] == example["word"])
