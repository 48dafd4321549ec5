"""A trained or fine-tuned model in Python: `crammed.load`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from crammed.config import ComputeConfig
from crammed.config.arguments import AtLeastOne, File, checked
from crammed.config.yamlfile import validated
from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.finetuning.engine import Numerics, predict
from crammed.evaluation.finetuning.vectors import MeanOfTokens, encoded
from crammed.finetuned.folder import DESCRIPTION
from crammed.finetuned.prediction import Predictor
from crammed.formats.records import without_surrogates
from crammed.machine.device import choose_device
from crammed.quantity import truncated
from crammed.tasks.rows import Rows, Texts
from crammed.tasks.task import pieces

Text = str | Sequence[str]
"""A text; two texts or, for tasks that label words, words."""
_LOADING = Lock()
"""Threads that use a model for the first time at the same time load it once."""
_FILLING = Lock()
"""Threads take turns: a masked language model of transformers remembers which tokens to decode."""


@checked
def load(path: File, device: str = "auto", *, trust_remote_code: bool = False) -> Model:
    """Open a run, a Hugging Face encoder, or a model that ``crammed finetune`` kept.

    Args:
        path: a run directory, a Hugging Face folder, or a name on the hub.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        trust_remote_code: allow Python code that comes with a Hugging Face model.

    Raises:
        InputError: there is no such model, or a part of it is missing or damaged.
    """
    there = Path(path).absolute() if Path(path).exists() else Path(path)
    spec = BackboneSpec(str(path), trust_remote_code)
    return Model(there, spec, spec.load(), validated(ComputeConfig, {"device": device}))


@dataclass(frozen=True)
class Model:
    """An encoder on a device.

    Attributes:
        backbone: the encoder with its tokenizer, as evaluation uses it.
    """

    path: Path
    spec: BackboneSpec
    backbone: Backbone
    compute: ComputeConfig

    def encode(self, texts: Sequence[Text], max_length: int | None = None) -> NDArray[np.float32]:
        """The mean of the hidden states of each text's tokens, [N, D].

        Args:
            max_length: truncates texts at this many tokens; None is the length that the model was
                trained on, and warns of texts that are longer.

        Raises:
            InputError: the model was not trained on texts of `max_length` tokens.
        """
        given = _each(texts)
        if not given:
            return np.empty((0, self.backbone.width or 0), np.float32)
        longest = self.backbone.trained_length
        if max_length is not None and max_length not in range(3, longest + 1):
            raise InputError(
                f"the model {self.backbone.name} was trained on texts of at most {longest} tokens: "
                f"choose max_length={longest} or less, but 3 or more"
            )
        with _LOADING:
            model, numerics = self.model, self._numerics
        rows = encoded(self.backbone, given, int(max_length or longest), numerics.device)
        if max_length is None:
            _warn(rows.cut, longest)
        return predict(MeanOfTokens(model), rows, numerics)

    @checked
    def fill(self, text: str, count: AtLeastOne = 5) -> list[list[tuple[str, float]]]:
        """The likeliest tokens for each gap in a text, with their probabilities, best first.

        Args:
            text: with the tokenizer's mask token, such as ``[MASK]``, in each gap.

        Raises:
            InputError: the text has no gap or is too long, or the model has no
                masked-language-model head.
        """
        backbone, given = self.backbone, [(without_surrogates(text),)]
        if backbone.mask is None:
            raise InputError(
                f"the tokenizer of {backbone.name} has no mask token: load a masked-language model"
            )
        tokens = backbone.tokenize(given, backbone.trained_length, words=False)
        if tokens.cut:
            raise InputError(
                f"the text is longer than the {backbone.trained_length} tokens that the model "
                f"{backbone.name} was trained on: shorten it"
            )
        ids = tokens.ids.astype(np.int64)
        gaps = np.flatnonzero(ids == backbone.mask)
        if not len(gaps):
            mask = self._text_of(backbone.mask)
            raise InputError(f"the text has no gap: write {mask} where a word is missing")
        with _LOADING:
            masked_lm, device = self._masked_lm, self.device
        with _FILLING, torch.inference_mode():
            row, at = (torch.from_numpy(each)[None].to(device) for each in (ids, gaps))
            logits = masked_lm(row, at)[0].float().cpu()
        best = logits.softmax(-1).topk(min(count, logits.shape[-1]))
        return [
            [(self._text_of(number), p) for number, p in zip(numbers, shares, strict=True)]
            for numbers, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def predict(self, texts: Sequence[Text]) -> list[dict[str, Any]]:
        """What a fine-tuned model says of each text; see `Predictor.answers`.

        Raises:
            InputError: the model is not one that `crammed finetune` kept, it was fine-tuned on two
                texts and gets one, or one and gets several, or it rates answers or reads texts of
                several columns, which `crammed predict` takes from a file.
        """
        with _LOADING:
            predictor = self._predictor
        task = predictor.description.task
        templates = [pieces(each) for each in task.text]
        several = [each for each in templates if len({name for _, name in each if name}) > 1]
        if task.kind == "choice" or several:
            what = "texts of several columns" if several else "kind choice"
            raise InputError(f"a model of {what} takes a file: crammed predict DIR --data FILE")
        rows = _each(texts, words=task.kind == "tokens")
        wanted = 2 if task.has_pairs else 1
        for number, row in enumerate(rows, 1):
            if task.kind != "tokens" and len(row) != wanted:
                takes = "pairs of texts" if wanted == 2 else "single texts"
                raise InputError(f"text {number} is {row!r}, but the model takes {takes}")
        if task.kind != "tokens":
            rows = [tuple(map(_filled, templates, row)) for row in rows]
        labels = np.zeros(len(rows), np.float32)
        answers, cut = predictor.answers(Rows(rows, labels)) if rows else ([], 0)
        _warn(cut, predictor.longest)
        return answers

    @property
    def tokenizer(self) -> Any:
        """A run's `tokenizers.Tokenizer`, or the tokenizer of a Hugging Face model."""
        return self.backbone.tokenizer

    @cached_property
    def model(self) -> nn.Module:
        """The encoder on its device: (ids [B, S], mask, types) -> hidden states [B, S, D]."""
        return self.backbone.encoder().to(self.device).eval()

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._numerics.device

    @cached_property
    def _numerics(self) -> Numerics:
        with _same_precision():
            return Numerics.on(choose_device(self.compute))

    @cached_property
    def _masked_lm(self) -> Any:
        return self.backbone.masked_lm(self.device)

    @cached_property
    def _predictor(self) -> Predictor:
        folder = self.path if self.path.exists() else self.spec.files()[1]  # of a name on the hub
        if not (folder / DESCRIPTION).exists():
            raise InputError(f"{self.path} is not fine-tuned: make a model with crammed finetune")
        with _same_precision():
            return Predictor.load(
                folder, self.compute, trust_remote_code=self.spec.trust_remote_code
            )

    def _text_of(self, token: int) -> str:
        return str(self.tokenizer.decode([token], skip_special_tokens=False))


