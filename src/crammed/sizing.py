"""What follows from the budget: a recipe lists such values, and these rules fill them in.

One dial turns all of them. The budget and the device give the tokens that a model of some size can
be trained on; from the tokens come the size, the batch and the learning rate. A recipe names what
follows under `follows_budget`; whatever a recipe or the command line sets stays as it is set.

The device counts by a nominal speed, not a measured one: the same command gives the same model
every time, and a factor of two changes the batch by half.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from crammed.config import ComputeConfig, RunConfig
from crammed.config.choice import overlaid
from crammed.data.masking import predicted_positions
from crammed.errors import InputError
from crammed.model.count import block_matrix_parameters, train_flops_per_token

SHAPES = (
    (2, 128),
    (4, 128),
    (4, 192),
    (4, 256),
    (6, 320),
    (6, 384),
    (8, 512),
    (12, 512),
    (12, 640),
    (12, 768),
    (16, 768),
    (22, 768),
    (20, 1024),
    (28, 1024),
)
"""Layers and width of the sizes to choose from, each about 1.6 times the one before."""
TOKENS_A_PARAMETER = 20.0
"""Of the layers' products: where language models spend compute best (Hoffmann et al. 2022)."""
MOST_EPOCHS = 4.0
"""Text that is read more often than this teaches little more (Muennighoff et al. 2023)."""
BATCH_TOKENS = 1024.0
BATCH_AT = 1e6
BATCH_POWER = 0.6
"""An update has 1,024 tokens in a run of a million, which was measured, and about half a million in
one of 30 billion, which others use: the power goes through both."""
LARGEST_BATCH = 1_048_576
SMALLEST_BATCH = 512
RATE = 1e-3
RATE_WIDTH = 768
CORE = 80e9
MULTIPROCESSOR = 0.5e12
APPLE = 2e12
"""FLOP/s that training nominally reaches on a CPU core, a CUDA multiprocessor, an Apple GPU."""
SHARE_OF_PEAK = 0.5
"""That training reaches on a GPU whose peak is known."""


def learning_rate(config: RunConfig) -> float:
    """The paper's at width 768, and with the root of the width below and above."""
    return RATE * math.sqrt(RATE_WIDTH / config.model.width)


FOLLOWERS = ("model.layers", "model.width", "tokenizer.vocab_size", "batch.rows", "optim.lr")


def nominal_speed(compute: ComputeConfig) -> float:
    """FLOP/s that training is taken to reach on the device that `compute` chooses, or several.

    Raises:
        InputError: this machine has no such device.
    """
    import torch

    from crammed.device import choose_kind, known_peak
    from crammed.workers import cores, started

    kind = choose_kind(compute, [])
    if kind == "cpu":
        return CORE * (compute.threads or cores())
    if kind == "mps":
        return APPLE
    peak = known_peak(torch.cuda.get_device_name())
    if peak is not None:
        return started() * SHARE_OF_PEAK * peak
    return started() * MULTIPROCESSOR * torch.cuda.get_device_properties().multi_processor_count


def follow_budget(
    config: RunConfig, keys: Collection[str], speed: float, rows: int | None = None
) -> RunConfig:
    """`config` with the values of these keys replaced by what its budget and `speed` give.

    Args:
        keys: dotted, out of `FOLLOWERS`.
        speed: FLOP/s of the device.
        rows: of the corpus; None if there is none yet.

    Raises:
        InputError: there is no rule for a key, or no shape suits the rest of the configuration.
    """
    if unknown := sorted(set(keys) - set(FOLLOWERS)):
        raise InputError(
            f"follows_budget: no rule for {', '.join(unknown)}; there is one for "
            f"{', '.join(FOLLOWERS)}"
        )
    tried = [_in_shape(config, keys, layers, width) for layers, width in SHAPES]
    shapes = [shape for shape in tried if shape is not None]
    if not shapes:
        raise InputError(
            f"no width of the rules suits model.head_dim={config.model.head_dim} and "
            f"model.ffn_ratio={config.model.ffn_ratio:g}: set model.layers and model.width"
        )
    place, _ = best_of([Size.of(shape, tokens(shape, speed), rows) for shape in shapes])
    config = shapes[place]
    if "batch.rows" in keys:
        wanted = batch_tokens(tokens(config, speed)) / config.data.row_length
        config = with_values(config, {"batch.rows": max(1, 2 ** round(math.log2(wanted)))})
    if "optim.lr" in keys:
        config = with_values(config, {"optim.lr": learning_rate(config)})
    return config


