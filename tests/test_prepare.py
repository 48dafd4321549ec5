from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import documents, sentences, tiny, write_jsonl
from crammed.data import corpus as corpus_module
from crammed.data.corpus import Corpus, RowStream, RowWriter
from crammed.data.prepare import prepare
from crammed.data.tokenizer import SEP
from crammed.errors import InputError
from crammed.progress import SILENT


def test_rows_are_the_documents_tokens_with_separators(make_corpus: Callable[..., Corpus]) -> None:
    texts = documents(300)
    corpus = make_corpus(texts)
    held = {
        json.loads(line)["text"]
        for line in gzip.decompress(corpus.heldout.read_bytes()).splitlines()
    }
    expected = [
        token
        for text in texts
        if text not in held
        for token in (*corpus.tokenizer.encode(text, add_special_tokens=False).ids, SEP)
    ]
    stream = corpus.read(np.arange(corpus.rows)).flatten().tolist()
    assert stream == expected[: len(stream)]
    assert len(expected) - len(stream) == corpus.manifest["tokens_left_out"] < corpus.row_length
    assert corpus.manifest["tokens"] == len(expected)
    starts = np.fromfile(corpus.path / "documents.bin", "<u8")
    assert len(starts) == corpus.manifest["documents"] == 300 - len(held)
    assert all(expected[start - 1] == SEP for start in starts[1:])
    assert 0 < len(held) < 30


def test_heldout_never_shares_a_document_with_training(make_corpus: Callable[..., Corpus]) -> None:
    texts = documents(100)
    corpus = make_corpus([*texts, *texts], "data.deduplicate=false")
    held = [
        json.loads(line)["text"]
        for line in gzip.decompress(corpus.heldout.read_bytes()).splitlines()
    ]
    assert len(held) == 2 * len(set(held))  # both copies on the same side
    assert corpus.manifest["documents"] + len(held) == 200


def test_duplicates_and_empty_documents_are_dropped_and_counted(
    make_corpus: Callable[..., Corpus],
) -> None:
    texts = documents(100)
    steps = make_corpus([*texts, *texts[:7], "", "  \n"]).manifest["steps"]
    assert steps[0] == {"step": "empty", "kept": 107, "dropped": 2}
    assert steps[1] == {"step": "exact duplicates", "kept": 100, "dropped": 7}


def test_the_compressibility_filter_drops_dense_documents(
    make_corpus: Callable[..., Corpus],
) -> None:
    junk = "!?;,.:" * 300
    corpus = make_corpus([*documents(200), junk], "data.max_tokens_per_character=0.5")
    step = corpus.manifest["steps"][2]
    assert step["dropped"] == 1
    assert step["dropped_characters"] == len(junk)


def test_same_bytes_every_time(tmp_path: Path, text_file: Path) -> None:
    config = tiny(data={"sources": [str(text_file)]})
    both = [prepare(config.data, config.tokenizer, tmp_path / n, SILENT) for n in ("a", "b")]
    assert both[0].manifest == both[1].manifest
    assert both[0].sha256 == both[1].sha256
    assert not list(both[0].damaged())
    assert str(tmp_path) not in json.dumps(both[0].manifest)


def test_surrogates_and_control_characters_do_no_harm(make_corpus: Callable[..., Corpus]) -> None:
    make_corpus([*documents(100), "half a pair \ud800 here", "a \x00 null and a \x07 bell"])


def test_unigram_cross_entropy_by_hand(corpus: Corpus) -> None:
    counts = np.bincount(corpus.read(np.arange(corpus.rows)).flatten(), minlength=corpus.vocab_size)
    counts = counts.astype(float) + 1
    held = [
        token
        for line in gzip.decompress(corpus.heldout.read_bytes()).splitlines()
        for token in (
            *corpus.tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids,
            SEP,
        )
    ]
    expected = -sum(math.log(counts[t] / counts.sum()) for t in held) / len(held)
    assert corpus.manifest["heldout"]["unigram_cross_entropy"] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["", " "], "no text"),
        (["one document only, though a long one " * 50], "too few"),
        (["short", "words"], "too little text"),
    ],
)
def test_too_little_data_leaves_nothing_behind(
    tmp_path: Path, texts: list[str], words: str
) -> None:
    source = write_jsonl(tmp_path / "source.jsonl", texts)
    config = tiny(data={"sources": [str(source)]})
    with pytest.raises(InputError, match=words):
        prepare(config.data, config.tokenizer, tmp_path / "out", SILENT)
    assert [path.name for path in tmp_path.iterdir()] == ["source.jsonl"]


