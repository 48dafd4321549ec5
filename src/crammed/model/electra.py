"""What a model is trained beside if its objective is to find replaced tokens (Clark et al. 2020).

None of it outlives training.
"""

from __future__ import annotations

from torch import Tensor, nn

from crammed.model.blocks import ACTIVATIONS, Config, Linear
from crammed.model.encoder import Encoder, MaskedLM


class Detector(nn.Module):
    """Hidden states [..., D] to logits [...] of each token's having been replaced."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = Linear(config.width, config.width)
        self.activation = ACTIVATIONS[config.activation].function
        self.score = Linear(config.width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.score(self.activation(self.dense(hidden)))
        return scores.squeeze(-1)


class Electra(MaskedLM):
    """A masked language model with a detector, and a generator that has the same embeddings.

    Attributes:
        generator: another masked language model, which replaces tokens.
        detector: says of each token whether it was replaced.
    """

    def __init__(self, config: Config, vocab_size: int, generator: Config) -> None:
        super().__init__(config, vocab_size)
        self.generator = MaskedLM(generator, vocab_size)
        self.generator.encoder.tokens = self.encoder.tokens
        self.detector = Detector(config)


def model_in_training(config: Config, vocab_size: int, generator: Config | None) -> MaskedLM:
    """A model without initial weights, with all that is trained beside it.

    Args:
        generator: configuration of its generator; None if it has none.
    """
    if generator is None:
        return MaskedLM(config, vocab_size)
    return Electra(config, vocab_size, generator)


def encoders_of(model: MaskedLM) -> list[Encoder]:
    """The model's encoder, then that of its generator if it has one."""
    return [module for module in model.modules() if isinstance(module, Encoder)]


def lasting(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that outlive training, by name."""
    beside = ("generator.", "detector.") if isinstance(model, Electra) else ()
    return {name: p for name, p in model.named_parameters() if not name.startswith(beside)}
