"""References, fallbacks, sharing; then the kernels themselves, interpreted and compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crammed.config import ModelConfig
from crammed.errors import InputError
from crammed.kernels import add_norm as add_norms
from crammed.kernels import cross_entropy as cross_entropies
from crammed.kernels import encoder as fused_encoder
from crammed.kernels import gate as gates
from crammed.kernels import jit
from crammed.kernels.add_norm import add_norm
from crammed.kernels.cross_entropy import cross_entropy
from crammed.kernels.encoder import FusedMaskedLM, fused
from crammed.kernels.gate import gate
from crammed.model.blocks import Norm
from crammed.model.encoder import MaskedLM, initialise
from crammed.model.feedforward import FeedForward
from crammed.optim.build import build_optimizer
from crammed.rules.recipe import load_config
from crammed.training.precision import training_copy
from support.variants import VARIANTS, VOCAB, configuration, random_model

sizes = st.integers(1, 12)


def doubles(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@settings(deadline=None, max_examples=25)
@given(rows=sizes, width=st.integers(2, 40), biased=st.booleans(), seed=st.integers(0, 2**31))
def test_add_norm_is_its_formula(rows: int, width: int, biased: bool, seed: int) -> None:
    torch.manual_seed(seed)
    x, branch, weight, bias = doubles(rows, width), doubles(rows, width), doubles(width), None
    if biased:
        bias = doubles(width)
    total, normed = add_norm(x, branch, weight, bias, 1e-6)
    for row in range(rows):
        values = [float(a + b) for a, b in zip(x[row], branch[row], strict=True)]
        mean = sum(values) / width
        deviation = (sum((v - mean) ** 2 for v in values) / width + 1e-6) ** 0.5
        for column, value in enumerate(values):
            expected = (value - mean) / deviation * float(weight[column])
            expected += 0.0 if bias is None else float(bias[column])
            assert float(total[row, column]) == value
            assert float(normed[row, column]) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(rows=sizes, vocab=st.integers(2, 40), seed=st.integers(0, 2**31))
def test_cross_entropy_is_its_formula(rows: int, vocab: int, seed: int) -> None:
    torch.manual_seed(seed)
    logits = (20 * doubles(rows, vocab)).requires_grad_()
    labels = torch.randint(vocab, (rows,))
    labels[::3] = -100
    total = cross_entropy(logits, labels)
    chosen = [(row, int(label)) for row, label in enumerate(labels) if label >= 0]
    chances = logits.detach().softmax(dim=1)
    expected = -sum(float(chances[place].log()) for place in chosen)
    assert float(total.detach()) == pytest.approx(expected, abs=1e-9)
    total.backward()
    assert logits.grad is not None
    right = torch.zeros_like(chances)
    for row, label in chosen:
        right[row] = chances[row]
        right[row, label] -= 1
    torch.testing.assert_close(logits.grad, right)


def test_references_keep_formats() -> None:
    x, branch = torch.randn(3, 8), torch.randn(3, 8, dtype=torch.bfloat16)
    weight = torch.ones(8)
    total, normed = add_norm(x, branch, weight, None, 1e-6)
    assert (total.dtype, normed.dtype) == (torch.float32, torch.bfloat16)
    total, normed = add_norm(x.bfloat16(), branch, weight, None, 1e-6)
    assert (total.dtype, normed.dtype) == (torch.bfloat16, torch.bfloat16)
    assert gate(branch, "gelu").dtype == torch.bfloat16
    assert cross_entropy(branch, torch.tensor([0, 1, 2])).dtype == torch.float32


def test_what_does_not_fit_is_refused() -> None:
    x = torch.ones(2, 6)
    with pytest.raises(InputError, match="do not fit"):
        add_norm(x, x, torch.ones(5), None, 1e-6)
    with pytest.raises(InputError, match="do not fit"):
        add_norm(x, x[:1], torch.ones(6), None, 1e-6)
    with pytest.raises(InputError, match="cannot halve 5"):
        gate(x[:, :5], "gelu")
    with pytest.raises(InputError, match="unknown activation tanh: try one of gelu"):
        gate(x, "tanh")
    with pytest.raises(InputError, match="do not fit"):
        cross_entropy(x, torch.tensor([0]))


def small(**fields: Any) -> ModelConfig:
    base = {"layers": 3, "width": 32, "head_dim": 16, "max_length": 12}
    return ModelConfig.model_validate({**base, **fields})


def model_of(config: ModelConfig) -> MaskedLM:
    model = MaskedLM(config, VOCAB)
    initialise(model, 0.3)
    return model.double()


@pytest.mark.parametrize("config", VARIANTS)
def test_a_fused_model_is_the_plain_one_or_refused(config: ModelConfig) -> None:
    model = random_model(config)
    made, reason = fused(model)
    if made is model:
        assert reason.startswith("fused kernels off: ")
        return
    assert isinstance(made, FusedMaskedLM)
    assert reason.startswith("fused kernels on: norms with residuals")
    assert ("gates" in reason) == config.gated
    ids, places = torch.randint(VOCAB, (2, 12)), torch.arange(5).expand(2, 5)
    labels = torch.randint(VOCAB, (10,))
    gradients = []
    for each in (model, made):
        loss = cross_entropy(each(ids, places).flatten(0, 1), labels)
        found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        gradients.append([torch.zeros(1) if each is None else each for each in found])
    for ours, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)
    mask = torch.arange(12) < torch.tensor([[12], [7]])
    torch.testing.assert_close(made(ids, None, mask), model(ids, None, mask))
    some = (each.encoder(ids, positions=places) for each in (made, model))
    torch.testing.assert_close(*some)


@pytest.mark.parametrize("recipe", ["crammed", "crammed-2022"])
@pytest.mark.parametrize("fields", [{}, {"gated": False}, {"positions": "learned"}], ids=str)
def test_the_kernels_suit_the_main_recipes(recipe: str, fields: dict[str, Any]) -> None:
    assert fused(random_model(configuration(recipe, **fields)))[1].startswith("fused kernels on")


class _OtherNorm(Norm):
    """A norm that the kernels do not compute."""

    def normalise(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x * weight


class _OtherFeedForward(FeedForward):
    """A feed-forward block that the kernels do not compute."""


def test_what_the_kernels_do_not_know_they_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("layers.1.attention_norm", "layers.0.ffn_norm", "final_norm"):
        model = model_of(small())
        model.encoder.set_submodule(place, _OtherNorm(32, 1e-6, bias=True))
        assert fused(model) == (model, "fused kernels off: they are for LayerNorm, not _OtherNorm")
    model = model_of(small())
    model.encoder.set_submodule("layers.1.ffn", _OtherFeedForward(small()))
    assert fused(model) == (model, "fused kernels off: they do not know _OtherFeedForward")
    model = model_of(small())
    monkeypatch.setattr(fused_encoder, "ACTIVATION_NAMES", ("silu",))
    assert fused(model) == (model, "fused kernels off: they do not know the activation gelu")
    assert fused(model_of(small(gated=False)))[1].startswith("fused kernels on")


def test_parameters_are_shared_by_name_and_order() -> None:
    model = model_of(small())
    model.eval()
    made, _ = fused(model)
    assert not made.training
    pairs = zip(model.named_parameters(), made.named_parameters(), strict=True)
    for (name, parameter), (same_name, same) in pairs:
        assert name == same_name
        assert parameter is same
    config = load_config("crammed", ["optim.name=muon"]).optim
    groups = [build_optimizer(each, config).param_groups for each in (model, made)]
    for ours, plain in zip(*groups, strict=True):
        assert [id(p) for p in ours["params"]] == [id(p) for p in plain["params"]]


def test_in_training_the_stream_has_16_bits() -> None:
    model = MaskedLM(small(), VOCAB)
    initialise(model, 0.3)
    seen: list[torch.dtype] = []
    copy = training_copy(fused(model)[0], torch.bfloat16)
    first = copy.get_submodule("encoder.layers.0")
    first.get_submodule("ffn_norm").register_forward_pre_hook(lambda *_: pytest.fail("not fused"))
    first.get_submodule("attention_norm").register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].dtype)
    )
    logits = copy(torch.randint(VOCAB, (2, 12)))
    assert seen == [torch.bfloat16]
    assert logits.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"norm": "post", "final_norm": False}, "pre-norm"),
        ({"dropout": 0.1}, "without dropout"),
        ({"width": 8320, "layers": 1, "head_dim": 64, "ffn_ratio": 0.1}, "8320 is wider"),
    ],
)
def test_a_model_that_is_not_covered_stays_as_it_is(fields: dict[str, Any], why: str) -> None:
    with torch.device("meta"):
        model = MaskedLM(small(**fields), VOCAB)
    same, reason = fused(model)
    assert same is model
    assert reason.startswith("fused kernels off: ")
    assert why in reason


def test_no_kernel_runs_on_a_cpu() -> None:
    assert not jit.available(torch.device("cpu"))
    assert not jit.runs_on(torch.ones(1))


def test_the_fused_model_compiles_without_a_break() -> None:
    made, _ = fused(model_of(small()))
    torch._dynamo.reset()
    step = torch.compile(made, fullgraph=True, dynamic=False, backend="aot_eager")
    ids = torch.randint(VOCAB, (2, 12))
    torch.testing.assert_close(step(ids), made(ids))


def test_kernels_agree_with_float64() -> None:
    """On the GPU where there is one, in Triton's interpreter elsewhere."""
    pytest.importorskip("triton")
    interpret = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    checks = Path(__file__).resolve().parents[1] / "support" / "kernel_checks.py"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--show-capture=no", str(checks)]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        command, env=os.environ | interpret, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


