"""Names and settings under which built-in transformers classes reproduce our model exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crammed.config import ModelConfig
from crammed.config.finetuning import dropout_at
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import CrammedError
from crammed.model.blocks import ACTIVATIONS
from crammed.model.positions import POSITIONS

BOTH = (True, False)
Holds = Mapping[str, tuple[Any, ...] | None]
"""The values of each `ModelConfig` field that a format supports; None is any number. For a field
not listed, it supports only the default, so that new options are exported with custom code until
listed here."""

NUMBERS: Holds = dict.fromkeys(
    (
        "layers",
        "width",
        "head_dim",
        "ffn_ratio",
        "norm_eps",
        "max_length",
        "init_std",
        "embedding_std",
        "dropout",
        "attention_dropout",  # this and the next two: in pretraining alone
        "embedding_dropout",
        "layer_drop",
    )
)
MATRIX_STARTS = ("normal", "small", "megatron", "wang", "orthogonal", "deepnorm")
KNOWN_ACTIVATIONS = tuple(name for name, kind in ACTIVATIONS.items() if kind.transformers)

COMMON: Holds = {
    **NUMBERS,
    "activation": KNOWN_ACTIVATIONS,
    "embedding_norm": (True,),
    "rotary_theta": None,
    "head_transform": (True,),
    "decoder_bias_start": ("zero", "log-frequency"),
    "embedding_start": ("random", "cooccurrence"),
    "matrix_start": MATRIX_STARTS,
    "zero_outputs": BOTH,
    "pooler_width": None,
}

MODERNBERT: Holds = {
    **COMMON,
    "gated": (True,),
    "norm": ("pre",),
    "norm_bias": BOTH,
    "first_attention_norm": (False,),
    "final_norm": (True,),
    "linear_bias": BOTH,
    "qkv_bias": BOTH,
    "positions": tuple(name for name, kind in POSITIONS.items() if "modernbert" in kind.native),
    "token_types": (0,),
    "decoder_bias": BOTH,
    "attention_start": ("random", "neighbours", "neighbours-first"),
    "ffn_dropout": ("hidden",),
    "pooling": ("first", "mean"),
    "classifier": ("head-transform",),
}
BERT: Holds = {
    **COMMON,
    "gated": (False,),
    "norm": ("post",),
    "norm_bias": (True,),
    "first_attention_norm": (True,),
    "final_norm": (False,),
    "linear_bias": (True,),
    "qkv_bias": (True,),
    "positions": tuple(name for name, kind in POSITIONS.items() if "bert" in kind.native),
    "token_types": None,
    "decoder_bias": (True,),
    "ffn_dropout": ("residual",),
    "classifier": ("pooler",),
}


def _unmet(config: ModelConfig, holds: Holds) -> list[str]:
    """One reason for each field whose value the format does not support."""
    reasons = []
    for name, field in ModelConfig.model_fields.items():
        value, held = getattr(config, name), holds.get(name, (field.default,))
        if held is not None and value not in held:
            reasons.append(f"model.{name} is {value}, not {' or '.join(map(str, held))}")
    return reasons


def modernbert_obstacles(config: ModelConfig) -> list[str]:
    """Why ModernBERT cannot represent the model; empty if it can."""
    obstacles = _unmet(config, MODERNBERT)
    if config.linear_bias and not config.qkv_bias:
        obstacles.append("model.qkv_bias is False, and model.linear_bias is True")
    return obstacles


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
        "hidden_activation": ACTIVATIONS[config.activation].transformers,
        "max_position_embeddings": config.max_length,
        "initializer_range": config.init_std,
        "initializer_cutoff_factor": 2.0,  # Text Embeddings Inference needs it
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
        "embedding_dropout": dropout_at(config.width),
        "attention_dropout": dropout_at(config.width),
        "mlp_dropout": dropout_at(config.width),
        "classifier_dropout": dropout_at(config.width),
        "classifier_pooling": "mean" if config.pooling == "mean" else "cls",
        "classifier_bias": config.linear_bias,
        "classifier_activation": ACTIVATIONS[config.activation].transformers,
        "decoder_bias": config.decoder_bias,
        "tie_word_embeddings": True,
    }


def read_modernbert(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `ModelConfig` of a ModernBERT with this config.json.

    Raises:
        KeyError: it lacks a value, or names an activation that ours has not.
    """
    rope = config.get("rope_parameters") or {"full_attention": config}
    theta = rope["full_attention"].get("rope_theta", config.get("global_rope_theta"))
    return {
        **_read_sizes(config, config["hidden_activation"]),
        "ffn_ratio": 2 * config["intermediate_size"] / config["hidden_size"],
        "gated": True,
        "norm": "pre",
        "norm_eps": config["norm_eps"],
        "norm_bias": config["norm_bias"],
        "first_attention_norm": False,
        "final_norm": True,
        "linear_bias": config["mlp_bias"],
        "qkv_bias": config["attention_bias"],
        "positions": "rotary",
        "rotary_theta": theta,
        "decoder_bias": config["decoder_bias"],
        "dropout": config["mlp_dropout"],
        "ffn_dropout": "hidden",
        "classifier": "head-transform",
    }


