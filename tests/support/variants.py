"""Small models with every value of every choice in the configuration.

The values are read from the types of `ModelConfig`'s fields, so every test over `VARIANTS` covers a
new value, and fails if a part of it was forgotten.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

import pytest
import torch
from hypothesis import reject
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from torch import Tensor

from crammed.config import ModelConfig
from crammed.model.encoder import MaskedLM, initialise
from support.text import tiny

VOCAB = 64
LENGTH = 16
NO_ATTENTION = {
    "positions": "learned",
    "qkv_bias": False,
    "qk_norm": "none",
    "attention_start": "random",
    "value_embeddings": False,
    "scope": "row",
    "weighing": "softmax",
}
COMPANIONS: dict[tuple[str, Any], dict[str, Any]] = {
    ("norm", "post"): {"final_norm": False, "blocks": "serial"},
    ("norm", "deepnorm"): {"final_norm": False, "blocks": "serial"},
    ("norm", "sandwich"): {"blocks": "serial"},
    ("norm", "normformer"): {"blocks": "serial"},
    ("blocks", "parallel"): {"norm": "pre"},
    **{("norm_kind", kind): {"norm_bias": False} for kind in ("rms", "scale", "none")},
    ("norm_bias", True): {"norm_kind": "layer"},
    ("scope", "causal"): {"attention_start": "random"},
    ("scope", "local"): {"window": 6, "global_every": 2},
    ("mixer", "fourier"): {**NO_ATTENTION, "zero_outputs": False},
    ("mixer", "fourier-hybrid"): {"layers": 3, "zero_outputs": False, "value_embeddings": False},
    ("mixer", "none"): NO_ATTENTION,
    ("mixer", "gated-attention"): {**NO_ATTENTION, "positions": "rotary", "gated": True},
    ("final_norm", True): {"norm": "pre"},
    ("head_transform", False): {"classifier": "pooler"},
    ("classifier", "head-transform"): {"head_transform": True},
    ("decoder_bias_start", "log-frequency"): {"decoder_bias": True},
    **{("passes", count): {"first_attention_norm": True} for count in (2, 3)},
    ("matrix_start", "orthogonal"): {"zero_outputs": False},
    ("zero_outputs", True): {"matrix_start": "normal"},
    **{
        ("attention_start", start): {"positions": "rotary", "qkv_bias": True, "qk_norm": "none"}
        for start in ("neighbours", "neighbours-first")
    },
    **{
        (name, value): {"attention_start": "random"}
        for name, values in {
            "positions": ("none", "learned", "sinusoidal", "scaled-sinusoidal", "alibi", "t5"),
            "qkv_bias": (False,),
            "qk_norm": ("rms",),
        }.items()
        for value in values
    },
}
"""What else must be set for a value to be valid."""
NUMBERS: list[dict[str, Any]] = [
    {"token_types": 2},
    {"pooler_width": 48},
    {"ffn_ratio": 3.0},
    {"logit_cap": 4.0},
    {"passes": 2},
    {"layers": 3, "ffn_every": 2},
    {"embedding_width": 24},
    {"weighing": "identity", "scope": "local", "window": 6, "global_every": 2, "layers": 3},
    {"weighing": "relu", "positions": "alibi"},
    {"weighing": "running-sum", "scope": "causal", "positions": "t5"},
    {"key_heads": 1, "positions": "t5", "layers": 3},
    {"mixer": "gated-attention", "positions": "learned"},
    {"key_heads": 1, "attention_start": "random", "layers": 3},
    {"embedding_width": 24, "tied_decoder": False},
    {"pool_at": (1,), "layers": 3, "unpooled_layers": 1},
    {"pool_at": (1, 2), "layers": 4, "unpooled_layers": 1, "positions": "t5", "key_heads": 1},
    {"pool_at": (1,), "layers": 4, "positions": "alibi", "residual_scalars": True},
]
"""Values of other fields that change the structure of the model."""


def choices(section: type[BaseModel]) -> dict[str, tuple[Any, ...]]:
    """The fields of a section that are choices, with their values."""
    found = {name: tuple(_values(field.annotation)) for name, field in section.model_fields.items()}
    return {name: values for name, values in found.items() if values}


def _values(annotation: Any) -> Iterator[Any]:
    if annotation is bool:
        yield from (True, False)
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _values(part)


CHOICES = choices(ModelConfig)


def needed_beside(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that `COMPANIONS` requires for these values."""
    needed: dict[str, Any] = {}
    for pair in fields.items():
        needed |= COMPANIONS.get(pair, {}) if isinstance(pair[1], str | int) else {}
    return needed


