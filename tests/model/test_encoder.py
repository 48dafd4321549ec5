from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from crammed.config import ModelConfig
from crammed.model.blocks import ACTIVATIONS
from crammed.model.count import parameters, train_flops_per_token
from crammed.model.encoder import MaskedLM, initialise
from crammed.model.layer import picked
from crammed.model.positions import T5Positions
from crammed.model.traffic import attention_bytes, traffic
from crammed.rules.recipe import load_config
from support.variants import COMPUTED, VOCAB, configuration, random_model, some_ids


@pytest.mark.parametrize(
    ("recipe", "count"),
    [
        ("crammed-2022", 119_589_889),
        ("crammed-2022-v1", 119_589_889),
        ("izsak", 337_081_344),
        ("bert-base", 111_241_472),
        ("bert-original", 111_241_472),
    ],
)
def test_parameters_of_the_full_forms(recipe: str, count: int) -> None:
    config = load_config(recipe)
    assert config.tokenizer.vocab_size == 32768
    with torch.device("meta"):
        model = MaskedLM(config.model, 32768)
    assert sum(p.numel() for p in model.parameters()) == count
    assert parameters(config.model, 32768) == count


def test_flops_and_traffic_of_passes_are_those_of_as_many_layers() -> None:
    deep, shared = (
        configuration(layers=layers, passes=passes, first_attention_norm=True)
        for layers, passes in ((4, 1), (2, 2))
    )
    flops = [train_flops_per_token(config, VOCAB, 32, 8) for config in (deep, shared)]
    moved = [
        (traffic(config, VOCAB, 64, 16, 2, 2), attention_bytes(config, 64, 2))
        for config in (deep, shared)
    ]
    assert flops[0] == flops[1]
    assert moved[0] == moved[1]


def test_flops_of_the_paper_s_encoder() -> None:
    per_token = train_flops_per_token(load_config("crammed-2022").model, 32768, 128, 32)
    assert per_token == pytest.approx(0.623e9, rel=1e-3)


def bucket(ahead: int) -> int:
    """As in the code of T5, but for its rounding of logarithms."""
    far = 8 + int(2 * math.log2(max(abs(ahead), 8) / 8) + 1e-9)
    return 16 * (ahead > 0) + (abs(ahead) if abs(ahead) < 8 else min(far, 15))


def normalised(scores: Tensor, shown: Tensor) -> Tensor:
    some = scores[shown]
    weights = torch.zeros_like(scores)
    weights[shown] = (some - some.mean()) / (some.var(correction=0) + 1e-5).sqrt()
    return weights / math.sqrt(len(some))


