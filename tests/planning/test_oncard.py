"""What is counted for a card that is not here, beside counts by hand."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from crammed.budget import Budget
from crammed.cli import planning
from crammed.errors import InputError
from crammed.machine.cards import CARDS, GIB, Card, card_called, known_card
from crammed.model.count import parameters
from crammed.optim.muon import ITERATIONS, orthogonalisation_flops, orthogonalise
from crammed.planning.oncard import BANDWIDTH, LAUNCH, Taken, counted_measure, counted_speed
from crammed.planning.parts import PartTimes
from crammed.rules.recipe import load_config
from crammed.training.update.memory import allocated, bytes_per_parameter

PAPER = load_config("crammed-2022")
VOCAB = PAPER.tokenizer.vocab_size
DAY = Budget.parse("24h")


def counted(card: str, *words: str, recipe: str = "crammed-2022") -> PartTimes:
    """The count for a recipe on a card."""
    config = load_config(recipe, words)
    return counted_speed(config, config.tokenizer.vocab_size, card_called(card))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bytes_are_counted_while_any_tensor_shares_them(device: str) -> None:
    there = torch.empty(1000, device=device)

    def work() -> None:
        first = there + 1  # 4,000 bytes
        part = first.view(10, 100)[2:]
        first = there.view(10, 100).add_(0)  # nothing new
        second = part * 2  # 3,200, and the first 4,000 are still shared
        del part
        third = torch.cat([second, first])  # 7,200, when only 3,200 are left
        del second, third
        torch.empty(2000, device=device)

    assert allocated(work) == 3200 + 7200


def test_what_a_backward_pass_allocates() -> None:
    x, weight = torch.empty(4, 8, device="meta"), torch.empty(8, 16, device="meta")
    weight.requires_grad_()

    def work() -> None:
        loss = (x @ weight).relu().sum()
        torch.autograd.grad(loss, weight)

    slopes, gradient = 4 * 16 * 4, 8 * 16 * 4
    assert slopes + gradient <= allocated(work) <= slopes + gradient + 16


def test_the_paper_s_shape_on_cards() -> None:
    speeds = {name: counted(name) for name in ("H200", "A6000")}
    held = bytes_per_parameter(PAPER) * parameters(PAPER.model, VOCAB)
    for speed in speeds.values():
        assert speed.microbatch_rows in (256, 512)
        assert speed.memory is not None
        # Uncompiled, 16 layers keep 18 vectors of the width of each token in 16 bits, and more.
        kept = (speed.memory - held) / speed.microbatch_rows / 128
        assert 16 * 18 * 768 * 2 < kept < 2 * 16 * 18 * 768 * 2
    a_row = {name: speed.row / 128 for name, speed in speeds.items()}
    # The count of docs/gpu.md: 59.7 ms of products and attention, 15.0 of traffic.
    assert 65_536 * a_row["H200"] == pytest.approx(0.0747, rel=0.01)
    published = known_card("NVIDIA RTX A6000")
    assert published is not None
    assert published.published is not None
    assert 1.2 < 1 / a_row["A6000"] / published.published < 1.5


def test_what_was_counted_for_other_cards_changes_nothing() -> None:
    wide = load_config("crammed-2022", ["model.layers=2", "model.width=2048", "batch.rows=2048"])
    known, alone = Taken(), []
    for name in ("H200", "2080 Ti", "RTX 4070", "T4"):  # of two formats and several sizes
        alone.append(counted_speed(wide, VOCAB, card_called(name)))
        assert counted_speed(wide, VOCAB, card_called(name), known) == alone[-1]
    assert len({speed.microbatch_rows for speed in alone}) > 1
    assert {half for half, *_ in known} == {"bfloat16", "float16"}


def test_what_an_optimizer_keeps_takes_memory_and_time() -> None:
    found = {}
    for name in ("adamw", "sgd", "adafactor"):
        words = [f"optim.name={name}", "model.layers=1", "compute.microbatch_rows=8"]
        config = load_config("crammed-2022", words)
        speed = counted_speed(config, VOCAB, card_called("H200"))
        found[name] = (speed.update, float(speed.memory or 0))
    size, bandwidth = parameters(config.model, VOCAB), BANDWIDTH * card_called("H200").bandwidth
    for place, each in ((0, 8 / bandwidth), (1, 4)):
        adamw, sgd, adafactor = (found[name][place] for name in ("adamw", "sgd", "adafactor"))
        assert adamw - sgd == pytest.approx(each * size)
        assert sgd - adafactor == pytest.approx(each * size)


@pytest.mark.parametrize("other", ["masking.final_rate=0.125", "objective.name=causal-first"])
def test_updates_that_predict_more_take_longer(other: str) -> None:
    small = ["model.layers=2", "batch.rows=64", "compute.microbatch_rows=64"]
    plain, sparse = (counted("H200", *small, f"masking.rate={rate}") for rate in (0.25, 0.125))
    found = counted("H200", *small, other)
    assert found.seconds(64, 32) == pytest.approx(plain.seconds(64))
    assert found.seconds(64, 16) == pytest.approx(sparse.seconds(64), rel=0.01)
    assert found.seconds(64, 128) > 1.5 * found.seconds(64, 32)
    measure = counted_measure(card_called("H200"))  # at the first rate, whatever comes later
    flops = [measure(load_config("crammed-2022", words)) for words in (small, [*small, other])]
    assert flops[0] == pytest.approx(flops[1])


def test_a_tiny_model_waits_for_its_launches() -> None:
    """On a fast card, twice as many rows take as long."""
    small = ["model.layers=2", "model.width=64", "model.head_dim=32", "tokenizer.vocab_size=8192"]
    few, many = (
        counted("H200", *small, f"batch.rows={rows}", recipe="crammed") for rows in (16, 32)
    )
    assert 32 * many.row == pytest.approx(16 * few.row) == pytest.approx(100 * LAUNCH)
    # Clipping and AdamW, and three shapes of matrices through Muon.
    assert few.update == many.update == pytest.approx((12 + 3 * 36) * LAUNCH)
    assert counted("H200", *small).update == pytest.approx(12 * LAUNCH)


def test_a_small_card_gets_fewer_rows_and_the_format_that_it_has() -> None:
    small, large = map(counted, ("2080 Ti", "H100"))
    assert 16 <= small.microbatch_rows < large.microbatch_rows
    assert small.memory is not None
    assert small.memory < 10 * GIB
    assert small.row > 10 * large.row
    with pytest.raises(InputError, match=r"counts products in float16: leave out"):
        counted("2080 Ti", "compute.dtype=bfloat16")
    for words in ([], ["compute.dtype=float32"]):
        curved = ["optim.name=library", "optim.of=SophiaH", *words]
        with pytest.raises(InputError, match=r"optim\.of=SophiaH needs float32: plan on a machine"):
            counted("H100", *curved)
    halved = counted("2080 Ti", "compute.microbatch_rows=4096")
    assert halved.microbatch_rows in (small.microbatch_rows, 2 * small.microbatch_rows)
    with pytest.raises(InputError, match="not even one row of 128 tokens fits"):
        counted("2080 Ti", "model.layers=1", "model.width=6144")
    with pytest.raises(InputError, match=r"and the RTX 2080 Ti, less 1 GiB for CUDA, has 10 GiB"):
        counted("2080 Ti", "model.layers=200")


def test_a_model_that_nearly_fills_a_card_computes_its_activations_again() -> None:
    large = ["model.layers=24", "model.width=1152"]
    again, once = counted("2080 Ti", *large), counted("2080 Ti", *large, "compute.recompute=off")
    assert again.microbatch_rows > 4 * once.microbatch_rows
    assert again.memory is not None
    assert again.memory < 10 * GIB


def test_a_model_that_grows_takes_the_memory_of_all_of_its_layers() -> None:
    grows = counted("2080 Ti", "model.layers=4", "train.grow_at=[0.5]")
    assert grows == counted("2080 Ti", "model.layers=4")


def test_the_flops_of_orthogonalising() -> None:
    assert ITERATIONS == 5
    for shape in ((8, 24), (24, 8)):
        with FlopCounterMode(display=False) as flops:
            orthogonalise(torch.empty(1, *shape, device="meta"), torch.float32)
        assert flops.get_total_flops() == orthogonalisation_flops(*shape)


@pytest.mark.parametrize(
    ("called", "card"),
    [
        ("RTX 4090", "RTX 4090"),
        (" nvidia geforce rtx 4090 ", "RTX 4090"),
        ("rtx 4070ti", "RTX 4070 Ti"),
        ("RTX4070TiSuper", "RTX 4070 Ti SUPER"),
        ("3060_ti", "RTX 3060 Ti"),
        ("4060ti 16 gb", "RTX 4060 Ti 16GB"),
        ("RTX PRO 6000 Blackwell", "RTX PRO 6000"),
        ("a100-80gb", "A100 80GB"),
        ("A100 80G", "A100 80GB"),
        ("A100-80", "A100 80GB"),
        ("A100 SXM4 40 GB", "A100"),
        ("Tesla V100-32", "V100 32GB"),
        ("4060 Ti 16", "RTX 4060 Ti 16GB"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_a_card_is_known_by_every_way_to_write_its_name(called: str, card: str) -> None:
    assert card_called(called).name == card


@pytest.mark.parametrize(
    ("device", "card"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA RTX A1000 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4050", None),
        # Slower than the card that they are named after:
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
    ],
)
def test_a_card_is_known_by_the_name_that_it_has_for_itself(device: str, card: str | None) -> None:
    found = known_card(device)
    assert (found and found.name) == card


@pytest.mark.parametrize(
    ("called", "said"),
    [
        ("TPU", "no card of this name is known; name one of B200, "),
        ("", "no card of this name is known; name one of B200, "),
        ("RTX 409O", "no card of this name is known; did you mean RTX 4090? name one of B200, "),
        ("4090 laptop", "no card of this name is known; name one of B200, "),
        # Cards of their own, whose names are parts of others or go on after them:
        ("L40", "no card of this name is known; did you mean L40S? name one of B200, "),
        ("A40", "no card of this name is known; did you mean RTX A4000? name one of B200, "),
        ("RTX 2080", "no card of this name is known; did you mean RTX 2080 Ti? name one of B200, "),
        ("RTX 3080 12GB", "no card of this name is known; did you mean RTX 3080? name one of B200"),
        ("A100-64", "no card of this name is known; did you mean A100? name one of B200, "),
        ("H20", "name one of H200, H200 NVL"),
        ("50", "name one of RTX 5090, RTX 5080, RTX 5070 Ti, RTX 5070"),
        ("A", "name one of A100, A100 80GB, "),
    ],
)
def test_a_card_that_nobody_knows_is_refused(called: str, said: str) -> None:
    with pytest.raises(InputError, match=rf"^--device {called}: {re.escape(said)}"):
        card_called(called)


def test_every_card_is_whole() -> None:
    for card in CARDS:
        assert isinstance(card, Card)
        assert known_card(f"NVIDIA {card.name}") == card
        assert card_called(card.name) == card_called(card.name.replace(" ", "").lower()) == card
        # Every card has some 50 to 420 FLOPs for each byte that it moves; the L40S has most.
        assert 50 < card.peak / card.bandwidth < 420
        assert card.half == ("float16" if card.capability < (8, 0) else "bfloat16")


def test_a_plan_for_a_card_says_that_it_is_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    hour = Budget.parse("1h")
    for as_json in (False, True):
        planning.plan(["crammed-2022"], None, hour, as_json=as_json, device="A6000")
    said, _, values = capsys.readouterr().out.partition("{")
    assert "RTX A6000: an estimate from counted FLOPs" in said
    assert "8.92 G tokens a day by the paper's program" in said
    assert re.search(r"of 48 GiB, (256|512) rows at a time", said)
    plan = json.loads("{" + values)
    assert plan["card"]["tokens_per_day"] == pytest.approx(86400 * plan["tokens_per_second"])
    assert 24 * plan["tokens"] == pytest.approx(plan["card"]["tokens_per_day"], rel=0.01)


def test_what_suits_a_card_follows_from_its_count(capsys: pytest.CaptureFixture[str]) -> None:
    planning.plan(["crammed"], None, Budget.parse("1h"), device="RTX 4090")
    said = capsys.readouterr().out
    assert "tokens/s, counted" in said
    assert "measured" not in said


def test_a_recipe_that_no_size_suits_is_planned_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its updates are of 8,192 rows; those of a size that suits the budget would have fewer."""
    words = ["crammed-2022", "model.layers=2", "batch.adaptive.test=norm", "batch.quantum=4096"]
    planning.plan(words, None, Budget.parse("10m"), as_json=True, device="A6000")
    planned = json.loads(capsys.readouterr().out)
    assert (planned["best_size"], planned["reasons"]) == (None, "as set")


def test_a_plan_is_for_one_device() -> None:
    with pytest.raises(InputError, match=r"compute\.device is set twice"):
        planning.plan(["crammed", "compute.device=cpu"], None, DAY, device="A6000")
    with pytest.raises(InputError, match="--device measures nothing: leave --seconds out"):
        planning.plan(["crammed"], None, DAY, 20.0, device="A6000")
