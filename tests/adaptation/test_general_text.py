"""Text of the old domain: replayed beside the new, and measured before and after."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
import torch

from crammed.adaptation.general_text import OldText, Replay
from crammed.config import DataConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.heldout_score import heldout_score
from crammed.model.trained import exported_model
from crammed.runs.directory import RunDir
from crammed.terminal.progress import SILENT, Progress
from crammed.training.update.step import TrainStep
from support.adapting import adapt
from support.command import crammed
from support.models import save_model
from support.text import documents, tiny, write_jsonl


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A model, new text, and text of the old domain."""
    old = [text.upper() for text in documents(300, seed=5)]
    return (
        save_model(tmp_path / "bert", "bert"),
        write_jsonl(tmp_path / "new.jsonl", documents(300)),
        write_jsonl(tmp_path / "old.jsonl", old),
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("wiki.jsonl", ("wiki.jsonl", 0.1)),
        ("wiki.jsonl:0.05", ("wiki.jsonl", 0.05)),
        ("s3://texts/wiki", ("s3://texts/wiki", 0.1)),
    ],
)
def test_a_share_follows_a_colon(words: str, expected: tuple[str, float]) -> None:
    given = Replay.parse(words)
    assert (given.path, given.share) == expected
    with pytest.raises(InputError, match="the share must be between 0 and 1"):
        Replay.parse("wiki.jsonl:10")


@pytest.mark.parametrize(
    ("source", "size"),
    [({}, 400), ({"weight": 2.5}, 1000), ({"max_characters": 50}, 50), ({"weight": 0.5}, 200)],
)
def test_as_much_is_replayed_as_is_taken_of_the_own_text(
    tmp_path: Path, source: dict[str, float], size: int
) -> None:
    """Not as much as its files hold, which are read once; skipped records do not count."""
    file = write_jsonl(tmp_path / "own.jsonl", ["x" * 100] * 4)
    with file.open("a") as damaged:
        damaged.write("no record")
    own = {"sources": [{"path": str(file), **source}], "unreadable": "skip"}
    replay, data = Replay("old.jsonl", 0.5), DataConfig.model_validate(own)
    mixed = replay.beside(data)
    assert mixed[-1] == {"path": "old.jsonl", "max_characters": size}
    file.unlink()
    assert replay.beside(data) == mixed


def test_replayed_text_has_its_share_and_its_own_losses(
    tmp_path: Path, texts: tuple[Path, Path, Path]
) -> None:
    model, new, old = texts
    result = adapt(model, new, tmp_path / "run", budget="2updates", replay=Replay(str(old), 0.2))
    sources = Corpus(tmp_path / "run" / "corpus").manifest["sources"]
    sizes = {source["name"]: source["characters"] for source in sources}
    assert sizes["old.jsonl"] / sum(sizes.values()) == pytest.approx(0.2, abs=0.02)
    before, after = result["adapted"]["heldout_by_source"], result["heldout_by_source"]
    assert before.keys() == after.keys() == {"new.jsonl", "old.jsonl"}
    assert before["old.jsonl"] != after["old.jsonl"]
    assert "On old.jsonl" in (tmp_path / "run" / "report.html").read_text()


def test_forgetting_is_measured_on_the_old_text(
    tmp_path: Path, texts: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, new, old = texts
    run = tmp_path / "run"

    def dying(*_: object) -> None:
        raise RuntimeError("as if the machine had stopped")

    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "apply", dying)
        with pytest.raises(RuntimeError, match="as if"):
            adapt(model, new, run, budget="2updates", old_text=old)
    result = adapt(model, new, run, budget="2updates")  # with the old text that it began with
    found = result["adapted"]["old_text"]
    assert found["name"] == "old.jsonl"
    for key, folder in (("before", model), ("after", exported_model(run))):
        backbone = BackboneSpec(str(folder)).load()
        expected = heldout_score(backbone, old, torch.device("cpu"), 2000, 32)
        for name, value in found[key].items():
            assert value == pytest.approx(expected[name], abs=1e-5)
    events = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert events.count("before") == events.count("before_old") == 1
    assert "On the old text, old.jsonl" in (run / "report.html").read_text()
    for named, said in ((old, False), (new, True)):
        shown = io.StringIO()
        adapt(model, new, run, budget="2updates", old_text=named, progress=Progress(shown))
        assert ("--old-text has no effect, as this run has finished" in shown.getvalue()) == said


def test_old_text_stays_where_other_text_cannot_be_read(tmp_path: Path) -> None:
    texts = {"old": documents(20), "empty": [], "other": documents(20, seed=1)}
    files = {name: str(write_jsonl(tmp_path / name, each)) for name, each in texts.items()}
    with RunDir.open(tmp_path / "run", tiny()) as run:
        kept = OldText.of(run, files["old"], SILENT)
        with pytest.raises(InputError):
            OldText.of(run, files["empty"], SILENT)
        assert kept is not None
        assert OldText.of(run, None, SILENT) == kept
        other = OldText.of(run, files["other"], SILENT)
        assert other is not None
        assert other.about["name"] == "other"
        assert [each.name for each in run.path.glob("old-text*")] == ["old-text"]


def test_old_text_that_is_missing_is_noticed_before_text_is_prepared(
    tmp_path: Path, texts: tuple[Path, Path, Path]
) -> None:
    model, new, old = texts
    with pytest.raises(InputError, match="no such data"):
        adapt(model, new, tmp_path / "run", old_text=old.with_name("nothing.jsonl"))
    assert not (tmp_path / "run").exists()


def test_the_command_says_what_was_learned_and_forgotten(
    tmp_path: Path, texts: tuple[Path, Path, Path]
) -> None:
    model, new, old = texts
    past = shutil.copy(old, tmp_path / "past.dat")  # read in the format that is set for all text
    words = (
        "data.format=jsonl",
        "data.row_length=32",
        "batch.rows=4",
        "compute.workers=1",
        "--budget",
        "2updates",
    )
    general = ("--replay", f"{old}:0.4", "--old-text", past)
    command = ("adapt", model, *words, "--data", new, *general, "--out", tmp_path / "run")
    ended = crammed(*command)
    assert ended.returncode == 0, ended.stderr
    said = " ".join(ended.stdout.split())
    for part in ("adapted from bert (", "on the new text held-out loss", "on old.jsonl held-out"):
        assert part in said
    assert "on the old text, past.dat held-out loss" in said
    assert "is adapted, which is outside the rules of Cramming" in " ".join(ended.stderr.split())
    assert "finished earlier" in crammed(*command).stderr
    assert "outside the rules" in " ".join(crammed("runs", tmp_path).stdout.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data", "-", "--replay", "old.jsonl"), "--replay measures the text first, and - is"),
        (
            ("--corpus", "x", "--replay", "old.jsonl"),
            "--replay needs text that is not yet prepared",
        ),
        (
            ("--data", "new.jsonl", "--replay", "old.jsonl", "data.mix.temperature=3"),
            "--replay and data.mix.temperature both set the share of the general text: leave one",
        ),
        (("old.jsonl",), "old.jsonl is not a KEY=VALUE pair: name text with --data old.jsonl"),
        ((), "no data: name a file or folder of text"),
    ],
)
def test_words_that_say_nothing_possible_are_refused(
    tmp_path: Path, texts: tuple[Path, Path, Path], words: tuple[str, ...], message: str
) -> None:
    ended = crammed("adapt", texts[0], *words, "data.row_length=32", cwd=tmp_path)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert message in line
    assert not (tmp_path / "runs").exists()
