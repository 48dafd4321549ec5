from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from crammed.budget import Budget, Ledger, Work
from crammed.config import RunConfig
from crammed.config.optim import AdamConfig, AdamWConfig
from crammed.data.corpus import Corpus
from crammed.data.masking import Masker
from crammed.device import Device
from crammed.errors import Diverged, InputError, Interrupted, StoppedByPolicy
from crammed.files import write_hashes
from crammed.model.count import train_flops_per_token
from crammed.model.encoder import MaskedLM
from crammed.optim.build import build_optimizer
from crammed.progress import SILENT, Progress
from crammed.rundir import RunDir, read_lines, read_metrics
from crammed.training.build import new_model
from crammed.training.heldout import FEWEST_ROWS, MOST_ROWS, rows_on_the_way
from crammed.training.loop import Trained, pretrain
from crammed.training.plan import Planner, Update
from crammed.training.step import TrainStep
from support.steps import SPECIALS, after_gradients
from support.text import FakeClock, tiny


def update(rows: int = 12, first: int = 0, rate: float = 0.25) -> Update:
    return Update(0, first, rows, 1.0, rate, Work(1, rows, rows * 32, 1.0))


def gradients_with(
    config: RunConfig, device: Device, microbatch: int, rows: torch.Tensor
) -> tuple[float, list[torch.Tensor]]:
    model = new_model(config, 256, device.torch).train()
    small = dataclasses.replace(device, microbatch_rows=microbatch)
    step = TrainStep(model, build_optimizer(model, config.optim), config, SPECIALS, small)
    loss = step.gradients(rows, update(len(rows)))
    return loss.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_loss_and_gradients_do_not_depend_on_the_microbatch(cpu: Device) -> None:
    config = tiny()
    rows = torch.randint(5, 256, (12, 32), generator=torch.Generator().manual_seed(0))
    loss, gradients = gradients_with(config, cpu, 12, rows)
    for microbatch in (1, 4, 5, 64):
        other, others = gradients_with(config, cpu, microbatch, rows)
        assert other == pytest.approx(loss, rel=1e-5)
        for a, b in zip(gradients, others, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_loss_is_the_mean_over_predicted_tokens_of_the_dense_model(cpu: Device) -> None:
    config = tiny()
    rows = torch.randint(5, 256, (6, 32), generator=torch.Generator().manual_seed(0))
    loss, _ = gradients_with(config, cpu, 4, rows)
    masked = Masker(config.seed, "80-10-10", 4, range(5), 256)(rows, torch.arange(6), 8)
    labels = torch.full_like(rows, -100).scatter(1, masked.positions, masked.labels)
    dense = new_model(config, 256, cpu.torch)(masked.ids)
    expected = F.cross_entropy(dense.flatten(0, 1), labels.flatten(), ignore_index=-100)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    more, _ = gradients_with(tiny("crammed", "masking.z_loss=0.5"), cpu, 4, rows)
    squares = dense.exp().sum(-1).log()[labels != -100] ** 2
    assert more == pytest.approx(loss + 0.5 * squares.mean().item(), rel=1e-5)


# Every shape is compiled: the longer case has two.
@pytest.mark.parametrize("count", [16, pytest.param(12, marks=pytest.mark.long)])
def test_compiled_steps_equal_eager_ones(cpu: Device, count: int) -> None:
    config = tiny("crammed", "model.layers=1")
    rows = torch.randint(5, 256, (count, 32), generator=torch.Generator().manual_seed(0))
    both = []
    for compiled in (False, True):
        model = new_model(config, 256, cpu.torch).train()
        device = dataclasses.replace(cpu, compile=compiled, microbatch_rows=8)
        step = TrainStep(model, build_optimizer(model, config.optim), config, SPECIALS, device)
        step.prepare([count], [0.25])
        assert all(p.grad is None for p in model.parameters())  # warming up trains nothing
        loss = step.gradients(rows, update(count))
        both.append((loss, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(both[0], both[1], rtol=1e-4, atol=1e-6)


def test_clipping_and_rate_reach_the_weights(cpu: Device) -> None:
    rows = torch.randint(5, 256, (6, 32))
    moved = {}
    for clip in ("null", "1e-3"):
        config = tiny(
            "crammed",
            "optim.name=adamw",
            f"optim.clip={clip}",
            "optim.eps=1.0",
            "optim.weight_decay=0.0",
            "model.attention_start=random",
            "model.embedding_std=null",
        )
        model = new_model(config, 256, cpu.torch).train()
        before = [p.detach().clone() for p in model.parameters()]
        step = TrainStep(model, build_optimizer(model, config.optim), config, SPECIALS, cpu)
        step.gradients(rows, update(6))
        applied = step.apply(500.0)
        assert applied is not None
        norm = applied.item()
        assert all(p.grad is None for p in model.parameters())
        moved[clip] = math.sqrt(
            sum(
                (p - b).square().sum().item()
                for p, b in zip(model.parameters(), before, strict=True)
            )
        )
        assert norm > 1e-2  # as it was before clipping
    # With so large an eps the step is nearly proportional to the gradient.
    assert moved["1e-3"] == pytest.approx(moved["null"] * 1e-3 / norm, rel=0.1)


def test_decay_is_on_matrices_embeddings_and_the_position_scale_only() -> None:
    config = tiny("crammed-2022", "model.linear_bias=true", "model.decoder_bias=true")
    model = MaskedLM(config.model, 256)
    names = {id(p): name for name, p in model.named_parameters()}
    decayed, free = (
        {names[id(p)] for p in group["params"]}
        for group in build_optimizer(model, config.optim).param_groups
    )
    assert {"encoder.tokens.weight", "encoder.position_scale"} < decayed
    assert all(name.endswith("bias") or "norm" in name for name in free)
    assert not any(name.endswith("bias") or "norm" in name for name in decayed)
    assert decayed | free == set(names.values())


@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_optimizers_equal_their_formulas(name: str) -> None:
    config = tiny("crammed", f"optim.name={name}", "optim.weight_decay=0.1").optim
    assert isinstance(config, AdamWConfig | AdamConfig)
    layer = torch.nn.Linear(3, 2, bias=False).double()
    optimizer = build_optimizer(layer, config)
    weight = layer.weight.detach().clone()
    m, v = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, 6):
        gradient = torch.randn(2, 3, generator=torch.Generator().manual_seed(step)).double()
        layer.weight.grad = gradient.clone()
        optimizer.step()
        if name == "adam":
            gradient = gradient + 0.1 * weight
        else:
            weight = weight * (1 - config.lr * 0.1)
        m = config.beta1 * m + (1 - config.beta1) * gradient
        v = config.beta2 * v + (1 - config.beta2) * gradient**2
        corrected = (m / (1 - config.beta1**step)), (v / (1 - config.beta2**step))
        weight = weight - config.lr * corrected[0] / (corrected[1].sqrt() + config.eps)
    torch.testing.assert_close(layer.weight.detach(), weight)


def train(
    config: RunConfig, corpus: Corpus, out: Path, device: Device, clock: FakeClock | None = None
) -> Trained:
    with RunDir.open(out, config) as run:
        if clock is None:
            return pretrain(config, corpus, run, device, SILENT)
        return pretrain(config, corpus, run, device, SILENT, clock)


@pytest.mark.parametrize(
    ("limit", "updates"),
    [("5updates", 5), ("1300tok", 5), ("1279tok", 4), ("1280tok", 5)],
)
def test_a_budget_of_work_ends_at_the_last_update_that_fits(
    tmp_path: Path, corpus: Corpus, cpu: Device, limit: str, updates: int
) -> None:
    trained = train(tiny(budget={"limit": limit}), corpus, tmp_path / "run", cpu)
    assert trained.work.updates == updates
    assert trained.work.tokens == updates * 8 * 32
    assert trained.u <= 1.0


def test_a_budget_of_flops_counts_analytic_flops(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    words = ("crammed", "model.embedding_start=random", "masking.rate=0.25")
    one = 8 * 32 * train_flops_per_token(tiny(*words).model, corpus.vocab_size, 32, 8)
    config = tiny(*words, budget={"limit": f"{3.5 * one}flop"})
    trained = train(config, corpus, tmp_path / "run", cpu)
    assert trained.work.updates == 3
    assert trained.work.flops == pytest.approx(3 * one)


@settings(max_examples=12, deadline=None)
@given(tick=st.floats(0.05, 0.2), limit=st.integers(20, 60))
def test_a_budget_of_time_ends_within_one_update_and_never_beyond(
    tmp_path_factory: pytest.TempPathFactory, corpus: Corpus, cpu: Device, tick: float, limit: int
) -> None:
    config = tiny(budget={"limit": f"{limit}s"}, train={"heldout_every": None, "log_seconds": 9.0})
    clock = FakeClock(tick)
    out = tmp_path_factory.mktemp("time") / "run"
    trained = train(config, corpus, out, cpu, clock)
    assert trained.work.updates > 0
    assert trained.charged_seconds <= limit
    assert trained.u == trained.charged_seconds / limit
    readings_an_update = 40  # more than the loop reads the clock for one update and its log point
    assert trained.charged_seconds >= limit - readings_an_update * tick


def test_an_update_that_is_not_complete_in_time_is_discarded(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(0.01)
    original = TrainStep.gradients

    def slow(self: TrainStep, rows: torch.Tensor, update: Update) -> torch.Tensor:
        clock.now += 50.0 if update.number == 3 else 1.0
        return original(self, rows, update)

    monkeypatch.setattr(TrainStep, "gradients", slow)
    config = tiny(budget={"limit": "30s"})
    trained = train(config, corpus, tmp_path / "run", cpu, clock)
    assert trained.work.updates == 3
    assert trained.u < 1.0  # what is handed over was complete before the limit
    events = [e["event"] for e in read_lines(tmp_path / "run" / "events.jsonl")]
    assert "discarded" in events


def test_rates_follow_the_schedule_at_the_middle_of_each_update(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    config = tiny(
        "crammed-2022",
        "train.log_seconds=1e-9",
        "batch.rows=16",
        "batch.ramp=0.5",
        "batch.quantum=4",
        "masking.rate=0.3",
        "masking.final_rate=0.15",
        budget={"limit": "8000tok"},
    )
    train(config, corpus, tmp_path / "run", cpu)
    records = read_metrics(tmp_path / "run")
    spent = 0
    for record in records:
        start = spent / 8000
        assert record["batch_rows"] == min(4 * (math.floor(start * 16 / (0.5 * 4)) + 1), 16)
        assert record["mask_rate"] == pytest.approx(0.3 - 0.05 * min(3, int(4 * start)))
        spent += record["batch_rows"] * 32
        middle = (start + spent / 8000) / 2
        assert record["lr"] == pytest.approx(1e-3 * config.schedule(middle))
        assert record["u"] == pytest.approx(spent / 8000)
    assert len({r["batch_rows"] for r in records}) == 4
    assert len({r["mask_rate"] for r in records}) == 4


def test_runs_repeat_bit_by_bit_and_seeds_differ(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    def weights(name: str, *overrides: str) -> list[torch.Tensor]:
        config = tiny("izsak", *overrides, budget={"limit": "6updates"})  # it has dropout
        return list(train(config, corpus, tmp_path / name, cpu).model.parameters())

    first, again, other = weights("a"), weights("b"), weights("c", "seed=1")
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_training_learns(tmp_path: Path, corpus: Corpus, cpu: Device) -> None:
    config = tiny(
        "demo",
        "optim.lr=1e-2",
        "batch.rows=16",
        "model.embedding_start=random",
        "model.embedding_std=null",
        "train.log_seconds=0.2",
        budget={"limit": "200updates"},
    )
    train(config, corpus, tmp_path / "run", cpu)
    records = read_metrics(tmp_path / "run")
    assert records[0]["loss"] == pytest.approx(math.log(corpus.vocab_size), abs=0.2)
    assert records[-1]["loss"] < corpus.manifest["heldout"]["unigram_cross_entropy"] - 0.5


def test_heldout_loss_is_measured_on_the_way(tmp_path: Path, corpus: Corpus, cpu: Device) -> None:
    config = tiny("crammed", "train.heldout_every=0.25", budget={"limit": "20updates"})
    train(config, corpus, tmp_path / "run", cpu)
    events = [e for e in read_lines(tmp_path / "run" / "events.jsonl") if e["event"] == "heldout"]
    assert [event["u"] for event in events] == [0.25, 0.5, 0.75]


def test_a_corpus_smaller_than_a_batch_is_refused(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    config = tiny("crammed", "batch.rows=100000")
    with pytest.raises(InputError, match=r"fewer than one batch of 100,000"):
        train(config, corpus, tmp_path / "run", cpu)


def test_a_budget_smaller_than_an_update_is_refused(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    with pytest.raises(InputError, match="ends before one update"):
        train(tiny(budget={"limit": "100tok"}), corpus, tmp_path / "run", cpu)


def test_divergence_is_said_and_keeps_its_exit_code(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_gradients(
        monkeypatch, lambda _, update, loss: loss * math.nan if update.number == 2 else loss
    )
    with pytest.raises(Diverged, match="nan") as caught:
        train(tiny("crammed", budget={"limit": "9updates"}), corpus, tmp_path / "run", cpu)
    assert caught.value.exit_code == 4


def test_early_stop(tmp_path: Path, corpus: Corpus, cpu: Device) -> None:
    config = tiny(
        "crammed",
        "train.early_stop.after=0.5",
        "train.early_stop.loss=0.1",
        "train.log_seconds=1e-9",
        budget={"limit": "10updates"},
    )
    with pytest.raises(StoppedByPolicy, match="early stop"):
        train(config, corpus, tmp_path / "run", cpu)
    assert read_metrics(tmp_path / "run")[-1]["update"] == 5
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.fixture
def stopping_at(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make an update of that number send a signal to this process."""
    original = TrainStep.gradients

    def install(number: int, which: signal.Signals) -> None:
        def stop(self: TrainStep, rows: torch.Tensor, update: Update) -> torch.Tensor:
            if update.number == number:
                signal.raise_signal(which)
            return original(self, rows, update)

        monkeypatch.setattr(TrainStep, "gradients", stop)

    return install


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_a_checkpoint_that_goes_on_exactly(
    tmp_path: Path,
    corpus: Corpus,
    cpu: Device,
    stopping_at: Any,
    monkeypatch: pytest.MonkeyPatch,
    which: signal.Signals,
) -> None:
    config = tiny("bert-original", budget={"limit": "7updates"})
    whole = train(config, corpus, tmp_path / "whole", cpu)
    with monkeypatch.context():
        stopping_at(3, which)
        with pytest.raises(Interrupted, match=f"{which.name} after 3 updates") as caught:
            train(config, corpus, tmp_path / "run", cpu)
        assert caught.value.exit_code == 75
        stopping_at(-1, which)
        resumed = train(config, corpus, tmp_path / "run", cpu)
    assert resumed.work == whole.work
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("last", [0, 3])
def test_a_signal_leaves_an_update_between_its_microbatches(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    config = tiny("bert-original", "batch.ramp=0.0", budget={"limit": "7updates"})
    small = dataclasses.replace(cpu, microbatch_rows=2)
    whole = train(config, corpus, tmp_path / "whole", small)
    original, calls, clock = TrainStep._microbatch_loss, 0, FakeClock(1e-3)

    def stop(self: TrainStep, *given: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 4 * last + 2:  # the second of four microbatches
            clock.now += 100.0
            signal.raise_signal(signal.SIGINT)
        return original(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(TrainStep, "_microbatch_loss", stop)
        with pytest.raises(Interrupted, match=f"SIGINT after {last} updates"):
            train(config, corpus, tmp_path / "run", small, clock)
    assert calls == 4 * last + 2
    resumed = train(config, corpus, tmp_path / "run", small)
    assert resumed.work == whole.work
    assert sum(resumed.accounts[name] for name in ("step", "lost")) > 100.0  # nothing is free
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_closed_pipe_stops_a_run_like_a_signal(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crammed.progress.SECONDS_BETWEEN_LINES", 0.0)
    reading, writing = os.pipe()
    os.close(reading)
    words = ("train.log_seconds=1e-9", "model.embedding_start=random")
    config = tiny("crammed", *words, budget={"limit": "7updates"})
    with open(writing, "w") as pipe, Progress(pipe) as progress:
        with RunDir.open(tmp_path / "run", config) as run:
            with pytest.raises(Interrupted, match="SIGHUP after 1 update; all is saved"):
                pretrain(config, corpus, run, cpu, progress)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000001"]


def test_time_lost_in_a_crash_is_charged(tmp_path: Path, corpus: Corpus, cpu: Device) -> None:
    config = tiny("crammed", "train.log_seconds=0.5", budget={"limit": "100s"})
    out = tmp_path / "run"
    with RunDir.open(out, config) as run:
        run.heartbeat(40.0)
    trained = train(config, corpus, out, cpu, FakeClock(0.1))
    assert trained.accounts["lost"] == 40.0
    assert trained.charged_seconds == pytest.approx(100.0, abs=5.0)
    spent = sum(trained.accounts[a] for a in ("step", "data_wait", "log", "compile"))
    assert spent == pytest.approx(60.0, abs=5.0)


def test_a_checkpoint_of_another_corpus_is_refused(
    tmp_path: Path, corpus: Corpus, cpu: Device, stopping_at: Any, text_file: Path
) -> None:
    config = tiny("crammed", budget={"limit": "7updates"})
    stopping_at(3, signal.SIGTERM)
    with pytest.raises(Interrupted):
        train(config, corpus, tmp_path / "run", cpu)
    generation = next((tmp_path / "run" / "checkpoints").iterdir())
    state = generation / "state.json"
    state.write_text(state.read_text().replace(corpus.sha256, "0" * 64))
    write_hashes(generation)
    with pytest.raises(InputError, match="another corpus"):
        train(config, corpus, tmp_path / "run", cpu)


def test_two_generations_of_checkpoints_are_kept(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    config = tiny("crammed", "train.checkpoint_seconds=1e-9", budget={"limit": "6updates"})
    train(config, corpus, tmp_path / "run", cpu)
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-00000006", "step-00000006-1"]  # the second says that this is the end


def test_the_planner_stops_before_an_update_that_would_not_fit() -> None:
    clock = FakeClock()
    ledger = Ledger(("step",), clock)
    waited: list[float] = []
    config = tiny(budget={"limit": "100s"})
    planner = Planner(config, 256, 10**6, ledger, lambda: waited.append(clock.now))
    with ledger.account("step"):
        first = planner.next(Work())
        assert first is not None
        clock.now += 10.0
        planner.finished(first)
        assert waited == [100.0, 110.0]  # until the first is timed, nothing is known of the pace
        waited.clear()
        clock.now += 49.0
        assert planner.next(Work()) is not None
        assert planner.in_time()
        assert not waited  # after that, the device is waited for near the end only
        clock.now += 30.0
        assert planner.next(Work()) is not None
        assert planner.in_time()
        assert waited == [189.0, 189.0]
        assert planner.room_for(11.0)
        assert not planner.room_for(11.1)
        clock.now += 1.1
        assert planner.next(Work()) is None
    assert planner.budget == Budget("time", 100.0, "100s")


def test_metrics_carry_what_the_report_needs(tmp_path: Path, corpus: Corpus, cpu: Device) -> None:
    train(tiny("crammed", budget={"limit": "3updates"}), corpus, tmp_path / "run", cpu)
    records = read_metrics(tmp_path / "run")
    assert records[0]["update"] == 1
    assert records[-1]["update"] == 3
    keys = {"u", "loss", "lr", "tokens", "tokens_per_s", "grad_norm", "t_charged_s", "t_wall_s"}
    assert keys <= records[0].keys()
    assert all(np.isfinite(v) for r in records for v in r.values())
    json.dumps(records, allow_nan=False)


def test_a_short_run_measures_on_few_rows_and_a_long_one_on_no_more_than_needed() -> None:
    found = [
        rows_on_the_way(tiny("crammed", f"budget.limit={n}updates", "data.heldout_rows=2000"))
        for n in (1, 1000, 10_000, 10**9)
    ]
    assert found[0] == FEWEST_ROWS
    assert found[-1] == MOST_ROWS
    assert found == sorted(found)
    assert rows_on_the_way(tiny("crammed", "data.heldout_rows=7")) == 7
