"""Any encoder that can be evaluated: a run of ours, or any Hugging Face model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from crammed.errors import InputError
from crammed.evaluate.rows import Texts
from crammed.evaluate.tokens import Tokenized
from crammed.files import sha256


class SparseMaskedLM(Protocol):
    """A masked language model in evaluation mode that decodes chosen positions only."""

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids [B, S], positions [B, N], mask [B, S] bool -> logits [B, N, V]."""
        ...


class Encoder(Protocol):
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


@dataclass(frozen=True)
class EncoderSpec:
    """Which encoder; small enough to send to another process, which loads it again.

    Attributes:
        spec: a run directory, a Hugging Face folder, or a name on the hub.
        dropout: of our own runs; Hugging Face models keep their configuration's.
        trust_remote_code: whether a model may bring Python code of its own.
    """

    spec: str
    dropout: float
    trust_remote_code: bool = False

    def load(self) -> Encoder:
        """Load it.

        Raises:
            InputError: there is none, a part of it is missing or damaged, or it needs what is not
                installed or not allowed.
        """
        path = Path(self.spec).expanduser()
        if (path / "final" / "config.json").is_file():
            from crammed.evaluate.run_encoder import RunEncoder

            return RunEncoder.of_run(path, self.dropout)
        if path.exists():
            if not (path / "config.json").is_file():
                raise InputError(
                    f"{path} is neither a finished run (no final/config.json) nor a Hugging Face "
                    "folder (no config.json)"
                )
        elif not re.fullmatch(r"[\w.-]*\w(/\w[\w.-]*)?", self.spec):
            raise InputError(f"no such model: {self.spec} (a run directory, a Hugging Face folder)")
        from crammed.evaluate.huggingface_encoder import HuggingFaceEncoder
        from crammed.evaluate.huggingface_files import find

        return HuggingFaceEncoder(*find(self.spec), trust_remote_code=self.trust_remote_code)


def local_digest(folder: Path) -> str:
    """The `Encoder.sha256` of the model in a folder, which is not loaded for it.

    Raises:
        InputError: there is none.
    """
    from crammed.evaluate.huggingface_files import model_files
    from crammed.evaluate.run_encoder import run_files

    is_run = (folder / "final" / "config.json").is_file()
    return digest(run_files(folder) if is_run else model_files(folder))


def check_length(max_length: int, encoder: Encoder) -> None:
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
