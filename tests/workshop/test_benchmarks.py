"""Every benchmark runs in miniature, and its result holds what its description promises."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import benchmark_tables
import layout
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.rules.recipe import load_config
from support.command import python
from support.models import save_model
from support.tasks import write_task
from support.text import MODEL, write_jsonl

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
Benchmark = Callable[[str], Any]


def _prose(count: int, seed: int) -> list[str]:
    """Documents that pass the quality rules."""
    draw = random.Random(seed)
    words = ["the", "of", "and", "to"] * 100
    words += ["".join(draw.choices("aeioulnrst", k=draw.randint(3, 8))) for _ in range(3000)]
    return [
        "\n".join(" ".join(draw.choices(words, k=12)) + "." for _ in range(12))
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.long)])
def test_prepare(
    tmp_path: Path, benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    pytest.importorskip("rensa")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # two workers, each a process of its own
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(2):
        write_jsonl(folder / f"{number}.jsonl", _prose(150, seed=number))
    out = tmp_path / "result.json"
    kinds = benchmark("prepare").GIVEN
    assert len(kinds) == 4
    for words in kinds.values():
        load_config("crammed", words)
    fewer = f"prepare.GIVEN = dict(list(prepare.GIVEN.items())[:{count}])"
    # Only the first run has a process of its own, which takes seconds to start.
    code = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import common, prepare; {fewer}; "
    code += "alone = prepare.alone; here = lambda function, *given: function(*given); "
    code += "prepare.alone = lambda function, label, *given: "
    code += "(alone if label.startswith('small') else here)(function, label, *given); "
    code += "common.run(prepare.main)"
    typed = (folder, "--small", folder / "0.jsonl", "--identity", "--out", out)
    done = python("-c", code, *typed)
    assert done.returncode == 0, done.stderr
    runs = {run["what"]: run for run in json.loads(out.read_text())["runs"]}
    assert [each in runs for each in kinds] == [n < count for n in range(4)]
    assert runs["identity"] == {"what": "identity", "documents": 300, "differing": 0}
    trained, given = runs["all, tokenizer trained"], runs["all, tokenizer given"]
    assert (trained["tokens"], trained["rows"]) == (given["tokens"], given["rows"])
    assert trained["megabytes"] > 1.9 * runs["small, tokenizer trained"]["megabytes"]
    assert given["peak_memory_megabytes"] > 50


def test_copies(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "texts.jsonl", _prose(80, seed=0))
    (found,) = _result("copies.py", file, "--characters", "60000")["files"]
    whole, sentences = found["trials"]
    assert whole["dropped_without"] == sentences["dropped_without"] == 0
    assert len(whole["copies"]) == 8
    for trial in (whole, sentences):
        for kind, counts in trial["copies"].items():
            assert counts["planted"] == counts["kept_before"] == trial["held_out"] > 0
            assert counts["kept"] == (0 if kind != "every 8th word changed" else counts["planted"])


def test_finetune(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    data = tmp_path / "glue"
    for task in ("cola", "mrpc"):
        write_task(data, task, rows=80)
    model = save_model(tmp_path / "bert", "bert")
    options = ["--tasks", "cola,mrpc", "--seeds", "1", "--limit", "64"]
    result = _result("finetune.py", model, "--data", data, *options)
    assert result["rows"] == {"cola": 64, "mrpc": 64}
    assert [run["updates"] for run in result["plain_runs"]] == [5 * (64 // 16)] * 2
    for task, metric in (("cola", "matthews"), ("mrpc", "f1")):
        assert len(result["ours"]["scores"][task]["seeds"]) == 1
        plain = [run for run in result["plain_runs"] if run["task"] == task]
        assert all(metric in run["scores"] for run in plain)
    assert result["times_faster"] == result["plain_seconds"] / result["ours"]["seconds"]


def test_intervals_hold_the_true_difference_as_often_as_is_said(
    tmp_path: Path, benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far less than 95 % with one seed, if seeds differ; about that or more with five."""
    out = tmp_path / "result.json"
    coverage = benchmark("coverage")
    monkeypatch.setattr(coverage, "SEED", (0.0, 0.3))
    monkeypatch.setattr(coverage, "SEEDS", (1, 5))
    coverage.main(simulations=60, rows=60, out=out)
    result = json.loads(out.read_text())
    held = {(case["spread"], case["seeds"]): case["held"] for case in result["cases"]}
    widest = max(spread for spread, _ in held)
    assert held[0.0, 1] > 0.85
    assert held[widest, 1] < 0.7
    assert held[widest, 5] > 0.85
    deviations = {case["spread"]: case["deviation"] for case in result["cases"]}
    assert deviations[widest] > deviations[0.0] > 0


