"""Number formats of training: weights and gradients stay in float32, activations need not.

Activations have one format from the embedding norm to the logits. In a 16-bit format, the residual
stream and the norms then move half the bytes; autocast would leave them in float32. Weights are
float32 masters (Micikevicius et al. 2018, section 3.1): products use 16-bit casts of them, and
gradients are summed in float32. The embedding tables are read in float32, so that the gradient of
a frequent token is a float32 sum. Losses are float32.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from crammed.model.blocks import Linear
from crammed.model.electra import encoders_of
from crammed.model.encoder import MaskedLM, products_of
from crammed.model.layer import Layer
from crammed.training.update.float8 import Float8Linear, Float8Scales


def training_copy(
    model: MaskedLM, dtype: torch.dtype, *, fp8: bool = False, regional: bool = False
) -> MaskedLM:
    """A copy for training: it shares the parameters and computes in `dtype`, in training mode.

    Args:
        fp8: compute the products of the layers in 8 bits; everything else stays in `dtype`.
        regional: compile one layer for all of them, where possible.
    """
    shared = {id(parameter): parameter for parameter in model.parameters()}
    made = copy.deepcopy(model, shared).train()
    for encoder in encoders_of(made):
        encoder.compute_dtype = dtype
    if fp8:
        for product in products_of(made):
            Float8Linear.take_over(product.linear)
    if regional:
        from crammed.training.update.regions import RegionalEncoder  # slow: it loads the compiler

        for encoder in encoders_of(made):
            RegionalEncoder.take_over(encoder)
    return made


Found = tuple[Tensor | None, ...]
"""Gradients for the leaves, in their order; None for those that the loss does not depend on."""


class Leaves:
    """What the loss of a training copy is differentiated by: parameters, or 16-bit casts of them.

    In a copy that computes in 16 bits, the linear layers get weights of their own in that format.
    These are cast once per update instead of once per microbatch, and their 16-bit gradients are
    added to float32 sums. The numbers are the same as with casts in the layers; layers that
    multiply in 8 bits quantise the casts. Layers that are run in several passes cast their weights
    each time, so that the gradients of all passes are summed in float32.

    Args:
        trained: a training copy, whose linear layers get other weights, or the model of another
            library, which keeps its own.
        decoder: cast the embedding for the decoder in the same way. The gradients of its two uses
            are then added to the float32 sum one after the other, not first to each other.

    Attributes:
        tensors: all leaves.
        decoder: the embedding as cast for the decoder; None leaves the cast to the decoder.
        cast_bytes: memory of the casts.
        scales: scales of 8-bit products; None if there are none.
    """

    def __init__(self, trained: nn.Module, *, decoder: bool = False) -> None:
        self._casts: list[tuple[nn.Parameter, Tensor]] = []
        self.decoder: nn.Parameter | None = None
        parameters = [each for each in trained.parameters() if each.requires_grad]
        dtype = trained.encoder.compute_dtype if isinstance(trained, MaskedLM) else None

        def cast(parameter: Tensor) -> nn.Parameter:
            self._casts.append((nn.Parameter(parameter.detach().to(dtype)), parameter))
            return self._casts[-1][0]

        if isinstance(trained, MaskedLM) and dtype is not None and dtype.itemsize == 2:
            again: set[nn.Module | None] = set()
            for encoder in encoders_of(trained):
                # It computes in float32 first, and in 16 bits at the end.
                again.add(encoder.widen)
                if encoder.config.passes > 1:
                    again |= set(encoder.layers.modules())
            for module in trained.modules():
                if isinstance(module, Linear) and module not in again:
                    for name, parameter in list(module.named_parameters(recurse=False)):
                        setattr(module, name, cast(parameter))
            if decoder:
                self.decoder = cast(trained.table())
        kept = {id(parameter) for parameter in trained.parameters()}
        shared = [(each, each) for each in parameters if id(each) in kept]
        self._pairs: list[tuple[Tensor, Tensor]] = [*shared, *self._casts]
        self.tensors = [leaf for leaf, _ in self._pairs]
        self.cast_bytes = sum(made.nbytes for made, _ in self._casts)
        eight_bit = any(isinstance(module, Float8Linear) for module in trained.modules())
        self.scales = Float8Scales(trained) if eight_bit else None

    def refresh(self) -> None:
        """Cast and quantise the parameters again, after they have changed."""
        if self._casts:
            with torch.no_grad():
                torch._foreach_copy_([made for made, _ in self._casts], [p for _, p in self._casts])
        if self.scales is not None:
            self.scales.quantise()

    def differentiate(self, loss: Tensor) -> Found:
        """The loss's gradients for the leaves; several threads may do this at a time."""
        more = [] if self.scales is None else self.scales.numbers
        return torch.autograd.grad(loss, [*self.tensors, *more], allow_unused=True)

    def add(self, found: Found) -> None:
        """Add what `differentiate` found to the gradients of the parameters (their ``grad``)."""
        gradients: list[Tensor | None] = [*found[: len(self.tensors)]]
        if self.scales is not None:
            self.scales.note([each for each in found[len(self.tensors) :] if each is not None])
        # In few launches: in small models, they take longer than the computing.
        made: list[Tensor] = []
        cast: list[Tensor] = []
        sums: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for gradient, (_, parameter) in zip(gradients, self._pairs, strict=True):
            if gradient is None:
                continue
            if parameter.grad is not None:
                totals, added = sums.setdefault(gradient.dtype, ([], []))
                totals.append(parameter.grad)
                added.append(gradient)
            elif gradient.dtype == parameter.dtype:
                parameter.grad = gradient
            else:
                parameter.grad = torch.empty_like(gradient, dtype=parameter.dtype)
                made.append(parameter.grad)
                cast.append(gradient)
        if made:
            torch._foreach_copy_(made, cast)
        for totals, added in sums.values():  # a launch each where the formats differ
            torch._foreach_add_(totals, added)


def recompute(model: MaskedLM) -> None:
    """Make the layers recompute their activations for the gradients from now on."""
    for module in model.modules():
        if isinstance(module, Layer):
            module.recompute = True


class LossScale:
    """Lifts small gradients into the range of float16 (Micikevicius et al. 2018, section 3.2).

    It starts high, halves when a gradient is not finite, and doubles after `GROWS_AFTER` finite
    updates in a row. It is kept on the host, which has to know anyway whether an update is skipped.
    """

    FIRST = 2.0**16
    GROWS_AFTER = 2000
    """Updates, as in `torch.amp.GradScaler`."""

    def __init__(self) -> None:
        self.value = self.FIRST
        self._finite = 0

    def adapt(self, finite: bool) -> None:
        self._finite = self._finite + 1 if finite else 0
        if not finite:
            self.value /= 2.0
        elif self._finite == self.GROWS_AFTER:
            self.value *= 2.0
            self._finite = 0

    def state(self) -> dict[str, float]:
        return {"value": self.value, "finite": self._finite}

    def restore(self, state: dict[str, float] | None) -> None:
        """Load the values of a checkpoint, if they are those of a loss scale."""
        if state is not None and state.keys() == self.state().keys():
            self.value, self._finite = float(state["value"]), int(state["finite"])
