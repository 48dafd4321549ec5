"""A step of fine-tuning on paper: models side by side in one captured graph, and the plain loop."""

from __future__ import annotations

import importlib
from collections import Counter
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from common import config_of, recipe_of
from crammed.config import Protocol, RunConfig
from crammed.evaluation.backbones.tokens import Tokenized
from crammed.evaluation.finetuning.batches import EncodedSplit
from crammed.evaluation.finetuning.engine import FinetuneStep, Numerics, Step, loss_of
from crammed.export.native import modernbert_config, modernbert_obstacles
from crammed.machine.cards import Card, card_called
from crammed.model.count import parameters
from crammed.model.encoder import SequenceClassifier
from crammed.runs.environment import environment
from paper.compiler import paper
from paper.launches import Launch, Noted
from paper.loops import make_on_device
from paper.model import Sum, between_products, side_by_side, sums

Json = dict[str, Any]
OUTPUTS = 2
"""Classes of the task."""


def counted(noted: Noted, words: list[str], models: int, widths: list[int], card: str) -> Json:
    """Count one step of several models, ours and plain, in rows padded to each of these widths.

    Args:
        words: a recipe and overrides.
        models: how many train side by side; the plain loop trains them one after the other.
        card: the card whose rates the time model uses.
    """
    config, rates = config_of(words, "crammed"), card_called(card)
    if obstacles := modernbert_obstacles(config.model):
        raise SystemExit(f"error: the plain loop trains a ModernBERT, and {obstacles[0]}")
    vocab = config.tokenizer.vocab_size
    result: Json = {
        "name": "paper-finetuning",
        "environment": environment(),
        "device": f"counted for {rates.name}",
        "dtype": "bfloat16",
        "recipe": config.recipe,
        "overrides": recipe_of(words, "crammed")[1],
        "parameters": parameters(config.model, vocab),
        "models": models,
        "rows": Protocol().batch,
        "widths": {},
    }
    make_on_device()
    for width in widths:
        with paper(noted):
            host, graph = _ours(noted, config, width)
        with paper(noted):
            plain = _plain(noted, config, width)
        result["widths"][str(width)] = {
            "ours": _described(graph, models, rates)
            | {"host_launches": host, "seconds": side_by_side(graph, models, rates)},
            "plain": _described(plain, models, rates),
        }
    return result


def _ours(noted: Noted, config: RunConfig, width: int) -> tuple[int, list[Launch]]:
    """The host's launches for one step of all models, and the graph's launches for one of them.

    The graph's branches are alike, so only one is counted.
    """
    protocol = Protocol()
    shape = config.model.model_copy(update={"dropout": protocol.dropout})
    with torch.device("cuda"):
        model = SequenceClassifier(shape, config.tokenizer.vocab_size, OUTPUTS).train()
    split = _split(protocol.batch, width)
    graph: list[Launch] = []

    def capture(step: Step) -> Step:
        step()  # makes the moments
        with noted.listening() as launches:
            step()
        graph.extend(launches)
        return lambda: None

    # AdamW asks whether the learning rate, which has no value here, is valid.
    with patch.object(FakeTensor, "__bool__", lambda rate: True):
        step = FinetuneStep(
            [model],
            protocol,
            split.batch,
            lambda logits, batch: loss_of("classification", logits, batch.labels, 1),
            Numerics(torch.device("cuda"), torch.bfloat16, graphs=True),
            capture,
        )
    rows = torch.zeros((1, protocol.batch), dtype=torch.int64, device="cuda")
    step(rows, width, protocol.lr)
    with noted.listening() as outside:
        step(rows, width, protocol.lr)
    return _launches(outside) + 1, graph  # and the graph itself


def _split(rows: int, width: int) -> EncodedSplit:
    """A split of this many rows, all of this width."""
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int64)
    tokens = Tokenized(np.ones(rows * width, np.int32), offsets, None, None, 0)
    return EncodedSplit(tokens, np.zeros(rows, np.float32), 1, 0, torch.device("cuda"))


def _plain(noted: Noted, config: RunConfig, width: int) -> list[Launch]:
    """What the plain loop launches for one step of one model."""
    loop = importlib.import_module("plain_finetune")
    transformers = importlib.import_module("transformers")
    values = modernbert_config(config.model, config.tokenizer.vocab_size)
    values |= {"num_labels": OUTPUTS, "pad_token_id": 0}
    drawing = patch.object(transformers.PreTrainedModel, "init_weights", lambda model: None)
    with torch.device("cuda"), drawing:  # drawing reads values
        model: nn.Module = transformers.ModernBertForSequenceClassification(
            transformers.ModernBertConfig(**values)
        ).train()
    optimizer = loop.optimizer_of(model)

    def forward(rows: list[Json]) -> tuple[Tensor, Tensor]:
        inputs = {
            name: torch.ones((len(rows), width), dtype=torch.int64).to("cuda")
            for name in ("input_ids", "attention_mask")
        }
        labels = torch.zeros(len(rows), dtype=torch.int64).to("cuda")
        with torch.autocast("cuda", torch.bfloat16):
            return model(**inputs).logits.float(), labels

    rows: list[Json] = [{}] * loop.BATCH
    total = 10  # updates of the schedule, of which one is counted

    def step() -> None:
        loop.train(optimizer, forward, rows, 0, 1, total)

    step()  # makes the moments
    with noted.listening() as launches:
        step()
    return launches


def _launches(launches: list[Launch]) -> int:
    return sum(launch.kernels for launch in launches)


def _described(launches: list[Launch], models: int, card: Card) -> Json:
    """What this many models launch, one after the other."""
    found = sums(Counter(launches), card)
    total, between = sum(found.values(), Sum()), between_products(found)
    return {
        "host_launches": models * total.launches,
        "launches": models * total.launches,
        "flops": models * total.flops,
        "between_products_bytes": models * (between.read + between.written),
        "bytes": models * (total.read + total.written),
        "seconds": models * total.seconds,
        "parts": {
            name: {
                "launches": models * each.launches,
                "bytes": models * (each.read + each.written),
                "seconds": models * each.seconds,
            }
            for name, each in found.items()
        },
    }
