"""Probes: labels from the vectors of an encoder that is left as it is."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from crammed.config import Protocol
from crammed.errors import InputError
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.backbones.tokens import Tokenized
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.finetuning.engine import Numerics
from crammed.evaluation.finetuning.probing import linear_outputs, probe
from crammed.evaluation.finetuning.task import FinetuneTask, TokenizedSplit
from crammed.evaluation.folder import default_folder
from crammed.evaluation.protocol import load_protocol, protocol_for
from crammed.evaluation.scores.published import published_beside
from crammed.finetuned.keeping import keep
from crammed.tasks.task import TaskKind
from crammed.terminal.progress import SILENT, Progress
from support.evaluation import Ask, tasks_of
from support.models import save_model
from support.tasks import write_task
from support.text import write_rows

NUMERICS = Numerics(torch.device("cpu"), torch.float32, False)
METHODS = ("linear", "knn")


class Points(torch.nn.Module):
    """An encoder whose hidden states are a point in the plane for each token."""

    def __init__(self, count: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.points = torch.nn.Parameter(torch.randn(count, 2, generator=generator))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: None) -> torch.Tensor:
        return self.points[ids]


def written(path: Path, ids: NDArray[Any], labels: Any, choices: int = 1) -> TokenizedSplit:
    """Sequences of two tokens each, [N, 2]."""
    split = TokenizedSplit(path, choices)
    offsets = np.arange(0, ids.size + 1, 2)
    tokens = Tokenized(ids.ravel().astype(np.int32), offsets, None, None, 0)
    split.write(tokens, np.asarray(labels, np.float32), None)
    return split


def outputs_of(
    tmp_path: Path, kind: TaskKind, method: str, count: int, pairs: bool = False
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Outputs for 60 rows after training on 300, and their labels, which the points decide."""
    encoder = Points(40)
    draw = np.random.default_rng(1)
    ids = draw.integers(1, 40, (720 if pairs else 360, 2))
    points = encoder.points.detach().numpy()[ids].mean(1)
    labels: NDArray[Any]
    if pairs:
        labels = (np.abs(points[::2] - points[1::2]).sum(1) > 1.2).astype(np.float32)
    elif kind == "regression":
        labels = points[:, 0] * 3.0 + 7.0
    elif kind == "multi-label":
        labels = (points > 0.0).astype(np.float32)
    else:
        labels = (points[:, 0] > 0.0) * 2.0  # the middle one of three classes has no row
    each = 2 if pairs else 1
    cut = 300 * each
    train = written(tmp_path / "train.npz", ids[:cut], labels[:300], each)
    scored = written(tmp_path / "scored.npz", ids[cut:], labels[300:], each)
    task = FinetuneTask("task", kind, count, train, {"task": scored}, {}, 100)
    before = encoder.points.detach().clone()
    found = probe(encoder, task, task.scored, method, 0, NUMERICS)["task"]
    assert torch.equal(encoder.points, before)
    assert found.dtype == np.float32
    return found, labels[300:]


@pytest.mark.parametrize("method", METHODS)
def test_classes_values_and_several_labels_are_read_off_the_vectors(
    tmp_path: Path, method: str
) -> None:
    found, labels = outputs_of(tmp_path, "classification", method, 3)
    assert found.shape == (60, 3)
    assert (found.argmax(1) == labels).mean() > 0.9
    found, labels = outputs_of(tmp_path, "regression", method, 1)
    assert found.shape == (60, 1)
    # in a plane, a cosine sees directions alone
    assert np.corrcoef(found[:, 0], labels)[0, 1] > (0.9 if method == "linear" else 0.75)
    found, labels = outputs_of(tmp_path, "multi-label", method, 2)
    assert ((found > 0.0) == labels).mean() > 0.9


def test_a_single_label_has_a_single_output() -> None:
    draw = np.random.default_rng(0)
    given = draw.normal(size=(40, 2)).astype(np.float32)
    labels = (given[:, :1] > 0.0).astype(np.float32)
    outputs = linear_outputs("multi-label", given, labels, given, 1, 1.0)
    assert outputs.shape == (40, 1)
    assert ((outputs > 0.0) == labels).mean() > 0.9


def test_two_texts_are_compared(tmp_path: Path) -> None:
    """Neither u nor v tells how far they are apart, and |u - v| does."""
    found, labels = outputs_of(tmp_path, "classification", "linear", 2, pairs=True)
    assert (found.argmax(1) == labels).mean() > 0.9


def test_hidden_states_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    encoder = Points(4)
    torch.nn.init.constant_(encoder.points, torch.nan)
    split = written(tmp_path / "train.npz", np.ones((20, 2), np.int64), np.arange(20) % 2)
    task = FinetuneTask("task", "classification", 2, split, {"task": split}, {}, 100)
    with pytest.raises(ValueError, match="not finite"):
        probe(encoder, task, task.scored, "linear", 0, NUMERICS)


