"""Whether the gradients of an update agree so well that fewer rows would do.

An update of batches that adapt (`batch.adaptive`) is computed in pieces of equally many rows. Four
tests, those of the public code of Geiping and Goldstein (2022), compare the pieces' gradients.
There, an update takes further pieces until the test passes; here the next update has one piece
more if the test fails, and one fewer if it passes, so that the rows of an update are known before
it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from crammed.config.training import AdaptiveConfig


@dataclass(frozen=True)
class Pieces:
    """What is known of the gradients of n pieces, for each of T parameters: all are [T].

    Attributes:
        count: n.
        variances: summed over the parameter's elements, of one piece.
        means: squared length of the mean over all pieces.
        last: squared length of the last piece's gradient.
        others: squared length of the mean over the pieces before it.
        products: inner products of these two.
    """

    count: int
    variances: Tensor
    means: Tensor
    last: Tensor
    others: Tensor
    products: Tensor


def _norm(pieces: Pieces, threshold: float) -> Tensor:
    """The variance of the mean is small beside its squared length (Byrd et al. 2012)."""
    return pieces.variances.sum() / pieces.count < threshold * pieces.means.sum()


def _inner_product(pieces: Pieces, threshold: float) -> Tensor:
    """The last piece is as long as the others in their direction (Bollapragada et al. 2018)."""
    off = pieces.products.sum() / pieces.others.sum() - 1.0
    return off.square() / (pieces.count - 1) < threshold


def _cosine(pieces: Pieces, threshold: float) -> Tensor:
    """The last piece points where the others do, on average over the parameters."""
    lengths = pieces.last.sqrt() * pieces.others.sqrt()
    return (pieces.products / lengths.clamp(min=torch.finfo().tiny)).mean() > threshold


def _covariance(pieces: Pieces, threshold: float) -> Tensor:
    """The coefficient of variation is below a hundred times the threshold (public code)."""
    each = pieces.variances.sqrt() / (pieces.means + 1e-6)
    return (1.0 + 0.25 / pieces.count) * each.mean() / pieces.count < 100.0 * threshold


TESTS: dict[str, Callable[[Pieces, float], Tensor]] = {
    "norm": _norm,
    "inner-product": _inner_product,
    "cosine": _cosine,
    "covariance": _covariance,
}
"""The values of `batch.adaptive.test`."""


class Spread:
    """Adds up the gradients of an update's pieces, and tests them.

    Args:
        parameters: whose ``grad`` holds the gradients of one piece at a time.

    Attributes:
        enough: whether the pieces of the last update passed the test; of fewer than two it is not
            known, which counts as passed.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], config: AdaptiveConfig) -> None:
        self._parameters, self._config = parameters, config
        self.enough = True
        self.begin()

    def begin(self) -> None:
        """Forget the pieces so far."""
        self._count = 0
        self._used: list[nn.Parameter] = []
        self._sums: list[Tensor] = []
        self._last: list[Tensor] = []
        self._squares = torch.zeros(())

    def take(self) -> None:
        """Take the gradients of the next piece away from the parameters."""
        if self._count == 0:
            self._used = [each for each in self._parameters if each.grad is not None]
        elif self._count == 1:
            self._sums = self._last
        else:
            torch._foreach_add_(self._sums, self._last)
        self._last = [each.grad for each in self._used if each.grad is not None]
        for parameter in self._used:
            parameter.grad = None
        self._squares = self._squares.to(self._last[0].device) + _squares(self._last)
        self._count += 1

    def finish(self, scale: float) -> None:
        """Give the parameters the summed gradients, and test them; waits for the device.

        Args:
            scale: factor on all gradients.
        """
        total, self.enough = self._last, True
        if self._count > 1:
            both = torch._foreach_mul(self._last, self._sums)
            products = torch.stack([each.sum() for each in both])
            before = _squares(self._sums)
            total = self._sums
            torch._foreach_add_(total, self._last)
            pieces = self._pieces(products, before, _squares(total), self._count / scale)
            self.enough = bool(TESTS[self._config.test](pieces, self._config.threshold))
        for parameter, gradient in zip(self._used, total, strict=True):
            parameter.grad = gradient
        self.begin()

    def _pieces(self, products: Tensor, before: Tensor, whole: Tensor, factor: float) -> Pieces:
        """The pieces' gradients, each of which is `factor` times what was added up.

        Args:
            products: inner products of the last piece with the sum of those before it.
            before: squared lengths of that sum.
            whole: squared lengths of the sum of all.
        """
        count, square = self._count, factor**2
        spread = (self._squares - whole / count).clamp(min=0.0) / (count - 1)
        return Pieces(
            count,
            square * spread,
            square * whole / count**2,
            square * _squares(self._last),
            square * before / (count - 1) ** 2,
            square * products / (count - 1),
        )


def _squares(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([each.square().sum() for each in tensors])
