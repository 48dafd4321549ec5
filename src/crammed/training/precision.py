"""Number formats of training: weights and gradients stay float32, activations need not.

Activations are in one format from the embedding norm to the logits. In a 16-bit format the residual
stream and the norms then move half the bytes, where autocast leaves them in float32. Weights are
float32 masters (Micikevicius et al. 2018, section 3.1): modules cast them to the format of their
input, and gradients are added up in float32. The embedding tables are read in float32, so that the
gradient of a frequent token is a float32 sum. Losses are float32.
"""

from __future__ import annotations

import copy

import torch

from crammed.model.encoder import Layer, MaskedLM, products_of
from crammed.training.float8 import Float8Linear


def training_copy(
    model: MaskedLM, dtype: torch.dtype, *, fp8: bool = False, regional: bool = False
) -> MaskedLM:
    """A copy for training: it shares the parameters and computes in `dtype`, in training mode.

    Args:
        fp8: compute the products of the layers in 8 bits; the rest stays in `dtype`.
        regional: let a compiler compile one layer for all, where that is possible.
    """
    shared = {id(parameter): parameter for parameter in model.parameters()}
    made = copy.deepcopy(model, shared).train()
    made.encoder.compute_dtype = dtype
    if fp8:
        for product in products_of(made):
            product.linear.__class__ = Float8Linear
    if regional:
        from crammed.training.regions import RegionalEncoder  # takes long, as it loads a compiler

        RegionalEncoder.take_over(made.encoder)
    return made


def recompute(model: MaskedLM) -> None:
    """Let the layers compute their activations again for the gradients from now on."""
    for module in model.modules():
        if isinstance(module, Layer):
            module.recompute = True


class LossScale:
    """Lifts small gradients into the range of float16 (Micikevicius et al. 2018, section 3.2).

    It starts high, halves when a gradient is not finite, and doubles after `GROWS_AFTER` finite
    updates in a row. It is a number on the host, which has to know anyway whether an update is
    skipped.
    """

    FIRST = 2.0**16
    GROWS_AFTER = 2000
    """Updates, as in `torch.amp.GradScaler`."""

    def __init__(self) -> None:
        self.value = self.FIRST
        self._finite = 0

    def adapt(self, finite: bool) -> None:
        """Learn from an update whether its gradients were finite."""
        self._finite = self._finite + 1 if finite else 0
        if not finite:
            self.value /= 2.0
        elif self._finite == self.GROWS_AFTER:
            self.value *= 2.0
            self._finite = 0

    def state(self) -> dict[str, float]:
        """The values that a checkpoint keeps."""
        return {"value": self.value, "finite": self._finite}

    def restore(self, state: dict[str, float]) -> None:
        """Take over the values of a checkpoint."""
        self.value, self._finite = float(state["value"]), int(state["finite"])
