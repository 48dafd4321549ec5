"""The tables about little text say what the runs of a grid say, and no more."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from crammed.budget import format_seconds
from crammed.files.writing import write_json
from crammed.rules.recipe import load_config

ROOT = Path(__file__).resolve().parents[2]
NOT_YET = "Not measured yet.\n"
SHORT, LONG = 300_000, 3_000_000
"""Tokens of two texts, of four characters each."""
SMALL, LARGE = (2, 64), (2, 128)
SPEED = {SMALL: 25_000.0, LARGE: 10_000.0}
"""Tokens a second."""


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    module = importlib.import_module("text_tables")
    monkeypatch.setattr(importlib.import_module("layout"), "RECORDS", tmp_path)
    return module


def run(
    text: int, shape: tuple[int, int], epochs: float, loss: float, seed: int = 0, **more: Any
) -> dict[str, Any]:
    """What a grid keeps of a run, which ends before the last update."""
    tokens = round(epochs * text) - 1000
    return {
        "text_tokens": text,
        "variant": "default",
        "seed": seed,
        "layers": shape[0],
        "width": shape[1],
        "tokens": tokens,
        "charged_seconds": tokens / SPEED[shape],
        "heldout": {"loss@0.15": loss, "loss@0.25": loss + 0.2},
        "cores": 1,
        "device": "AMD EPYC",
        "environment": {"commit": "abc", "packages": {"torch": "2.13"}},
        **more,
    }


def record(tmp_path: Path, *runs: dict[str, Any]) -> list[str]:
    corpora = {
        str(tokens): {"tokens": tokens, "characters": 4 * tokens}
        for tokens in (SHORT, LONG, 9_000_000)  # of the last there are no runs
    }
    write_json(tmp_path / "little" / "runs.json", {"corpora": corpora, "runs": list(runs)})
    return ["little"]


def rows(table: str) -> list[list[str]]:
    """The cells of a table's rows."""
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_nothing_measured_is_said(tables: ModuleType, tmp_path: Path) -> None:
    makers = (tables.epochs_table, tables.variants_table, tables.minutes_table, tables.gpu_table)
    assert {make(["gone"]) for make in makers} == {NOT_YET}
    assert {make(record(tmp_path)) for make in makers} == {NOT_YET}
    names = record(tmp_path, run(SHORT, SMALL, 4, 4.5))
    assert tables.variants_table(names) == NOT_YET  # there is nothing but the default


def test_losses_by_readings_show_the_best_size_and_what_was_not_run(
    tables: ModuleType, tmp_path: Path
) -> None:
    names = record(
        tmp_path,
        run(SHORT, LARGE, 0.5, 5.0),
        run(SHORT, SMALL, 8, 4.5),
        run(SHORT, SMALL, 8, 4.3, seed=1),
        run(SHORT, LARGE, 8, 4.5),
        run(SHORT, LARGE, 8, 3.0, variant="dropout"),  # which is not shown here
        run(LONG, SMALL, 8, 4.0),
    )
    table = tables.epochs_table(names)
    assert table.splitlines()[0].endswith("| layers x width | read 0.5 times | read 8 times |")
    assert rows(table) == [
        ["1.2 MB, 300 k tokens", "2 x 64", "not run", "**4.400**"],
        ["1.2 MB, 300 k tokens", "2 x 128", "5.000", "4.500"],
        ["12 MB, 3 M tokens", "2 x 64", "not run", "4.000"],
    ]
    below = " ".join(table.split())
    assert "means over seeds (1 to 2)" in below
    assert below.endswith("AMD EPYC; PyTorch 2.13; commit abc.")


