"""Number formats of training: what they change, what they leave the same, what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from crammed.data.corpus import Corpus
from crammed.data.masking import Masker
from crammed.errors import Diverged, InputError
from crammed.machine.device import Device
from crammed.model.encoder import MaskedLM, initialise
from crammed.optim.muon import COEFFICIENTS, ITERATIONS, orthogonalise
from crammed.runs.logs import read_metrics
from crammed.training import recorder
from crammed.training.agenda import Agenda
from crammed.training.update.dividing import moved
from crammed.training.update.planned import Update
from crammed.training.update.precision import LossScale, recompute, training_copy
from crammed.training.update.step import TrainStep
from support.steps import after_gradients, rows_of, same, step_with, update_of
from support.text import tiny
from support.training import events, interrupt_at, train

BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32
Gradients = dict[str, torch.Tensor]
Logits = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def model_of(recipe: str, *overrides: str) -> MaskedLM:
    """Deeper than the tests' usual models, and with weights as large as training makes them."""
    model = MaskedLM(
        tiny(recipe, "model.layers=6", "model.width=64", "model.dropout=0.0", *overrides).model, 256
    )
    initialise(model, 0.04, torch.Generator().manual_seed(0))
    return model


def loss_and_gradients(
    model: MaskedLM, logits: Logits, scale: float = 1.0
) -> tuple[float, Gradients]:
    """Of rows in which a few tokens are frequent, as in text."""
    draw = torch.Generator().manual_seed(1)
    often = 1.0 / torch.arange(1, 252)
    rows = 5 + torch.multinomial(often, 32 * 32, replacement=True, generator=draw).view(32, 32)
    masked = Masker(0, "80-10-10", 4, range(5), 256)(rows, torch.arange(32), 8)
    model.zero_grad()
    out = logits(masked.ids, masked.positions)
    out = out if out.dtype == torch.float64 else out.float()
    loss = F.cross_entropy(out.flatten(0, 1), masked.labels.flatten())
    (loss * scale).backward()
    gradients = {n: p.grad / scale for n, p in model.named_parameters() if p.grad is not None}
    return loss.item(), gradients


def errors(found: Gradients, exact: Gradients) -> tuple[float, float]:
    """Relative errors of a gradient: of the whole, and of the worst parameter."""
    off = {name: (found[name] - exact[name]).norm() for name in exact}
    whole = sum(x.square() for x in off.values()) / sum(x.norm() ** 2 for x in exact.values())
    largest = max(x.norm() for x in exact.values())
    each = [off[name] / x.norm() for name, x in exact.items() if x.norm() > 1e-6 * largest]
    return float(whole**0.5), float(max(each))


RECIPES = [
    ("crammed", ()),
    ("crammed-2022", ("model.linear_bias=true", "model.decoder_bias=true")),
    ("bert-base", ()),
]