def configuration(recipe: str = "crammed", **fields: Any) -> ModelConfig:
    """The model of a tiny recipe with these values, and the fields that they need."""
    base = tiny(recipe).model.model_dump()
    try:
        return ModelConfig.model_validate({**base, **needed_beside(fields), **fields})
    except ValidationError as error:
        raise AssertionError(f"name in COMPANIONS what {fields} needs: {error}") from error


EVERY_VALUE: list[dict[str, Any]] = [
    *(
        {name: value}
        for name, values in CHOICES.items()
        for value in values
        if name != "matrix_start"  # tests over these set their own weights
    ),
    *NUMBERS,
]


def variants(recipe: str = "crammed", **fixed: Any) -> list[Any]:
    """Parameters of a test: a recipe's configuration, and one for each of `EVERY_VALUE`."""
    named = {"plain": configuration(recipe, **fixed)}
    for fields in EVERY_VALUE:
        name = ",".join(f"{name}={value}" for name, value in fields.items())
        named[name] = configuration(recipe, **{**fixed, **fields})
    found: list[ModelConfig] = []
    parameters = []
    for name, config in named.items():
        if config not in found:  # most values are those of the recipe
            found.append(config)
            parameters.append(pytest.param(config, id=name))
    return parameters


VARIANTS = variants(dropout=0.0)
UNREAD = {
    *("pooling", "classifier", "pooler_width", "zero_outputs", "attention_start"),
    *("embedding_start", "decoder_bias_start"),
}
"""Fields that no masked model reads: they are of classifiers, or of how training begins."""


def _computed() -> list[Any]:
    """One of `VARIANTS` for each masked model that computes something else."""
    found, parameters = [], []
    for parameter in VARIANTS:
        read = parameter.values[0].model_dump(exclude=UNREAD)
        if read not in found:
            found.append(read)
            parameters.append(parameter)
    return parameters


COMPUTED = _computed()
"""`VARIANTS` for tests of the masked model alone."""


@st.composite
def any_model(draw: st.DrawFn) -> ModelConfig:
    """Any combination of the choices that the configuration allows, in any small shape."""
    fields: dict[str, Any] = {name: draw(st.sampled_from(v)) for name, v in CHOICES.items()}
    head_dim = 2 * draw(st.integers(1, 4))
    shape = {
        "layers": draw(st.integers(1, 3)),
        "head_dim": head_dim,
        "width": head_dim * draw(st.integers(1, 3)),
        "ffn_ratio": float(draw(st.sampled_from([2, 4]))),
        "max_length": LENGTH,
        "token_types": draw(st.integers(0, 2)),
        "logit_cap": draw(st.sampled_from([None, 4.0])),
    }
    try:
        return ModelConfig.model_validate({**fields, **needed_beside(fields), **shape})
    except ValidationError:
        reject()


def random_model(config: ModelConfig, dtype: torch.dtype = torch.float64) -> MaskedLM:
    """A model with weights far from their initial values, so that every part matters."""
    model = MaskedLM(config, VOCAB)
    generator = torch.Generator().manual_seed(0)
    size = 0.3 if config.norm_kind == "none" else 1.0  # nothing else bounds the activations
    initialise(model, 0.3 * size, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * size * torch.randn(parameter.shape, generator=generator))
    return model.to(dtype).eval()


def some_ids(rows: int, length: int = LENGTH) -> Tensor:
    return torch.randint(5, VOCAB, (rows, length), generator=torch.Generator().manual_seed(1))
