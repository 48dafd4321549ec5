"""Number formats of training: the trained weights stay float32, what is computed need not.

A model's activations are in one format from the embedding's norm to the logits, so the residual
stream and the norms move half the bytes in a 16-bit format (autocast leaves them in float32).
Weights are cast where they are used and stay float32 masters (Micikevicius et al. 2018, section
3.1), and so do their gradients, which are added up in float32. The embedding tables are read in
float32, so that the gradient of a frequent token is a float32 sum; losses are float32.
"""

from __future__ import annotations

import copy
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from crammed.model.encoder import Attention, FeedForward, Layer, MaskedLM
from crammed.training.float8 import Float8Linear


class CastLinear(nn.Linear):
    """A linear layer in the format of its input."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class CastLayerNorm(nn.LayerNorm):
    """A norm from and to the format of its input; float32 inside, which a compiler fuses.

    PyTorch's own 16-bit norm does the same, but adds up its weights' gradients in 16 bits on a CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).to(x.dtype)


class Cast(nn.Module):
    """Turns activations into a format."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


class RecomputedLayer(Layer):
    """A layer that can forget what it computed and compute it again for the gradients.

    Attributes:
        on: whether it does (Chen et al. 2016): a third more work, a fraction of the memory.
    """

    on = False

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> Tensor:
        if not self.on:
            return super().forward(x, rotary, mask)
        forward = partial(Layer.forward, self)
        output: Tensor = checkpoint(forward, x, rotary, mask, use_reentrant=False)
        return output


def training_twin(model: MaskedLM, dtype: torch.dtype, *, fp8: bool = False) -> MaskedLM:
    """The same parameters, shared, behind modules that compute in `dtype`, in training mode.

    Args:
        fp8: multiply in 8 bits in the layers; the rest stays in `dtype`.
    """
    shared = {id(parameter): parameter for parameter in model.parameters()}
    twin = copy.deepcopy(model, shared).train()
    for module in list(twin.modules()):
        if fp8 and isinstance(module, Attention):
            module.qkv.__class__ = module.out.__class__ = Float8Linear
        elif fp8 and isinstance(module, FeedForward):
            module.up.__class__ = module.down.__class__ = Float8Linear
    for module in list(twin.modules()):
        if type(module) is nn.Linear:
            module.__class__ = CastLinear
        elif type(module) is nn.LayerNorm:
            module.__class__ = CastLayerNorm
        elif type(module) is Layer:
            module.__class__ = RecomputedLayer
    encoder = twin.encoder
    encoder.embedding_norm = nn.Sequential(encoder.embedding_norm, Cast(dtype))
    return twin


def recompute(twin: MaskedLM) -> None:
    """Let the layers of a `training_twin` compute their activations again from now on."""
    for module in twin.modules():
        if isinstance(module, RecomputedLayer):
            module.on = True


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
