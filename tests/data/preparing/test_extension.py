"""Corpora that begin with the rows of another one."""

from __future__ import annotations

import io
import json
import shutil
from copy import deepcopy
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_texts, rows_of_corpus
from crammed.data.preparing import driver, extension
from crammed.data.preparing.extension import extend
from crammed.data.preparing.read import source
from crammed.data.show import describe_corpus
from crammed.errors import InputError
from crammed.files.hashes import sha256
from crammed.terminal.progress import SILENT, Progress
from support.corpora import prepared, step_of
from support.text import documents, tiny, write_jsonl, write_rows

FRAMES = ("data.cls=true", "data.sep=false")


def config_of(path: Path, *overrides: str) -> RunConfig:
    return tiny("crammed", *overrides, data={"sources": [str(path)]})


@pytest.fixture
def base(tmp_path: Path) -> Corpus:
    file = write_jsonl(tmp_path / "text.jsonl", documents(300))
    return prepared(tmp_path / "base", file, "data.orders=[rare-first]", *FRAMES)


@pytest.fixture
def further(tmp_path: Path, base: Corpus) -> Path:
    """Old documents, held-out ones, near copies of these, and new ones."""
    held = list(heldout_texts(base.heldout))
    near = [f"{text} It rained." for text in held]
    texts = [*documents(300), *near, *documents(200, seed=1)]
    return write_jsonl(tmp_path / "more" / "text.jsonl", texts)


def test_old_rows_come_first_and_new_text_alone_is_read(
    tmp_path: Path, base: Corpus, further: Path
) -> None:
    made = extend(base, config_of(further).data, tmp_path / "larger", SILENT)
    assert not list(made.damaged())
    old = np.arange(base.rows)
    assert np.array_equal(made.read(old), base.read(old))
    assert (made.path / "rows-00000.bin").samefile(base.path / "rows-00000.bin")
    for name in ("tokenizer.json", "heldout.jsonl.gz"):
        assert sha256(made.path / name) == sha256(base.path / name)
    held = base.manifest["heldout"]["documents"]
    dropped = {step["step"]: step["dropped"] for step in made.manifest["steps"]}
    assert dropped["held-out documents"] == dropped["copies of held-out text"] == held
    assert dropped["documents of the corpus"] == 300 - held
    assert made.manifest["documents"] == base.manifest["documents"] + 200
    assert made.manifest["extends"] == {"sha256": base.sha256, "rows": base.rows}
    assert [each["name"] for each in made.manifest["sources"]] == ["text.jsonl", "text.jsonl (2)"]
    assert made.manifest["data"] == base.manifest["data"]
    assert dict(describe_corpus(made))["extends"][0].startswith(f"the {base.rows} rows of corpus ")
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        *("base", "larger", "more", "text.jsonl")
    ]


def test_new_rows_are_those_of_the_new_text_alone(
    tmp_path: Path, base: Corpus, further: Path
) -> None:
    made = extend(base, config_of(further).data, tmp_path / "larger", SILENT)
    words = [f"tokenizer.file={base.path / 'tokenizer.json'}", *FRAMES]
    new = write_jsonl(tmp_path / "new.jsonl", documents(200, seed=1))
    alone = prepared(tmp_path / "alone", new, *words, heldout=base)
    new_rows = np.arange(base.rows, made.rows)
    assert np.array_equal(made.read(new_rows), alone.read(np.arange(alone.rows)))
    for name in ("tokens", "characters", "rows", "tokens_left_out"):
        assert made.manifest[name] == base.manifest[name] + alone.manifest[name]
    histogram = made.manifest["statistics"]["document_tokens"]
    assert sum(histogram) == made.manifest["documents"]