def test_a_fault_late_in_the_data_leaves_nothing_behind(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "source.jsonl", documents(50))
    source.write_text(source.read_text() + "not json\n")
    config = tiny(data={"sources": [str(source)]})
    with pytest.raises(InputError, match="line 51"):
        prepare(config.data, config.tokenizer, tmp_path / "out", SILENT)
    assert [path.name for path in tmp_path.iterdir()] == ["source.jsonl"]


def test_an_occupied_folder_is_refused(tmp_path: Path, text_file: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    config = tiny(data={"sources": [str(text_file)]})
    with pytest.raises(InputError, match="exists already"):
        prepare(config.data, config.tokenizer, tmp_path, SILENT)
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_a_damaged_corpus_is_noticed(tmp_path: Path, text_file: Path) -> None:
    config = tiny(data={"sources": [str(text_file)]})
    made = prepare(config.data, config.tokenizer, tmp_path / "c", SILENT)
    rows = made.path / "rows-00000.bin"
    content = bytearray(rows.read_bytes())
    content[10] ^= 1
    rows.write_bytes(content)
    assert list(Corpus(made.path).damaged()) == ["rows-00000.bin"]
    rows.write_bytes(content[:-2])
    with pytest.raises(InputError, match="damaged"):
        Corpus(made.path)
    with pytest.raises(InputError, match="no prepared corpus"):
        Corpus(tmp_path / "elsewhere")


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 299), max_size=40), max_size=30),
    st.sampled_from([200, 70000]),
)
def test_shards_hold_the_stream_whatever_their_size(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], vocab_size: int
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "ROWS_A_SHARD", 3)
        writer = RowWriter(folder, 8, vocab_size)
        for ids in texts:
            writer.add(ids)
        left_out = writer.close()
    stream = [token for ids in texts for token in ids]
    files = sorted(folder.glob("rows-*"))
    written = [np.fromfile(f, "<u2" if vocab_size == 200 else "<u4") for f in files]
    found = np.concatenate(written).tolist() if written else []
    assert found == stream[: len(stream) // 8 * 8]
    assert left_out == len(stream) % 8
    assert writer.rows == len(stream) // 8
    assert all(len(part) == 24 for part in written[:-1])


def test_reading_rows_across_shards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text_file: Path
) -> None:
    monkeypatch.setattr(corpus_module, "ROWS_A_SHARD", 100)
    config = tiny(data={"sources": [str(text_file)]})
    made = prepare(config.data, config.tokenizer, tmp_path / "c", SILENT)
    files = sorted(made.path.glob("rows-*"))
    assert len(files) > 3
    everything = np.concatenate([np.fromfile(f, "<u2") for f in files]).reshape(-1, 32)
    places = np.random.default_rng(0).permutation(made.rows)
    assert np.array_equal(made.read(places), everything[places])


def test_every_epoch_is_another_permutation(corpus: Corpus) -> None:
    stream = RowStream(corpus, seed=3)
    first = stream.indices(0, corpus.rows)
    second = stream.indices(corpus.rows, corpus.rows)
    assert sorted(first) == sorted(second) == list(range(corpus.rows))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, RowStream(corpus, seed=4).indices(0, corpus.rows))


@settings(max_examples=20, deadline=None)
@given(start=st.integers(0, 5000), count=st.integers(1, 3000), cut=st.integers(0, 3000))
def test_the_order_does_not_depend_on_how_it_is_asked_for(
    corpus: Corpus, start: int, count: int, cut: int
) -> None:
    whole = RowStream(corpus, 0).indices(start, count)
    stream = RowStream(corpus, 0)
    cut = min(cut, count)
    parts = [stream.indices(start, cut)] if cut else []
    parts += [stream.indices(start + cut, count - cut)] if count > cut else []
    assert np.array_equal(whole, np.concatenate(parts))


def test_lines_as_documents(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(sentences(500)))
    config = tiny("crammed", "data.documents=line", data={"sources": [str(file)]})
    made = prepare(config.data, config.tokenizer, tmp_path / "c", SILENT)
    assert made.manifest["documents"] + made.manifest["heldout"]["documents"] == 500