def test_variants_are_compared_where_both_were_run(tables: ModuleType, tmp_path: Path) -> None:
    seeds = [
        run(SHORT, LARGE, 32, loss + seed / 50, seed, variant=variant)
        for variant, loss in (("dropout", 4.0), ("default", 4.5))
        for seed in range(2)
    ]
    names = record(
        tmp_path,
        *seeds,
        run(SHORT, LARGE, 32, 4.6, variant="decay"),
        run(SHORT, LARGE, 8, 4.4),  # has no other variant, and is not shown
        run(LONG, SMALL, 8, 4.4, variant="masks-60"),
    )
    cells = rows(tables.variants_table(names))
    where = "1.2 MB, 300 k tokens, 2 x 128, read 32 times"
    assert cells[0] == [where, "default", "2", "4.510 ± 0.014", "4.710 ± 0.014", ""]
    assert cells[1][:5] == [where, "dropout", "2", "4.010 ± 0.014", "4.210 ± 0.014"]
    assert cells[1][5].startswith("-0.500 (-0.5")
    assert cells[2] == [where, "decay", "1", "4.600", "4.800", "+0.090"]
    other = "12 MB, 3 M tokens, 2 x 64, read 8 times"
    assert cells[3] == [other, "default", "0", "not run", "not run", ""]
    assert cells[4] == [other, "masks-60", "1", "4.400", "4.600", ""]


def test_minutes_are_what_the_rule_makes_of_them_at_the_measured_speed(
    tables: ModuleType, tmp_path: Path
) -> None:
    most = load_config("crammed").budget.most_epochs
    assert most is not None
    assert most > 16
    names = record(
        tmp_path,
        run(SHORT, SMALL, 4, 5.0),
        run(SHORT, SMALL, 16, 4.0),
        run(SHORT, SMALL, most, 3.5),
        run(LONG, SMALL, 0.25, 5.5),
        run(LONG, SMALL, 1, 4.5),
    )
    cells = rows(tables.minutes_table(names))
    by = {(row[0], row[1]): row[2:] for row in cells}
    assert len(by) == 3 * 6
    short, long, more = ("1.2 MB, 300 k tokens", "12 MB, 3 M tokens", "100 MB, 25 M tokens")
    assert by[short, "1"][:4] == ["2 x 64", "1.5 M", "5", ""]
    assert 4.0 < float(by[short, "1"][4]) < 5.0  # between four readings and sixteen
    # From four readings to sixteen the loss falls by 1, and by as much for each factor.
    assert float(by[short, "2"][4]) == pytest.approx(5.0 - math.log(10 / 4, 4), abs=0.01)
    ended = by[short, "60"]
    assert ended[1:4] == [f"{0.3 * most:g} M", f"{most:g}", format_seconds(12 * most)]
    assert ended[4] == "3.50"
    assert by[long, "1"][1:5] == ["1.5 M", "0.5", "", "5.00"]
    assert by[long, "5"][4] == "beyond what was measured"
    assert by[more, "1"][1:5] == ["1.5 M", "0.06", "", "not measured"]


def test_a_gpu_is_shown_where_the_text_ends_its_runs(tables: ModuleType, tmp_path: Path) -> None:
    most = load_config("crammed").budget.most_epochs
    assert most is not None
    names = record(tmp_path, run(SHORT, SMALL, 4, 5.0), run(LONG, SMALL, 4, 4.0))
    short, long, more = rows(tables.gpu_table(names))  # a gigabyte of this outlasts an hour
    always, read = "1, 10, 60", f"{most:g}"
    quick = ["1.2 MB, 300 k tokens", always, "2 x 64", f"{0.3 * most:g} M", read, "under a second"]
    assert short == quick
    assert long[:3] == ["12 MB, 3 M tokens", always, "4 x 128"]
    assert more[:3] == ["100 MB, 25 M tokens", always, "4 x 256"]
    assert long[4] == more[4] == read
    ends = [float(each[5].removesuffix("s")) for each in (long, more)]
    assert 1.0 < ends[0] < 5.0 < ends[1] < 60.0


def test_what_is_shorter_than_all_runs_has_no_loss(tables: ModuleType, tmp_path: Path) -> None:
    names = record(tmp_path, run(LONG, SMALL, 4, 5.0), run(LONG, SMALL, 16, 4.0))
    assert rows(tables.minutes_table(names))[0][6] == "shorter than what was measured"
