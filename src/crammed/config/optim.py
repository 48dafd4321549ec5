"""The optimizers, each with the options that it reads.

How each is built, and which parameters it updates, is in its file in `crammed.optim`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from crammed.config.base import Beta, Later, PositiveFloat, Section
from crammed.config.kinds import KeepsValues

Decay = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class OptimizerConfig(Section):
    """Options of every optimizer."""

    name: str
    lr: PositiveFloat = 1e-3
    """Peak learning rate, which the schedule multiplies."""
    embedding_lr: PositiveFloat | None = None
    """Peak learning rate of the embedding tables; null takes `lr`."""
    weight_decay: Decay = 0.01
    """Applied to everything except biases, norms, and learned scales other than that of sinusoidal
    positions."""
    clip: PositiveFloat | None = 0.5
    """Largest L2 norm of the whole gradient; null never clips."""

    @property
    def kind(self) -> str:
        """What decides how long its updates take."""
        return self.name

    kept: ClassVar[int] = 2
    """`state_per_parameter`, where no option changes it."""

    @property
    def state_per_parameter(self) -> int:
        """Maximum number of state values per parameter, not counting the weight itself."""
        return self.kept


class Moments(OptimizerConfig):
    """Options of all that keep two moments, as Adam does."""

    beta1: Beta = 0.9
    beta2: Beta = 0.98
    eps: PositiveFloat = 1e-12


class AdamLike(Moments):
    """Options of Adam and its relatives. One learning rate suits them all."""


class AdamWConfig(AdamLike):
    """AdamW (Loshchilov and Hutter 2019), with weight decay decoupled from the gradient."""

    name: Literal["adamw"] = "adamw"


class AdamConfig(AdamLike):
    """Adam (Kingma and Ba 2015), which adds the weight decay to the gradient."""

    name: Literal["adam"] = "adam"


class RAdamConfig(AdamLike):
    """RAdam (Liu et al. 2020), whose first steps follow the average gradient, without scaling.

    Weight decay is decoupled from the gradient, as in AdamW.
    """

    name: Literal["radam"] = "radam"


class NAdamConfig(AdamLike):
    """NAdam (Dozat 2016): Adam with Nesterov momentum, and decoupled weight decay."""

    name: Literal["nadam"] = "nadam"


class LionConfig(OptimizerConfig):
    """Lion (Chen et al. 2023), which moves every weight by the sign of its momentum.

    Its learning rate is three to ten times smaller than AdamW's. Weight decay is decoupled from the
    gradient, and larger by the same factor for the same effect.
    """

    name: Literal["lion"] = "lion"
    lr: PositiveFloat = 1e-4
    weight_decay: Decay = 0.1
    beta1: Beta = 0.9
    beta2: Beta = 0.99
    kept: ClassVar[int] = 1  # the momentum


class LambConfig(Moments):
    """LAMB (You et al. 2020): Adam whose steps are relative to the length of each parameter.

    Weight decay is part of the step before it is scaled.
    """

    name: Literal["lamb"] = "lamb"
    lr: PositiveFloat = 1e-2
    eps: PositiveFloat = 1e-6


class AdamWScaleConfig(Moments):
    """AdamW whose steps are multiplied by the root mean square of each parameter (nanoT5)."""

    name: Literal["adamw-scale"] = "adamw-scale"
    lr: PositiveFloat = 2e-2
    weight_decay: Decay = 0.0


class LarsConfig(OptimizerConfig):
    """LARS (You et al. 2017): gradient descent with steps relative to the length of each parameter.

    Weight decay is added to the gradient before momentum.
    """

    name: Literal["lars"] = "lars"
    lr: PositiveFloat = 1.0
    weight_decay: Decay = 0.0
    momentum: Beta = 0.9
    trust: PositiveFloat = 0.01
    """Length of a step at a learning rate of 1, relative to that of the parameter."""
    clipped: Annotated[bool, Later()] = False
    """LARC: take such a step at a learning rate of 1, or plain gradient descent if that is less."""
    kept: ClassVar[int] = 1  # the momentum


class AGDConfig(OptimizerConfig):
    """Automatic gradient descent (Bernstein et al. 2023), whose step follows from the gradient.

    It has no state and no momentum. Weight decay is decoupled from the gradient.
    """

    name: Literal["agd"] = "agd"
    lr: PositiveFloat = 1.0
    """A factor on the step that the rule gives."""
    weight_decay: Decay = 0.0
    clip: PositiveFloat | None = None
    kept: ClassVar[int] = 0


class AdafactorConfig(OptimizerConfig):
    """Adafactor (Shazeer and Stern 2018), which keeps second moments of rows and columns.

    Its steps are relative to the root mean square of the parameter. In update t they never exceed
    1 / sqrt(t) of that, whatever the rate. Weight decay follows `lr`, decoupled from the gradient,
    and has no such limit.
    """

    name: Literal["adafactor"] = "adafactor"
    lr: PositiveFloat = 5e-2
    """Peak rate, relative to the root mean square of each parameter."""
    weight_decay: Decay = 0.0
    beta2_power: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    """In update t, the beta of the second moment is 1 - t^-beta2_power."""
    kept: ClassVar[int] = 0  # the moments of rows and columns are few


class SGDConfig(OptimizerConfig):
    """Gradient descent with momentum, which adds the weight decay to the gradient.

    The gradient is clipped before that. Weights shrink by lr * weight_decay / (1 - momentum) per
    update: a decay that suits the small learning rates of Adam would leave little of them here.
    """

    name: Literal["sgd"] = "sgd"
    lr: PositiveFloat = 1.0
    weight_decay: Decay = 0.0
    momentum: Beta = 0.9

    @property
    def state_per_parameter(self) -> int:
        """One for the momentum, if there is any."""
        return 1 if self.momentum else 0


class MuonConfig(AdamLike):
    """Muon (Jordan et al. 2024) for the matrices of the layers, and AdamW for the rest."""

    name: Literal["muon"] = "muon"
    matrix_lr: PositiveFloat = 1.6e-3
    """Peak learning rate of Muon; `lr` is AdamW's. Both defaults suit a width of 768."""
    cautious_decay: bool = False
    """Whether Muon's weight decay skips weights that the update moves away from 0."""
    momentum: Beta = 0.95
    """Momentum of Muon's updates."""


