"""The interface that evaluation needs from an encoder, one of our runs or a Hugging Face model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from crammed.errors import InputError
from crammed.evaluation.backbones.tokens import Tokenized
from crammed.files.hashes import sha256
from crammed.tasks.rows import Texts


class SparseMaskedLM(Protocol):
    """A masked language model in evaluation mode that decodes only the positions asked for."""

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids [B, S], positions [B, N], mask [B, S] bool -> logits [B, N, V]."""
        ...


class Backbone(Protocol):
    """A pretrained encoder with its tokenizer, and the classifiers that can be built on it."""

    name: str
    """The name that reports show."""
    sha256: str
    """Digest of configuration, weights and tokenizer."""
    shape_sha256: str
    """Digest of configuration and tokenizer, on which the untrained model depends."""
    parameters: int
    """Number of parameters, with the masked-language-model head if a class for it exists."""
    width: int | None
    """Width of the hidden states; None if unknown."""
    max_length: int
    """Length of the longest sequence in tokens, special tokens included."""
    trained_length: int
    """Length of the longest sequence it was pretrained on; `max_length` if unknown."""
    pad: int
    """Id of the padding token."""
    mask: int | None
    """Id of the mask token, if there is one."""
    sep: int | None
    """Id of the token that ends a sentence, if there is one."""
    tokenizer: Any
    """A `tokenizers.Tokenizer`, or a tokenizer of transformers."""
    specials: frozenset[int]
    """Ids of the special tokens, without the unknown token, which stands for text."""

    def tokenize(self, texts: Sequence[Texts], max_length: int, *, words: bool) -> Tokenized:
        """Tokenize texts or pairs; a sequence that is too long loses the end of its longer text.

        Args:
            words: each tuple holds the words of one sequence, not one or two texts.

        Raises:
            InputError: `max_length` exceeds the model's.
        """
        ...

    def dropouts(self) -> dict[str, float]:
        """The dropouts, by name, that fine-tuning replaces with the protocol's."""
        ...

    def composes(self, text: str) -> bool:
        """Whether a text has other tokens than in the Unicode form that it is in."""
        ...

    def plain_ids(self, text: str) -> Sequence[int]:
        """Token ids of a text of any length, without special tokens.

        What looks like one stays text, as in training, unless the tokenizer is written in Python.
        """
        ...

    def encoder(self, untrained: int | None = None) -> nn.Module:
        """The encoder in evaluation mode, on the CPU.

        It is called as (ids, mask, types) and returns hidden states [B, S, D].

        Args:
            untrained: seed of random weights to have in place of the pretrained ones.
        """
        ...

    def encoder_ends_to_tune(self, seed: int, *, trained: bool, dropout: float = 0.0) -> nn.Module:
        """As `encoder`, but [B, S, 2 * D]: what the first layer reads beside the hidden states.

        It is in training mode, and the arguments are those of `classifier`. An encoder that does
        not show what its first layer reads gives its hidden states twice.
        """
        ...

    def classifier(
        self, outputs: int, seed: int, *, trained: bool, every_token: bool, dropout: float = 0.0
    ) -> nn.Module:
        """A new model for fine-tuning, on the CPU, in training mode: (ids, mask, types) -> logits.

        ids [B, S] int64; mask [B, S] bool, False at the padding on the right; types [B, S] int64
        or None; logits [B, outputs], or [B, S, outputs] with `every_token`. The random weights
        depend only on the seed, and the head's are the same with and without `trained`.

        Args:
            trained: use the pretrained weights below the head; otherwise all weights are random.
            dropout: everywhere in the model, in place of what its configuration says.

        Raises:
            InputError: the model's library has no such classifier for this architecture.
        """
        ...

    def masked_lm(self, device: torch.device) -> SparseMaskedLM:
        """The pretrained masked language model.

        Raises:
            InputError: the weights do not include a masked-language-model head.
        """
        ...

    def untrained_masked_lm(self, device: torch.device) -> SparseMaskedLM:
        """The masked language model with random weights, always the same.

        Raises:
            InputError: the model's library has no masked language model for this architecture.
        """
        ...


def check_length(max_length: int, backbone: Backbone) -> None:
    """Raises InputError if sequences of this length are too long for the encoder."""
    if max_length > backbone.max_length:
        raise InputError(
            f"sequences of {max_length} tokens are too long for {backbone.name}: choose at most "
            f"{backbone.max_length}"
        )


def digest(files: Iterable[Path]) -> str:
    """SHA-256 over the names and contents of files, regardless of their folders."""
    listed = sorted((file.name, sha256(file)) for file in files)
    return hashlib.sha256("".join(f"{name} {part}\n" for name, part in listed).encode()).hexdigest()