def kernels_of(module: ModuleType) -> list[str]:
    """The names of its kernels, forward first."""
    return [name for name in vars(module) if name.endswith("_kernel")]


def test_a_profile_tells_the_kernels_apart() -> None:
    """A device knows a kernel by the name of its function alone."""
    modules = (add_norms, gates, cross_entropies)
    kernels = [getattr(module, name) for module in modules for name in kernels_of(module)]
    assert len({kernel.__name__ for kernel in kernels}) == len(kernels) == 6


class Compiler:
    """Stands in for a kernel and compiles what it is launched with, for an H100 or an A100."""

    def __init__(self, kernel: Any, capability: int) -> None:
        self.kernel = kernel
        self.capability = capability
        self.compiled: list[str] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(size >= 1 for size in grid)
        return self._compile

    def _compile(self, *arguments: Any, num_warps: int = 4, **constants: Any) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        names = self.kernel.arg_names
        assert [*names[len(arguments) :]] == [*constants]
        signature = dict.fromkeys(constants, "constexpr")
        for name, argument in zip(names, arguments, strict=False):
            signature[name] = self._type(argument)
        source = ASTSource(
            fn=self.kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={
                (place,): [["tt.divisibility", 16]]
                for place, argument in enumerate(arguments)
                if isinstance(argument, Tensor)
            },
        )
        target = GPUTarget("cuda", self.capability, 32)
        binary = triton.compile(source, target=target, options={"num_warps": num_warps})
        self.compiled.append(binary.asm["ptx"])

    @staticmethod
    def _type(argument: Any) -> str:
        if isinstance(argument, Tensor):
            name = str(argument.dtype).removeprefix("torch.")
            return "*" + name.replace("bfloat", "bf").replace("float", "fp").replace("int", "i")
        return "i32" if isinstance(argument, int) else "fp32"


