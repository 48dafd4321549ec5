"""A model's parameters by what an optimizer may do with them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from torch import nn

ParamGroup = dict[str, Any]
"""As `torch.optim.Optimizer` takes it: ``params``, and values of its own for options."""


@dataclass(frozen=True)
class Parameters:
    """All parameters of a model, which an optimizer has to share out, each to one group.

    Attributes:
        named: in the model's order.
        decayed: names of those that weight decay is for.
        matrices: names of the layers' matrices, each with the number of equal matrices that are
            stacked in it along the first dimension.
        rates: names of those with a peak learning rate of their own, and the rate.
    """

    named: Mapping[str, nn.Parameter]
    decayed: Set[str]
    matrices: Mapping[str, int]
    rates: Mapping[str, float]

    def by_decay(self, weight_decay: float, *, matrices: bool = True) -> list[ParamGroup]:
        """A group of parameters with this weight decay, one without any, and one for each rate.

        Args:
            matrices: whether the layers' matrices are among them.
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
        """The layers' matrices, in a group for each number ``parts`` of matrices in a stack."""
        return [
            {"params": [self.named[n] for n, parts in self.matrices.items() if parts == count]}
            | {"parts": count}
            for count in sorted(set(self.matrices.values()))
        ]