SMALL = ["model.layers=2", "model.width=32", "model.head_dim=16", "tokenizer.vocab_size=512"]


def _result(script: str, *words: str | Path) -> dict[str, Any]:
    """What a benchmark prints, which is what it writes too."""
    done = python(BENCHMARKS / script, *words)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{\n") :])
    return result


def _table(kind: str, result: dict[str, Any], folder: Path) -> str:
    """The table that a page shows for a result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "BENCHMARKS", folder)
        make = getattr(benchmark_tables, f"{kind}_table")
        (folder / "result.json").write_text(json.dumps(result))
        table: str = make("result.json")
    head, rule, *rows = table.splitlines()
    columns = head.count("|")
    assert {line.count("|") for line in (rule, *rows[:-2])} == {columns}
    assert result["device"] in rows[-1]
    return table


def test_step(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    out = tmp_path / "new" / "result.json"
    variant, longer = "optim.name=muon compute.microbatch_rows=2", "data.row_length=160"
    options = ["--rows", "5", "--updates", "2", "--rounds", "3", "--variant", variant]
    options += ["--variant", "compute.fp8=on", "--variant", longer]
    options += ["--variant", "data.row_length=256"]
    result = _result("step.py", "bert-base", *SMALL, *options, "--out", str(out))
    assert result == json.loads(out.read_text())
    assert result["rounds"] == 3
    assert "needs an NVIDIA GPU" in result["failed"]["compute.fp8=on"]
    assert "no whole rows of 256" in result["failed"]["data.row_length=256"]
    loops = result["loops"]
    plain = ["every position", "masked positions", "our layers, masked positions"]
    assert list(loops) == ["ours", variant, longer, *(f"plain, {which}" for which in plain)]
    for loop in loops.values():
        assert 0 < loop["fastest"] <= loop["seconds"] <= loop["slowest"]
        assert loop["tokens_per_second"] == pytest.approx(5 * 128 / loop["seconds"])
        assert loop["times_ours"] > 0
    assert loops["ours"]["times_ours"] == 1.0
    assert (loops["ours"]["microbatch_rows"], loops[variant]["microbatch_rows"]) == (5, 2)
    assert (loops["ours"]["rows"], loops[longer]["rows"]) == (5, 4)
    assert result["overrides"] == SMALL
    table, times = _table("step", result, tmp_path), loops[variant]["times_ours"]
    assert f"| {variant} | 5 | {loops[variant]['tokens_per_second']:,.0f} | {times:.2f} |" in table


def test_the_memory_of_ours_and_of_variants_is_measured(
    tmp_path: Path, benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = benchmark("step")
    rows: list[tuple[int, int]] = []

    def here(measure: Callable[..., int], config: RunConfig, number: int) -> int:
        rows.append((config.data.row_length, number))
        return measure(config, number)

    monkeypatch.setattr(step, "alone", here)
    out, longer = tmp_path / "result.json", "data.row_length=256"
    options = {"rows": 2, "updates": 1, "rounds": 1, "variant": [longer], "beside": False}
    with torch._dynamo.config.patch(recompile_limit=8):
        step.main(["crammed", *SMALL], **options, memory=True, out=out)
    loops = json.loads(out.read_text())["loops"]
    assert rows == [(128, 2), (256, 1)]
    assert all(loops[name]["peak_memory"] > 50 * 2**20 for name in ("ours", longer))


def test_busy(tmp_path: Path, benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("busy")
    monkeypatch.setattr(module, "BEGINS", 0.0)
    neighbours: list[subprocess.Popen[bytes]] = []
    turn = module._turn

    def noting(loop: Any, seconds: float) -> float:
        alive.append([each.poll() is None for each in neighbours])
        return float(turn(loop, seconds))

    def starting(*given: Any, **options: Any) -> subprocess.Popen[bytes]:
        neighbours.append(subprocess.Popen(*given, **options))
        return neighbours[-1]

    alive: list[list[bool]] = []
    monkeypatch.setattr(module, "_turn", noting)
    monkeypatch.setattr(module, "Popen", starting)
    out = tmp_path / "busy.json"
    module.main(["crammed", *SMALL], sizes="2x32", rows=4, rounds=1, seconds=0.0, out=out)
    assert alive == [[]] * 3 + [[True]] * 3 + [[False]] * 3 + [[False, True]] * 3
    assert [each.wait() for each in neighbours] == [-signal.SIGKILL] * 2
    result = json.loads(out.read_text())
    (loads,) = result["sizes"].values()
    assert list(loads) == ["quiet", "busy"]
    for ways in loads.values():
        assert list(ways) == ["threads", "lanes", "one thread"]
        assert all(way["seconds"] > 0 for way in ways.values())
    speeds = [4 * 128 / way["seconds"] for way in loads["quiet"].values()]
    shown = " | ".join(f"{speed:,.0f}" for speed in speeds)
    line = f"| 2 x 32 | quiet | {shown} | {speeds[1] / speeds[0]:.2f} |"
    assert line in _table("busy", result, tmp_path)


def test_profile_step(tmp_path: Path) -> None:
    result = _result("profile_step.py", "crammed", *SMALL, "--updates", "2", "--top", "5")
    assert len(result["top"]) == 5
    assert sum(result["groups"].values()) == pytest.approx(result["kernel_seconds"])
    assert set(result["groups"]) >= {"products", "attention", "residuals and norms", "optimizer"}
    assert "products" in _table("profile", result, tmp_path)


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "products"),
        ("triton_tem_fused_addmm_3", "products"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm>", "products"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<cutlass>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob", "attention"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_clone_2", "queries, keys, values"),
        ("triton_red_fused_add_native_layer_norm_backward_7", "residuals and norms"),
        ("triton_red_fused__log_softmax_nll_loss_forward_1", "loss"),
        ("triton_poi_fused_gelu_mul_3", "gates"),
        ("triton_poi_fused_erf_mul_9", "gates"),
        ("triton_per_fused_add_rsqrt_sub_4", "residuals and norms"),
        ("void at::native::multi_tensor_apply_kernel<4>", "weights"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("void at::native::vectorized_elementwise_kernel<4>", "other elementwise"),
        ("ncclDevKernel_AllReduce_Sum", "other"),
    ],
)
def test_kernels_are_known_by_their_names(kernel: str, group: str, benchmark: Benchmark) -> None:
    assert benchmark("profile_step").group_of(kernel) == group


def test_plan_accuracy(corpus: Corpus, tmp_path: Path) -> None:
    options = ["--corpus", str(corpus.path), "--budgets", "3s,40updates", "--seconds", "1"]
    result = _result("plan_accuracy.py", "crammed", *MODEL, *options)
    timed, counted = result["runs"]
    assert timed["ratio"] == pytest.approx(timed["tokens"] / timed["predicted_tokens"])
    assert timed["accounts"]["step"] > 0.3
    assert (counted["ratio"], counted["within"]) == (1.0, True)
    assert "| 40updates | " in _table("plan", result, tmp_path)


# ---- what an interrupted or failed benchmark of an update leaves


def interrupted(step: Any, out: Path, error: type[BaseException]) -> Any:
    """What `step` has written when this error ends it."""
    with torch._dynamo.config.patch(recompile_limit=8), pytest.raises(error):
        step.main(["crammed", *SMALL], rows=2, updates=1, rounds=1, beside=True, out=out)
    return json.loads(out.read_text())


def test_what_stops_a_later_loop_leaves_the_first_one_s_result(
    tmp_path: Path, benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = benchmark("step")

    def stop(config: RunConfig) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(step.PLAIN, "plain, every position", (stop, False))
    result = interrupted(step, tmp_path / "result.json", KeyboardInterrupt)
    assert (list(result["loops"]), result["rounds"]) == (["ours"], 0)
    assert result["loops"]["ours"]["tokens_per_second"] > 0


def test_why_ours_failed_is_kept(
    tmp_path: Path, benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = benchmark("step")

    def fail(*_: object) -> None:
        raise InputError("the compiler failed: KeyError")

    monkeypatch.setattr(step, "Training", fail)
    result = interrupted(step, tmp_path / "result.json", InputError)
    assert result["loops"] == {}
    assert result["failed"] == {"ours": "InputError: the compiler failed: KeyError"}
