"""Building parts of an encoder: leaf modules, norms, activations, and the base of a layer's blocks.

A leaf module computes in the number format of its input: weights may stay in float32 while
activations are in 16 bits (Micikevicius et al. 2018, section 3.1). Every module with parameters of
its own initialises them in `start`; `crammed.model.encoder.initialise` reports any left unset.

`crammed.model.encoder` and the files it imports are copied into exported models that have no
built-in class in transformers. They need nothing but PyTorch and import each other relatively.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Config = Any
"""A `crammed.config.ModelConfig`, which documents the fields. In an exported model it is a
`PretrainedConfig` with the same fields, so neither class can be imported here."""


@dataclass(frozen=True)
class Activation:
    """An elementwise function between two matrix products.

    Attributes:
        transformers: its name in transformers; None if no built-in class there has it.
    """

    function: Callable[[Tensor], Tensor]
    transformers: str | None = None


ACTIVATIONS = {
    "gelu": Activation(F.gelu, "gelu"),
    "gelu_tanh": Activation(lambda x: F.gelu(x, approximate="tanh"), "gelu_pytorch_tanh"),
    "relu": Activation(F.relu, "relu"),
    "relu2": Activation(lambda x: F.relu(x).square(), "relu2"),
    "silu": Activation(F.silu, "silu"),
}
"""The values of `model.activation`."""


class Linear(nn.Linear):
    """A linear layer that computes in the number format of its input."""

    def reset_parameters(self) -> None:
        """As in PyTorch, but skipped on the meta device, where drawing takes seconds."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def start(self, std: float, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(self.weight, 0.0, std, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class Embedding(nn.Embedding):
    """A table of vectors, read in its own number format.

    The gradients of a frequent token are therefore summed in that format.
    """

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()

    def start(self, std: float, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(self.weight, 0.0, std, generator=generator)


class Scales(nn.Module):
    """Learned scalars that multiply whole streams [..., D], without weight decay."""

    def __init__(self, *starts: float) -> None:
        super().__init__()
        self.starts = starts
        self.weight = nn.Parameter(torch.empty(len(starts)))

    def start(self, std: float, generator: torch.Generator | None = None) -> None:
        with torch.no_grad():
            self.weight.copy_(torch.tensor(self.starts))

    def forward(self, *streams: Tensor) -> Tensor:
        """The weighted sum of the streams, one for each scalar."""
        total = streams[0] * self.weight[0]  # a 0-dimensional factor keeps the streams' format
        for stream, scale in zip(streams[1:], self.weight[1:], strict=True):
            total = total + stream * scale
        return total


class Affine(nn.Module):
    """x [..., D] times a learned vector plus another, without weight decay."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.empty(width)) for _ in range(2))

    def start(self, std: float, generator: torch.Generator | None = None) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.to(x.dtype) + self.bias.to(x.dtype)


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """x [..., D] divided by its root mean square, in float32 or more, without parameters."""
    precise = x.to(torch.promote_types(x.dtype, torch.float32))
    return F.rms_norm(precise, x.shape[-1:], eps=eps).to(x.dtype)


_AUTOCAST = {
    kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)
}
"""Device types with autocast, asked once: PyTorch 2.11 cannot compile the question."""


class Norm(nn.Module):
    """Base of the norms over the last dimension. The output has the number format of the input.

    A norm computes in float32, or in float64 if its input is float64. Its parameters have no weight
    decay.
    """

    def __init__(self, width: int, eps: float, *, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def start(self, std: float, generator: torch.Generator | None = None) -> None:
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        # Autocast has its own rule for norms on each device type. Where it leaves their output in
        # float32, a cast back to the input's format would undo that.
        kind = x.device.type
        if kind in _AUTOCAST and torch.is_autocast_enabled(kind):
            return self.normalise(x, self.weight, self.bias)
        # On a CPU, PyTorch's 16-bit norms sum the weights' gradients in 16 bits.
        precise = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(precise)
        return self.normalise(x.to(precise), self.weight.to(precise), bias).to(x.dtype)

    def normalise(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The norm of x [..., D]; the parameters are in the format to compute in."""
        raise NotImplementedError


class LayerNorm(Norm):
    """Mean 0 and variance 1 (Ba et al. 2016)."""

    def normalise(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, self.eps)


class RMSNorm(Norm):
    """Root mean square 1 (Zhang and Sennrich 2019)."""

    def normalise(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.rms_norm(x.to(weight.dtype), weight.shape, weight, self.eps)


class ScaleNorm(Norm):
    """Length g, one learned number that starts at sqrt(D) (Nguyen and Salazar 2019)."""

    def __init__(self, width: int, eps: float, *, bias: bool) -> None:
        super().__init__(1, eps, bias=bias)
        self.begins = width**0.5

    def start(self, std: float, generator: torch.Generator | None = None) -> None:
        nn.init.constant_(self.weight, self.begins)

    def normalise(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x.to(weight.dtype)
        length: Tensor = x.norm(dim=-1, keepdim=True)
        return x * (weight / length.clamp(min=self.eps))


NORMS: dict[str, Callable[..., nn.Module]] = {
    "layer": LayerNorm,
    "rms": RMSNorm,
    "scale": ScaleNorm,
    "none": nn.Identity,
}
"""The values of `model.norm_kind`."""


def norm_of(config: Config, width: int | None = None) -> nn.Module:
    """A new norm of the kind used throughout the model, of its width or another."""
    make = NORMS[config.norm_kind]
    return make(width or config.width, config.norm_eps, bias=config.norm_bias)


class Product(NamedTuple):
    """A matrix product of a layer.

    Attributes:
        name: dotted name of `linear`, as in `named_modules`.
        matrices: how many matrices of equal size are stacked in the weight.
    """

    name: str
    linear: Linear
    matrices: int


class Block(nn.Module):
    """Base of the branches that a layer adds to its residual stream: [B, S, D] to [B, S, D].

    A block declares its matrix products, and everything else follows from the declaration: the
    counts of parameters and FLOPs, the matrices that Muon updates, the products that may run in
    8 bits, and the weights that `zero_outputs` sets to zero.

    Attributes:
        products: the names of its `Linear` submodules, and how many matrices of equal size are
            stacked in each: 3 where queries, keys and values share one. The last product writes
            the output.
    """

    products: dict[str, int]

    def mixing(self, length: int) -> int:
        """Multiply-adds per token besides `products`, in rows of `length` tokens."""
        return 0

    def probabilities(
        self, x: Tensor, tables: tuple[Tensor, ...], mask: Tensor | None
    ) -> Tensor | None:
        """How much each token attends to each, [B, H, S, S]; None if the block has no attention."""
        return None

    def declared(self, name: str) -> Iterator[Product]:
        """The products, given the block's dotted name."""
        for own, matrices in self.products.items():
            linear = self.get_submodule(own)
            full = f"{name}.{own}" if name else own
            if not isinstance(linear, Linear) or linear.out_features % matrices:
                raise TypeError(f"{full} is declared as {matrices} stacked products: {linear}")
            yield Product(full, linear, matrices)


class Nothing(Block):
    """Stands for a block that a layer does not have: it adds nothing."""

    products = {}  # noqa: RUF012

    def __init__(self, config: Config, index: int = 0) -> None:
        super().__init__()

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        return torch.zeros_like(x)
