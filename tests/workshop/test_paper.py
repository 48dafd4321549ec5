"""Steps on paper: what is counted, beside counts by hand."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from crammed.machine.cards import card_called
from crammed.model.count import train_flops_per_token
from crammed.model.traffic import attention_bytes
from crammed.rules.recipe import load_config

TOOLS = Path(__file__).resolve().parents[2] / "tools"
NORMS = "residuals and norms"


@pytest.fixture(autouse=True)
def _benchmarks(benchmark: Callable[[str], Any]) -> None:
    """The module `kernel_parts` serves both."""


def room(name: str) -> Any:
    return importlib.import_module(f"paper.{name}")


def on_paper(*words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where PyTorch is not imported yet."""
    if (missing := room("gpu").missing()) is not None:
        pytest.skip(f"a step on paper needs {missing}")
    command = [sys.executable, str(TOOLS / "step_on_paper.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def test_a_library_is_kept_where_nobody_else_can_plant_one() -> None:
    own = os.environ.get("XDG_CACHE_HOME") or Path.home()
    assert room("gpu").KEPT.is_relative_to(own)


def test_each_element_of_a_buffer_counts_once() -> None:
    accesses = room("accesses")
    read, written, added = accesses.READ, accesses.WRITTEN, accesses.ADDED

    def moved(*found: Any) -> Any:
        return accesses.traffic([accesses.Access(*each) for each in found])

    halves = [("a", read, "x", 500, 2, 1000), ("a", read, "x + 500", 500, 2, 1000)]
    assert moved(*halves, ("b", written, "x", 500, 4, 500)) == (2000, 2000)
    assert moved(*halves, halves[0]) == (2000, 0), "a second pass over the same elements"
    assert moved(*halves, ("a", read, "2*x", 900, 2, 1000)) == (2000, 0), "no more than there are"
    assert moved(("a", read, "tmp0", 3000, 2, None)) == (6000, 0), "a gather reads again"
    assert moved(("a", added, "x", 10, 4, 10)) == (40, 40)


def test_operators_are_counted_by_what_they_take_and_give() -> None:
    launch_of = room("launches").launch_of
    a, b = torch.empty(3, 4, dtype=torch.bfloat16), torch.empty(4, 5, dtype=torch.bfloat16)

    class OnGpu(torch.Tensor):
        device = torch.device("cuda")

    left, right = a.as_subclass(OnGpu), b.as_subclass(OnGpu)
    result = torch.empty(3, 5, dtype=torch.bfloat16).as_subclass(OnGpu)
    product = launch_of(torch.ops.aten.mm.default, (left, right), {}, result)
    assert (product.read, product.written, product.flops) == (2 * 12 + 2 * 20, 2 * 15, 2 * 60)
    assert product.shape == "[3, 4] x [4, 5] nn bfloat16"
    one, more, total = left[None], right[None], result[None]
    added = launch_of(
        torch.ops.aten.baddbmm.default, (total, one, more), {"beta": 2.0, "alpha": 3.0}, total
    )
    assert (added.read, added.written, added.kernels) == (2 * (12 + 20 + 2 * 15), 2 * 2 * 15, 2)
    assert (added.flops, added.shape) == (2 * 60, "[3, 4] x [4, 5] nn bfloat16")
    within = launch_of(torch.ops.aten.add_.Tensor, (left, left), {}, left)
    assert (within.read, within.written, within.flops) == (2 * 24, 24, 0)
    lists: Any = [left, right], [left.bfloat16(), right.bfloat16()]
    sums = launch_of(torch.ops.aten._foreach_add_.List, lists, {}, None)
    assert (sums.read, sums.written, sums.kernels) == (4 * 32, 2 * 32, 1)
    lists = [left.float(), right.float()], lists[1]
    sums = launch_of(torch.ops.aten._foreach_add_.List, lists, {}, None)
    assert (sums.read, sums.written, sums.kernels) == ((4 + 2) * 32, 4 * 32, 2)
    assert launch_of(torch.ops.aten.t.default, (left,), {}, left) is None
    assert launch_of(torch.ops.aten.mm.default, (a, b), {}, a @ b) is None, "not on the GPU"


def test_the_model_of_time() -> None:
    model, launch = room("result"), room("launches").Launch
    card = card_called("H200")
    assert model.seconds(launch("k", "forward", 10, 10, kernels=3), card) == 3 * model.LAUNCH
    moving = launch("k", "forward", 4_320_000_000, 0)
    assert model.seconds(moving, card) == pytest.approx(1e-3)
    product = launch("aten.mm", "operator", 0, 0, flops=717_025_000_000)
    assert model.seconds(product, card) == pytest.approx(1e-3)
    eight = launch("aten._scaled_mm.out", "operator", 0, 0, flops=717_025_000_000)
    assert model.seconds(eight, card) == pytest.approx(1e-3 / 1.68)
    # Attention in short rows takes as long as its bytes.
    shape = load_config("crammed-2022").model
    rows = launch(
        "aten._scaled_dot_product_x", "operator", attention_bytes(shape, 65_536, 2), 0, flops=10**9
    )
    assert model.seconds(rows, card) == pytest.approx(4.5e-3, rel=0.01)
    found = model.sums({product: 1, rows: 1}, card)
    assert list(found) == ["attention", "products"]
    assert model.between_products(found)["launches"] == 0


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("triton_red_fused__log_softmax_nll_loss_forward_1", "loss"),
        ("triton_poi_fused__to_copy_12", "weights"),
        ("aten.add_.Tensor", "weights"),
        ("aten._foreach_add_.List", "weights"),
        ("triton_poi_fused_mul_3", "other"),
        # In a region, after the parts of the operators, and after the norm before a gate.
        ("triton_poi_fused_add_cat_convert_element_type_erf_exp_mul_split_view_7", "gates"),
        ("triton_poi_fused__to_copy_add_erf_mul_native_layer_norm_split_view_7", "gates"),
        ("triton_poi_fused__to_copy_add_div_exp_mul_native_layer_norm_neg_split_view_7", "gates"),
        ("triton_per_fused__unsafe_view_gelu_gelu_backward_native_layer_norm_2", NORMS),
        ("triton_per_fused_add_convert_element_type_div_mul_sub_sum_view_6", NORMS),
        ("triton_red_fused_convert_element_type_mul_sub_sum_view_9", NORMS),
        ("triton_per_fused_add_convert_mul_rsqrt_sub_transpose_var_mean_7", NORMS),
        ("triton_poi_fused_arange_cos_exp_mul_sin_stack_unsqueeze_4", "embedding"),
    ],
)
def test_parts_of_a_step_are_known_by_names(kernel: str, part: str) -> None:
    assert room("result").part(room("launches").Launch(kernel, "forward", 1, 1)) == part


