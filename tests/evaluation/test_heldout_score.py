from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import models
from torch import Tensor

from crammed.data.corpus import Corpus
from crammed.data.heldout import HeldoutRows, cut_rows, heldout_rows
from crammed.data.tokenization.encoding import CorpusTokenizer
from crammed.data.tokenization.tokenizer import MASK, SEP
from crammed.errors import InputError
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.heldout_score import heldout_score
from crammed.export.huggingface import export
from crammed.machine.device import Device
from crammed.model.encoder import MaskedLM
from crammed.model.heldout import (
    document_loss,
    heldout_loss,
    heldout_losses,
    loss_by_position,
    loss_by_source,
)
from crammed.model.trained import load_trained
from crammed.terminal.progress import SILENT
from support.evaluation import Ask, make_model
from support.models import save_model, untrained
from support.text import documents, tiny, write_jsonl, write_rows


def test_heldout_loss_equals_the_protocol_written_out_with_transformers(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    """The protocol again, on the exported model through transformers' tokenizer and class."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    final = untrained(corpus.tokenizer, tiny("crammed").model)
    exported = export(final, tmp_path / "export").path
    texts = [*documents(40, seed=5), "many words " * 4000]  # the last is longer than a piece
    file = write_jsonl(tmp_path / "held.jsonl.gz", texts)

    rows = heldout_rows(final.tokenizer, file, 50, 32)
    ours = heldout_loss(final.masked_lm(cpu.torch), rows, MASK, cpu.torch)

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


def test_held_out_text_that_looks_like_special_tokens_stays_text(
    tmp_path: Path, corpus: Corpus
) -> None:
    text = "the [MASK] of two boats [SEP] at night " * 20
    file = write_jsonl(tmp_path / "held.jsonl", [text])
    rows = heldout_rows(corpus.tokenizer, file, 50, 32, framed=False)
    trained, _ = CorpusTokenizer(corpus.tokenizer).encode_texts([text])
    assert {*rows.ids.flat} == {*trained.tolist()}
    assert not {SEP, MASK} & {*rows.ids.flat}


def test_heldout_files_of_another_form_are_refused(tmp_path: Path, corpus: Corpus) -> None:
    for lines, words in (
        ([{"text": "fine"}, {"body": "no"}], "line 2"),
        ([{"text": 3}], "line 1: the field 'text' is missing or does not hold text"),
        ([{"text": "fine"}], "held.jsonl is shorter than one row of 32 tokens: add text"),
    ):
        file = write_rows(tmp_path / "held.jsonl", lines)
        with pytest.raises(InputError, match=words):
            heldout_rows(corpus.tokenizer, file, 10, 32)


def test_rows_that_are_too_many_for_memory_are_read_fewer_at_a_time(
    tmp_path: Path, corpus: Corpus
) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    file = write_jsonl(tmp_path / "held.jsonl", documents(60, seed=5))
    rows = heldout_rows(final.tokenizer, file, 50, 32)
    cpu = torch.device("cpu")
    logits = final.masked_lm(cpu)
    sizes: list[int] = []

    def small(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        sizes.append(len(ids))
        if len(ids) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        found: torch.Tensor = logits(ids, positions)
        return found

    assert heldout_loss(small, rows, MASK, cpu) == pytest.approx(
        heldout_loss(logits, rows, MASK, cpu), rel=1e-6
    )
    assert {50, 16, 2} <= set(sizes)

    def broken(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        heldout_loss(broken, rows, MASK, cpu)


def test_a_cpu_reads_few_tokens_at_a_time() -> None:
    """With a large vocabulary, logits of more would take more memory than an update."""
    ids = np.random.default_rng(0).integers(5, 50, size=(100, 64))
    seen = []

    def logits(ids: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        seen.append(ids.numel())
        return torch.zeros(*where.shape, 50)

    found = heldout_loss(logits, HeldoutRows(ids, 0.2), MASK, torch.device("cpu"))
    assert found["loss@0.25"] == pytest.approx(math.log(50))
    assert sum(seen) == 2 * ids.size
    assert max(seen) == 2048


@pytest.fixture
def few(tmp_path: Path, corpus: Corpus) -> tuple[MaskedLM, HeldoutRows]:
    """A model with weights far from zero, and rows that hold several documents each."""
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    file = write_jsonl(tmp_path / "held.jsonl", [f"{text[:30]}." for text in documents(60)])
    return final.masked_lm(torch.device("cpu")), heldout_rows(final.tokenizer, file, 12, 32)


def masked_places(rows: HeldoutRows, rate: float) -> list[list[int]]:
    draw = np.random.default_rng(1).random(rows.ids.shape)
    places: list[list[int]] = np.argsort(draw, axis=1)[:, : round(rate * 32)].tolist()
    return places


def losses_of(model: MaskedLM, row: list[int], places: list[int]) -> list[float]:
    """The loss at each of the places of a row, all of which are masked."""
    ids = [MASK if place in places else token for place, token in enumerate(row)]
    with torch.inference_mode():
        logits = model(torch.tensor([ids]))[0].log_softmax(-1)
    return [-logits[place, row[place]].item() for place in places]


def test_a_document_by_itself_is_scored_as_if_it_were_all_there_is(
    few: tuple[MaskedLM, HeldoutRows],
) -> None:
    model, rows = few
    found = document_loss(model, rows, MASK, SEP, torch.device("cpu"))
    for rate in (0.15, 0.25):
        losses = []
        for row, places in zip(rows.ids.tolist(), masked_places(rows, rate), strict=True):
            ends = [place + 1 for place, token in enumerate(row) if token == SEP]
            assert ends
            for begin, end in zip([0, *ends], [*ends, len(row)], strict=True):
                own = [p - begin for p in places if begin <= p < end and row[p] != SEP]
                losses += losses_of(model, row[begin:end], own) if own else []
        assert found[f"document_loss@{rate}"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_loss_by_position_is_of_each_eighth_of_the_row(few: tuple[MaskedLM, HeldoutRows]) -> None:
    model, rows = few
    cpu = torch.device("cpu")
    whole, each = heldout_losses(model, rows, MASK, cpu, each=True)
    assert whole == heldout_loss(model, rows, MASK, cpu)
    found = loss_by_position(rows, each)
    losses: dict[int, list[float]] = {}
    for row, places in zip(rows.ids.tolist(), masked_places(rows, 0.15), strict=True):
        for place, loss in zip(places, losses_of(model, row, places), strict=True):
            losses.setdefault(place // 4, []).append(loss)
    assert found == [pytest.approx(np.mean(losses[part]), rel=1e-5) for part in range(8)]
    one = HeldoutRows(rows.ids[:1], 1.0)
    _, few_each = heldout_losses(model, one, MASK, cpu, each=True)
    assert 3 <= loss_by_position(one, few_each).count(None) < 8  # five masked positions


def test_any_encoder_is_scored_by_the_protocol(tmp_path: Path, corpus: Corpus) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    final.save(tmp_path / "run" / "final")
    exported = export(final, tmp_path / "export").path
    file = write_jsonl(tmp_path / "held.jsonl", documents(40, seed=5))
    cpu = torch.device("cpu")
    run = heldout_score(BackboneSpec(str(tmp_path / "run")).load(), file, cpu, 20)
    assert (run["rows"], run["length"]) == (20, 32)  # as much as the model takes
    rows = heldout_rows(final.tokenizer, file, 20, 32)
    direct = heldout_loss(final.masked_lm(cpu), rows, MASK, cpu)
    assert {key: run[key] for key in direct} == direct
    other = heldout_score(BackboneSpec(str(exported)).load(), file, cpu, 20)
    by_position = "by_position@0.15"
    assert other.pop(by_position) == pytest.approx(run.pop(by_position), rel=1e-4)
    assert other == pytest.approx(run, rel=1e-4)
    assert "document_loss@0.25" in run
    roberta = BackboneSpec(str(save_model(tmp_path / "roberta", "roberta"))).load()
    assert roberta.sep == 2
    theirs = heldout_score(roberta, file, cpu, 20, 16)
    per_character = theirs["loss@0.15"] * theirs["tokens_per_character"] / math.log(2)
    assert theirs["bits_per_character@0.15"] == pytest.approx(per_character)
    with pytest.raises(InputError, match="sequences of 33 tokens are too long for run"):
        heldout_score(BackboneSpec(str(tmp_path / "run")).load(), file, cpu, 20, 33)


def test_a_run_without_sep_is_scored_without_it(tmp_path: Path, corpus: Corpus, ask: Ask) -> None:
    run = make_model(tmp_path / "run", corpus, 0, "data.sep=false")
    file = write_jsonl(tmp_path / "held.jsonl", documents(40, seed=5))
    about: dict[str, Any] = {"model": str(run), "data": str(file), "protocol": None, "jobs": None}
    found = evaluate(ask(suite="heldout", **about), SILENT)["suites"]["heldout"]
    rows = heldout_rows(corpus.tokenizer, file, 2000, found["length"], framed=False)
    assert SEP not in rows.ids
    model = load_trained(run).masked_lm(torch.device("cpu"))
    direct = heldout_loss(model, rows, MASK, torch.device("cpu"))
    assert {key: found[key] for key in direct} == direct
    assert "document_loss@0.15" not in found, "nothing shows where a document ends"


def test_the_loss_of_each_source_is_that_of_its_own_tokens(tmp_path: Path, corpus: Corpus) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    texts = documents(60, seed=5)
    plain = write_jsonl(tmp_path / "plain.jsonl", texts)
    names = ["wiki" if number % 3 else "news" for number in range(60)]
    pairs = zip(texts, names, strict=True)
    held = tmp_path / "held.jsonl"
    file = write_rows(held, ({"text": text, "source": name} for text, name in pairs))
    cpu, model = torch.device("cpu"), final.masked_lm(torch.device("cpu"))
    rows, without = (heldout_rows(final.tokenizer, each, 50, 32) for each in (file, plain))
    assert np.array_equal(rows.ids, without.ids)
    assert heldout_loss(model, rows, MASK, cpu) == heldout_loss(model, without, MASK, cpu)
    _, each = heldout_losses(model, rows, MASK, cpu, each=True)
    assert loss_by_source(without, each) == {}

    found = loss_by_source(rows, each)
    encoded = [[*final.tokenizer.encode(t, add_special_tokens=False).ids, SEP] for t in texts]
    stream = [name for name, ids in zip(names, encoded, strict=True) for _ in ids]
    owner = np.array(stream[: len(stream) // 32 * 32]).reshape(-1, 32)
    owner = owner[np.random.default_rng(0).permutation(len(owner))[:50]]
    losses: dict[str, list[float]] = {"news": [], "wiki": []}
    places_of = masked_places(rows, 0.25)
    for row, own, places in zip(rows.ids.tolist(), owner, places_of, strict=True):
        for place, loss in zip(places, losses_of(model, row, places), strict=True):
            losses[own[place]].append(loss)
    assert list(found) == ["news", "wiki"]
    for name, values in losses.items():
        assert found[name]["tokens"] == (owner == name).sum()
        assert found[name]["loss@0.25"] == pytest.approx(np.mean(values), rel=1e-5)
        tokens = sum(len(ids) for ids, of in zip(encoded, names, strict=True) if of == name)
        characters = sum(len(t) for t, of in zip(texts, names, strict=True) if of == name)
        bits = np.mean(values) * tokens / characters / math.log(2)
        assert found[name]["bits_per_character@0.25"] == pytest.approx(bits, rel=1e-5)


def test_addresses_of_single_documents_are_no_sources(tmp_path: Path, corpus: Corpus) -> None:
    rows = [
        {"text": text, "source": f"https://news.example/{number}"}
        for number, text in enumerate(documents(101))
    ]
    file = write_rows(tmp_path / "held.jsonl", rows)
    assert heldout_rows(corpus.tokenizer, file, 10, 32).sources is None


def test_the_last_source_may_have_no_tokens(tmp_path: Path) -> None:
    texts = {"letters": "abcdefgh" * 4, "faces": "\U0001f600"}
    lines = [{"text": text, "source": source} for source, text in texts.items()]
    file = write_rows(tmp_path / "held.jsonl", lines)
    rows = cut_rows(lambda text: [ord(c) for c in text if c.isascii()], None, file, 10, 8)
    assert rows.sources is not None
    assert rows.sources.tokens_per_character == (1.0, 0.0)


def test_held_out_text_takes_little_more_than_four_bytes_a_token(tmp_path: Path) -> None:
    texts = [f"{number:04d}" * 250 for number in range(2_000)]
    lines = ({"text": text, "source": text[3]} for text in texts)
    file = write_rows(tmp_path / "held.jsonl", lines)
    tracemalloc.start()
    try:
        rows = cut_rows(lambda text: list(text.encode()), None, file, 100, 8)
        assert tracemalloc.get_traced_memory()[1] < 6 * sum(map(len, texts))
    finally:
        tracemalloc.stop()
    assert rows.sources is not None
    last = rows.ids[:, 3] - ord("0")
    assert [rows.sources.names[n] for n in rows.sources.of_tokens[:, 0]] == [*map(str, last)]


def test_a_model_that_computes_no_numbers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone: Any = BackboneSpec(str(save_model(tmp_path / "bert", "bert"))).load()
    file = write_jsonl(tmp_path / "held.jsonl", documents(20))

    def numberless(ids: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.full((*positions.shape, 150), math.nan)

    monkeypatch.setattr(backbone, "masked_lm", lambda device: numberless)
    with pytest.raises(InputError, match="bert computes no finite numbers: evaluate another mode"):
        heldout_score(backbone, file, torch.device("cpu"), length=8)


def test_a_tokenizer_that_fails_at_a_text_is_one_line(tmp_path: Path) -> None:
    """It cannot write a word that it does not know, which no text before had."""
    backbone: Any = BackboneSpec(str(save_model(tmp_path / "bert", "bert"))).load()
    backbone.tokenizer.backend_tokenizer.model = models.WordPiece({"a": 5}, unk_token="[NONE]")
    file = write_jsonl(tmp_path / "held.jsonl", ["a " * 40])
    assert heldout_score(backbone, file, torch.device("cpu"), length=8)["rows"] == 5
    file = write_jsonl(tmp_path / "held.jsonl", ["a " * 40, "b"])
    with pytest.raises(InputError, match=r"tokenizer of bert cannot be loaded: .*UNK"):
        heldout_score(backbone, file, torch.device("cpu"), length=8)
