"""A running average of the weights, kept beside the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from crammed.optim.build import Optimizers

KEY = "average"
"""Its name in the state of each parameter, with which checkpoints save and restore it."""


class Average:
    """After each update, the average moves towards the weights by the share 1 - `decay`.

    It begins as the weights after the first update.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], optimizer: Optimizers, decay: float
    ) -> None:
        self._parameters, self._state, self._decay = parameters, optimizer.state, decay

    def _averages(self) -> list[Tensor]:
        return [self._state[parameter][KEY] for parameter in self._parameters]

    @torch.no_grad()
    def follow(self) -> None:
        """Take in the weights after an update."""
        for parameter in self._parameters:
            if KEY not in self._state[parameter]:
                self._state[parameter][KEY] = parameter.detach().clone()
        torch._foreach_lerp_(self._averages(), list(self._parameters), 1.0 - self._decay)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Have the model compute with the average inside of this context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        if self._begun():
            for parameter, average in zip(self._parameters, self._averages(), strict=True):
                parameter.data, average.data = average.data, parameter.data

    def _begun(self) -> bool:
        return KEY in self._state[self._parameters[0]]

    @torch.no_grad()
    def adopt(self) -> None:
        """Make the average the weights, at the end of training."""
        if self._begun():
            torch._foreach_copy_(list(self._parameters), self._averages())
