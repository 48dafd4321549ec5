"""The floor of a training step: the least time for the work that no implementation can avoid.

    python benchmarks/floor.py [RECIPE] [key.path=value ...] [--tokens 65536] [--stream FORMAT]
        [--repeats 20] [--out RESULT.json]

Every matrix product of forward and backward is timed by itself in the run's number format, with the
memory layout of training, and in fp8 if the device has it (with operands as the hardware needs
them; casting and transposing are not counted). Attention is timed in the same way. In short rows it
is bound by memory bandwidth rather than FLOPs, so both rates are reported. The elementwise parts
take at least their bytes divided by the bandwidth of a copy. The optimizer is not counted, because
its share depends on the batch. Weights are random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from common import config_of, finish, recipe_of, run
from crammed.config import ModelConfig
from crammed.data.masking import predicted_positions
from crammed.errors import InputError
from crammed.machine.device import choose_device
from crammed.model.traffic import attention_bytes, attention_flops, traffic
from crammed.runs.environment import environment
from timing import copies, copy_bandwidth, median_seconds

FORWARD, INPUT, WEIGHT = "forward", "input gradient", "weight gradient"


@dataclass(frozen=True)
class Product:
    """A matrix product [m, k] x [k, n] that occurs `times` times in a step."""

    name: str
    kind: str
    m: int
    n: int
    k: int
    times: int

    @property
    def flops(self) -> int:
        """FLOPs per step; a multiplication and an addition count as two."""
        return 2 * self.m * self.n * self.k * self.times


def products(config: ModelConfig, vocab: int, tokens: int, predicted: int) -> list[Product]:
    """All matrix products of forward and backward, except attention's own.

    Args:
        tokens: tokens in a step.
        predicted: positions in a step that the sparse head predicts.
    """
    width, layers = config.width, config.depth
    linears = [
        ("qkv", tokens, width, 3 * width, layers),
        ("attention out", tokens, width, width, layers),
        ("feed-forward up", tokens, width, config.ffn_width, layers),
        ("feed-forward down", tokens, config.ffn_hidden, width, layers),
    ]
    if config.head_transform:
        linears.append(("head transform", predicted, width, width, 1))
    linears.append(("decoder", predicted, width, vocab, 1))
    found = []
    for name, rows, inputs, outputs, times in linears:
        found.append(Product(name, FORWARD, rows, outputs, inputs, times))
        found.append(Product(name, INPUT, rows, inputs, outputs, times))
        found.append(Product(name, WEIGHT, outputs, inputs, rows, times))
    return found


def main(
    words: Annotated[list[str] | None, typer.Argument(help="Recipe, overrides.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens in a step.")] = 65_536,
    stream: Annotated[
        str, typer.Option(help="Number format of the residual stream: float32 or bfloat16.")
    ] = "float32",
    repeats: int = 20,
    out: Path | None = None,
) -> None:
    config = config_of(words)
    chosen = choose_device(config.compute)
    device, dtype = chosen.torch, chosen.dtype
    shape, vocab, length = config.model, config.tokenizer.vocab_size, config.data.row_length
    if tokens % length:
        raise InputError(f"--tokens {tokens} is not a multiple of the row length {length}")
    if stream not in ("float32", "bfloat16"):
        raise InputError(f"--stream {stream}: choose float32 or bfloat16")
    rows = tokens // length
    predicted = rows * predicted_positions(config.masking.rate, length)
    no_fp8 = why_no_fp8(device)
    timed = [
        _timed(product, dtype, device, repeats, no_fp8 is None)
        for product in products(shape, vocab, tokens, predicted)
    ]
    attention = _attention(shape, rows, length, dtype, device, repeats)
    bandwidth = copy_bandwidth(device, repeats)
    stream_bytes = 2 if stream == "bfloat16" else 4
    moved = traffic(shape, vocab, tokens, predicted, dtype.itemsize, stream_bytes)
    moved_ms = 1e3 * sum(moved.values()) / bandwidth
    name = str(dtype).removeprefix("torch.")
    sums = {name: _sum([each["ms"] for each in timed], attention["ms"], moved_ms, tokens)}
    if no_fp8 is None:
        fastest = [each["fp8_ms"] or each["ms"] for each in timed]
        sums["fp8"] = _sum(fastest, attention["ms"], moved_ms, tokens)
    result = {
        "name": "floor",
        "environment": environment(),
        "device": chosen.name,
        "dtype": name,
        "stream": stream,
        "recipe": config.recipe,
        "overrides": recipe_of(words)[1],
        "tokens": tokens,
        "row_length": length,
        "predicted": predicted,
        "no_fp8": no_fp8,
        "products": timed,
        "attention": attention,
        "copy_gigabytes_per_second": bandwidth / 1e9,
        "traffic_bytes": moved,
        "sums": sums,
    }
    finish(result, out)
    typer.echo(_table(result), err=True)


def _sum(
    product_ms: list[float], attention_ms: float, traffic_ms: float, tokens: int
) -> dict[str, float]:
    products_ms = sum(product_ms) + attention_ms
    return {
        "products_ms": products_ms,
        "traffic_ms": traffic_ms,
        "tokens_per_second_products": 1e3 * tokens / products_ms,
        "tokens_per_second": 1e3 * tokens / (products_ms + traffic_ms),
    }


def _operands(product: Product, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Both factors, laid out as in a linear layer under autograd."""
    m, n, k = product.m, product.n, product.k

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    if product.kind == FORWARD:  # x [T, in] times the transposed weight [out, in]
        return drawn(m, k), drawn(n, k).t()
    if product.kind == INPUT:  # gradients [T, out] times the weight [out, in]
        return drawn(m, k), drawn(k, n)
    return drawn(k, m).t(), drawn(k, n)  # transposed gradients [T, out] times x [T, in]