@pytest.mark.parametrize(("recipe", "overrides"), RECIPES)
def test_loss_and_gradients_are_as_near_as_those_of_autocast(
    recipe: str, overrides: tuple[str, ...]
) -> None:
    model = model_of(recipe, *overrides)
    double = model_of(recipe, *overrides).double()
    exact_loss, exact = loss_and_gradients(double, double)

    def autocast(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", BFLOAT16):
            logits: torch.Tensor = model(ids, positions)
        return logits

    _, beside = loss_and_gradients(model, autocast)
    whole_beside, _ = errors(beside, exact)
    loss, found = loss_and_gradients(model, training_copy(model, BFLOAT16))
    assert all(x.dtype == FLOAT32 for x in found.values())
    whole, worst = errors(found, exact)
    assert abs(loss - exact_loss) < 2e-3
    assert whole < 2 * whole_beside
    assert worst < 0.05
    # Three more bits in float16: the scale keeps the small ones.
    loss, found = loss_and_gradients(model, training_copy(model, FLOAT16), scale=2.0**10)
    assert abs(loss - exact_loss) < 5e-4
    whole_float16, worst = errors(found, exact)
    assert whole_float16 < whole / 2
    assert worst < 0.02


def test_recomputing_keeps_less() -> None:
    model = model_of("crammed")
    copy = training_copy(model, FLOAT32)

    def kept() -> int:
        sizes: list[int] = []

        def pack(x: torch.Tensor) -> torch.Tensor:
            sizes.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            copy(torch.full((4, 32), 9))
        return sum(sizes)

    before = kept()
    recompute(copy)
    assert kept() < before / 4


# --- float16's loss scale


@given(st.lists(st.booleans(), max_size=60))
def test_the_loss_scale_is_a_power_of_two_that_follows_the_gradients(finite: list[bool]) -> None:
    scale = LossScale()
    expected, run = scale.FIRST, 0
    for number, good in enumerate(finite):
        scale.GROWS_AFTER = 5
        scale.adapt(good)
        run = run + 1 if good else 0
        if not good:
            expected /= 2
        elif run % 5 == 0:
            expected *= 2
        assert scale.value == expected
        if number % 7 == 0:  # a restored one goes on as if nothing had happened
            kept, scale = scale.state(), LossScale()
            scale.restore(kept)


@pytest.mark.parametrize(("optimizer", "tolerance"), [("adamw", 0.05), ("muon", 0.15)])
def test_an_update_in_float16_is_that_in_float32(
    cpu: Device, optimizer: str, tolerance: float
) -> None:
    config = tiny("crammed", f"optim.name={optimizer}", "optim.clip=0.1", "optim.eps=1e-3")
    moved_by, norms = [], []
    for dtype in (FLOAT32, FLOAT16):
        step, model = step_with(cpu, config, dtype=dtype)
        before = [p.detach().clone() for p in model.parameters()]
        loss = step.gradients(rows_of(16), update_of(16))
        assert loss.item() == pytest.approx(5.5, abs=0.3)  # no scale in what is shown
        norm = step.apply(1.0)
        assert norm is not None
        norms.append(norm.item())
        pairs = zip(model.parameters(), before, strict=True)
        moved_by.append(torch.cat([(p - b).detach().flatten() for p, b in pairs]))
    assert norms[1] == pytest.approx(norms[0], rel=1e-2)
    assert (moved_by[1] - moved_by[0]).norm() < tolerance * moved_by[0].norm()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_update_beyond_float16_is_skipped_whole(cpu: Device, optimizer: str) -> None:
    step, model = step_with(cpu, tiny("crammed", f"optim.name={optimizer}"), dtype=FLOAT16)
    step.gradients(rows_of(8), update_of(8))
    assert step.apply(1.0) is not None
    before = [p.detach().clone() for p in model.parameters()]
    step.restore({"value": 2.0**40, "finite": 3})
    step.gradients(rows_of(8), update_of(8))
    assert step.apply(1.0) is None
    assert same(model.parameters(), before)
    assert all(p.grad is None for p in model.parameters())
    assert step.loss_scale() == {"value": 2.0**39, "finite": 0}


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale that grows until an update is skipped, every few updates."""
    monkeypatch.setattr(LossScale, "FIRST", 2.0**24)
    monkeypatch.setattr(LossScale, "GROWS_AFTER", 2)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_in_float16_learns_and_goes_on_exactly(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    device = dataclasses.replace(cpu, dtype=FLOAT16)
    config = tiny(
        *("crammed", f"optim.name={optimizer}", "train.log_seconds=1e-9"),
        budget={"limit": f"{24 * 8 * 32}tok"},
    )
    whole = train(config, corpus, tmp_path / "whole", device)
    assert whole.work.updates == 24  # those that were skipped are spent
    records = read_metrics(tmp_path / "whole")
    skipped = sum(record.get("skipped", 0) for record in records)
    assert 3 <= skipped <= 14
    assert records[-1]["loss"] < records[0]["loss"] < 6.0

    monkeypatch.setattr(Agenda, "checkpoint_due", lambda self: True)
    for updates in (6, 8, 2, 7):
        interrupt_at(monkeypatch, updates)
        with pytest.raises(KeyboardInterrupt):
            train(config, corpus, tmp_path / "run", device)
    resumed = train(config, corpus, tmp_path / "run", device)
    assert resumed.work == whole.work
    assert same(whole.model.parameters(), resumed.model.parameters())


def test_a_checkpoint_of_another_format_goes_on_too(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("crammed", budget={"limit": "6updates"})
    monkeypatch.setattr(Agenda, "checkpoint_due", lambda self: True)
    for dtype in (FLOAT32, FLOAT16):
        interrupt_at(monkeypatch, 3)
        with pytest.raises(KeyboardInterrupt):
            train(config, corpus, tmp_path, dataclasses.replace(cpu, dtype=dtype))
    trained = train(config, corpus, tmp_path, dataclasses.replace(cpu, dtype=BFLOAT16))
    assert trained.work.updates == 6
    assert [event["update"] for event in events(tmp_path, "resume")] == [2, 4]


def test_a_run_that_skips_every_update_has_diverged(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(step: TrainStep, update: Update, loss: torch.Tensor) -> torch.Tensor:
        for parameter in step.parameters:
            if parameter.grad is not None and update.number >= 2:
                parameter.grad.fill_(torch.nan)
        return loss * torch.nan if update.number >= 2 else loss

    after_gradients(monkeypatch, broken)
    config = tiny("crammed", "train.log_seconds=1e-9", budget={"limit": "99updates"})
    device = dataclasses.replace(cpu, dtype=FLOAT16)
    with pytest.raises(Diverged, match="30 updates in a row had gradients beyond float16"):
        train(config, corpus, tmp_path / "run", device)
    assert recorder.MOST_SKIPPED == 30
    assert [record["update"] for record in read_metrics(tmp_path / "run")][-1] <= 2


def test_8_bits_need_widths_that_they_suit(cpu: Device) -> None:
    with pytest.raises(InputError, match=r"attention\.qkv is 40 x 120, not multiples of 16"):
        step_with(cpu, tiny("crammed", "model.width=40", "model.head_dim=8"), fp8=True)
    with pytest.raises(InputError, match=r"ffn\.down is 40 x 32, not multiples of 16"):
        step_with(cpu, tiny("crammed", "model.ffn_ratio=2.5"), fp8=True)


class _Rows:
    """Stands for rows of which a GPU would get a copy."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def pin_memory(self) -> _Rows:
        self.calls.append("pinned")
        return self

    def to(self, device: torch.device, non_blocking: bool = False) -> _Rows:
        self.calls.append((device.type, non_blocking))
        return self


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        ("cuda", ["pinned", ("cuda", True)]),
        ("mps", [("mps", False)]),
        ("cpu", [("cpu", False)]),
    ],
)
def test_only_copies_from_pinned_memory_do_not_wait(kind: str, calls: list[Any]) -> None:
    rows: Any = _Rows()
    moved(rows, torch.device(kind))
    assert rows.calls == calls


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(BFLOAT16).float()