class LibraryConfig(OptimizerConfig):
    """Any optimizer of the library `pytorch_optimizer` that needs gradients, or curvature as well.

    Its learning rates and weight decays differ from those of AdamW: see its documentation.
    """

    name: Literal["library"] = "library"
    of: str = "SOAP"
    """The name of its class."""
    options: dict[str, bool | int | float | str | tuple[float, ...]] = Field(default_factory=dict)
    """What else the class takes, such as ``{betas: [0.95, 0.95], precondition_frequency: 10}``."""
    kept: ClassVar[int] = 10  # those of SOAP in square matrices, and more than others keep

    @field_validator("options", mode="before")
    @classmethod
    def _lists_are_tuples(cls, options: Any) -> Any:
        """Not left to a lax branch of the union, which pydantic 2.10 does not try."""
        if not isinstance(options, Mapping):
            return options
        return {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}

    @property
    def curvature_every(self) -> int | None:
        """Updates from one measurement of the loss's curvature to the next; None if never."""
        usual = {"AdaHessian": 1, "SophiaH": 10}.get(self.of)
        chosen = self.options.get("update_period", usual)
        return None if usual is None or not isinstance(chosen, int) else max(1, chosen)

    @property
    def kind(self) -> str:
        """The class and its options."""
        return f"{self.of} {self.options}"


OptimConfig = Annotated[
    AdamWConfig
    | AdamConfig
    | RAdamConfig
    | NAdamConfig
    | LionConfig
    | LambConfig
    | AdamWScaleConfig
    | LarsConfig
    | AGDConfig
    | AdafactorConfig
    | SGDConfig
    | MuonConfig
    | LibraryConfig,
    Field(discriminator="name"),
    KeepsValues(),
]
