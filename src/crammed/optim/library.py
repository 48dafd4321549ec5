"""Optimizers of the library `pytorch_optimizer`, each by the name of its class there.

The library keeps what it needs as tensors, numbers, lists and objects of its own. A checkpoint
holds tensors alone: the parts of a list or an object become tensors with names such as ``GG.0``,
and numbers become tensors without dimensions. To resume, the library builds the same structure
anew, and the saved values replace those in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from crammed.config import ModelConfig
from crammed.config.optim import LibraryConfig
from crammed.errors import InputError
from crammed.extras import import_extra
from crammed.hints import did_you_mean
from crammed.model.count import outline
from crammed.optim.parameters import Parameters

LIBRARY = "pytorch_optimizer"
COUNTED = 3
"""The update whose FLOPs count for all: the first ones prepare what others use."""
_GROUP = "group."
_SET_BY_GROUPS = {"params", "lr", "weight_decay", "kwargs"}


def library(parameters: Parameters, config: LibraryConfig) -> list[Library]:
    chosen = Library(parameters, config)
    _refuse_inexact(config)
    return [chosen]


def _refuse_inexact(config: LibraryConfig) -> None:
    """Refuse an optimizer whose updates after a resume are not those without one.

    Some keep values outside of their state, or make them only when they first need them.
    """
    tried = config.model_copy(update={"lr": 1e-3})  # a rate that is too high makes NaN of all
    try:
        same = _resumes(tried.model_dump_json())
    except Exception as error:  # each optimizer has errors of its own
        raise _refusal(config, error) from error
    if not same:
        raise InputError(
            f"optim.of={config.of} cannot be used here, because a stopped run could not be "
            "resumed exactly: choose another one, such as SOAP"
        )


@lru_cache(maxsize=64)
def _resumes(chosen: str) -> bool:
    """Whether updates of a small matrix are the same after a resume."""
    config = LibraryConfig.model_validate_json(chosen)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights, *gradients = torch.randn(6, 8, 8)

        def update(matrix: nn.Parameter, optimizer: Library, number: int) -> None:
            torch.manual_seed(number)
            matrix.grad = gradients[number].clone()
            if config.curvature_every is not None:
                optimizer.curvature = {matrix: gradients[number].square()}
            optimizer.step()

        whole, straight = _of_a_matrix(weights, config)
        for number in range(3):
            update(whole, straight, number)
        part, resumed = _of_a_matrix(whole.detach().clone(), config)
        saved = {name: value.clone() for name, value in straight.saved(whole).items()}
        resumed.restore(part, saved)
        for number in (3, 4):
            update(whole, straight, number)
            update(part, resumed, number)
    return torch.equal(whole, part)


def _of_a_matrix(weights: Tensor, config: LibraryConfig) -> tuple[nn.Parameter, Library]:
    matrix = nn.Parameter(weights)
    return matrix, Library(Parameters({"matrix": matrix}, {"matrix"}, {}, {}), config)


class Library:
    """An optimizer of the library, as `crammed.optim.build.Optimizers` uses it.

    Attributes:
        param_groups: as in `torch.optim.Optimizer`.
        averages: whether it trains other weights than those to keep (schedule-free ones do).
        curvature: the diagonal of the Hessian for the next update, if it needs one then.

    Raises:
        InputError: the library is missing, or has no such optimizer or option.
    """

    def __init__(self, parameters: Parameters, config: LibraryConfig) -> None:
        chosen, groups = _class_of(config), parameters.by_decay(config.weight_decay)
        try:
            self._inner = chosen([g for g in groups if g["params"]], lr=config.lr, **config.options)
        except Exception as error:  # each optimizer has errors of its own
            raise _refusal(config, error) from error
        self._new = [dict(group) for group in self._inner.param_groups]
        self.param_groups: list[dict[str, Any]] = self._inner.param_groups
        self.curvature: dict[Tensor, Tensor] | None = None
        self.averages = hasattr(self._inner, "eval") and hasattr(self._inner, "train")

    @property
    def state(self) -> Any:
        return self._inner.state

    @state.setter
    def state(self, state: Any) -> None:
        self._inner.state = state

    def step(self) -> None:
        more, self.curvature = self.curvature, None
        if more is None:
            self._inner.step()
        else:
            hessian = [more[p] for group in self.param_groups for p in group["params"]]
            self._inner.step(hessian=hessian)

    def zero_grad(self) -> None:
        self._inner.zero_grad(set_to_none=True)

    def follow(self, number: int) -> None:
        """Its own updates keep the average."""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Have the model compute with the weights to keep inside of this context."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        trained = [parameter.detach().clone() for parameter in parameters]
        self._inner.eval()
        try:
            yield
        finally:
            self._inner.train()
            for parameter, before in zip(parameters, trained, strict=True):
                parameter.data.copy_(before)  # the library's way back rounds

    def adopt(self) -> None:
        """Make the weights to keep the model's own, at the end of training."""
        self._inner.eval()

    def saved(self, parameter: Tensor) -> dict[str, Tensor]:
        number = self._group_of(parameter)
        group, new = self.param_groups[number], self._new[number]
        changed = {k: v for k, v in group.items() if k not in ("params", "lr") and new.get(k) != v}
        return dict([*_tensors("", self.state[parameter]), *_tensors("group", changed)])

    def restore(self, parameter: Tensor, saved: Mapping[str, Tensor]) -> None:
        """Take over what `saved` returned."""
        own = {k: v for k, v in saved.items() if not k.startswith(_GROUP)}
        number = self._group_of(parameter)
        group, kept = self.param_groups[number], ("params", "lr")
        # What a diverged run has made since is no part of it.
        self.state.pop(parameter, None)
        for key in group.keys() - self._new[number].keys() - {*kept}:
            del group[key]
        group.update({k: v for k, v in self._new[number].items() if k not in kept})
        group.update({k[len(_GROUP) :]: v.item() for k, v in saved.items() if k not in own})
        if not own:  # a layer that is not in use yet
            return
        if not self.state[parameter]:
            parameter.grad = torch.zeros_like(parameter)
            with torch.no_grad():
                self._inner.init_group({**group, "params": [parameter]})
            parameter.grad = None
        state = self.state[parameter]
        for key in state:
            state[key] = _filled(key, state[key], own, parameter.device)
        for key in own:  # such as a running average of the weights
            if key.partition(".")[0] not in state:
                state[key] = own[key].to(parameter.device, copy=True)

    def _group_of(self, parameter: Tensor) -> int:
        groups = enumerate(self.param_groups)
        return next(n for n, group in groups if any(p is parameter for p in group["params"]))


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a value by their names; None if it has none."""
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    return vars(value) if type(value).__module__.startswith(f"{LIBRARY}.") else None


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors and numbers in a value, with their names."""
    if isinstance(value, Tensor):
        yield name, value
    elif type(value) in (bool, int, float):
        of = torch.float64 if isinstance(value, float) else torch.int64
        yield name, torch.tensor(value, dtype=of)
    elif (parts := _parts(value)) is not None:
        for key, part in parts.items():
            yield from _tensors(f"{name}.{key}" if name else str(key), part)


