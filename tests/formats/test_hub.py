from __future__ import annotations

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from crammed.config import DataConfig
from crammed.data import shards
from crammed.data.preparing.read.source import Source, open_sources
from crammed.errors import InputError
from crammed.formats import hub
from crammed.formats.hub import SHORT_NAMES, HubDataset, open_parts, parse_name
from crammed.machine.engine import Engine
from support.corpora import prepared
from support.reading import Cleaning, read_source, texts_of
from support.samples import COMPRESS, json_lines
from support.text import documents


def opened(path: str, **source: Any) -> Source:
    config = {"text_field": "elsewhere", "sources": [{"path": path, **source}]}
    return open_sources(DataConfig.model_validate(config))[0]


def read(path: str, **source: Any) -> list[str]:
    return [text for part in opened(path, **source).parts for text in part.documents()]


def test_short_names_and_their_configurations() -> None:
    assert parse_name("wikipedia") == SHORT_NAMES["wikipedia"]
    german = parse_name("wikipedia/20231101.de")
    assert (german.repository, german.config) == ("wikimedia/wikipedia", "20231101.de")
    validation = parse_name("c4/realnewslike/validation")
    assert (validation.config, validation.split) == ("realnewslike", "validation")


def test_any_repository() -> None:
    found = parse_name("some/corpus")
    assert found == HubDataset("some/corpus", None, "train", text_field=None)
    assert parse_name("some/corpus/en").config == "en"
    assert parse_name("some/corpus/en/test").split == "test"


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_short_names_stand_for_an_owner_and_a_repository(name: str) -> None:
    owner, _, repository = SHORT_NAMES[name].repository.partition("/")
    assert "/" not in name  # or it would be taken for a repository
    assert owner
    assert repository


