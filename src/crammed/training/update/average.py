"""Averages of the weights over training, kept beside the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from crammed.config import LatestConfig, TrainConfig
from crammed.errors import InputError
from crammed.optim.build import Optimizers
from crammed.optim.library import Library

KEY = "average"
"""Its name in the state of each parameter, with which checkpoints save and restore it; copies of
earlier weights are ``average.0`` and so on."""


def is_average(key: str) -> bool:
    """Whether a parameter's state has an average, or a copy for one, under this key."""
    return key.partition(".")[0] == KEY


def kept_weights(
    parameters: Sequence[nn.Parameter], optimizer: Optimizers, config: TrainConfig
) -> Average | Latest | Library | None:
    """The weights to keep, if they are others than those that are trained.

    Raises:
        InputError: both the configuration and the optimizer have such weights.
    """
    inner = optimizer.of_library
    own = inner if inner is not None and inner.averages else None
    if own is not None and (config.average is not None or config.latest is not None):
        raise InputError(
            "a schedule-free optimizer keeps an average itself: leave train.average and "
            "train.latest out"
        )
    if config.latest is not None:
        return Latest(parameters, optimizer, config.latest)
    return own if config.average is None else Average(parameters, optimizer, config.average)


class Average:
    """After each update, the average moves towards the weights by the share 1 - `decay`.

    It begins as the weights after the first update.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], optimizer: Optimizers, decay: float
    ) -> None:
        self._parameters, self._state, self._decay = parameters, optimizer.state, decay

    def _averages(self) -> list[Tensor]:
        # A layer that has just come into use may have parameters without one.
        return [self._state[parameter].get(KEY, parameter) for parameter in self._parameters]

    @torch.no_grad()
    def follow(self, number: int) -> None:
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


class Latest:
    """The mean of the weights after each of the latest updates that `every` divides (LAWA).

    Until the first of them, it is the weights themselves. An update that is skipped in float16
    leaves the oldest copy in place.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], optimizer: Optimizers, config: LatestConfig
    ) -> None:
        self._parameters, self._state, self._config = parameters, optimizer.state, config

    @torch.no_grad()
    def follow(self, number: int) -> None:
        times, rest = divmod(number + 1, self._config.every)
        if rest == 0:
            for parameter in self._parameters:
                name = f"{KEY}.{times % self._config.count}"
                self._state[parameter][name] = parameter.detach().clone()

    @contextmanager
    def shown(self) -> Iterator[None]:
        before = [parameter.data for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.data = self._mean(parameter)
        try:
            yield
        finally:
            for parameter, weights in zip(self._parameters, before, strict=True):
                parameter.data = weights

    @torch.no_grad()
    def adopt(self) -> None:
        for parameter in self._parameters:
            parameter.copy_(self._mean(parameter))

    def _mean(self, parameter: nn.Parameter) -> Tensor:
        names = [f"{KEY}.{n}" for n in range(self._config.count)]
        state = self._state[parameter]
        kept = [state[name] for name in names if name in state]
        return torch.stack(kept).mean(0) if kept else parameter.detach().clone()
