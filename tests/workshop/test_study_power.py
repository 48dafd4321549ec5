"""The simulation of how studies are judged, on few studies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_ind

import study_power


def test_studies_find_what_is_there_and_hardly_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_power, "ARMS", (3, 12))
    study_power.main(400, tmp_path / "power.json")
    cases = json.loads((tmp_path / "power.json").read_text())["cases"]
    assert {(each["vary"], each["seeds"], each["arms"]) for each in cases} == {
        (vary, seeds, arms)
        for vary in ("alike", "unequally", "noisy")
        for seeds in (2, 3, 5)
        for arms in (3, 12)
    }
    for each in cases:
        if each["seeds"] > 2:
            assert each["family_wise"] <= 0.06 + 2 * (0.05 * 0.95 / 400) ** 0.5
            assert each["covered"] >= 0.94 - 2 * (0.05 * 0.95 / 400) ** 0.5
            assert each["power"] >= each["welch"]["power"]
        if (each["seeds"], each["vary"]) == (3, "alike"):
            assert each["power"] > 0.7


def test_the_other_test_is_welchs() -> None:
    values = np.random.default_rng(0).normal(size=(2, 4))
    apart, error, freedom = study_power.welch(
        values.mean(1), values.var(1, ddof=1), np.full(2, 4.0), 0
    )
    theirs = ttest_ind(values[1], values[0], equal_var=False)
    assert apart[1] / error[1] == pytest.approx(theirs.statistic)
    assert freedom[1] == pytest.approx(theirs.df)
