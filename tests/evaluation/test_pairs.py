"""Two texts, each a sequence of its own, compared by the means of their tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from crammed.data.corpus import Corpus
from crammed.evaluation import suite
from crammed.evaluation.backbones.huggingface import HuggingFaceBackbone, inner
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.finetuning.vectors import MATCHED, PairClassifier
from crammed.evaluation.folder import outputs_file, read_outputs
from crammed.evaluation.protocol import load_protocol
from crammed.export.huggingface import export
from crammed.keys import key
from crammed.model.trained import load_trained
from crammed.tasks.task import load_suite
from crammed.terminal.progress import SILENT
from support.backbones import RECIPES, TEXTS, Load, batch
from support.evaluation import Ask, make_model, tasks_of
from support.models import FAMILIES
from support.tasks import write_task
from support.text import write_rows

APART = [("the fox runs",), ("a fox",), ("rain",), ("it rains by the harbour",)]


def made(encoder: torch.nn.Module, width: int) -> PairClassifier:
    return PairClassifier(encoder, width, 3, 0.1, seed=5).eval()


@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_logits_are_those_of_texts_read_one_by_one(load_model: Load, name: str) -> None:
    backbone = load_model(name)
    assert backbone.width is not None
    model = made(backbone.encoder_ends_to_tune(1, trained=True), backbone.width)
    tokens = backbone.tokenize(APART, 32, words=False)

    def scaled(vector: Tensor) -> Tensor:
        return vector / vector.square().mean().sqrt()

    def read(row: int) -> list[Tensor]:
        length = int(np.diff(tokens.offsets)[row])
        ends: Tensor = model.encoder(*batch(tokens, [row], backbone.pad, length))
        return [scaled(sum(map(scaled, end.chunk(2)), torch.zeros(()))) for end in ends[0]]

    def matched(one: list[Tensor], other: list[Tensor]) -> Tensor:
        pairs = []
        for token in one:
            weights = [torch.exp(token @ each / len(token) ** 0.5) for each in other]
            match = sum(w * each for w, each in zip(weights, other, strict=True)) / sum(weights)
            pairs.append(torch.cat([(token - match).abs(), token * match]))
        return torch.stack(pairs).mean(0)

    with torch.inference_mode():
        found = model(*batch(tokens, [0, 1, 2, 3], backbone.pad, 32))
        for row, logits in enumerate(found):
            one, other = read(2 * row), read(2 * row + 1)
            u, v = (scaled(torch.stack(text).mean(0)) for text in (one, other))
            both = matched(one, other) + matched(other, one)
            both *= MATCHED
            slow = model.linear(torch.cat([u, v, (u - v).abs(), u * v, both]))
            torch.testing.assert_close(logits, slow, rtol=1e-4, atol=1e-4)
    assert found.shape == (2, 3)
    assert (found[0] - found[1]).abs().max() > 1e-4


def test_texts_are_compared_in_single_precision_where_encoders_compute_in_half() -> None:
    ends = torch.randn(4, 7, 128, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(4, 7, dtype=torch.bool)
    model = made(torch.nn.Identity(), 64)
    model.encoder.forward = lambda *_: ends
    with torch.inference_mode():
        expected = model(mask, mask, None)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(model(mask, mask, None), expected)


def test_hidden_states_stand_in_for_a_first_layer_that_is_not_shown(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load_trained(make_model(tmp_path / "run", corpus, 0))
    backbone = BackboneSpec(str(export(run, tmp_path / "export").path)).load()
    assert isinstance(backbone, HuggingFaceBackbone)
    ends = backbone.encoder_ends()
    given = batch(backbone.tokenize(TEXTS, 16, words=False), [0, 1, 2], backbone.pad, 16)
    shown = ends(*given).chunk(2, -1)
    whole = inner(ends).forward
    monkeypatch.setattr(
        inner(ends),
        "forward",
        lambda input_ids, attention_mask, **_: whole(input_ids, attention_mask),
    )
    hidden = ends(*given).chunk(2, -1)
    assert torch.equal(hidden[0], shown[1])
    assert torch.equal(hidden[1], shown[1])
    assert not torch.allclose(shown[0], shown[1])


def test_the_encoder_is_the_pretrained_one_and_the_rest_follows_from_the_seed(
    tmp_path: Path, corpus: Corpus
) -> None:
    run = make_model(tmp_path / "run", corpus, 0)
    ours = BackboneSpec(str(run)).load()
    theirs = BackboneSpec(str(export(load_trained(run), tmp_path / "export").path)).load()
    ids, mask, _ = batch(ours.tokenize(TEXTS, 16, words=False), [0, 1, 2], ours.pad, 16)
    for trained in (True, False):
        models = [each.encoder_ends_to_tune(3, trained=trained) for each in (ours, theirs)]
        assert all(each.training for each in models)
        one, other = (each.eval()(ids, mask, None)[mask] for each in models)
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4) == trained
    again = ours.encoder_ends_to_tune(3, trained=False).eval()(ids, mask, None)[mask]
    different = ours.encoder_ends_to_tune(4, trained=False).eval()(ids, mask, None)[mask]
    assert not torch.allclose(again, different)
    first, second = (made(torch.nn.Identity(), 4).linear for _ in range(2))
    draw = torch.Generator().manual_seed(key(5, "pairs"))
    assert torch.equal(first.weight, torch.empty(3, 24).normal_(std=0.02, generator=draw))
    assert torch.equal(first.weight, second.weight)


def test_pairs_alone_are_read_apart(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels say whether two texts are the same, which the means of small models show."""
    write_task(tmp_path, "cola", rows=60)
    draw = np.random.default_rng(0)
    words = ["harbour", "garden", "winter", "lantern", "copper", "meadow"]
    for split, count in (("train", 240), ("validation", 80)):
        rows = []
        for n in range(count):
            one, other = draw.choice(words, 2, replace=False)
            rows.append({"sentence1": one, "sentence2": one if n % 2 else other, "label": n % 2})
        write_rows(tmp_path / "rte" / f"{split}.jsonl", rows)
    protocol = tmp_path / "own.yaml"
    text = "{seeds: 1, epochs: 4, batch: 8, lr: 3e-3, max_length: 32, dropout: 0.0"
    for pairs in ("joint", "apart"):
        protocol.write_text(f"{text}, pairs: {pairs}}}")
        asked = ask(data=str(tmp_path), protocol=str(protocol), seeds=None, untrained=False)
        result = evaluate(replace(asked, into=tmp_path / pairs), SILENT)
        assert tasks_of(result)["rte"]["median"] > 90.0
        assert ("pairs" in result["protocol"]) == (pairs == "apart")
        assert ("joint" in tasks_of(result)["rte"]) == (pairs == "joint")
        assert "joint" not in tasks_of(result)["cola"]
    for task, same in (("cola", True), ("rte", False)):
        one, other = (
            read_outputs(tmp_path / pairs, "glue", task, 0)[task] for pairs in ("joint", "apart")
        )
        assert np.array_equal(one, other) == same
    files = [outputs_file(tmp_path / "apart", "glue", t, 0, trained=True) for t in ("cola", "rte")]
    before = [file.stat().st_mtime_ns for file in files]
    monkeypatch.setattr(suite, "COMPARED", "means alone")  # as an earlier version did
    evaluate(replace(asked, into=tmp_path / "apart"), SILENT)
    again = [file.stat().st_mtime_ns > then for file, then in zip(files, before, strict=True)]
    assert again == [False, True]


def test_the_papers_protocol_is_what_it_was() -> None:
    assert not {"pairs", "probe"} & load_protocol("cramming").hyperparameters().keys()
    assert load_protocol("small").hyperparameters()["pairs"] == "apart"
    tasks = load_suite("small").tasks
    assert [name for name, task in tasks.items() if task.has_pairs] == [
        *("sick-relatedness", "sick-entailment", "stsb", "qnli", "mnli")
    ]
