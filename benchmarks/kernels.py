"""Fused kernels and their reference implementations, compiled and eager, at crammed-2022's shapes.

    python benchmarks/kernels.py [--tokens 65536] [--repeats 20] [--programs 4]
        [--compiled/--no-compiled] [--out RESULT.json]

Without a GPU only the reference implementations run, on fewer tokens. GB/s counts only the bytes
that must move: every input is read once, and every output is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from torch import Tensor

import crammed.kernels.add_norm as add_norms
from common import finish, run
from crammed.config import ComputeConfig
from crammed.kernels.add_norm import add_norm, add_norm_reference
from crammed.kernels.cross_entropy import cross_entropy, cross_entropy_reference
from crammed.kernels.gate import gate, gate_reference
from crammed.kernels.jit import available
from crammed.machine.device import choose_device
from crammed.runs.environment import environment
from timing import copy_bandwidth, median_seconds

Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One kernel at one shape.

    Attributes:
        inputs: the inputs that need gradients.
        forward_bytes: the fewest bytes that the forward pass moves.
        backward_bytes: the fewest bytes that the backward pass moves.
    """

    name: str
    shape: tuple[int, int]
    formats: str
    kernel: Callable[..., Outputs]
    reference: Callable[..., Outputs]
    inputs: tuple[Tensor, ...]
    forward_bytes: int
    backward_bytes: int


def cases(tokens: int, device: torch.device) -> Iterator[Case]:
    """Every kernel at crammed-2022's width and vocabulary, and at smaller ones."""
    half, full = torch.bfloat16, torch.float32

    def drawn(*shape: int, dtype: torch.dtype = full) -> Tensor:
        return torch.randn(shape, device=device).to(dtype).requires_grad_()

    for width in (768, 256):
        for stream in (full, half):
            inputs = (
                drawn(tokens, width, dtype=stream),
                drawn(tokens, width, dtype=half),
                drawn(width),
                drawn(width),
            )
            elements, apart = tokens * width, 2 if stream == full else 0
            yield Case(
                "add_norm",
                (tokens, width),
                f"stream {str(stream).removeprefix('torch.')}, branch bfloat16",
                lambda x, b, w, c: add_norm(x, b, w, c, 1e-12),
                lambda x, b, w, c: add_norm_reference(x, b, w, c, 1e-12),
                inputs,
                elements * (2 * stream.itemsize + 4),
                elements * (3 * stream.itemsize + 2 + apart),
            )
    for up in (3072, 1024):
        for activation in ("gelu", "relu2"):
            yield Case(
                f"gate {activation}",
                (tokens, up),
                "bfloat16",
                lambda x, name=activation: (gate(x, name),),
                lambda x, name=activation: (gate_reference(x, name),),
                (drawn(tokens, up, dtype=half),),
                tokens * up * 3,
                tokens * up * 5,
            )
    for vocab in (32768, 8192):
        rows = tokens // 4
        labels = torch.randint(vocab, (rows,), device=device)
        yield Case(
            "cross_entropy",
            (rows, vocab),
            "bfloat16",
            lambda x, y=labels: (cross_entropy(x, y),),
            lambda x, y=labels: (cross_entropy_reference(x, y),),
            (drawn(rows, vocab, dtype=half),),
            rows * vocab * 2,
            rows * vocab * 4,
        )


def main(
    tokens: Annotated[int | None, typer.Option(help="Default: 65,536; 512 on a CPU.")] = None,
    repeats: int = 20,
    programs: Annotated[
        list[int] | None,
        typer.Option(help="Programs per multiprocessor to try for the backward of add_norm."),
    ] = None,
    compiled: Annotated[bool, typer.Option(help="Time the compiled references, too.")] = True,
    out: Path | None = None,
) -> None:
    # On a GPU, both are refused if the machine has no C compiler.
    asked: Literal["on", "auto"] = "on" if compiled else "auto"
    chosen = choose_device(ComputeConfig(compile=asked, kernels="triton"))
    device = chosen.torch
    tokens = tokens or (65_536 if device.type == "cuda" else 512)
    bandwidth = copy_bandwidth(device, repeats)
    timed = []
    for case in cases(tokens, device):
        ways: dict[str, Callable[..., Outputs]] = {}
        if available(device):
            ways["kernel"] = case.kernel
        if compiled:
            torch._dynamo.reset()
            ways["compiled reference"] = torch.compile(
                case.reference, fullgraph=True, dynamic=False
            )
        ways["eager reference"] = case.reference
        times = {name: _times(way, case, device, repeats, bandwidth) for name, way in ways.items()}
        if case.name == "add_norm" and "kernel" in ways:
            for number in programs or []:
                usual, add_norms.PROGRAMS = add_norms.PROGRAMS, number
                name = f"kernel, {number} programs"
                times[name] = _times(case.kernel, case, device, repeats, bandwidth)
                add_norms.PROGRAMS = usual
        timed.append(
            {
                "kernel": case.name,
                "shape": case.shape,
                "formats": case.formats,
                "forward_bytes": case.forward_bytes,
                "backward_bytes": case.backward_bytes,
                "ways": times,
            }
        )
    result = {
        "name": "kernels",
        "environment": environment(),
        "device": chosen.name,
        "triton": available(device),
        "tokens": tokens,
        "copy_gigabytes_per_second": bandwidth / 1e9,
        "cases": timed,
    }
    finish(result, out)


def _times(
    way: Callable[..., Outputs],
    case: Case,
    device: torch.device,
    repeats: int,
    bandwidth: float,
) -> dict[str, Any]:
    """Times of the forward pass alone, and of forward and backward."""
    gradients = [torch.randn_like(each) for each in way(*case.inputs)]

    def both() -> object:
        return torch.autograd.grad(way(*case.inputs), case.inputs, gradients)

    entry = {}
    for name, call, moved in (
        ("forward", lambda: way(*case.inputs), case.forward_bytes),
        ("forward and backward", both, case.forward_bytes + case.backward_bytes),
    ):
        seconds = median_seconds([call], device, repeats)
        entry[name] = {
            "ms": 1e3 * seconds,
            "gigabytes_per_second": moved / seconds / 1e9,
            "share_of_copy": moved / seconds / bandwidth,
        }
    return entry


if __name__ == "__main__":
    run(main)
