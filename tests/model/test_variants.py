"""Every value of the configuration's choices has a home, and nothing about it was forgotten."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from crammed.config import ModelConfig
from crammed.model import count
from crammed.model.attention import WEIGHING, look_at_neighbours
from crammed.model.blocks import ACTIVATIONS, NORMS, Block, Embedding, Linear, Norm
from crammed.model.classifiers import SequenceClassifier, TokenClassifier
from crammed.model.count import block_matrix_parameters, parameters, train_flops_per_token
from crammed.model.encoder import MaskedLM, initialise, products_of
from crammed.model.layer import Layer
from crammed.model.matrices import start_matrices
from crammed.model.mixers import MIXERS
from crammed.model.positions import POSITIONS
from crammed.training.update.precision import recompute, training_copy
from support.variants import (
    CHOICES,
    COMPUTED,
    LENGTH,
    UNREAD,
    VARIANTS,
    VOCAB,
    any_model,
    configuration,
    random_model,
    some_ids,
)

KINDS: list[Callable[[ModelConfig], nn.Module]] = [
    lambda config: MaskedLM(config, VOCAB),
    lambda config: SequenceClassifier(config, VOCAB, 3),
    lambda config: TokenClassifier(config, VOCAB, 3),
]


def test_the_registries_hold_the_choices_and_nothing_else() -> None:
    assert set(CHOICES["positions"]) == POSITIONS.keys()
    assert set(CHOICES["activation"]) == ACTIVATIONS.keys()
    assert set(CHOICES["norm_kind"]) == NORMS.keys()
    assert set(CHOICES["mixer"]) == MIXERS.keys()
    assert set(CHOICES["weighing"]) == WEIGHING.keys()


def test_no_masked_model_reads_what_is_left_out_where_none_should() -> None:
    usual = {name: getattr(configuration(), name) for name in UNREAD}
    left_out = [each.values[0] for each in VARIANTS if each not in COMPUTED]
    assert len(left_out) > 9
    for config in left_out:
        models = [random_model(each) for each in (config, config.model_copy(update=usual))]
        one, other = (model(some_ids(2)) for model in models)
        assert torch.equal(one, other), config


# --- what a model costs


def check_costs(config: ModelConfig) -> None:
    model = random_model(config, dtype=torch.float32).train()
    assert parameters(config, VOCAB) == sum(p.numel() for p in model.parameters())
    in_layers = sum(p.numel() for p in model.encoder.layers.parameters() if p.ndim > 1)
    assert block_matrix_parameters(config) == in_layers
    ids, places = some_ids(2), torch.arange(5).expand(2, 5)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        model(ids, places)
    counted = ids.numel() * train_flops_per_token(config, VOCAB, LENGTH, 5)
    assert 3 * forward.get_total_flops() == counted  # backward counts as twice forward


@pytest.mark.parametrize("config", COMPUTED)
def test_parameters_and_flops_are_those_of_the_module(config: ModelConfig) -> None:
    check_costs(config)


@settings(max_examples=25, deadline=None)
@given(any_model())
def test_parameters_and_flops_of_any_combination(config: ModelConfig) -> None:
    check_costs(config)


@given(any_model())
def test_every_parameter_of_any_combination_is_used(config: ModelConfig) -> None:
    model = random_model(config)
    model(some_ids(2)).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


class _Forgetful(Block):
    """A block that does not declare its second product."""

    def __init__(self) -> None:
        super().__init__()
        self.products = {"one": 1}
        self.one, self.two = Linear(8, 8), Linear(8, 8)


def test_a_matrix_that_no_block_declares_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(configuration())
    layer = model.encoder.layers[0]
    layer.attention = _Forgetful()
    with pytest.raises(TypeError, match=r"layers\.0\.attention\.two\.weight is a matrix that no"):
        products_of(model)
    monkeypatch.setattr(count, "outline", lambda config, vocab_size: model)
    block_matrix_parameters.cache_clear()  # another test may have counted such a model
    with pytest.raises(TypeError, match="name its Linear in the `products`"):
        block_matrix_parameters(configuration(layers=5))
    layer.attention = nn.Linear(8, 8)  # not even a block
    with pytest.raises(TypeError, match=r"attention\.weight is a matrix"):
        products_of(model)


@pytest.mark.parametrize("wrong", [{"one": 1, "three": 1}, {"one": 3, "two": 1}, {"": 1}])
def test_a_wrong_declaration_is_refused(wrong: dict[str, int]) -> None:
    block = _Forgetful()
    block.products = wrong
    with pytest.raises((TypeError, AttributeError), match=r"stacked products|three"):
        list(block.declared("here"))


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({"norm": "pre"}, {"ffn_norm"}),
        ({"norm": "sandwich"}, {"after_attention", "ffn_norm", "after_ffn"}),
        ({"norm": "normformer"}, {"after_attention", "ffn_norm"}),
        ({"norm": "post"}, {"attention_norm", "ffn_norm"}),
        ({"norm": "post", "mixer": "gated-attention"}, {"attention_norm"}),
    ],
)
def test_layer_0_lacks_only_the_norm_of_what_goes_into_its_attention(
    fields: dict[str, Any], first: set[str]
) -> None:
    model = MaskedLM(configuration(first_attention_norm=False, **fields), VOCAB)
    layers = model.encoder.layers
    names = [{n for n, m in each.named_children() if isinstance(m, Norm)} for each in layers]
    assert names == [first, first | ({"attention_norm"} if fields["norm"] != "post" else set())]


# --- how it begins


def check_start(config: ModelConfig) -> None:
    for kind, zero in itertools.product(KINDS, (False, True)):
        model = kind(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(torch.nan)
        initialise(model, 0.02, torch.Generator().manual_seed(0), zero_outputs=zero)
        for name, parameter in model.named_parameters():
            assert parameter.isfinite().all(), name
        again = kind(config)
        initialise(again, 0.02, torch.Generator().manual_seed(0), zero_outputs=zero)
        for one, other in zip(model.parameters(), again.parameters(), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("config", VARIANTS)
def test_initialising_sets_every_parameter_by_the_seed_alone(config: ModelConfig) -> None:
    check_start(config)


@pytest.mark.parametrize("config", COMPUTED)
def test_with_zero_outputs_a_layer_begins_as_the_identity(config: ModelConfig) -> None:
    if config.mixer.startswith("fourier"):
        pytest.skip("it has no last product")
    model = MaskedLM(config, VOCAB)
    initialise(model, 0.02, torch.Generator().manual_seed(0), zero_outputs=True)
    x = torch.randn(2, LENGTH, config.width)
    tables = model.encoder.position_encoding.tables(torch.arange(LENGTH))
    for layer in model.encoder.layers:
        assert isinstance(layer, Layer)
        expected = x
        if not layer.pre:
            once = layer.attention_norm(layer.residual * x)
            expected = layer.ffn_norm(layer.residual * once)
        torch.testing.assert_close(layer(x, tables, None, x.sin(), x.cos()), expected)


def test_a_parameter_that_nobody_sets_is_refused() -> None:
    model = MaskedLM(configuration(), VOCAB)
    block = model.get_submodule("encoder.layers.1.attention")
    block.register_parameter("gain", nn.Parameter(torch.ones(3)))
    with pytest.raises(TypeError, match=r"no module sets encoder\.layers\.1\.attention\.gain: "):
        initialise(model, 0.02)


def test_modules_are_made_with_the_draws_of_pytorch() -> None:
    """The heads of exported classifiers depend on them for a seed."""
    for ours, theirs in (
        (lambda: Linear(8, 4), lambda: nn.Linear(8, 4)),
        (lambda: Embedding(8, 4), lambda: nn.Embedding(8, 4)),
    ):
        torch.manual_seed(0)
        made = [*ours().parameters(), torch.rand(1)]
        torch.manual_seed(0)
        expected = [*theirs().parameters(), torch.rand(1)]
        assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))


def test_counting_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch needs seconds to prepare for draws without storage."""

    def draw(*_: Any, **__: Any) -> None:
        pytest.fail("a draw")

    for name in ("normal_", "uniform_", "kaiming_uniform_"):
        monkeypatch.setattr(nn.init, name, draw)
        monkeypatch.setattr(Tensor, name, draw, raising=False)
    config = configuration("bert-base", layers=3, linear_bias=True)
    assert parameters(config, 4 * VOCAB) > block_matrix_parameters(config) > 0


