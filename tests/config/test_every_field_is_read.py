"""No option that does nothing: small runs together read every field of the configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from crammed import config as config_module
from crammed.config import Section
from crammed.config.losses import LossConfig
from crammed.config.objectives import MaskedConfig
from crammed.config.optim import OptimizerConfig
from crammed.pipeline import GivenTasks, run_everything
from crammed.rules.choosing import Asked
from crammed.schedule import Curve
from crammed.terminal.progress import SILENT
from support.tasks import write_task
from support.text import documents, sentences, tiny, write_jsonl


def models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from models(model)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Every (class, field) that is read as an attribute while the test runs."""
    seen: set[tuple[str, str]] = set()

    def noting(self: Any, name: str) -> Any:
        if name in type(self).model_fields:
            seen.update((c.__name__, name) for c in type(self).__mro__ if issubclass(c, BaseModel))
        return object.__getattribute__(self, name)

    for base in (Section, Curve):
        monkeypatch.setattr(base, "__getattribute__", noting, raising=False)
    return seen


def test_every_field_is_read(tmp_path: Path, reads: set[tuple[str, str]]) -> None:
    pytest.importorskip("rensa", reason="data.clean.near needs it, and is one of the fields")
    pytest.importorskip("py3langid", reason="data.clean.languages needs it, and is another")
    spacy = pytest.importorskip("spacy", reason="data.clean.entities needs it, and is a third")
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "sailor"}])
    nlp.to_disk(tmp_path / "pipeline")
    text = write_jsonl(tmp_path / "text.jsonl", documents(600))
    glue = write_task(tmp_path / "glue", "rte", rows=40)
    downstream = tmp_path / "downstream"
    shutil.copytree(glue, downstream)
    tasks = GivenTasks.of("glue", str(glue))
    for file in downstream.rglob("*.jsonl*"):
        row = {"sentence1": " ".join(sentences(2)), "sentence2": "No.", "label": 0}
        file.unlink()
        file.with_name(file.name.removesuffix(".gz")).write_text(json.dumps(row) + "\n")
    (tmp_path / "own.py").write_text("def keep(text):\n    return True\n")
    variants = (
        "crammed optim.name=muon masking.final_rate=0.15 batch.rows=16 batch.ramp=0.5 "
        "batch.quantum=4 train.latest.every=2 train.grad_init.updates=1 objective.name=electra",
        "izsak train.early_stop.loss=99.0 compute.threads=1 objective.name=causal-first "
        "batch.rows=8 batch.quantum=2 batch.adaptive.test=norm",
        "bert-base data.orders=[fragments] order.by=fragments objective.name=script "
        "compute.microbatch_rows=4 optim.lr=1e18 train.divergence.then=lower "
        "train.divergence.factor=1e-21",
        "crammed data.clean.near=0.8 data.mix.temperature=2 data.clean.substring=4000 "
        "data.clean.max_characters=100000 data.clean.personal=mask "
        "data.clean.repeated.unit=paragraph data.clean.languages=[en] "
        f"data.clean.function={tmp_path / 'own.py'}:keep "
        f"data.clean.entities={tmp_path / 'pipeline'} "
        "objective.name=contrast tokenizer.kind=bpe tokenizer.vocab_size=400",
    )
    built: set[tuple[str, str]] = set()
    for number, words in enumerate(variants):
        config = tiny(
            *words.split(),
            *("finetune.seeds=1", "finetune.epochs=1", "train.log_seconds=0.001"),
            "compute.workers=1",
            budget={"limit": "12updates"},
            data={"sources": [str(text)], "clean": {"downstream": str(downstream)}},
            finetune={"tasks": ["rte"]},
        )
        # What validation read does not count: a field must be read by what runs.
        built |= reads
        reads.clear()
        run_everything(Asked(config), tmp_path / f"run{number}", None, tasks, SILENT)
        built |= {("run", f"{c}.{f}") for c, f in reads}
    used = {tuple(entry[1].split(".")) for entry in built if entry[0] == "run"}
    fields = {
        (model.__name__, name)
        for model in models(Section)
        if model.__module__.startswith(config_module.__name__)
        and not model.__subclasses__()
        # tests/optim/test_choices.py and tests/training/test_training_losses.py have all of these,
        # and the default objective has nothing but a name
        and not issubclass(model, OptimizerConfig | LossConfig | MaskedConfig)
        for name in model.model_fields
    }
    assert len(fields) > 90
    assert fields - used == set()