def orthogonalised_in_bfloat16(matrix: torch.Tensor) -> torch.Tensor:
    """The iteration in float32, with the three results of each step rounded."""
    a, b, c = COEFFICIENTS
    x = rounded(matrix / matrix.norm())
    for _ in range(ITERATIONS):
        square = rounded(x @ x.mT)
        polynomial = rounded(b * square + c * square @ square)
        x = rounded(a * x + polynomial @ x)
    return x


@pytest.mark.parametrize("shape", [(48, 48), (33, 120), (96, 384)])
@pytest.mark.parametrize("size", [1e-5, 1.0, 1e5])
def test_muon_in_16_bits_is_no_less_orthogonal_than_rounding_makes_it(
    shape: tuple[int, int], size: float
) -> None:
    draw = torch.Generator().manual_seed(shape[0])
    matrix = size * torch.randn(shape, generator=draw) * torch.logspace(-2, 0, shape[1])
    exact = orthogonalise(matrix[None], FLOAT32)[0]

    def missing(found: torch.Tensor) -> float:
        """How far singular values are from one."""
        return float((torch.linalg.svdvals(found.float()) - 1).norm())

    beside = orthogonalised_in_bfloat16(matrix)
    found = orthogonalise(matrix[None], BFLOAT16)[0]
    assert found.dtype == BFLOAT16
    assert missing(found) == pytest.approx(missing(beside), rel=0.02)
    assert missing(found) == pytest.approx(missing(exact), rel=0.05)
    assert (found.float() - exact).norm() < 1.3 * (beside - exact).norm()
    # float16 has three more bits, and the size of the gradient does not matter.
    in_float16 = orthogonalise(matrix[None], FLOAT16)[0].float()
    assert (in_float16 - exact).norm() < (beside - exact).norm() / 3
