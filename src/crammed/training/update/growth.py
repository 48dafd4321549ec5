"""Depth and layer drop that grow in training.

Gong et al. (2019) train a shallow model first, whose updates are cheaper, and double it: the lower
half of the layers is copied above itself. All layers have their weights from the beginning, so that
a checkpoint holds the same tensors at any depth; those that are not in use yet get no gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from crammed.model.encoder import Encoder
from crammed.model.layer import Layer
from crammed.optim.build import Optimizers
from crammed.training.update.average import is_average


class Growth:
    """The layers in use, of encoders and of their copies that share the parameters.

    Args:
        encoders: as deep as each other; none for a model of another library.
        rises: whether the share of dropped layers changes, in proportion to their depth.

    Attributes:
        layers: how many are in use.
        grows: whether others come later, or came.
    """

    def __init__(
        self,
        encoders: Sequence[Encoder] = (),
        copies: Sequence[Encoder] = (),
        optimizer: Optimizers | None = None,
        layers: int = 1,
        *,
        rises: bool = False,
    ) -> None:
        self._encoders, self._optimizer = encoders, optimizer
        self._all = [*encoders, *copies]
        self._drops = _rising(self._all) if rises else []
        self.grows = any(layers < len(encoder.layers) for encoder in encoders)
        self.use(layers)

    def use(self, layers: int) -> None:
        """Use so many layers, with the weights that they have."""
        self.layers = layers
        for encoder in self._all:
            encoder.depth = layers

    def depths(self) -> Iterable[int]:
        """All numbers of layers from now on, the largest first."""
        whole = max((len(encoder.layers) for encoder in self._encoders), default=self.layers)
        while whole >= self.layers:
            yield whole
            whole //= 2

    def used(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Those of the parameters that are in use; the others have no gradients."""
        without = {parameter for encoder in self._encoders for parameter in encoder.unused()}
        return [parameter for parameter in parameters if parameter not in without]

    @torch.no_grad()
    def reach(self, layers: int | None) -> None:
        """Double the depth until there are so many layers; optimizer state is copied as well.

        What a layer has that the one below lacks, such as a norm in front of it, stays as it began.
        """
        while self._encoders and layers is not None and self.layers < layers:
            for encoder in self._encoders:
                self._double(encoder.layers)
            self.use(2 * self.layers)

    def _double(self, stack: nn.ModuleList) -> None:
        assert self._optimizer is not None
        state = self._optimizer.state
        for lower, upper in zip(stack, stack[self.layers : 2 * self.layers], strict=False):
            theirs = dict(lower.named_parameters())
            for name, parameter in upper.named_parameters():
                source = theirs.get(name, parameter)
                parameter.copy_(source)
                state.pop(parameter, None)  # its average alone, or zeros of older versions
                if source in state:
                    state[parameter] = copy.deepcopy(state[source])
        # Averages that are alone are dropped: PyTorch's optimizers take any state for a whole one,
        # and these weights have had no update yet.
        alone = [p for p, own in state.items() if own and all(map(is_average, own))]
        if len(alone) < sum(map(bool, state.values())):  # SGD without momentum has nothing else
            for lone in alone:
                del state[lone]

    def drop(self, share: float) -> None:
        """Drop layers as often as this share of the configuration's."""
        for held, most in self._drops:
            held.fill_(share * most)


def _rising(encoders: Sequence[Encoder]) -> list[tuple[torch.Tensor, float]]:
    """What each layer reads as its drop rate from now on, and the most that this is to be."""
    found = []
    for encoder in encoders:
        for n, layer in enumerate(encoder.layers, start=1):
            assert isinstance(layer, Layer)
            most = encoder.config.layer_drop * n / len(encoder.layers)
            layer.drop = torch.zeros((), device=encoder.tokens.weight.device)
            found.append((layer.drop, most))
    return found