@pytest.mark.parametrize("stream", [torch.float32, torch.bfloat16])
def test_kernels_compile_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: torch.dtype
) -> None:
    """As they are launched for the paper's encoder; loads of 128 bits at a time."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    capability = 90 if stream == torch.bfloat16 else 80
    compilers = []
    for module in (add_norms, gates, cross_entropies):
        for name in kernels_of(module):
            compilers.append(Compiler(getattr(module, name), capability))
            monkeypatch.setattr(module, name, compilers[-1])
    x, branch = torch.ones(64, 768, dtype=stream), torch.ones(64, 768, dtype=torch.bfloat16)
    weight = torch.ones(768)
    total, normed, mean, rstd = add_norms._add_norm(x, branch, weight, weight, 1e-12)
    add_norms._add_norm_backward(total, normed, total, weight, mean, rstd, True)
    up = torch.ones(64, 3072, dtype=torch.bfloat16)
    names = gates.ACTIVATION_NAMES if stream == torch.bfloat16 else ["gelu"]
    for activation in names:
        hidden = gates._gate(up, activation)
        gates._gate_backward(hidden, up, activation)
    logits, labels = torch.ones(4, 32768, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int64)
    losses, normalisers = cross_entropies._cross_entropy(logits, labels)
    cross_entropies._cross_entropy_backward(losses, logits, labels, normalisers)
    assert [len(each.compiled) for each in compilers] == [1, 1, len(names), len(names), 1, 1]
    for each in compilers:
        assert all(
            "ld.global.v4.b32" in text.replace(".L1::evict_last", "") for text in each.compiled
        )
