"""The model of a run directory as a backbone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from unicodedata import is_normalized

import torch
from tokenizers import Tokenizer, normalizers
from torch import Tensor, nn

from crammed.data.tokenization.encoding import text_only
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import InputError
from crammed.evaluation.backbones.base import SparseMaskedLM, check_length, digest
from crammed.evaluation.backbones.tokens import Tokenized, by_library
from crammed.model.classifiers import SequenceClassifier, TokenClassifier
from crammed.model.count import parameters
from crammed.model.encoder import Encoder, MaskedLM, initialise
from crammed.model.trained import load_trained
from crammed.runs.directory import read_config
from crammed.tasks.rows import Texts

_HEADS = ("pooler.", "head.", "classifier.")
_SHAPE = ("config.json", "tokenizer.json")


def run_files(run: Path) -> list[Path]:
    """The files that determine what the model of a run directory computes."""
    return [run / "final" / file for file in (*_SHAPE, "model.safetensors")]


class RunBackbone:
    """A model trained here; `crammed.evaluation.backbones.base.Backbone` documents the members.

    Args:
        run: its run directory.
    """

    def __init__(self, run: Path) -> None:
        final = load_trained(run)
        specials = Specials.of(final.tokenizer)
        self.name = run.resolve().name
        self.sha256 = digest(run_files(run))
        self.shape_sha256 = digest(run / "final" / file for file in _SHAPE)
        self.parameters = parameters(final.config, final.vocab_size)
        self.width: int | None = final.config.width
        self.max_length = final.config.max_length
        self.trained_length = final.trained_length
        self.pad = specials.pad
        self.mask: int | None = specials.mask
        self.sep: int | None = specials.sep
        self.specials = frozenset(specials.ids) - {specials.unk}
        self._unknown = specials.names(final.tokenizer)["unk"]
        self.tokenizer = _composing(final.tokenizer) if _was_composed(run) else final.tokenizer
        self._final = final

    def tokenize(self, texts: Sequence[Texts], max_length: int, *, words: bool) -> Tokenized:
        check_length(max_length, self)
        return by_library(
            self.tokenizer,
            texts,
            max_length,
            types=self._final.config.token_types > 1,
            words=words,
            filler=self.pad,
            unknown=self._unknown,
        )

    def dropouts(self) -> dict[str, float]:
        return {}  # evaluation has always given runs the protocol's

    def composes(self, text: str) -> bool:
        if is_normalized("NFC", text):
            return False
        own, composed = (
            each.encode(text, add_special_tokens=False).ids
            for each in (self._final.tokenizer, self.tokenizer)
        )
        return bool(own != composed)

    @cached_property
    def _of_text(self) -> Tokenizer:
        return text_only(self.tokenizer)

    def plain_ids(self, text: str) -> Sequence[int]:
        ids: list[int] = self._of_text.encode(text, add_special_tokens=False).ids
        return ids

    def encoder(self, untrained: int | None = None) -> nn.Module:
        if untrained is None:
            return _Encoder(self._final.masked_lm(torch.device("cpu")).encoder)
        model: Any = self.classifier(1, untrained, trained=False, every_token=False)
        return _Encoder(model.encoder).eval()

    def encoder_ends_to_tune(self, seed: int, *, trained: bool, dropout: float = 0.0) -> nn.Module:
        model: Any = self.classifier(1, seed, trained=trained, every_token=False, dropout=dropout)
        return _Ends(model.encoder)

    def classifier(
        self, outputs: int, seed: int, *, trained: bool, every_token: bool, dropout: float = 0.0
    ) -> nn.Module:
        config = self._final.config.with_dropout(dropout)
        kind = TokenClassifier if every_token else SequenceClassifier
        with torch.random.fork_rng(devices=[]):  # weights drawn here are replaced below
            model = kind(config, self._final.vocab_size, outputs)
        initialise(model, config.init_std, torch.Generator().manual_seed(seed))
        if trained:
            own = model.state_dict().keys()
            shared = {name: w for name, w in self._final.weights.items() if name in own}
            result = model.load_state_dict(shared, strict=False)
            assert all(name.startswith(_HEADS) for name in result.missing_keys), result
        return model.train()

    def masked_lm(self, device: torch.device) -> SparseMaskedLM:
        return self._final.masked_lm(device)

    def untrained_masked_lm(self, device: torch.device) -> SparseMaskedLM:
        with torch.random.fork_rng(devices=[]):  # weights drawn here are replaced below
            model = MaskedLM(self._final.config, self._final.vocab_size)
        initialise(model, self._final.config.init_std, torch.Generator().manual_seed(0))
        return model.to(device).eval()


def _was_composed(run: Path) -> bool:
    """Whether the text of a run was in Unicode's form C, as it is unless its configuration says."""
    with suppress(InputError):  # a model can be evaluated without its configuration
        return read_config(run).data.clean.unicode
    return True


def _composing(tokenizer: Tokenizer) -> Tokenizer:
    """The same, for text in any form: WordPiece knows letters only as its text had them."""
    composing = Tokenizer.from_str(tokenizer.to_str())
    own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    composing.normalizer = normalizers.Sequence([normalizers.NFC(), *own])
    return composing


class _Encoder(nn.Module):
    """An encoder of ours, called as evaluation calls any."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        hidden: Tensor = self.encoder(ids, types=types, mask=mask)
        return hidden


class _Ends(_Encoder):
    """The same, with what the first layer reads before the hidden states of each token."""

    def forward(self, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        prepared = self.encoder.prepare(self.encoder.tokens(ids), mask, types, ids)
        return torch.cat([prepared[0], self.encoder.through_layers(*prepared)], -1)
