"""The values that follow from the budget: a recipe lists them, and these rules fill them in.

The budget and the device determine how many tokens a model of a given size can be trained on; the
size, the batch and the learning rate follow from that number. A recipe lists the keys under
`follows_budget`; a value set by the recipe or on the command line stays as it is.

The speed of the device is an argument here; `choosing` says where it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crammed.config import RunConfig
from crammed.config.corpus import LEAST_TOKENS
from crammed.config.kinds import overlaid
from crammed.config.optim import AdamLike, MuonConfig
from crammed.config.yamlfile import validated
from crammed.data.masking import predicted_positions
from crammed.errors import InputError
from crammed.machine.speed import nominal_speed
from crammed.model.count import block_matrix_parameters, run_flops_per_token

SHAPES = (
    (2, 64),
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
"""Layers and width of the available sizes. Each has 1.3 to 2.4 times the weights of the one before,
2 x 128 four times."""
LARGEST_HEAD = 64
FEWEST_HEADS = 2
"""Narrow models have narrow heads, so that one looks back and one ahead when attention starts."""
SMALL = 1e6
TOKENS_OF_SMALL, TOKENS_OF_LARGE = 10.0, 20.0
"""Compute-optimal tokens per weight of the layers' matrices. Models with fewer than a million of
these weights, up to 4 x 128, were compared here (docs/recipe.md); larger ones by Hoffmann et al.
(2022)."""
MOST_EPOCHS = 4.0
"""Further epochs do not count towards the size, as measured on texts of a quarter of a million to
three million tokens (docs/text.md), and as others found for language models (Muennighoff et al.
2023). `budget.most_epochs` decides when a run ends."""
BATCH_TOKENS = 1024.0
BATCH_AT = 1e6
BATCH_POWER = 0.6
"""An update has 1,024 tokens in a run of a million, as measured here. With this exponent it has
half a million in a run of 30 billion, as others use."""
LARGEST_BATCH = 1_048_576
SMALLEST_BATCH = 512
RATE = 1e-3
RATE_WIDTH = 768
MATRIX_RATE = 1.6
"""Muon's rate as a multiple of AdamW's, as measured here at widths 64 and 128."""


def learning_rate(config: RunConfig) -> float:
    """The paper's learning rate at width 768, times sqrt(768 / width) elsewhere."""
    return RATE * math.sqrt(RATE_WIDTH / config.model.width)


def rates_of_width(config: RunConfig) -> tuple[str, ...]:
    """Keys of the learning rates that follow from the width: those of Adam and its relatives."""
    if not isinstance(config.optim, AdamLike):
        return ()
    if isinstance(config.optim, MuonConfig):
        return ("optim.lr", "optim.matrix_lr")
    return ("optim.lr",)


