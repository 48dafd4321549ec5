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
        """A model for masked tokens with random weights; the older ones as published."""
        common: dict[str, Any] = {
            "vocab_size": corpus.vocab_size,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": max(1, width // HEAD),
            "max_position_embeddings": corpus.row_length,
            "pad_token_id": specials.pad,
        }
        if self is Architecture.MODERNBERT:
            return ModernBertForMaskedLM(_modernbert(common, specials))
        common |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        if self is Architecture.BERT:
            return BertForMaskedLM(BertConfig(**common, intermediate_size=4 * width))
        return RoFormerForMaskedLM(RoFormerConfig(**common, intermediate_size=4 * width))


def _modernbert(common: dict[str, Any], specials: Specials) -> ModernBertConfig:
    rotary = {"rope_type": "default", "rope_theta": ROTARY_BASE}
    return ModernBertConfig(
        **common,
        intermediate_size=2 * common["hidden_size"],
        layer_types=["full_attention"] * common["num_hidden_layers"],
        # No layer uses this window, and a smaller one costs a mask.
        local_attention=4 * common["max_position_embeddings"],
        rope_parameters={"full_attention": rotary, "sliding_attention": rotary},
        sparse_prediction=True,
        classifier_pooling="mean",  # which is what ours is read by when fine-tuned
        cls_token_id=specials.cls,
        sep_token_id=specials.sep,
        bos_token_id=specials.cls,
        eos_token_id=specials.sep,
    )
