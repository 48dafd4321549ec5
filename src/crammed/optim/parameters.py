"""A model's parameters, grouped for optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from torch import nn

ParamGroup = dict[str, Any]
"""As in `torch.optim.Optimizer`: ``params``, and the group's own values for options."""


@dataclass(frozen=True)
class Parameters:
    """All parameters of a model; an optimizer has to put each into exactly one group.

    Attributes:
        named: the parameters by name, in the model's order.
        decayed: names of the parameters with weight decay.
        matrices: names of the layers' matrices, each with the number of equal matrices stacked in
            it along the first dimension.
        rates: peak learning rates of the parameters that have their own, by name.
    """

    named: Mapping[str, nn.Parameter]
    decayed: Set[str]
    matrices: Mapping[str, int]
    rates: Mapping[str, float]

    def by_decay(self, weight_decay: float, *, matrices: bool = True) -> list[ParamGroup]:
        """One group with this weight decay, one without, and one for each parameter in `rates`.

        Args:
            matrices: whether to include the layers' matrices.
        """
        names = [name for name in self.named if matrices or name not in self.matrices]
        usual = [name for name in names if name not in self.rates]
        decayed = [self.named[name] for name in usual if name in self.decayed]
        free = [self.named[name] for name in usual if name not in self.decayed]
        groups: list[ParamGroup] = [
            {"params": decayed, "weight_decay": weight_decay},
            {"params": free, "weight_decay": 0.0},
        ]
        for name, rate in self.rates.items():
            decay = weight_decay if name in self.decayed else 0.0
            groups.append({"params": [self.named[name]], "weight_decay": decay, "lr": rate})
        return groups

    def stacks(self) -> list[ParamGroup]:
        """The layers' matrices, in one group for each number of stacked matrices (``parts``)."""
        return [
            {"params": [self.named[n] for n, parts in self.matrices.items() if parts == count]}
            | {"parts": count}
            for count in sorted(set(self.matrices.values()))
        ]