def test_what_links_lead_to_is_shared(tmp_path: Path, base: Corpus, further: Path) -> None:
    """As in the cache of the hub, whose links are relative."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for file in list(base.path.iterdir()):
        file.rename(blobs / file.name)
        file.symlink_to(Path("..", "blobs", file.name))
    made = extend(base, config_of(further).data, tmp_path / "larger", SILENT)
    assert not [file for file in made.path.iterdir() if file.is_symlink()]
    assert (made.path / "rows-00000.bin").samefile(blobs / "rows-00000.bin")
    assert not list(made.damaged())


def test_stored_orders_are_of_all_rows(tmp_path: Path, base: Corpus, further: Path) -> None:
    made = extend(base, config_of(further).data, tmp_path / "larger", SILENT)
    order = made.order("rare-first")
    assert sorted(order.tolist()) == list(range(made.rows))
    counts = made.token_counts()
    share = np.log((counts + 1.0) / (counts.sum() + len(counts)))
    means = share[made.read(order.astype(np.int64))].mean(axis=1)
    assert (np.diff(means) > -1e-3).all()
    expected = -share[rows_of_corpus(base, base.manifest["data"]["heldout_rows"]).ids].mean()
    assert made.manifest["heldout"]["unigram_cross_entropy"] == pytest.approx(expected)


def test_a_corpus_is_extended_twice(tmp_path: Path, base: Corpus, further: Path) -> None:
    larger = extend(base, config_of(further).data, tmp_path / "larger", SILENT)
    texts = [*documents(250, seed=1), *documents(50)]
    third = write_jsonl(tmp_path / "third.jsonl", texts)
    made = extend(larger, config_of(third).data, tmp_path / "largest", SILENT)
    before, after = (step_of(each, "copies of held-out text")["dropped"] for each in (larger, made))
    copies = after - before  # these documents are made of a few phrases
    assert copies < 5
    assert made.manifest["documents"] == larger.manifest["documents"] + 50 - copies


def test_a_call_that_was_killed_while_joining_is_repeated(
    tmp_path: Path, base: Corpus, further: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = extend(base, config_of(further).data, tmp_path / "whole", SILENT)
    killed = Mock(side_effect=SystemExit)
    with monkeypatch.context() as patch:
        patch.setattr(extension, "_manifest", killed)
        with pytest.raises(SystemExit):
            extend(base, config_of(further).data, tmp_path / "larger", SILENT)
    assert not (tmp_path / "larger").exists()
    with monkeypatch.context() as patch:
        patch.setattr(extension, "prepare", killed)  # which is done
        made = extend(base, config_of(further).data, tmp_path / "larger", SILENT)
    assert made.manifest == whole.manifest


@pytest.mark.parametrize(
    ("stage", "repeated"), [("mix_sources", False), ("_manifest", False), ("_manifest", True)]
)
def test_what_a_killed_call_leaves_is_removed(
    tmp_path: Path, base: Corpus, further: Path, stage: str, repeated: bool
) -> None:
    place = extension if stage == "_manifest" else driver
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, stage, Mock(side_effect=SystemExit))
        with pytest.raises(SystemExit):
            extend(base, config_of(further).data, tmp_path / "larger", SILENT)
    left = [each.name for each in tmp_path.glob(".*")]
    assert left
    assert all(".larger." in name for name in left)
    if repeated:
        with pytest.MonkeyPatch.context() as patch:
            # As if killed before the last line.
            patch.setattr(f"{extension.__name__}.shutil.rmtree", Mock())
            extend(base, config_of(further).data, tmp_path / "larger", SILENT)
        assert list(tmp_path.glob(".*"))
        with pytest.raises(InputError, match="exists already"):
            extend(base, config_of(further).data, tmp_path / "larger", SILENT)
    else:
        other = write_jsonl(tmp_path / "other.jsonl", documents(60, seed=2))
        extend(base, config_of(other).data, tmp_path / "larger", SILENT)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("data.clean.repeated.unit=line", ["extend  repeated lines are looked for only within"]),
        ("data.clean.substring=50", ["extend  repeated passages are looked for only within"]),
        ("data.cls=true", []),
    ],
)
def test_what_is_not_compared_with_old_text_is_named(
    tmp_path: Path, word: str, said: list[str]
) -> None:
    base = prepared(tmp_path / "base", write_jsonl(tmp_path / "a.jsonl", documents(300)), word)
    new, told = write_jsonl(tmp_path / "b.jsonl", documents(60, seed=3)), io.StringIO()
    with Progress(told) as progress:
        extend(base, config_of(new).data, tmp_path / "larger", progress)
    lines = [line for line in told.getvalue().splitlines() if line.startswith("extend")]
    assert lines == [f"{each} the new text" for each in said]


def test_what_was_piped_into_a_killed_call_is_not_taken_for_other_text(
    tmp_path: Path, base: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = config_of(Path("-")).data
    first, second = (
        write_jsonl(tmp_path / f"{count}.jsonl", documents(count, seed=count)) for count in (40, 80)
    )
    with monkeypatch.context() as patch:
        patch.setattr(source, "_spooled", lambda: first)
        patch.setattr(extension, "_manifest", Mock(side_effect=SystemExit))
        with pytest.raises(SystemExit):
            extend(base, data, tmp_path / "larger", SILENT)
    monkeypatch.setattr(source, "_spooled", lambda: second)
    made = extend(base, data, tmp_path / "larger", SILENT)
    assert made.manifest["sources"][-1]["documents"] > 60  # some are copies of held-out text


def test_a_corpus_of_an_older_version_is_extended_with_a_word_about_copies(
    tmp_path: Path, base: Corpus, further: Path
) -> None:
    manifest = base.manifest
    del manifest["files"]["digests.bin"]
    shutil.copytree(base.path, tmp_path / "older", ignore=shutil.ignore_patterns("digests.bin"))
    (tmp_path / "older" / "manifest.json").write_text(json.dumps(manifest))
    said = io.StringIO()
    with Progress(said) as progress:
        data = config_of(further).data
        made = extend(Corpus(tmp_path / "older"), data, tmp_path / "larger", progress)
    assert "does not say what documents it has: text that repeats them stays" in said.getvalue()
    assert made.manifest["documents"] == 2 * base.manifest["documents"] + 200
    assert "digests.bin" not in made.manifest["files"]


def test_what_cannot_be_extended_is_refused(tmp_path: Path, base: Corpus, further: Path) -> None:
    shares = config_of(further).data.model_copy(
        update={"sources": (config_of(further).data.sources[0].model_copy(update={"share": 1.0}),)}
    )
    with pytest.raises(InputError, match="nothing can be mixed with it by share or temperature"):
        extend(base, shares, tmp_path / "larger", SILENT)
    near = [f"{text} It rained." for text in heldout_texts(base.heldout)]
    old = write_jsonl(tmp_path / "old.jsonl", near)
    with pytest.raises(InputError, match="held out, or is in the corpus to extend: add other text"):
        extend(base, config_of(old).data, tmp_path / "larger", SILENT)
    (base.path / "rows-00000.bin").write_bytes(
        bytes(base.manifest["files"]["rows-00000.bin"]["bytes"])
    )
    with pytest.raises(InputError, match=r"base is damaged: rows-00000\.bin"):
        extend(base, config_of(further).data, tmp_path / "larger", SILENT)
    assert not (tmp_path / "larger").exists()


def test_a_corpus_is_extended_if_the_same_tasks_are_named_again(
    tmp_path: Path, base: Corpus, further: Path
) -> None:
    def tasks(text: str) -> str:
        file = tmp_path / "glue" / "cola" / "train.jsonl"
        write_rows(file, [{"sentence": text, "label": 0}])
        return f"data.clean.downstream={{data: {tmp_path / 'glue'}, words: 12}}"

    text = tmp_path / "text.jsonl"
    cleaned = prepared(tmp_path / "clean", text, tasks(documents(3)[2]), "compute.workers=1")
    assert step_of(cleaned, "downstream")["dropped"] == 1

    def extended(corpus: Corpus, *words: str) -> Corpus:
        config = config_of(further, *words, "compute.workers=1")
        return extend(corpus, config.data, tmp_path / "larger", SILENT, config.compute)

    with pytest.raises(InputError, match=r"cleaned of the tasks of glue, .* name them again with"):
        extended(cleaned)
    with pytest.raises(InputError, match="name them again"):
        extended(cleaned, tasks(documents(4)[3]))
    with pytest.raises(InputError, match="base was cleaned without it; leave it out"):
        extended(base, tasks(documents(3)[2]))
    manifest = json.loads((cleaned.path / "manifest.json").read_text())
    old = deepcopy(manifest)
    old["data"]["clean"]["downstream"] = "0123456789abcdef01234567"
    (cleaned.path / "manifest.json").write_text(json.dumps(old))
    for words in ((), (tasks(documents(3)[2]),)):
        with pytest.raises(InputError, match=r"by an older version, .* prepare all text anew"):
            extended(Corpus(cleaned.path), *words)
    (cleaned.path / "manifest.json").write_text(json.dumps(manifest))
    made = extended(Corpus(cleaned.path), tasks(documents(3)[2]))
    assert step_of(made, "downstream")["dropped"] == 2, "the further text holds it, too"
    assert made.manifest["data"] == cleaned.manifest["data"]


def test_tasks_that_changed_are_read_again_in_the_same_process(tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(200))
    task = tmp_path / "glue" / "cola" / "train.jsonl"
    words = [f"data.clean.downstream={tmp_path / 'glue'}", "compute.workers=1"]
    for number in (1, 2):
        write_rows(task, [{"sentence": text} for text in documents(number)])
        made = prepared(tmp_path / f"made-{number}", text, *words)
        assert step_of(made, "downstream")["dropped"] == number
