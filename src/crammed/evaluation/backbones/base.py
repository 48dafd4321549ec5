"""Any encoder that can be evaluated: a run of ours, or any Hugging Face model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from crammed.errors import InputError
from crammed.evaluation.backbones.tokens import Tokenized
from crammed.files import sha256
from crammed.tasks.rows import Texts


class SparseMaskedLM(Protocol):
    """A masked language model in evaluation mode that decodes chosen positions only."""

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids [B, S], positions [B, N], mask [B, S] bool -> logits [B, N, V]."""
        ...


class Backbone(Protocol):
    """What evaluation asks of a model."""

    name: str
    """What reports call it."""
    sha256: str
    """Digest of its configuration, weights and tokenizer."""
    parameters: int
    """Of the encoder with its masked-language-model head."""
    max_length: int
    """Longest sequence in tokens, special tokens included."""
    pad: int
    """Id of the padding token."""
    mask: int | None
    """Id of the mask token."""
    sep: int | None
    """Id of the token that ends a sentence."""
    specials: frozenset[int]
    """Ids of the special tokens but the unknown token, which stands for text."""

    def tokenize(self, texts: Sequence[Texts], max_length: int, *, words: bool) -> Tokenized:
        """Token ids of texts or pairs; with `words` each tuple holds the words of one sequence.

        Raises:
            InputError: `max_length` is more than the model's.
        """
        ...

    def plain_ids(self, text: str) -> Sequence[int]:
        """Token ids of a text of any length, without special tokens."""
        ...

    def classifier(self, outputs: int, seed: int, *, trained: bool, every_token: bool) -> nn.Module:
        """A model for fine-tuning, on the CPU, in training mode: ``(ids, mask, types) -> logits``.

        ids [B, S] int64, mask [B, S] bool (True first: padding is at the right), types [B, S]
        int64 or None; logits [B, outputs], or [B, S, outputs] with `every_token`. What is new (the
        head; untrained, everything) depends on the seed alone, and a head is the same in both.

        Raises:
            InputError: the model's library has no such class for it.
        """
        ...

    def masked_lm(self, device: torch.device) -> SparseMaskedLM:
        """The model as it was pretrained.

        Raises:
            InputError: its weights hold no masked-language-model head.
        """
        ...


def check_length(max_length: int, encoder: Backbone) -> None:
    """Raises InputError where sequences would be longer than the encoder can take."""
    if max_length > encoder.max_length:
        raise InputError(
            f"{max_length} tokens a sequence are more than {encoder.name} takes: choose at most "
            f"{encoder.max_length}"
        )


def digest(files: Iterable[Path]) -> str:
    """SHA-256 over the names and contents of files, wherever they lie."""
    listed = sorted((file.name, sha256(file)) for file in files)
    return hashlib.sha256("".join(f"{name} {part}\n" for name, part in listed).encode()).hexdigest()
