"""What a fine-tuned model says of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from crammed.config import ComputeConfig
from crammed.errors import InputError
from crammed.evaluation.backbones.huggingface import HuggingFaceBackbone, inner
from crammed.evaluation.backbones.huggingface_files import PAIR_LAYER
from crammed.evaluation.finetuning.batches import EncodedSplit
from crammed.evaluation.finetuning.engine import Numerics, predict
from crammed.evaluation.finetuning.task import tokenized
from crammed.evaluation.finetuning.vectors import PairClassifier
from crammed.evaluation.scores.predictions import Outputs, probabilities
from crammed.extras import import_extra
from crammed.finetuned.folder import DESCRIPTION, Description, read_description
from crammed.formats.records import Record
from crammed.machine.device import choose_device
from crammed.quantity import counted
from crammed.tasks.columns import TaskColumns
from crammed.tasks.layouts import open_file
from crammed.tasks.read import read_rows
from crammed.tasks.rows import Rows

_AT_ONCE = 4096
"""Rows that are read, predicted and written at a time."""


@dataclass
class Predictor:
    """A fine-tuned model, ready to predict.

    Attributes:
        cut: how many texts of files have been truncated so far.
    """

    description: Description
    backbone: HuggingFaceBackbone
    model: nn.Module
    numerics: Numerics
    cut: int = 0

    @classmethod
    def load(
        cls, folder: Path, compute: ComputeConfig | None = None, *, trust_remote_code: bool = False
    ) -> Predictor:
        """Load the model in a folder that `crammed finetune` made.

        Args:
            trust_remote_code: allow Python code that lies in the folder.

        Raises:
            InputError: the folder holds none, or a part of it is missing or damaged.
        """
        import_extra("transformers", "hf", "a fine-tuned model")
        description = read_description(folder)
        numerics = Numerics.on(choose_device(compute or ComputeConfig()))
        name = folder.resolve().name
        backbone = HuggingFaceBackbone(name, folder, trust_remote_code=trust_remote_code)
        model: nn.Module
        if description.apart:
            model = _pair_classifier(folder, backbone)
            given = model.linear.out_features
        else:
            model = backbone.finetuned(every_token=description.task.kind == "tokens")
            given = inner(model).config.num_labels
        if given != description.outputs:
            raise InputError(
                f"{folder / DESCRIPTION} names {counted(description.outputs, 'label')}, but its "
                f"model has {counted(given, 'output')}: fine-tune again"
            )
        if not 0 <= description.majority < description.outputs:
            raise InputError(f"{folder / DESCRIPTION} is damaged: fine-tune again")
        return cls(description, backbone, model.to(numerics.device), numerics)

    @property
    def class_name(self) -> str:
        """Name of the class of transformers that holds the model, or its encoder."""
        model = self.model
        held = model.encoder if isinstance(model, PairClassifier) else model
        return type(inner(held)).__name__

    @property
    def longest(self) -> int:
        return min(self.description.max_length, self.backbone.max_length)

    def outputs(self, rows: Rows) -> tuple[Outputs, int]:
        """The model's outputs for rows, or for kind tokens for their words; see `Outputs`.

        Returns:
            them, and how many texts were truncated.

        Raises:
            InputError: they are not finite: the weights are damaged.
        """
        described, backbone, device = self.description, self.backbone, self.numerics.device
        tokens, sequences, counts = tokenized(
            backbone, rows, described.task.kind, self.longest, apart=described.apart
        )
        encoded = EncodedSplit(tokens, None, sequences, backbone.pad, device, counts)
        outputs = described.scale.undone(predict(self.model, encoded, self.numerics))
        if not np.isfinite(outputs).all():
            raise InputError(f"{backbone.name} computes no finite numbers: fine-tune again")
        return encoded.of_words(outputs, described.majority), tokens.cut

    def predict(self, file: Path) -> Iterator[tuple[Record, dict[str, Any]]]:
        """Each row of a file, see `open_file`, and what the model says of it: see `answer`.

        Raises:
            InputError: the file is of no known format or damaged, or a row lacks a column.
        """
        task = self.description.task
        choices = len(self.description.labels) if task.kind == "choice" else 0
        columns, rows = TaskColumns(task, task.text, self.description.labels), None
        split = open_file(file)
        records = split.records()
        while placed := list(islice(records, _AT_ONCE)):
            rows = read_rows(split.shown, placed, columns, choices=choices, labelled=False)
            choices = rows.choices
            answers, cut = self.answers(rows)
            self.cut += cut
            for (_, record), answer in zip(placed, answers, strict=True):
                yield record, answer
        if rows is None:
            raise InputError(f"{split.shown} holds no rows")

    def answers(self, rows: Rows) -> tuple[list[dict[str, Any]], int]:
        """What the model says of each row, and how many texts were truncated.

        ``{"predicted", "probability", "probabilities": {label: probability}}`` for classes and
        choices; ``{"predicted": labels, "probabilities"}`` for kind multi-label; ``{"predicted":
        value}`` for regression; ``{"predicted": a label for each word}`` for kind tokens.
        """
        outputs, cut = self.outputs(rows)
        return [*self._said(outputs, rows)], cut

    def _said(self, outputs: Outputs, rows: Rows) -> Iterator[dict[str, Any]]:
        kind, labels = self.description.task.kind, self.description.labels
        if kind == "regression":
            yield from ({"predicted": float(value)} for value in outputs[:, 0])
        elif kind == "tokens":
            ends = np.cumsum([len(texts) for texts in rows.texts])
            for words in np.split(outputs.argmax(-1), ends[:-1]):
                yield {"predicted": [labels[number] for number in words.tolist()]}
        else:
            for shares in probabilities(outputs, several=kind == "multi-label"):
                named = {label: round(float(p), 6) for label, p in zip(labels, shares, strict=True)}
                if kind == "multi-label":
                    chosen = [label for label, p in zip(labels, shares, strict=True) if p > 0.5]
                    yield {"predicted": chosen, "probabilities": named}
                else:
                    best = labels[int(shares.argmax())]
                    yield {"predicted": best, "probability": named[best], "probabilities": named}


def _pair_classifier(folder: Path, backbone: HuggingFaceBackbone) -> PairClassifier:
    """A classifier of two texts that are read apart, in evaluation mode."""
    file, encoder = folder / PAIR_LAYER, backbone.encoder_ends()
    try:
        layer = load_file(file)
        with torch.random.fork_rng(devices=[]):  # weights drawn here are replaced below
            model = PairClassifier(encoder, backbone.width or 0, len(layer["bias"]), 0.0, 0)
        model.linear.load_state_dict(layer)
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{file} is missing or damaged: fine-tune again") from error
    return model.eval()