@dataclass(frozen=True)
class Size:
    """A size that a budget could go to.

    Attributes:
        parameters: of the layers' products.
        tokens: that the budget pays for.
        epochs: how often they are the whole text; None where that is not known.
    """

    parameters: int
    tokens: float
    epochs: float | None

    @classmethod
    def of(cls, config: RunConfig, tokens: float, rows: int | None) -> Size:
        """The size of a configuration that reads `tokens` of a corpus of `rows`."""
        epochs = tokens / config.data.row_length / rows if rows is not None else None
        return cls(block_matrix_parameters(config.model), tokens, epochs)


def best_of(sizes: Sequence[Size]) -> tuple[int, str]:
    """The place of the size to train among some in ascending order, and why.

    Among those that read the text at most `MOST_EPOCHS` times, the largest that still gets
    `TOKENS_A_PARAMETER`; the smallest of them if none does. A rule of thumb: the loss depends
    little on the size (Geiping and Goldstein 2022, section 4.2), so that half or twice as large
    is no mistake.
    """
    fresh = [n for n, size in enumerate(sizes) if (size.epochs or 0.0) <= MOST_EPOCHS]
    fed = [n for n in fresh if sizes[n].tokens >= TOKENS_A_PARAMETER * sizes[n].parameters]
    wanted = f"{TOKENS_A_PARAMETER:g} tokens a parameter of its layers"
    if fed:
        return fed[-1], f"the largest with {wanted}"
    if not fresh:
        return len(sizes) - 1, f"every size reads the text more than {MOST_EPOCHS:g} times"
    if fresh[0] == 0:
        return 0, f"no size gets {wanted}, and the smallest comes nearest"
    often = f"smaller ones read the text more than {MOST_EPOCHS:g} times"
    return fresh[0], f"{often}, larger ones learn less"


def _in_shape(
    config: RunConfig, keys: Collection[str], layers: int, width: int
) -> RunConfig | None:
    """`config` in this shape, as far as it is free; None where the two do not go together."""
    shape = {"model.layers": layers, "model.width": width}
    values = {key: value for key, value in shape.items() if key in keys}
    if "tokenizer.vocab_size" in keys:
        values["tokenizer.vocab_size"] = vocabulary(values.get("model.width", config.model.width))
    try:
        return with_values(config, values)
    except ValidationError:
        return None


def tokens(config: RunConfig, speed: float) -> float:
    """How many tokens the budget pays for, at `speed` FLOP/s."""
    budget = config.budget.limit
    if budget.kind == "tokens":
        return budget.limit
    if budget.kind == "updates":  # tokens = updates x batch, and the batch follows the tokens
        a_million = BATCH_TOKENS / BATCH_AT**BATCH_POWER
        whole: float = (budget.limit * a_million) ** (1.0 / (1.0 - BATCH_POWER))
        return whole
    flops = budget.limit * (speed if budget.kind == "time" else 1.0)
    return flops / _flops_per_token(config)


def _flops_per_token(config: RunConfig) -> float:
    length = config.data.row_length
    predicted = predicted_positions(config.masking.rate, length)
    return train_flops_per_token(config.model, config.tokenizer.vocab_size, length, predicted)


def expected_tokens(config: RunConfig) -> float:
    """How many tokens a run reads at the nominal speed of its device.

    Raises:
        InputError: this machine has no such device.
    """
    budget = config.budget.limit
    if budget.kind == "updates":
        return budget.limit * config.batch.rows * config.data.row_length
    return tokens(config, nominal_speed(config.compute))


def expected_seconds(config: RunConfig) -> float:
    """How long it takes at that speed; of a budget in time, all of it. Raises as above."""
    budget = config.budget.limit
    if budget.kind == "time":
        return budget.limit
    return expected_tokens(config) * _flops_per_token(config) / nominal_speed(config.compute)


def seconds_a_shape(config: RunConfig) -> float:
    """Those seconds, shared among the shapes that a compiler would have to compile, or more.

    Every size of a growing batch and every mask rate may have its own. Raises as above.
    """
    batch, masking = config.batch, config.masking
    sizes = math.ceil(batch.rows / batch.ramp_quantum) if batch.ramp else 1
    rates = 1 if masking.final_rate is None else masking.stages
    return expected_seconds(config) / (sizes * rates)


def batch_tokens(tokens: float) -> float:
    """Tokens of an update in a run of so many."""
    wanted: float = BATCH_TOKENS * (tokens / BATCH_AT) ** BATCH_POWER
    return min(max(wanted, SMALLEST_BATCH), LARGEST_BATCH)


def vocabulary(width: int) -> int:
    """Size of a vocabulary whose head costs less than the layers of a model of this width."""
    return 8192 if width < 256 else 16384 if width < 512 else 32768


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """`config` with dotted keys replaced, validated anew."""
    change: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        change.setdefault(section, {})[name] = value
    return RunConfig.model_validate(overlaid(config.model_dump(mode="json"), change, RunConfig))