def head_dim(width: int, fewest: int = FEWEST_HEADS) -> int:
    """The widest head that leaves this many: an even divisor of the width, for rotary."""
    most = min(LARGEST_HEAD, width // fewest)
    return max((size for size in range(2, most + 1, 2) if width % size == 0), default=width)


SIZES = ("model.layers", "model.width", "model.head_dim", "tokenizer.vocab_size")
FOLLOWERS = (*SIZES, "batch.rows", "optim.lr", "optim.matrix_lr")


def follow_budget(
    config: RunConfig, keys: Collection[str], speed: float, rows: float | None = None
) -> RunConfig:
    """`config` with the values of `keys` replaced by those that follow from its budget and `speed`.

    Args:
        keys: dotted keys from `FOLLOWERS`.
        speed: FLOP/s of the device.
        rows: number of rows in the corpus; None if there is no corpus yet.

    Raises:
        InputError: there is no rule for a key, or what follows contradicts the rest of the
            configuration.
    """
    refuse_unruled(keys)
    if any(key in SIZES for key in keys):
        config, _ = best_shape(config, keys, speed, rows)
    if "batch.rows" in keys:
        read = min(tokens(config, speed), config.most_tokens(rows))
        wanted = batch_tokens(read) / config.data.row_length
        config = with_values(config, {"batch.rows": max(1, 2 ** round(math.log2(wanted)))})
    return with_rates(config, keys, learning_rate(config))


def with_rates(config: RunConfig, keys: Collection[str], rate: float) -> RunConfig:
    """`config` with the learning rates among `keys` that follow from the width.

    Args:
        rate: AdamW's.
    """
    rates = set(keys).intersection(rates_of_width(config))
    if "optim.lr" in rates:
        config = with_values(config, {"optim.lr": rate})
    if "optim.matrix_lr" in rates:
        config = with_values(config, {"optim.matrix_lr": MATRIX_RATE * config.optim.lr})
    return config


def refuse_unruled(keys: Collection[str]) -> None:
    if unknown := sorted(set(keys) - set(FOLLOWERS)):
        raise InputError(
            f"follows_budget: there is no rule for {', '.join(unknown)}; the keys with a rule are "
            f"{', '.join(FOLLOWERS)}"
        )


def best_shape(
    config: RunConfig, keys: Collection[str], speed: float, rows: float | None = None
) -> tuple[RunConfig, str]:
    """`config` in the best size that changing only `keys` allows, and the reason.

    Raises:
        InputError: no size suits the rest of the configuration.
    """
    tried = [in_shape(config, keys, layers, width) for layers, width in SHAPES]
    shapes = [shape for shape in tried if shape is not None]
    if not shapes:
        raise InputError(
            f"no width that follows from the budget suits model.head_dim={config.model.head_dim} "
            f"and model.ffn_ratio={config.model.ffn_ratio:g}: set model.layers and model.width"
        )
    follows = "batch.rows" in keys
    paid: Callable[[RunConfig, float], float] = tokens if follows else expected_tokens
    place, why = best_of([Candidate.of(shape, paid(shape, speed), rows) for shape in shapes])
    return shapes[place], why


@dataclass(frozen=True)
class Candidate:
    """A size that the budget could be spent on.

    Attributes:
        parameters: weights of the layers' matrices.
        tokens: how many tokens the budget pays for.
        epochs: how many epochs that makes; None if the length of the text is unknown.
        most_epochs: how many epochs count.
    """

    parameters: int
    tokens: float
    epochs: float | None
    most_epochs: float = MOST_EPOCHS

    @property
    def tokens_that_count(self) -> float:
        if not self.epochs:
            return self.tokens
        return min(1.0, self.most_epochs / self.epochs) * self.tokens

    @classmethod
    def of(cls, config: RunConfig, tokens: float, rows: float | None) -> Candidate:
        """The size of a configuration that reads `tokens` tokens of a corpus of `rows` rows."""
        epochs = tokens / config.data.row_length / rows if rows is not None else None
        return cls(block_matrix_parameters(config.model), tokens, epochs, epochs_that_count(config))


def epochs_that_count(config: RunConfig) -> float:
    """How many epochs count: `MOST_EPOCHS`, or fewer if `budget.most_epochs` ends the run."""
    return min(MOST_EPOCHS, config.budget.most_epochs or math.inf)


def tokens_per_parameter(parameters: int) -> float:
    """How many tokens per weight a model needs, given the weights of its layers' matrices."""
    return TOKENS_OF_SMALL if parameters < SMALL else TOKENS_OF_LARGE


def best_of(sizes: Sequence[Candidate]) -> tuple[int, str]:
    """The index of the size to train, given sizes in ascending order, and the reason.

    This is the largest that gets its `tokens_per_parameter`, or the smallest if none does; epochs
    beyond `epochs_that_count` do not count. So a larger budget never chooses a smaller size, and
    little text never chooses a large one. It is a rule of thumb: the loss depends little on the
    size (Geiping and Goldstein 2022, section 4.2), so half or twice the size is no mistake.
    """
    needed = [tokens_per_parameter(size.parameters) * size.parameters for size in sizes]
    fed = [n for n, size in enumerate(sizes) if size.tokens_that_count >= needed[n]]
    place = fed[-1] if fed else 0
    wanted = f"{tokens_per_parameter(sizes[place].parameters):g} tokens per parameter of its layers"
    if any(size.tokens >= needed[n] for n, size in enumerate(sizes) if n > place):
        most = sizes[0].most_epochs
        wanted += f" from reading the text at most {'once' if most == 1 else f'{most:g} times'}"
    if fed:
        return place, f"the largest that gets {wanted}"
    return place, f"no size gets {wanted}, and the smallest comes nearest"


def in_shape(config: RunConfig, keys: Collection[str], layers: int, width: int) -> RunConfig | None:
    """`config` with these layers and this width where `keys` allow it; None if that is invalid."""
    shape = {"model.layers": layers, "model.width": width}
    values = {key: value for key, value in shape.items() if key in keys}
    own = values.get("model.width", config.model.width)
    if "model.head_dim" in keys:
        values["model.head_dim"] = head_dim(own)
    if "tokenizer.vocab_size" in keys:
        values["tokenizer.vocab_size"] = vocabulary(own)
    try:
        return with_values(config, values)
    except InputError:
        return None


def tokens(config: RunConfig, speed: float) -> float:
    """How many tokens the budget pays for at `speed` FLOP/s, if the batch follows from it."""
    budget = config.budget.limit
    if budget.kind == "tokens":
        return budget.limit
    if budget.kind == "updates":  # tokens = updates x batch, and the batch follows the tokens
        a_million = BATCH_TOKENS / BATCH_AT**BATCH_POWER
        whole: float = (budget.limit * a_million) ** (1.0 / (1.0 - BATCH_POWER))
        return whole
    flops = budget.limit * (speed if budget.kind == "time" else 1.0)
    return flops / flops_per_token(config)


def flops_per_token(config: RunConfig) -> float:
    """Training FLOPs for each token of a run, counted at its first mask rate."""
    length = config.data.row_length
    predicted = predicted_positions(config.masking.rate, length)
    return run_flops_per_token(config, config.tokenizer.vocab_size, predicted)


def expected_tokens(
    config: RunConfig, speed: float | None = None, rows: float | None = None
) -> float:
    """How many tokens a run will read.

    Args:
        speed: measured FLOP/s; None is the nominal speed of the device.
        rows: number of rows in the corpus, whose length may end the run; None counts only what the
            budget pays for.

    Raises:
        InputError: this machine has no such device.
    """
    budget = config.budget.limit
    if budget.kind == "updates":
        paid = budget.limit * config.batch.rows * config.data.row_length
    else:
        paid = tokens(config, speed or nominal_speed(config.compute))
    return min(paid, config.most_tokens(rows))


def expected_seconds(config: RunConfig, rows: float | None = None) -> float:
    """How many seconds a run will take at the nominal speed.

    A time budget is spent in full, unless the length of the text ends the run.

    Args:
        rows: as in `expected_tokens`.

    Raises:
        InputError: this machine has no such device.
    """
    budget = config.budget.limit
    if budget.kind == "time" and math.isinf(config.most_tokens(rows)):
        return budget.limit
    read = expected_tokens(config, rows=rows)
    return read * flops_per_token(config) / nominal_speed(config.compute)


def seconds_a_shape(config: RunConfig, rows: float | None = None) -> float:
    """The expected seconds of a run per shape that may have to be compiled.

    Every combination of a batch size of the ramp, a mask rate, a length of rows and a depth may be
    a shape of its own.

    Args:
        rows: as in `expected_tokens`.

    Raises:
        InputError: this machine has no such device.
    """
    batch = config.batch
    sizes = math.ceil(batch.rows / batch.ramp_quantum) if batch.ramp else 1
    rates, lengths = len(set(config.mask_rates())), len(config.lengths())
    depths = 1 + len(config.train.grow_at)
    return expected_seconds(config, rows) / (sizes * rates * lengths * depths)


def batch_tokens(tokens: float) -> float:
    """Tokens of one update in a run of `tokens` tokens."""
    wanted: float = BATCH_TOKENS * (tokens / BATCH_AT) ** BATCH_POWER
    return min(max(wanted, SMALLEST_BATCH), LARGEST_BATCH)


def vocabulary(width: int) -> int:
    """A vocabulary size at which the head costs less than layers of this width."""
    return 8192 if width < 256 else 16384 if width < 512 else 32768


def in_vocabulary(config: RunConfig, size: int | None) -> RunConfig:
    """`config` with the vocabulary size of the corpus, for counting costs.

    Little text cannot fill the requested vocabulary, which makes each token cheaper.

    Args:
        size: None if there is no corpus yet, which keeps the requested size.
    """
    if size is None:
        return config
    return with_values(config, {"tokenizer.vocab_size": max(LEAST_TOKENS, size)})


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """`config` with the values of dotted keys replaced, as by overrides.

    Raises:
        InputError: they contradict other values.
    """
    change: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        change.setdefault(section, {})[name] = value
    made = overlaid(config.model_dump(mode="json"), change, RunConfig)
    return validated(RunConfig, made, ", ".join(f"{key}={value}" for key, value in values.items()))