def modernbert_weights(weights: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our parameters under ModernBERT's names.

    There, biases of queries, keys and values imply one for the output projection: zeros, where ours
    has none.
    """
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
        if config.qkv_bias and not config.linear_bias:
            weights = {**weights, f"{ours}attention.out.bias": torch.zeros(config.width)}
    return _rename(weights, renamed)


def bert_obstacles(config: ModelConfig) -> list[str]:
    """Why BERT cannot hold the model; empty where it can."""
    obstacles = _unmet(config, BERT)
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
        "hidden_act": ACTIVATIONS[config.activation].transformers,
        "hidden_dropout_prob": dropout_at(config.width),
        "attention_probs_dropout_prob": dropout_at(config.width),
        "max_position_embeddings": config.max_length,
        "type_vocab_size": config.token_types,
        "initializer_range": config.init_std,
        "layer_norm_eps": float(config.norm_eps),
        "tie_word_embeddings": True,
    }


def read_bert(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `ModelConfig` of a BERT with this config.json.

    Raises:
        KeyError: it lacks a value, or names an activation that ours has not.
    """
    return {
        **_read_sizes(config, config["hidden_act"]),
        "gated": False,
        "norm": "post",
        "norm_eps": config["layer_norm_eps"],
        "norm_bias": True,
        "first_attention_norm": True,
        "final_norm": False,
        "linear_bias": True,
        "qkv_bias": True,
        "positions": "learned",
        "token_types": config["type_vocab_size"],
        "decoder_bias": True,
        "dropout": config["hidden_dropout_prob"],
        "classifier": "pooler",
        "pooler_width": config["hidden_size"],
    }


def bert_weights(weights: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our parameters under BERT's names, with the fused query-key-value product split in three."""
    split: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if ".attention.qkv." in name:
            for part, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                split[name.replace(".qkv.", f".{part}.")] = third
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
        "pooler.": "bert.pooler.dense.",
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


def _read_sizes(config: Mapping[str, Any], activation: str) -> dict[str, Any]:
    """What the two classes call by the same names."""
    known = {kind.transformers: name for name, kind in ACTIVATIONS.items() if kind.transformers}
    width = config["hidden_size"]
    return {
        "layers": config["num_hidden_layers"],
        "width": width,
        "head_dim": width // config["num_attention_heads"],
        "ffn_ratio": config["intermediate_size"] / width,
        "activation": known[activation],
        "max_length": config["max_position_embeddings"],
        "embedding_norm": True,
        "head_transform": True,
        "init_std": config["initializer_range"],
    }


def special_ids(specials: Specials) -> dict[str, int]:
    """Ids of the special tokens under the names that every configuration class uses."""
    return {
        "pad_token_id": specials.pad,
        "cls_token_id": specials.cls,
        "sep_token_id": specials.sep,
        "mask_token_id": specials.mask,
        "bos_token_id": specials.cls,
        "eos_token_id": specials.sep,
    }


def _rename(weights: dict[str, Tensor], prefixes: dict[str, str]) -> dict[str, Tensor]:
    """Replace the prefix of each name; exactly one prefix must match."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        found = [prefix for prefix in prefixes if name.startswith(prefix)]
        if len(found) != 1:
            raise CrammedError(f"the format has no place for {name}: not exported")
        renamed[prefixes[found[0]] + name.removeprefix(found[0])] = tensor.to(torch.float32)
    return renamed


@dataclass(frozen=True)
class NativeFormat:
    """A class built into transformers.

    Attributes:
        obstacles: why it cannot represent a model; empty if it can.
        config: its config.json, for a model and a vocabulary size.
        read: the values of `ModelConfig` for a config.json of this class.
        weights: our parameters under its names, as views where that is possible.
    """

    obstacles: Callable[[ModelConfig], list[str]]
    config: Callable[[ModelConfig, int], dict[str, Any]]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    weights: Callable[[dict[str, Tensor], ModelConfig], dict[str, Tensor]]


FORMATS = {
    "modernbert": NativeFormat(
        modernbert_obstacles, modernbert_config, read_modernbert, modernbert_weights
    ),
    "bert": NativeFormat(bert_obstacles, bert_config, read_bert, bert_weights),
}
"""The built-in classes, preferred ones first."""
