"""Stand-ins for what the compiler would load and run on a GPU.

Its generated kernels become objects that record their launches. Attention stays one operator, which
a CPU build would decompose.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode

from paper import accesses, gpu
from paper.launches import Launch, Noted, Operators

_ATEN = torch.library.Library("aten", "IMPL")
"""Our own operators, which are registered as long as this lives."""


class Kernel:
    """Stands in for a compiled kernel in the generated code."""

    def __init__(self, name: str, noted: Noted) -> None:
        backward, moved = accesses.KERNELS[name]
        self._launch = Launch(name, "backward" if backward else "forward", *moved)
        self._noted = noted

    def run(self, *args: object, **kwargs: object) -> None:
        self._noted.add(self._launch)


def install(noted: Noted, attention: str) -> None:
    """Make PyTorch compile for the GPU that is not there; call it once in a process.

    Args:
        attention: its backend, ``cudnn``, which PyTorch 2.11 and later choose on an H200, or
            ``flash``.
    """
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    gpu.pretend()
    accesses.watch()
    _configure()
    _replace_loading(noted)
    _keep_attention(attention)
    _make_constants_real()
    _tell_shapes()


@contextmanager
def paper(noted: Noted) -> Iterator[None]:
    """Within this context, new tensors are fake, and every operator that runs is recorded."""
    with FakeTensorMode(allow_non_fake_inputs=True), Operators(noted):
        yield


def _configure() -> None:
    functorch, inductor = _module("_functorch.config"), _module("_inductor.config")
    inductor.force_disable_caches = True  # cached kernels were not watched
    functorch.enable_autograd_cache = False
    inductor.size_asserts = inductor.alignment_asserts = False
    torch._dynamo.config.recompile_limit = 256


def _replace_loading(noted: Noted) -> None:
    """Replace how generated code loads kernels, and how it makes, reads and checks tensors."""

    def load(self: Any, name: str, source: str, device_str: str = "cuda") -> Kernel:
        return Kernel(name, noted)

    _module("_inductor.async_compile").AsyncCompile.triton = load
    guards: Any = torch._C._dynamo.guards
    guards._empty_strided_cuda = lambda size, stride, dtype: torch.empty_strided(
        size, stride, dtype=dtype, device="cuda"
    )
    guards._reinterpret_tensor = lambda x, size, stride, offset=0: x.as_strided(
        size, stride, x.storage_offset() + offset
    )
    for module in map(
        _module, ("_inductor.compile_fx", "_inductor.output_code", "_inductor.utils")
    ):
        if hasattr(module, "copy_misaligned_inputs"):
            module.copy_misaligned_inputs = lambda *args, **kwargs: ([], [])
    # Both trace their patterns on tensors on the device.
    passes = _module("_inductor.fx_passes.fuse_attention"), _module("_inductor.fx_passes.pad_mm")
    for module, name in zip(passes, ("_get_sfdp_patterns", "_pad_mm_init"), strict=True):
        setattr(module, name, _with_fakes(getattr(module, name)))
    _module("utils._foreach_utils")._foreach_supported_types.append(FakeTensor)


def _module(name: str) -> Any:
    return importlib.import_module(f"torch.{name}")


def _with_fakes(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with FakeTensorMode():
            return function(*args, **kwargs)

    return wrapped


def _keep_attention(kind: str) -> None:
    aten = torch.ops.aten

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        output: Tensor
        if kind == "cudnn":
            output = aten._scaled_dot_product_cudnn_attention(
                *(query, key, value, attn_mask, True, dropout_p, is_causal, False), scale=scale
            )[0]
        elif attn_mask is not None:  # which the flash kernel does not support
            output = aten._scaled_dot_product_efficient_attention(
                *(query, key, value, attn_mask, True, dropout_p, is_causal), scale=scale
            )[0]
        else:
            output = aten._scaled_dot_product_flash_attention(
                *(query, key, value, dropout_p, is_causal, False), scale=scale
            )[0]
        return output

    name, key = "scaled_dot_product_attention", "CompositeImplicitAutograd"
    _ATEN.impl(name, attention, key, allow_override=True)


def _make_constants_real() -> None:
    """Let constants that the compiler folds be computed on the CPU."""

    def empty(size: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        return torch.empty(size, dtype=dtype, device="cpu")

    def strided(size: Any, stride: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")

    _ATEN.impl("empty.memory_format", empty, "CUDA")
    _ATEN.impl("empty_strided", strided, "CUDA")


def _tell_shapes() -> None:
    """Give the fp8 product a shape rule; without one it would run on the CPU, for minutes."""

    def product(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        return out

    _ATEN.impl("_scaled_mm.out", product, "Meta")
