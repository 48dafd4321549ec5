"""What docs/extending.md says is done by its patches, and works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crammed.doctor import TINY
from support.command import crammed, python
from support.text import documents, write_jsonl

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "extending.md"
PATCHES = sorted((ROOT / "docs" / "extending").glob("*.patch"))

USES = {
    # What is typed to use each variant.
    "alibi": ("model.positions=alibi", "model.attention_start=random"),
    "fnet": ("model.mixer=fourier",),
    "lion": ("optim.name=lion",),
    "rmsnorm": ("model.norm_kind=rms", "model.norm_bias=false"),
}


def test_the_page_names_every_patch() -> None:
    named = re.findall(r"`([\w-]+)\.patch`", PAGE.read_text("utf-8"))
    assert sorted(set(named) - {"NAME"}) == [patch.stem for patch in PATCHES] == sorted(USES)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_patch_applies(patch: Path) -> None:
    apply = ["git", "-C", str(ROOT), "apply", "--check", str(patch)]
    applied = subprocess.run(apply, capture_output=True, text=True, check=False)
    assert applied.returncode == 0, applied.stderr


@pytest.mark.long
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_patch_trains_and_exports_its_variant(tmp_path: Path, patch: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    subprocess.run(["git", "apply", "--include=src/*", str(patch)], cwd=tmp_path, check=True)
    text = write_jsonl(tmp_path / "text.jsonl", documents(600))
    words = ["run", "crammed", *TINY, "compute.workers=1", *USES[patch.stem]]
    words += ["--data", str(text), "--budget", "3updates", "--out"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    command = [sys.executable, "-m", "crammed", *words, str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "export" / "config.json").exists()
    assert crammed(*words, tmp_path / "without").returncode == 2


def test_the_tracker_follows_a_run(tmp_path: Path) -> None:
    finished = ROOT / "tests" / "fixtures" / "2026-11-21" / "finished"
    points = (finished / "metrics.jsonl").read_text("utf-8")
    (tmp_path / "metrics.jsonl").write_text('{"update": 1, "lo\n' + points)  # as after a crash
    (tmp_path / "summary.json").touch()
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    done = python("-c", code, tmp_path)
    assert done.returncode == 0, done.stderr
    printed = [line.split() for line in done.stdout.splitlines()]
    wanted = [json.loads(line) for line in points.splitlines()]
    assert [int(update) for update, _, _ in printed] == [point["update"] for point in wanted]
    assert [float(loss) for _, loss, _ in printed] == [point["loss"] for point in wanted]
