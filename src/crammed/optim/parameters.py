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
    """

    named: Mapping[str, nn.Parameter]
    decayed: Set[str]
    matrices: Mapping[str, int]

    def by_decay(self, weight_decay: float, *, matrices: bool = True) -> list[ParamGroup]:
        """Two groups: the parameters with this weight decay, and those without any.

        Args:
            matrices: whether the layers' matrices are among them.
        """
        names = [name for name in self.named if matrices or name not in self.matrices]
        decayed = [self.named[name] for name in names if name in self.decayed]
        free = [self.named[name] for name in names if name not in self.decayed]
        return [
            {"params": decayed, "weight_decay": weight_decay},
            {"params": free, "weight_decay": 0.0},
        ]

    def stacks(self) -> list[ParamGroup]:
        """The layers' matrices, in a group for each number ``parts`` of matrices in a stack."""
        return [
            {"params": [self.named[n] for n, parts in self.matrices.items() if parts == count]}
            | {"parts": count}
            for count in sorted(set(self.matrices.values()))
        ]