def running(scores: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    weights = torch.zeros_like(scores)
    for j in range(len(scores)):
        if scores[j] > -math.inf:
            seen = scores[: j + 1]
            weights[j] = function(seen[seen > -math.inf])
    return weights / math.sqrt((scores > -math.inf).sum())


def reference(model: MaskedLM, config: ModelConfig, ids: list[int], types: list[int]) -> Tensor:
    """One row through the encoder, written out token by token and head by head."""
    state = dict(model.named_parameters())
    width, dim, heads = config.width, config.head_dim, config.heads
    normformer = config.norm == "normformer"
    step = 1
    keep = (2 * config.layers * config.passes) ** 0.25 if config.norm == "deepnorm" else 1.0

    def norm(x: Tensor, name: str) -> Tensor:
        if f"{name}.weight" not in state:
            return x
        if config.norm_kind == "scale":
            return x * state[f"{name}.weight"] / (x**2).sum().sqrt()
        centred = x - x.mean() if config.norm_kind == "layer" else x
        scaled = (
            centred / torch.sqrt((centred**2).mean() + config.norm_eps) * state[f"{name}.weight"]
        )
        return scaled + state[f"{name}.bias"] if f"{name}.bias" in state else scaled

    def linear(x: Tensor, name: str) -> Tensor:
        y = state[f"{name}.weight"] @ x
        return y + state[f"{name}.bias"] if f"{name}.bias" in state else y

    def turn(x: Tensor, place: int) -> Tensor:
        if config.positions != "rotary":
            return x
        y = x.clone()
        for i in range(dim // 2):
            angle = place * step / config.rotary_theta ** (2 * i / dim)
            a, b = x[i], x[i + dim // 2]
            y[i] = a * math.cos(angle) - b * math.sin(angle)
            y[i + dim // 2] = b * math.cos(angle) + a * math.sin(angle)
        return y

    def attention(xs: list[Tensor], name: str, index: int) -> list[Tensor]:
        def parts_of(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            if not config.key_heads:
                q, k, v = linear(x, f"{name}.qkv").chunk(3)
                return q, k, v
            times = heads // config.key_heads
            k, v = (
                torch.cat([head for head in part.split(dim) for _ in range(times)])
                for part in linear(x, f"{name}.kv").chunk(2)
            )
            return linear(x, f"{name}.q"), k, v

        parts = [parts_of(x) for x in xs]
        scale = state.get(f"{name.removesuffix('attention')}value_scale.weight")
        if scale is not None:
            table = state["encoder.values.weight"]
            parts = [(q, k, v + scale * table[i]) for (q, k, v), i in zip(parts, ids, strict=True)]
        outputs = [torch.zeros(width, dtype=torch.float64) for _ in xs]
        for head in range(width // dim):
            at = slice(head * dim, (head + 1) * dim)
            q, k, v = ([p[i][at] for p in parts] for i in range(3))
            if config.qk_norm == "rms":
                q, k = ([x / (x**2).mean().sqrt() for x in each] for each in (q, k))
            for i in range(len(xs)):
                scores = torch.stack(
                    [turn(q[i], i) @ turn(k[j], j) / math.sqrt(dim) for j in range(len(xs))]
                )
                if config.positions == "alibi":
                    slope = 2 ** (-8 * (head + 1) / config.heads)
                    scores -= slope * step * (torch.arange(len(xs)) - i).abs()
                if config.positions == "t5":
                    table = state["encoder.distances.weight"]
                    near = [table[bucket(step * (j - i)), head] for j in range(len(xs))]
                    scores += torch.stack(near)
                for j in range(len(xs)):
                    far = abs(i - j) > config.window // 2 and index % config.global_every
                    if (config.scope == "causal" and j > i) or (config.scope == "local" and far):
                        scores[j] = -math.inf
                shown = scores > -math.inf
                weights = {
                    "softmax": scores.exp() / scores.exp().sum(),
                    "relu": scores.clamp(min=0) / shown.sum(),
                    "sigmoid": 1 / (1 + shown.sum() * (-scores).exp()),
                    "identity": torch.where(shown, scores, 0.0) / shown.sum(),
                    "layer-norm": normalised(scores, shown),
                    "running-sum": running(scores, lambda seen: seen.sum()),
                    "running-log-sum-exp": running(scores, lambda seen: seen.exp().sum().log()),
                }[config.weighing]
                gain = state[f"{name}.head_scales.weight"][head] if normformer else 1.0
                outputs[i][at] = gain * sum(
                    (w * x for w, x in zip(weights, v, strict=True)), torch.zeros(1)
                )
        return [linear(o, f"{name}.out") for o in outputs]

    def fourier(xs: list[Tensor]) -> list[Tensor]:
        outputs = []
        for s in range(len(xs)):
            y = torch.zeros(width, dtype=torch.float64)
            for t, x in enumerate(xs):
                for d in range(width):
                    waves = [2 * math.pi * (s * t / len(xs) + d * e / width) for e in range(width)]
                    y[d] += sum(x[e] * math.cos(wave) for e, wave in enumerate(waves))
            outputs.append(y / math.sqrt(len(xs) * width))
        return outputs

    def gated_attention(xs: list[Tensor], name: str) -> list[Tensor]:
        act = ACTIVATIONS[config.activation].function
        base = [act(linear(x, f"{name}.shared")) for x in xs]
        q, k = (
            [
                turn(x * state[f"{name}.{part}.weight"] + state[f"{name}.{part}.bias"], i)
                for i, x in enumerate(base)
            ]
            for part in ("query", "key")
        )
        ups = [act(linear(x, f"{name}.up")) for x in xs]
        outputs = []
        for i, up in enumerate(ups):
            mixed = torch.zeros(config.ffn_hidden, dtype=torch.float64)
            for j, other in enumerate(ups):
                mixed += max(0.0, float(q[i] @ k[j]) / len(xs)) ** 2 * other[: config.ffn_hidden]
            outputs.append(linear(mixed * up[config.ffn_hidden :], f"{name}.down"))
        return outputs

    def mix(xs: list[Tensor], name: str, index: int) -> list[Tensor]:
        if config.mixer == "gated-attention":
            return gated_attention(xs, name)
        if config.mixer == "none":
            return [torch.zeros_like(x) for x in xs]
        hybrid = config.mixer == "fourier-hybrid" and index >= config.layers - 2
        return attention(xs, name, index) if config.mixer == "attention" or hybrid else fourier(xs)

    def ffn(x: Tensor, name: str) -> Tensor:
        if f"{name}.up.weight" not in state:
            return torch.zeros_like(x)
        hidden = linear(x, f"{name}.up")
        act = ACTIVATIONS[config.activation].function
        if config.gated:
            half = len(hidden) // 2
            hidden = act(hidden[:half]) * hidden[half:]
        else:
            hidden = act(hidden)
        return linear(norm(hidden, f"{name}.norm"), f"{name}.down")

    xs = []
    for place, (token, kind) in enumerate(zip(ids, types, strict=True)):
        x = state["encoder.tokens.weight"][token].clone()
        if config.embedding_width:
            x = state["encoder.widen.weight"] @ x
        if config.positions == "learned":
            x = x + state["encoder.positions.weight"][place]
        elif "sinusoidal" in config.positions:
            wave = torch.empty(width, dtype=torch.float64)
            for i in range(0, width, 2):
                wave[i] = math.sin(place / 10000 ** (i / width))
                wave[i + 1] = math.cos(place / 10000 ** (i / width))
            scale = state.get("encoder.position_scale", torch.ones(1))
            x = x + scale * wave
        if config.token_types:
            x = x + state["encoder.types.weight"][kind]
        xs.append(norm(x, "encoder.embedding_norm"))
    firsts, whole, step = xs, (xs, xs), 1
    for n in [*range(config.layers)] * config.passes:
        name = f"encoder.layers.{n}"
        if n in config.pool_at:
            whole = whole if step > 1 else (xs, firsts)
            step *= 2
            xs, firsts = (
                [torch.stack(some[i : i + 2]).mean(0) for i in range(0, len(some), 2)]
                for some in (xs, firsts)
            )
        if step > 1 and n == config.layers - config.unpooled_layers:
            xs = [x + xs[i // step] for i, x in enumerate(whole[0])]
            firsts, step = whole[1], 1
        if config.residual_scalars:
            a, b = state[f"{name}.stream_scales.weight"]
            xs = [a * x + b * x0 for x, x0 in zip(xs, firsts, strict=True)]
        if config.norm in ("pre", "sandwich", "normformer"):
            normed = [norm(x, f"{name}.attention_norm") for x in xs]
            inner = mix(normed, f"{name}.attention", n)
            inner = [norm(y, f"{name}.after_attention") for y in inner]
            xs = [x + y for x, y in zip(xs, inner, strict=True)]
            if config.blocks == "serial":
                normed = [norm(x, f"{name}.ffn_norm") for x in xs]
            fed = [norm(ffn(x, f"{name}.ffn"), f"{name}.after_ffn") for x in normed]
            xs = [x + y for x, y in zip(xs, fed, strict=True)]
        else:
            inner = mix(xs, f"{name}.attention", n)
            sums = [keep * x + y for x, y in zip(xs, inner, strict=True)]
            xs = [norm(x, f"{name}.attention_norm") for x in sums]
            xs = [norm(keep * x + ffn(x, f"{name}.ffn"), f"{name}.ffn_norm") for x in xs]
    logits = []
    for x in xs:
        x = norm(x, "encoder.final_norm")
        if config.head_transform:
            x = norm(ACTIVATIONS[config.activation].function(linear(x, "head.dense")), "head.norm")
        if config.embedding_width:
            x = state["encoder.widen.weight"].T @ x
        table = "encoder.tokens" if config.tied_decoder else "output"
        y = state[f"{table}.weight"] @ x
        y = y + state["decoder_bias"] if "decoder_bias" in state else y
        logits.append(cap * (y / cap).tanh() if (cap := config.logit_cap) else y)
    return torch.stack(logits)


@pytest.mark.parametrize("config", COMPUTED)
def test_equals_its_reference(config: ModelConfig) -> None:
    model = random_model(config)
    ids = some_ids(1, 7)
    types = torch.tensor([[0, 0, 0, 1, 1, 1, 1]]) * (config.token_types > 0)
    with torch.inference_mode():
        ours = model(ids, types=types)[0]
        theirs = reference(model, config, ids[0].tolist(), types[0].tolist())
    # Tables of positions are float32 in the model.
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", COMPUTED)
def test_what_follows_the_last_attention_can_be_left_out(config: ModelConfig) -> None:
    model, ids = random_model(config), some_ids(4)
    positions = torch.stack([torch.randperm(ids.shape[1])[:6] for _ in range(4)])
    parameters = list(model.encoder.parameters())
    found, flops = [], []
    for asked in (None, positions):
        with FlopCounterMode(display=False) as counter:
            hidden = model.encoder(ids, positions=asked)
        flops.append(counter.get_total_flops())
        hidden = picked(hidden, positions) if asked is None else hidden
        found.append([hidden, *torch.autograd.grad(hidden.square().sum(), parameters)])
    for all_rows, some_rows in zip(*found, strict=True):
        torch.testing.assert_close(all_rows, some_rows)
    left_out = ids.numel() - positions.numel()
    products = config.width * (config.ffn_width + config.ffn_hidden)
    products = 0 if config.mixer == "gated-attention" else products
    assert flops[0] - flops[1] == 2 * left_out * products


def test_buckets_of_distances_are_those_of_t5() -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    at = torch.arange(300)
    found = T5Positions(configuration(positions="t5")).tables(at)[0]
    ahead = at[None, :] - at[:, None]
    assert torch.equal(found, T5Attention._relative_position_bucket(ahead, True, 32, 128))
    assert found[150].tolist() == [bucket(n - 150) for n in range(300)]


def test_parameters_keep_their_order() -> None:
    """In which gradients are summed up to a norm: another order changes the bits of old runs."""
    config = configuration("bert-base", layers=1)
    names = [name for name, _ in MaskedLM(config, VOCAB).encoder.named_parameters()]
    parts = ["attention_norm", "attention.qkv", "attention.out", "ffn_norm", "ffn.up", "ffn.down"]
    before = ["tokens.weight", "positions.weight", "types.weight"]
    layer = [f"layers.0.{part}" for part in parts]
    after = [f"{part}.{kind}" for part in ("embedding_norm", *layer) for kind in ("weight", "bias")]
    assert names == [*before, *after]


def test_initialisation() -> None:
    config = configuration("crammed-2022", linear_bias=True, width=256, head_dim=32)
    model = MaskedLM(config, 4096)
    initialise(model, 0.02, torch.Generator().manual_seed(0))
    for name, parameter in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            assert (parameter == 1).all()
        elif name.endswith("bias"):
            assert (parameter == 0).all()
        elif name.endswith("position_scale"):
            assert parameter.item() == pytest.approx(256**-0.5)
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.03), name


def test_dropout_acts_in_training_only() -> None:
    config = configuration(dropout=0.5)
    model = random_model(config, dtype=torch.float32)
    ids = some_ids(2, 10)
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))


@pytest.mark.parametrize("recipe", ["crammed", "crammed-2022", "bert-base"])
def test_an_exporter_finds_rows_of_any_length(recipe: str) -> None:
    model = MaskedLM(configuration(recipe), VOCAB).eval()
    initialise(model, 0.3, torch.Generator().manual_seed(0))
    short, long = some_ids(2)[:, :9], some_ids(2)[:, :12]
    shapes = ({1: torch.export.Dim.AUTO},)
    exported = torch.export.export(model, (short,), dynamic_shapes=shapes).module()
    torch.testing.assert_close(exported(long), model(long))
