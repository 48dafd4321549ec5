"""What a run knows of a model of another library: an outline that costs as much to train.

Budgets, learning rates and forecasts count with `RunConfig.model`. For an adapted model that is a
plain encoder with its layers, width, heads and length, whose feed-forward blocks are as wide as
makes up for all weights of the layers' products, whatever these products are.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from crammed.config import RunConfig
from crammed.errors import InputError
from crammed.machine.speed import nominal_speed
from crammed.rules.choosing import Asked
from crammed.rules.recipe import parse_overrides
from crammed.rules.sizing import batch_tokens, rates_of_width, tokens, with_rates, with_values

RATE = 1e-4
"""Peak learning rate at `RATE_WIDTH`; it goes with the inverse root of the width."""
RATE_WIDTH = 768
MOST_BATCH = 32_768
"""Most tokens of an update, unless `batch.rows` is set: little text would have too few updates."""

COUNTED = ("num_hidden_layers", "hidden_size", "num_attention_heads")
"""What `outline` reads from the configuration of a model of transformers."""


def outline(model: nn.Module, config: Any, max_length: int, dropout: float) -> dict[str, Any]:
    """The values of ``model`` for a model of transformers, by dotted key.

    Args:
        model: its masked language model; no weight is read, so it may be on ``meta``.
        config: its configuration.
        max_length: the longest input in tokens.
        dropout: its largest dropout.
    """
    layers, width = config.num_hidden_layers, config.hidden_size
    base: Any = model.base_model
    weights = sum(m.weight.numel() for m in base.modules() if isinstance(m, nn.Linear))
    hidden = max(1, round((weights / layers - 4 * width**2) / (2 * width)))
    return {
        "model.layers": layers,
        "model.width": width,
        "model.head_dim": width // config.num_attention_heads,
        "model.ffn_ratio": hidden / width,
        "model.max_length": max_length,
        "model.dropout": dropout,
    }


def refuse_foreign_keys(overrides: list[str]) -> None:
    """Refuse overrides of what the adapted model decides, or what it cannot follow.

    Raises:
        InputError: there is one.
    """
    given = parse_overrides(overrides)
    for section in ("model", "tokenizer", "adapts", "follows_budget"):
        values = given.get(section, {})
        own = {"dropout"} if section == "model" and isinstance(values, dict) else set()
        if set(values if isinstance(values, dict) else {section}) - own:
            raise InputError(f"{section}: the adapted model decides it, so leave it out")


def refuse_unfit(config: RunConfig, name: str) -> None:
    """Refuse what a model of another library cannot follow.

    Raises:
        InputError: the configuration asks for it.
    """
    for key, asked in (
        ("train.attention=document", config.train.attention == "document"),
        ("compute.fp8=on", config.compute.fp8 == "on"),
        ("compute.kernels=compiler", config.compute.kernels == "compiler"),
        (f"compute.lanes={config.compute.lanes}", config.compute.lanes not in (None, 1)),
    ):
        if asked:
            raise InputError(f"{key} is for models trained here, and {name} is not: leave it out")


def with_defaults(asked: Asked, shape: dict[str, Any], longest: int, name: str) -> Asked:
    """What is asked for, with the values that follow from the model wherever none is typed.

    Args:
        shape: those that it decides, by dotted key.
        longest: the longest input that it takes, in tokens.

    Raises:
        InputError: a length that is typed, or that of the rows of a corpus, is above that.
    """
    config = asked.config
    lengths = {
        "finetune.max_length": config.finetune.max_length,
        "data.row_length": config.data.row_length,
    }
    for key, length in lengths.items():
        if length > longest and key in asked.keys:
            of_corpus = config.corpus is not None and key == "data.row_length"
            mend = "name the text with --data" if of_corpus else f"set {key}={longest} or less"
            raise InputError(
                f"{key}={length} is more than the {longest} tokens that {name} takes: {mend}"
            )
    values = {**{key: min(length, longest) for key, length in lengths.items()}, **shape}
    config = with_values(config, {k: v for k, v in values.items() if k not in asked.keys})
    rate = RATE * (RATE_WIDTH / config.model.width) ** 0.5
    config = with_rates(config, {*rates_of_width(config)} - {*asked.keys}, rate)
    if "batch.rows" not in asked.keys:
        paid = tokens(config, nominal_speed(config.compute))
        rows = round(min(batch_tokens(paid), MOST_BATCH) / config.data.row_length)
        config = with_values(config, {"batch.rows": max(1, rows)})
    return Asked(config, (), asked.typed)