@contextmanager
def _same_precision() -> Iterator[None]:
    """Leave the precision of float32 products as it was, which is the caller's."""
    before = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _filled(template: Sequence[tuple[str, str | None]], text: str) -> str:
    """A template's pieces with the text in place of their only column."""
    return "".join(literal + (text if name else "") for literal, name in template)


def _warn(cut: int, length: int) -> None:
    """Warn the caller of the caller of texts that were truncated."""
    if cut:
        warnings.warn(truncated(cut, length), stacklevel=3)


def _each(texts: Iterable[Text], *, words: bool = False) -> list[Texts]:
    """The texts of each row; with `words`, a text alone is its words, as in files."""
    if (
        isinstance(texts, str | bytes | Mapping)
        or not isinstance(texts, Iterable)
        or hasattr(texts, "columns")
    ):
        raise InputError(
            "give a list of texts, even for one: [text]; of a data frame, frame[COLUMN] or, for "
            "pairs, frame[[FIRST, SECOND]].values"
        )
    if words:
        texts = (each.split() if isinstance(each, str) else each for each in texts)
    rows = [
        tuple(each) if isinstance(each, Iterable) and not isinstance(each, str | bytes) else (each,)
        for each in texts
    ]
    for number, row in enumerate(rows, 1):
        most = len(row) if words else 2
        if not 0 < len(row) <= most or not all(isinstance(text, str) for text in row):
            shown = row[0] if len(row) == 1 else row
            raise InputError(f"text {number} is {shown!r}, not text or a pair of texts")
    return [tuple(map(without_surrogates, row)) for row in rows]