# --- what it computes


@pytest.mark.parametrize("config", VARIANTS)
def test_padding_changes_nothing(config: ModelConfig) -> None:
    models = [random_model(config), *(kind(config).double() for kind in KINDS[1:])]
    for model in models:
        initialise(model, 0.3, torch.Generator().manual_seed(0))
        ids = some_ids(2, 9)
        padded = F.pad(ids, (0, LENGTH - 9), value=17)
        mask = torch.arange(LENGTH).expand(2, LENGTH) < 9
        alone, together = model.eval()(ids), model(padded, mask=mask)
        # Tables of positions are float32.
        expected = together[:, :9] if together.dim() == 3 else together
        torch.testing.assert_close(alone, expected, rtol=1e-6, atol=1e-6)


def seen(config: ModelConfig) -> list[Any]:
    """Parameters and their start, and what every kind of model computes in training."""
    found: list[Any] = []
    for kind in KINDS:
        model = kind(config)
        draw = torch.Generator().manual_seed(0)
        initialise(model, 0.3, draw, zero_outputs=config.zero_outputs)
        if (start := config.attention_start) != "random":
            look_at_neighbours(model, first_only=start == "neighbours-first")
        start_matrices(model, config)
        found += [(name, p.tolist()) for name, p in model.named_parameters()]
        with torch.no_grad():
            draw = torch.Generator().manual_seed(1)
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
        torch.manual_seed(0)
        found.append(model.train()(some_ids(2)).tolist())
    return found