def _filled(name: str, value: Any, saved: Mapping[str, Tensor], device: torch.device) -> Any:
    """The value with what was saved in place of its tensors and numbers."""
    if isinstance(value, Tensor):
        return saved[name].to(device, copy=True) if name in saved else value
    if type(value) in (bool, int, float):
        return type(value)(saved[name].item()) if name in saved else value
    if (parts := _parts(value)) is None:
        return value
    filled = {key: _filled(f"{name}.{key}", part, saved, device) for key, part in parts.items()}
    if isinstance(value, list | tuple):
        return type(value)(filled.values())
    if isinstance(value, dict):
        return filled
    vars(value).update(filled)
    return value


def _class_of(config: LibraryConfig) -> type[Any]:
    module = import_extra(LIBRARY, "optimizers", "optim.name=library")
    names = [n for n, v in vars(module).items() if inspect.isclass(v) and _is_optimizer(v)]
    if config.of not in names:
        hint = did_you_mean(config.of, names)
        raise InputError(f"optim.of: {LIBRARY} has no optimizer {config.of!r}; {hint}".rstrip("; "))
    chosen: type[Any] = getattr(module, config.of)
    known = set(inspect.signature(chosen).parameters) - _SET_BY_GROUPS
    if unknown := sorted(config.options.keys() - known):
        keys = ", ".join(sorted(known))
        raise InputError(f"optim.options: {config.of} has no {unknown[0]!r}; it has {keys}")
    return chosen


def _is_optimizer(kind: type[Any]) -> bool:
    return issubclass(kind, torch.optim.Optimizer) and kind.__module__.startswith(LIBRARY)


def _refusal(config: LibraryConfig, error: Exception) -> InputError:
    why = " ".join([type(error).__name__, *str(error).splitlines()[:1]])
    others = "other optim.options, or " if config.options else ""
    return InputError(
        f"optim.of={config.of} cannot be used here ({why}): choose {others}an optimizer that needs "
        "nothing but gradients, such as SOAP"
    )


def library_flops(
    model: ModelConfig, vocab_size: int, config: LibraryConfig, generator: ModelConfig | None
) -> int:
    """FLOPs of the matrix products of one of its updates, counted without computing them.

    Args:
        generator: the model's; None if it has none.

    Raises:
        InputError: the library is missing, or the optimizer cannot be used.
    """
    flops = _library_flops(model, vocab_size, config.model_dump_json(), generator)
    _refuse_inexact(config)
    return flops


@lru_cache(maxsize=64)
def _library_flops(
    model: ModelConfig, vocab_size: int, config: str, generator: ModelConfig | None
) -> int:
    chosen = LibraryConfig.model_validate_json(config)
    named = dict(outline(model, vocab_size, generator).named_parameters())
    optimizer = Library(Parameters(named, frozenset(named), {}, {}), chosen)
    for _ in range(COUNTED):
        for parameter in named.values():
            parameter.grad = torch.empty_like(parameter)
        if chosen.curvature_every is not None:
            optimizer.curvature = {p: torch.zeros_like(p) for p in named.values()}
        with FlopCounterMode(display=False) as counter:
            try:
                optimizer.step()
            except Exception as error:  # whatever it needed besides gradients
                raise _refusal(chosen, error) from error
    return int(counter.get_total_flops())