@pytest.mark.parametrize("method", METHODS)
def test_a_suite_is_probed_beside_its_floors(tmp_path: Path, ask: Ask, method: str) -> None:
    write_task(tmp_path, "rte", rows=60)  # the first of two texts gives the label away
    write_task(tmp_path, "cola", rows=60)
    asked = ask(protocol=f"{method}-probe", seeds=None)
    result = evaluate(asked, SILENT)
    assert result["protocol"] == {"probe": method, "max_length": 128}
    for score in tasks_of(result).values():
        assert len(score["seeds"]) == len(score["untrained"]["seeds"]) == 1
        assert score["interval_over"] == "rows"
        assert "linear" in score
    assert tasks_of(evaluate(asked, SILENT)) == tasks_of(result)
    assert published_beside("glue", result["suites"]["glue"], result["protocol"]) is None
    again = tasks_of(evaluate(replace(asked, into=tmp_path / "again"), SILENT))
    assert again == tasks_of(result)
    with pytest.raises(InputError, match="by another protocol"):
        evaluate(ask(protocol="cramming", into=asked.into), SILENT)


def test_a_probe_learns_from_some_of_many_rows(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has learned from as many as are allowed stays."""
    write_task(tmp_path, "cola", rows=60)
    asked, said = ask(protocol="knn-probe", seeds=None, untrained=False), io.StringIO()
    learned: list[int] = []

    def counted(encoder: torch.nn.Module, task: FinetuneTask, *others: Any) -> Any:
        learned.append(len(task.train.read()[1]))
        return probe(encoder, task, *others)

    monkeypatch.setattr("crammed.evaluation.finetuning.jobs.probe", counted)
    for most in (61, 60, 20, 20):
        monkeypatch.setattr("crammed.evaluation.finetuning.probing.MOST_ROWS", most)
        evaluate(asked, Progress(said))
    assert learned == [60, 20]
    note = "note  cola: the probe learns from 20 of 60 training rows, drawn at random\n"
    assert said.getvalue().count(note) == 2


def test_the_untrained_encoder_has_other_weights_for_each_seed(tmp_path: Path, ask: Ask) -> None:
    ids = torch.arange(5, 15)[None]
    mask = torch.ones_like(ids, dtype=torch.bool)
    for spec in (ask().model, str(save_model(tmp_path / "bert", "bert"))):
        backbone = BackboneSpec(spec).load()
        encoders = [backbone.encoder(seed) for seed in (None, 0, 0, 1)]
        with torch.inference_mode():
            own, one, same, other = (encoder(ids, mask, None) for encoder in encoders)
        assert torch.equal(one, same)
        assert not torch.allclose(own, one)
        assert not torch.allclose(one, other)


def test_what_a_probe_cannot_do_is_refused(tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "mine.yaml").write_text(
        "tasks:\n"
        "  tags: {kind: tokens, text: words, label: tags, metric: accuracy}\n"
        "  ends: {kind: choice, text: text, choices: answers, metric: accuracy}\n"
        "  boats: {text: text, metric: accuracy}\n"
    )
    row = {"words": ["a"], "tags": ["N"], "text": "a", "answers": ["b", "c"], "label": 1}
    for task in ("tags", "ends", "boats"):
        write_rows(tmp_path / task / "train.jsonl", [row])
    asked = ask(suite=str(tmp_path / "mine.yaml"), protocol="linear-probe", seeds=None)
    for tasks, said in (
        (None, "task tags: a probe does not take kind tokens: add --tasks boats"),
        (("ends",), "task ends: a probe does not take kind choice: name another --protocol, or"),
    ):
        with pytest.raises(InputError, match=said):
            evaluate(replace(asked, tasks=tasks), SILENT)
    assert protocol_for("model", "linear-probe", 1).seeds == 1
    with pytest.raises(InputError, match="--seeds 3: a probe involves no randomness"):
        evaluate(replace(asked, seeds=3), SILENT)
    with pytest.raises(InputError, match="a probe trains no model to keep"):
        keep(replace(asked, tasks=("boats",)), tmp_path / "kept", SILENT)
    with pytest.raises(ValidationError, match="a probe involves no randomness: set seeds to 1"):
        Protocol(probe="linear")


def test_without_scikit_learn(ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_task(tmp_path, "cola", rows=40)
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    with pytest.raises(InputError, match=r"a probe needs sklearn: pip install 'crammed\[linear\]'"):
        evaluate(ask(protocol="knn-probe", seeds=None), SILENT)


def test_protocols_of_earlier_versions_are_the_same() -> None:
    assert "probe" not in load_protocol("cramming").hyperparameters()
    assert protocol_for("model", "linear-probe", 1).seeds == 1
    assert default_folder("bert", "knn-probe") == Path("evaluations/bert-knn-probe")