def _timed(
    product: Product, dtype: torch.dtype, device: torch.device, repeats: int, fp8: bool
) -> dict[str, Any]:
    """A product's milliseconds per step, and its TFLOP/s."""
    size = product.m * product.k + product.k * product.n
    pairs = [_operands(product, dtype, device) for _ in range(copies(size * dtype.itemsize))]
    target = torch.empty((product.m, product.n), dtype=dtype, device=device)
    calls = [partial(torch.mm, a, b, out=target) for a, b in pairs]
    ms = 1e3 * product.times * median_seconds(calls, device, repeats)
    del pairs, calls, target  # fp8's operands need the memory
    entry = {
        **asdict(product),
        "flops": product.flops,
        "ms": ms,
        "teraflops_per_second": product.flops / ms / 1e9,
    }
    if fp8:
        entry["fp8_ms"] = entry["fp8_teraflops_per_second"] = None
        if not any(side % 16 for side in (product.m, product.n, product.k)):
            small = [_fp8_call(product, device) for _ in range(copies(size))]
            entry["fp8_ms"] = 1e3 * product.times * median_seconds(small, device, repeats)
            entry["fp8_teraflops_per_second"] = product.flops / entry["fp8_ms"] / 1e9
    return entry


def _fp8_call(product: Product, device: torch.device) -> Callable[[], Tensor]:
    """A product of two fp8 matrices with one scale each; only forward uses fast accumulation.

    Gradients are in e5m2, everything else in e4m3 (Micikevicius et al. 2022). The hardware needs
    both factors to be contiguous along the dimension that is summed over.
    """
    first = torch.float8_e4m3fn if product.kind == FORWARD else torch.float8_e5m2
    a = torch.randn((product.m, product.k), device=device).to(first)
    b = torch.randn((product.n, product.k), device=device).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)
    fast = product.kind == FORWARD
    return lambda: torch._scaled_mm(
        a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def why_no_fp8(device: torch.device) -> str | None:
    """Why the device cannot multiply in fp8; None if it can."""
    if device.type != "cuda":
        return f"{device.type} has no fp8 products"
    try:
        for kind in (FORWARD, INPUT):
            _fp8_call(Product("probe", kind, 64, 64, 64, 1), device)()
        torch.cuda.synchronize(device)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return str(error).splitlines()[0]
    return None


def _attention(
    config: ModelConfig,
    rows: int,
    length: int,
    dtype: torch.dtype,
    device: torch.device,
    repeats: int,
) -> dict[str, Any]:
    """Time the attention of all layers, forward and backward, in the layout of the qkv product.

    Backward ends with the gradients of queries, keys and values in one tensor, as that product
    needs them.
    """
    shape = (rows, length, 3 * config.width)
    size = rows * length * 3 * config.width * dtype.itemsize
    calls = []
    for _ in range(copies(size)):
        qkv = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
        gradient = torch.randn((rows, length, config.width), device=device, dtype=dtype)

        def call(qkv: Tensor = qkv, gradient: Tensor = gradient) -> object:
            q, k, v = qkv.unflatten(-1, (3, -1, config.head_dim)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
            return torch.autograd.grad(y, qkv, gradient)

        calls.append(call)
    ms = 1e3 * config.depth * median_seconds(calls, device, repeats)
    flops = attention_flops(config, rows * length, length)
    moved = attention_bytes(config, rows * length, dtype.itemsize)
    return {
        "times": config.depth,
        "flops": flops,
        "bytes": moved,
        "ms": ms,
        "teraflops_per_second": flops / ms / 1e9,
        "gigabytes_per_second": moved / ms / 1e6,
    }


def _table(result: dict[str, Any]) -> str:
    """The result as readable text."""
    lines = [f"{'product':<36}{'times':>6}{'ms':>10}{'TFLOP/s':>9}{'fp8 ms':>10}"]
    for each in result["products"]:
        what = f"{each['name']}, {each['kind']}"
        fp8 = f"{each['fp8_ms']:10.3f}" if each.get("fp8_ms") else f"{'-':>10}"
        rate = each["teraflops_per_second"]
        lines.append(f"{what:<36}{each['times']:>6}{each['ms']:10.3f}{rate:9.1f}{fp8}")
    each = result["attention"]
    rate = each["teraflops_per_second"]
    lines.append(
        f"{'attention':<36}{each['times']:>6}{each['ms']:10.3f}{rate:9.1f}{'-':>10} "
        f"({each['gigabytes_per_second']:.0f} GB/s)"
    )
    for name, total in result["sums"].items():
        lines.append(
            f"{name}: products {total['products_ms']:.2f} ms = "
            f"{total['tokens_per_second_products']:,.0f} tokens/s; with "
            f"{sum(result['traffic_bytes'].values()) / 1e9:.2f} GB at "
            f"{result['copy_gigabytes_per_second']:.0f} GB/s ({total['traffic_ms']:.2f} ms): "
            f"{total['tokens_per_second']:,.0f} tokens/s"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