@pytest.mark.parametrize("name", ["some/corpus/en/test/more", "some//x", "/corpus", "c4/a/b/c"])
def test_malformed_names_are_refused(name: str) -> None:
    said = r"be hub:NAME or hub:OWNER/REPOSITORY, optionally followed by /CONFIG and /SPLIT$"
    with pytest.raises(InputError, match=said):
        parse_name(name)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"did you mean hub:fineweb-edu.*wikipedia.*OWNER"):
        parse_name("fineweb-ed")
    with pytest.raises(InputError, match="unknown data set hub:zzz: short names are"):
        parse_name("zzz")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install 'crammed\[data\]'"):
        opened("hub:wikipedia")


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for repositories that stand in for those on the hub."""
    pytest.importorskip("datasets")
    monkeypatch.setattr(hub, "SHORT_NAMES", dict(SHORT_NAMES))
    return tmp_path


def write_parquet(file: Path, texts: list[str], **columns: list[Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": texts, **columns}), file)


def test_a_set_in_the_layout_of_the_hub(near: Path) -> None:
    write_parquet(near / "set/data/train-00001-of-00002.parquet", ["c"])
    write_parquet(near / "set/data/train-00000-of-00002.parquet", ["a", "b"])
    write_parquet(near / "set/data/validation-00000-of-00001.parquet", ["v"])
    hub.SHORT_NAMES["mine"] = HubDataset(str(near / "set"))
    assert read("hub:mine") == ["a", "b", "c"]
    assert read("hub:mine/default/validation") == ["v"]
    source = opened("hub:mine")
    assert source.name == "mine"
    assert source.reading["text_field"] == "text"
    first, second = pickle.loads(pickle.dumps(source.parts))
    assert list(first.documents()) == list(first.documents()) == ["a", "b"]
    assert list(second.documents()) == ["c"]
    fingerprint = json.loads(json.dumps(second.fingerprint()))
    assert (fingerprint["name"], fingerprint["split"]) == ("mine, shard 2 of 2", "train")
    assert fingerprint["revision"]


def test_documents_of_the_pile_are_selected_by_metadata(near: Path) -> None:
    pytest.importorskip("zstandard")
    names = ("Wikipedia (en)", "Github", "Gutenberg (PG-19)")
    records = [{"text": str(n), "meta": {"pile_set_name": names[n % 3]}} for n in range(9)]
    (near / "pile/train").mkdir(parents=True)
    for number in range(3):
        file = near / f"pile/train/{number:02d}.jsonl.zst"
        file.write_bytes(COMPRESS[".zst"](json_lines(records[3 * number : 3 * number + 3])))
    hub.SHORT_NAMES["the-pile"] = HubDataset(str(near / "pile"))
    natural = {"meta.pile_set_name": ["Wikipedia (en)", "Gutenberg (PG-19)"]}
    streamed = read("hub:the-pile", where=natural)
    assert streamed == ["0", "2", "3", "5", "6", "8"]
    folder = opened(str(near / "pile"), where=natural, text_field="text")
    assert [text for part in folder.parts for text in part.documents()] == streamed


def test_converted_copies_have_a_folder_for_a_configuration(near: Path) -> None:
    write_parquet(near / "books/plain_text/train/0000.parquet", [f"s{n}" for n in range(5)])
    write_parquet(near / "books/other/partial-train/0000.parquet", ["o"])
    hub.SHORT_NAMES["books"] = HubDataset(
        str(near / "books"), "plain_text", converted=True, rows_per_document=2
    )
    assert read("hub:books") == ["s0 s1", "s2 s3", "s4"]
    assert read("hub:books/other") == ["o"]
    assert opened("hub:books").reading["rows_per_document"] == 2


def test_faults_name_the_set_and_the_row(near: Path) -> None:
    write_parquet(near / "set/train.parquet", ["a"], number=[7], body=["b"])
    hub.SHORT_NAMES["mine"] = HubDataset(str(near / "set"))
    assert read("hub:mine", text_field="body") == ["b"]
    with pytest.raises(InputError, match=r"hub:mine, row 1: no field 'title'.*text, number, body"):
        read("hub:mine", text_field="title")
    with pytest.raises(InputError, match="hub:mine, row 1: field 'number' is int, not text"):
        read("hub:mine", text_field="number")
    with pytest.raises(InputError, match=r"hub:mine/default/nothere cannot be opened: Bad split"):
        opened("hub:mine/default/nothere")
    with pytest.raises(
        InputError, match=r"hub:mine/nothere cannot be opened: .*'nothere' not found"
    ):
        opened("hub:mine/nothere")


def test_damage_while_streaming(near: Path) -> None:
    write_parquet(near / "set/train-0.parquet", ["a"])
    write_parquet(near / "set/train-1.parquet", ["b"])
    hub.SHORT_NAMES["mine"] = HubDataset(str(near / "set"))
    first, second = opened("hub:mine").parts
    assert list(first.documents()) == ["a"]
    (near / "set/train-1.parquet").write_bytes(b"no table")
    with pytest.raises(InputError, match="hub:mine, shard 2 of 2 cannot be read to its end"):
        next(second.documents())


def made(out: Path, *overrides: str) -> NDArray[np.int64]:
    """The rows of a corpus of hub:mine."""
    corpus = prepared(out, "hub:mine", *overrides)
    return corpus.read(np.arange(corpus.rows))


def test_rows_do_not_depend_on_how_shards_are_read(
    near: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = documents(300)
    for number in range(3):
        file = near / f"set/train-{number}.parquet"
        write_parquet(file, texts[100 * number : 100 * number + 100])
    hub.SHORT_NAMES["mine"] = HubDataset(str(near / "set"))
    by_two = made(near / "by-two", "compute.workers=2")
    assert np.array_equal(by_two, made(near / "by-one", "compute.workers=1"))
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 20_000)
    in_shards = made(near / "in-shards")
    monkeypatch.setattr(
        hub, "open_parts", lambda *asked: [replace(open_parts(*asked)[0], shards=1)]
    )
    assert np.array_equal(in_shards, made(near / "in-one"))


def test_little_is_read_beyond_a_limit(near: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as much by each worker, of a shard of its own."""
    texts = documents(400)
    for number in range(4):
        file = near / f"set/train-{number}.parquet"
        write_parquet(file, texts[100 * number : 100 * number + 100])
    hub.SHORT_NAMES["mine"] = HubDataset(str(near / "set"))
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 1_000)
    limit = sum(map(len, texts[:120]))
    cleaned = Cleaning(monkeypatch)
    four_at_once = Engine(lambda function: function, lambda done: done, 4)
    source = {"path": "hub:mine", "max_characters": limit}
    text = read_source(near, near / "work", four_at_once, sources=[source])
    assert [each for some in texts_of(text) for each in some] == texts[:120]
    assert 120 <= sum(cleaned.sizes) < 150


def test_other_repositories_take_the_configured_field(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rows(list[dict[str, str]]):
        num_shards = 1

    class Builder:
        hash = "commit"

        def as_streaming_dataset(self, split: str) -> Rows:
            return Rows([{"elsewhere": f"{split} text"}])

    asked: list[tuple[str, str | None]] = []

    def builder(name: str, found: HubDataset, revision: str | None) -> Builder:
        asked.append((found.repository, revision))
        return Builder()

    monkeypatch.setattr(hub, "builder_of", builder)
    assert read("hub:some/corpus/en/test") == ["test text"]
    assert asked == [("some/corpus", None), ("some/corpus", "commit")]
    opened("hub:bookcorpus")
    assert asked[-1] == ("bookcorpus/bookcorpus", "refs/convert/parquet")


def test_a_missing_network_is_reported(near: Path) -> None:
    with pytest.raises(InputError, match="hub:some/corpus cannot be opened: Couldn't reach"):
        opened("hub:some/corpus")


def test_save_to_disk_as_datasets_does_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    train = datasets.Dataset.from_dict({"text": [f"t{n}" for n in range(7)]})
    both = datasets.DatasetDict({"train": train, "test": train.select([6])})
    both.save_to_disk(tmp_path / "saved", num_shards={"train": 3, "test": 1})
    source = opened(str(tmp_path / "saved"), text_field="text")
    texts = [text for part in source.parts for text in part.documents()]
    assert texts == ["t6", *(f"t{n}" for n in range(7))]
    assert len(source.parts) == 4
