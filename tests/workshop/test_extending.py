"""The code on docs/extending.md works."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.command import python

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "extending.md"


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