@pytest.mark.long
def test_a_toy_agrees_with_a_count_by_hand() -> None:
    done = on_paper("--check")
    assert done.stdout.count("same") == 3


@pytest.mark.long
@pytest.mark.parametrize("fp8", ["off", "on"])
def test_a_step_s_products_are_those_of_the_count(tmp_path: Path, fp8: str) -> None:
    small = ["model.layers=2", "model.width=64", "model.head_dim=16", "tokenizer.vocab_size=512"]
    out = tmp_path / "paper.json"
    words = ["--rows", "8", "--loop", "ours", "--kernels", "999", "--out", str(out)]
    on_paper("crammed-2022", *small, f"compute.fp8={fp8}", *words)
    result = json.loads(out.read_text())
    ours = result["loops"]["ours"]
    config = load_config("crammed-2022", small)
    counted = 8 * 128 * train_flops_per_token(config.model, 512, 128, 32)
    left_out = 8 * (128 - 32) * 6 * 64 * (config.model.ffn_width + config.model.ffn_hidden)
    assert ours["flops"] == counted - left_out, "the last feed-forward is of predicted positions"
    assert ours["between_products_bytes"] > 0
    assert not [each for each in ours["kernels"] if "sort" in each["kernel"]], "slow to compile"
    assert {"products", "attention", "gates", "loss", "embedding"} <= set(ours["parts"])
    eight = [each for each in ours["kernels"] if "scaled_mm.out" in each["kernel"]]
    assert sum(each["times"] for each in eight) == (3 * 4 * 2 if fp8 == "on" else 0)


SMALL = ["model.layers=3", "model.width=64", "model.head_dim=16", "tokenizer.vocab_size=512"]


@pytest.mark.long
def test_layers_compiled_as_one_move_what_each_for_itself_does(tmp_path: Path) -> None:
    out = tmp_path / "paper.json"
    loops = ["--loop", "ours", "--loop", "ours, one graph"]
    on_paper("crammed-2022", *SMALL, "--rows", "64", *loops, "--out", str(out))
    one, whole = json.loads(out.read_text())["loops"].values()
    for each in ("launches", "flops", "between_products_bytes"):
        assert one[each] == whole[each], each
    for part, moved in whole["parts"].items():
        assert one["parts"][part] == pytest.approx(moved), part


@pytest.mark.long
def test_a_gate_s_gradient_is_not_one_pass_that_computes_both_halves_everywhere(
    tmp_path: Path,
) -> None:
    width = load_config("crammed-2022", SMALL).model.ffn_hidden
    out = tmp_path / "paper.json"
    on_paper("crammed-2022", *SMALL, "--rows", "64", "--kernels", "999", "--out", str(out))
    kernels = json.loads(out.read_text())["loops"]["ours"]["kernels"]
    backward = [each for each in kernels if (each["part"], each["where"]) == ("gates", "backward")]
    in_regions, last = backward
    for kernel, times, tokens in ((in_regions, 2, 64 * 128), (last, 1, 64 * 32)):
        assert "cat" not in kernel["kernel"], "the compiler names a masked pass after it"
        assert kernel["times"] == times
        assert (kernel["read"], kernel["written"]) == (6 * tokens * width, 4 * tokens * width)
