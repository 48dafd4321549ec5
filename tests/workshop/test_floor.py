"""The listed products account for all counted FLOPs; the benchmarks run in miniature."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from crammed.config import ModelConfig  # noqa: E402
from crammed.data.masking import predicted_positions  # noqa: E402
from crammed.model.count import train_flops_per_token  # noqa: E402
from crammed.model.traffic import attention_bytes, attention_flops, traffic  # noqa: E402
from crammed.rules.recipe import load_config, recipe_names  # noqa: E402
from floor import FORWARD, INPUT, WEIGHT, products  # noqa: E402
from support.command import python  # noqa: E402


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("rows", [1, 512])
def test_products_and_attention_are_all_flops(recipe: str, rows: int) -> None:
    config = load_config(recipe)
    vocab, length = config.tokenizer.vocab_size, config.data.row_length
    predicted = predicted_positions(config.masking.rate, length)
    found = products(config.model, vocab, rows * length, rows * predicted)
    total = sum(each.flops for each in found)
    total += attention_flops(config.model, rows * length, length)
    counted = train_flops_per_token(config.model, vocab, length, predicted)
    assert total == rows * length * counted


def test_products_of_the_paper_s_encoder() -> None:
    config = load_config("crammed-2022").model
    found = {
        (each.name, each.kind): (each.m, each.n, each.k, each.times)
        for each in products(config, 32768, 65_536, 16_384)
    }
    assert len(found) == 15
    assert found["qkv", FORWARD] == (65_536, 2304, 768, 16)
    assert found["qkv", INPUT] == (65_536, 768, 2304, 16)
    assert found["qkv", WEIGHT] == (2304, 768, 65_536, 16)
    assert found["feed-forward down", FORWARD] == (65_536, 768, 1536, 16)
    assert found["decoder", WEIGHT] == (32_768, 768, 16_384, 1)


def test_traffic_by_hand() -> None:
    fields = {"layers": 2, "width": 64, "head_dim": 16, "ffn_ratio": 3.0, "max_length": 8}
    config = ModelConfig.model_validate(fields)
    moved = traffic(config, vocab=100, tokens=10, predicted=4, element=2, stream=4)
    # Forward 4 + 2 in, 4 + 2 out; backward 4 + 2 + 4 in, 4 + 2 out; 2 norms of 10 x 64, and 2 of 4.
    assert moved["residuals and norms"] == 2 * (10 + 4) * 64 * (12 + 16)
    # 96 hidden features: 2 in, 1 out; 3 in, 2 out.
    assert moved["gates"] == (10 + 4) * 96 * 8 * 2
    assert moved["queries, keys, values"] == 2 * 640 * 10 * 2
    assert moved["embedding"] == 640 * ((4 + 4 + 2) + (4 + 4 + 2 + 8))
    assert moved["head"] == 640 * 2
    assert moved["loss"] == 4 * 100 * 3 * 2
    assert moved["weights"] == (2 * 64 * (256 + 192 + 96) + 6400) * (2 + 8)


def test_attention_at_the_paper_s_length_is_bound_by_its_bytes() -> None:
    """Of 16 layers: 12 tensors of 65,536 x 768 in 16 bits, a float32 number a head twice."""
    config = load_config("crammed-2022").model
    moved = attention_bytes(config, 65_536, 2)
    assert moved == 16 * (12 * 65_536 * 768 * 2 + 2 * 65_536 * 12 * 4) == 19_428_016_128
    assert moved / 4.3e12 > 1.25 * attention_flops(config, 65_536, 128) / 350e12


def test_a_narrower_stream_moves_less() -> None:
    config = load_config("crammed-2022").model
    wide, narrow = (traffic(config, 32768, 65_536, 16_384, 2, stream) for stream in (4, 2))
    assert narrow["residuals and norms"] == wide["residuals and norms"] * 16 / 28
    assert narrow["gates"] == wide["gates"]


def run(script: str, *words: str) -> tuple[dict[str, Any], str]:
    done = python(BENCHMARKS / script, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_floor(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    small = ["model.layers=2", "model.width=32", "model.head_dim=16", "tokenizer.vocab_size=512"]
    small += ["compute.device=cpu", "compute.dtype=float32"]
    few = ["--repeats", "2"]
    result, table = run("floor.py", "crammed", *small, "--tokens", "256", "--out", str(out), *few)
    assert json.loads(out.read_text()) == result
    assert len(result["products"]) == 18
    assert all(each["ms"] > 0 for each in result["products"])
    attention, element = result["attention"], 4
    assert attention["bytes"] == 2 * 256 * (12 * 32 * element + 8 * 2)
    assert attention["gigabytes_per_second"] == pytest.approx(
        attention["bytes"] / attention["ms"] / 1e6
    )
    total = result["sums"]["float32"]
    every = sum(each["ms"] for each in result["products"]) + result["attention"]["ms"]
    assert total["products_ms"] == pytest.approx(every)
    assert total["tokens_per_second_products"] == pytest.approx(256e3 / every)
    assert total["traffic_ms"] == pytest.approx(
        sum(result["traffic_bytes"].values()) / result["copy_gigabytes_per_second"] / 1e6
    )
    assert "fp8" not in result["sums"]
    assert "decoder, weight gradient" in table