@pytest.mark.parametrize(
    "name",
    sorted(CHOICES.keys() - {"decoder_bias_start", "embedding_start"}),  # which need a corpus
)
def test_every_value_of_a_choice_changes_something(name: str) -> None:
    made = {value: seen(configuration(dropout=0.3, **{name: value})) for value in CHOICES[name]}
    same = [pair for pair in itertools.combinations(made, 2) if made[pair[0]] == made[pair[1]]]
    assert not same, f"these values of model.{name} do the same"


@pytest.mark.parametrize("config", COMPUTED)
def test_shapes_can_be_computed_without_storage(config: ModelConfig) -> None:
    with torch.device("meta"):
        assert MaskedLM(config, VOCAB)(torch.zeros(2, 8, dtype=torch.int64)).shape == (2, 8, VOCAB)


@pytest.mark.parametrize("config", COMPUTED)
def test_a_compiler_sees_one_graph(config: ModelConfig) -> None:
    if not config.pool_at:
        config = config.model_copy(update={"layers": 1})
    model = training_copy(MaskedLM(config, VOCAB), torch.bfloat16)
    torch._dynamo.reset()
    traced = torch.compile(model, fullgraph=True, dynamic=False, backend="eager")
    initialise(model, 0.1, torch.Generator().manual_seed(0))
    torch.testing.assert_close(traced(some_ids(2)), model(some_ids(2)))


# --- number formats


@pytest.mark.parametrize("config", COMPUTED)
def test_training_in_16_bits_is_near_and_every_activation_is_in_them(config: ModelConfig) -> None:
    model = random_model(config, dtype=torch.float32).train()
    ids, places = some_ids(8), torch.arange(5).expand(8, 5)
    exact = model(ids, places)
    for dtype, tolerance in ((torch.bfloat16, 0.06), (torch.float16, 0.01)):
        copy = training_copy(model, dtype)
        assert {id(p) for p in copy.parameters()} == {id(p) for p in model.parameters()}
        others: set[str] = set()

        def note(
            module: nn.Module,
            inputs: Any,
            output: Tensor,
            *,
            name: str,
            dtype: torch.dtype = dtype,
            others: set[str] = others,
        ) -> None:
            if output.dtype != dtype:
                others.add(name)

        for name, module in copy.named_modules():
            module.register_forward_hook(partial(note, name=name))
        near = copy(ids, places)
        before = {"tokens", "widen", "positions", "types", "values", "embedding_norm"}
        assert others <= {f"encoder.{name}" for name in before}
        assert (near.float() - exact).norm() < tolerance * exact.norm()
        model.zero_grad()
        near.float().square().mean().backward()
        plain = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        recompute(copy)
        copy(ids, places).float().square().mean().backward()
        again = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert again.keys() == plain.keys()
        assert {gradient.dtype for gradient in plain.values()} == {torch.float32}
        assert all(torch.equal(again[name], gradient) for name, gradient in plain.items())


@pytest.mark.parametrize("config", COMPUTED)
def test_a_model_whose_weights_have_16_bits_is_near(config: ModelConfig) -> None:
    """As transformers loads it on request."""
    exact = random_model(config, dtype=torch.float32)(some_ids(8))
    for dtype, tolerance in ((torch.bfloat16, 0.1), (torch.float16, 0.02)):
        near = random_model(config, dtype=dtype)(some_ids(8))
        assert near.dtype == dtype
        assert (near.float() - exact).norm() < tolerance * exact.norm()


@pytest.mark.parametrize("config", VARIANTS)
def test_fine_tuning_under_autocast_is_near(config: ModelConfig) -> None:
    for kind in KINDS:
        model = kind(config)
        initialise(model, 0.2, torch.Generator().manual_seed(0))  # larger ones magnify rounding
        exact = model(some_ids(8))
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            near = model(some_ids(8))
        # Ten units of bfloat16: its layers add up the rounding of some ten products.
        assert (near.float() - exact).norm() < 10 * 2**-8 * config.passes * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_norm_keeps_the_format_of_its_input_and_computes_in_more(dtype: torch.dtype) -> None:
    kinds = ("layer", "rms", "scale")
    models = [random_model(configuration(norm_kind=kind)) for kind in kinds]
    norms = [m for model in models for m in model.modules() if isinstance(m, Norm)]
    x = (100 + torch.randn(4, configuration().width, dtype=torch.float64)).to(dtype)
    for norm in norms:
        exact = norm.double()(x.double())
        for weights in (torch.float32, dtype):
            assert norm.to(weights)(x).dtype == dtype
        rounding = {torch.bfloat16: 0.01, torch.float16: 2e-3}.get(dtype, 1e-4)
        assert (norm.float()(x).double() - exact).norm() < rounding * exact.norm()


def test_a_linear_layer_follows_its_input() -> None:
    layer = Linear(8, 4)
    layer.start(0.3)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = torch.randn(3, 8).to(dtype)
        y: Tensor = layer(x)
        assert y.dtype == dtype
        expected = F.linear(x, layer.weight.to(dtype), layer.bias.to(dtype))
        assert torch.equal(y, expected)
