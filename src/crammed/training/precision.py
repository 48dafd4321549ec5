"""Number formats of training: the trained weights stay float32, what is computed need not.

A model's activations are in one format from the embedding's norm to the logits, so the residual
stream and the norms move half the bytes in a 16-bit format (autocast leaves them in float32).
Weights are cast where they are used and stay float32 masters (Micikevicius et al. 2018, section
3.1), and so do their gradients, which are added up in float32. The embedding tables are read in
float32, so that the gradient of a frequent token is a float32 sum; losses are float32.
"""

from __future__ import annotations

import copy

import torch

from crammed.model.encoder import Layer, MaskedLM, products_of
from crammed.training.float8 import Float8Linear


def training_copy(model: MaskedLM, dtype: torch.dtype, *, fp8: bool = False) -> MaskedLM:
    """A copy for training: it shares the parameters and computes in `dtype`, in training mode.

    Args:
        fp8: compute the products of the layers in 8 bits; the rest stays in `dtype`.
    """
    shared = {id(parameter): parameter for parameter in model.parameters()}
    made = copy.deepcopy(model, shared).train()
    made.encoder.compute_dtype = dtype
    if fp8:
        for product in products_of(made):
            product.linear.__class__ = Float8Linear
    return made


def recompute(model: MaskedLM) -> None:
    """Let the layers compute their activations again for the gradients from now on."""
    for module in model.modules():
        if isinstance(module, Layer):
            module.recompute = True


class LossScale:
    """Lifts small gradients into float16's range (Micikevicius et al. 2018, section 3.2).

    Starts high; halves when a gradient is not finite, doubles after long enough without. It is a
    number on the host, because whether an update is skipped must be known there anyway.
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
        """What a checkpoint keeps."""
        return {"value": self.value, "finite": self._finite}

    def restore(self, state: dict[str, float]) -> None:
        """Go on from a checkpoint."""
        self.value, self._finite = float(state["value"]), int(state["finite"])
