"""Names and settings under which classes built into transformers hold our weights exactly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crammed.config import ModelConfig
from crammed.data.tokenization.tokenizer import Specials

FINETUNE_DROPOUT = 0.1
"""Dropout that exported configurations carry, whatever pretraining used."""

_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}


def activation_name(config: ModelConfig) -> str:
    """The activation as transformers calls it."""
    return _ACTIVATIONS.get(config.activation, config.activation)


def _unmet(config: ModelConfig, wanted: dict[str, Any]) -> list[str]:
    return [
        f"model.{name} is {getattr(config, name)}, not {value}"
        for name, value in wanted.items()
        if getattr(config, name) != value
    ]


def modernbert_obstacles(config: ModelConfig) -> list[str]:
    """Why ModernBERT cannot hold the model; empty where it can."""
    return _unmet(
        config,
        {
            "positions": "rotary",
            "norm": "pre",
            "gated": True,
            "embedding_norm": True,
            "first_attention_norm": False,
            "final_norm": True,
            "head_transform": True,
            "token_types": 0,
            "qkv_bias": config.linear_bias,
            "ffn_dropout": "hidden",
            "classifier": "head-transform",
        },
    )


def modernbert_config(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    """config.json of a ModernBERT, in the spelling of transformers 4.48 and of 5."""
    theta = config.rotary_theta
    rope = {"rope_type": "default", "rope_theta": theta}
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": "modernbert",
        "vocab_size": vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.ffn_hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "hidden_activation": activation_name(config),
        "max_position_embeddings": config.max_length,
        "initializer_range": config.init_std,
        "norm_eps": float(config.norm_eps),
        "norm_bias": config.norm_bias,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.linear_bias,
        "global_attn_every_n_layers": 1,
        "local_attention": 128,
        "global_rope_theta": theta,
        "local_rope_theta": theta,
        "layer_types": ["full_attention"] * config.layers,
        "rope_parameters": {"full_attention": rope, "sliding_attention": rope},
        "embedding_dropout": FINETUNE_DROPOUT,
        "attention_dropout": FINETUNE_DROPOUT,
        "mlp_dropout": FINETUNE_DROPOUT,
        "classifier_dropout": FINETUNE_DROPOUT,
        "classifier_pooling": "cls",
        "classifier_bias": config.linear_bias,
        "classifier_activation": activation_name(config),
        "decoder_bias": config.decoder_bias,
        "tie_word_embeddings": True,
    }


def modernbert_weights(weights: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our parameters under ModernBERT's names."""
    renamed = {
        "encoder.tokens.": "model.embeddings.tok_embeddings.",
        "encoder.embedding_norm.": "model.embeddings.norm.",
        "encoder.final_norm.": "model.final_norm.",
        "head.": "head.",
        "decoder_bias": "decoder.bias",
    }
    for n in range(config.layers):
        ours, theirs = f"encoder.layers.{n}.", f"model.layers.{n}."
        renamed[f"{ours}attention_norm."] = f"{theirs}attn_norm."
        renamed[f"{ours}attention.qkv."] = f"{theirs}attn.Wqkv."
        renamed[f"{ours}attention.out."] = f"{theirs}attn.Wo."
        renamed[f"{ours}ffn_norm."] = f"{theirs}mlp_norm."
        renamed[f"{ours}ffn.up."] = f"{theirs}mlp.Wi."
        renamed[f"{ours}ffn.down."] = f"{theirs}mlp.Wo."
    return _rename(weights, renamed)


def bert_obstacles(config: ModelConfig) -> list[str]:
    """Why BERT cannot hold the model; empty where it can."""
    obstacles = _unmet(
        config,
        {
            "positions": "learned",
            "norm": "post",
            "gated": False,
            "embedding_norm": True,
            "first_attention_norm": True,
            "final_norm": False,
            "head_transform": True,
            "linear_bias": True,
            "qkv_bias": True,
            "norm_bias": True,
            "decoder_bias": True,
            "ffn_dropout": "residual",
            "classifier": "pooler",
        },
    )
    if config.token_types == 0:
        obstacles.append("model.token_types is 0")
    if config.pooler_width not in (None, config.width):
        obstacles.append(f"model.pooler_width is {config.pooler_width}, not {config.width}")
    return obstacles


def bert_config(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    """config.json of a BERT."""
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn_hidden,
        "hidden_act": activation_name(config),
        "hidden_dropout_prob": FINETUNE_DROPOUT,
        "attention_probs_dropout_prob": FINETUNE_DROPOUT,
        "max_position_embeddings": config.max_length,
        "type_vocab_size": config.token_types,
        "initializer_range": config.init_std,
        "layer_norm_eps": float(config.norm_eps),
        "tie_word_embeddings": True,
    }


def bert_weights(weights: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our parameters under BERT's names; the fused product falls apart into three."""
    split: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if ".attention.qkv." in name:
            for part, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                split[name.replace(".qkv.", f".{part}.")] = third.clone()
        else:
            split[name] = tensor
    renamed = {
        "encoder.tokens.": "bert.embeddings.word_embeddings.",
        "encoder.positions.": "bert.embeddings.position_embeddings.",
        "encoder.types.": "bert.embeddings.token_type_embeddings.",
        "encoder.embedding_norm.": "bert.embeddings.LayerNorm.",
        "head.dense.": "cls.predictions.transform.dense.",
        "head.norm.": "cls.predictions.transform.LayerNorm.",
        "decoder_bias": "cls.predictions.bias",
    }
    for n in range(config.layers):
        ours, theirs = f"encoder.layers.{n}.", f"bert.encoder.layer.{n}."
        for part in ("query", "key", "value"):
            renamed[f"{ours}attention.{part}."] = f"{theirs}attention.self.{part}."
        renamed[f"{ours}attention.out."] = f"{theirs}attention.output.dense."
        renamed[f"{ours}attention_norm."] = f"{theirs}attention.output.LayerNorm."
        renamed[f"{ours}ffn.up."] = f"{theirs}intermediate.dense."
        renamed[f"{ours}ffn.down."] = f"{theirs}output.dense."
        renamed[f"{ours}ffn_norm."] = f"{theirs}output.LayerNorm."
    return _rename(split, renamed)


def special_ids(specials: Specials) -> dict[str, int]:
    """Ids of the special tokens under the names that every configuration class knows."""
    return {
        "pad_token_id": specials.pad,
        "cls_token_id": specials.cls,
        "sep_token_id": specials.sep,
        "mask_token_id": specials.mask,
        "bos_token_id": specials.cls,
        "eos_token_id": specials.sep,
    }


def _rename(weights: dict[str, Tensor], prefixes: dict[str, str]) -> dict[str, Tensor]:
    """Replace each name's prefix; every name must have exactly one."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        (prefix,) = [p for p in prefixes if name.startswith(p)]
        renamed[prefixes[prefix] + name.removeprefix(prefix)] = tensor.to(torch.float32)
    return renamed
