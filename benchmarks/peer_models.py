"""The encoders of `transformers` that `peer.py` trains, for the rows of a corpus."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from transformers import (
    BertConfig,
    BertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    RoFormerConfig,
    RoFormerForMaskedLM,
)

from crammed.data.corpus import Corpus
from crammed.data.tokenization.tokenizer import Specials

HEAD = 64
ROTARY_BASE = 10_000.0


class Architecture(StrEnum):
    MODERNBERT = "modernbert"
    ROFORMER = "roformer"
    BERT = "bert"

    def built(self, corpus: Corpus, specials: Specials, layers: int, width: int) -> Any:
        """A model for masked tokens with random weights."""
        if self is Architecture.MODERNBERT:
            return _modernbert(corpus, specials, layers, width)
        return _older(self, corpus, specials, layers, width)


def _modernbert(
    corpus: Corpus, specials: Specials, layers: int, width: int
) -> ModernBertForMaskedLM:
    length = corpus.row_length
    rotary = {"rope_type": "default", "rope_theta": ROTARY_BASE}
    config = ModernBertConfig(
        vocab_size=corpus.vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // HEAD),
        intermediate_size=2 * width,
        max_position_embeddings=length,
        layer_types=["full_attention"] * layers,
        local_attention=4 * length,  # no layer uses it, and a smaller one costs a mask
        rope_parameters={"full_attention": rotary, "sliding_attention": rotary},
        sparse_prediction=True,
        classifier_pooling="mean",  # which is what ours is read by when fine-tuned
        pad_token_id=specials.pad,
        cls_token_id=specials.cls,
        sep_token_id=specials.sep,
        bos_token_id=specials.cls,
        eos_token_id=specials.sep,
    )
    return ModernBertForMaskedLM(config)


def _older(
    architecture: Architecture, corpus: Corpus, specials: Specials, layers: int, width: int
) -> BertForMaskedLM | RoFormerForMaskedLM:
    """Post-normalised; feed-forward layers of four times the width, as published."""
    common: Any = {
        "vocab_size": corpus.vocab_size,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": max(1, width // HEAD),
        "intermediate_size": 4 * width,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": corpus.row_length,
        "pad_token_id": specials.pad,
    }
    if architecture is Architecture.BERT:
        return BertForMaskedLM(BertConfig(**common))
    return RoFormerForMaskedLM(RoFormerConfig(**common))
