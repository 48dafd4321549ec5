"""The campaign of faults: a short one holds, and it finds what is taken out of the code."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from campaign.journal import Operation, read_journal
from campaign.links import PlantedLink
from campaign.plants import PLANTS
from support.command import FORKS, python

TOOLS = Path(__file__).resolve().parents[2] / "tools"
CHAOS = TOOLS / "chaos.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


def tries_in(folder: Path) -> list[dict[str, Any]]:
    """The tries of a campaign, without how long they took."""
    lines = (folder / "tries.jsonl").read_text("utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.mark.skipif(not FORKS, reason="every try would import all libraries anew")
def test_a_short_campaign_holds_and_each_try_can_be_repeated(tmp_path: Path) -> None:
    stages = ("--stage", "pretrain, updates")
    faults = ("--fault", "kill", "--fault", "power loss", "--fault", "damaged file")
    done = python(CHAOS, "--seed", "1", *stages, *faults, "--out", str(tmp_path / "all"))
    assert done.returncode == 0, done.stdout + done.stderr
    tries = tries_in(tmp_path / "all")
    assert len(tries) >= 3
    assert {each["verdict"] for each in tries} == {"held"}
    shown = (tmp_path / "all" / "table.md").read_text("utf-8")
    assert "| pretrain, updates | 1 of 1 | 1 of 1 | 1 of 1 |" in shown
    one = next(each for each in tries if each["hit"] and each["fault"] == "power loss")
    again = python(CHAOS, "--only", str(one["number"]), "--out", str(tmp_path / "one"))
    assert again.returncode == 0, again.stdout + again.stderr
    assert tries_in(tmp_path / "one") == [one]


@pytest.mark.long
@pytest.mark.skipif(not FORKS, reason="every try would import all libraries anew")
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found(plant: str, tmp_path: Path) -> None:
    where = ("--stage", PLANTS[plant].stage, "--fault", PLANTS[plant].fault)
    done = python(CHAOS, "--plant", plant, *where, "--tries", "60", "--first", "--out", tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert tries_in(tmp_path)[-1]["verdict"] != "held"


# ---- links that are planted, and what is counted

COUNTED = """
import sys
from pathlib import Path
sys.path.insert(0, {tools!r})
from campaign.files import Layer
from crammed.files.writing import read_json, write_text
world = Path({world!r})
layer = Layer(world, world.parent / "journal", world.parent, 0, lambda *_: None)
layer.install()
write_text(world / "a.json", "{{}}")
read_json(world / "a.json")
"""


def test_files_opened_by_descriptor_are_counted(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    done = python("-c", COUNTED.format(tools=str(TOOLS), world=str(tmp_path / "world")))
    assert done.returncode == 0, done.stderr
    kinds = [each.kind for each in read_journal(tmp_path / "journal")]
    counted = ["create", "write", "read"]
    assert [kind for kind in kinds if kind in counted] == counted


@pytest.mark.parametrize("seed", range(12))
def test_what_is_written_through_a_planted_link_is_noticed(tmp_path: Path, seed: int) -> None:
    world = tmp_path / "world"
    (world / "run").mkdir(parents=True)
    (world / "run" / "log").write_text("mine")
    journal = [Operation(0, n, "write", f"run/{name}") for n, name in enumerate(("log", "new"))]
    draw = random.Random(seed)
    link = PlantedLink(world, tmp_path / "outside", journal, ["run"], draw)
    assert link.name in ("run/log", "run/new")  # a folder that is typed may be a link
    assert link.touched() is None
    place = world / link.name
    (place / "x" if place.is_dir() else place).write_text("theirs")
    assert link.touched() is not None
    link.take_back()
    assert not place.is_symlink()
    assert (world / "run" / "log").read_text() == "mine"
