from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crammed.config import OrderConfig
from crammed.data import corpus as corpus_module
from crammed.data.corpus import Corpus, RowStream, token_dtype, write_rows
from crammed.errors import InputError
from crammed.keys import key
from support.corpora import numbered_files, write_corpus

SIZES = (3, 20, 1, 40, 7, 29)
ROWS = sum(SIZES)
STORED = [(37 * place + 5) % ROWS for place in range(ROWS)]
ORDERS = [
    OrderConfig(),
    OrderConfig(reshuffle=False),
    OrderConfig(by="word-length"),
    OrderConfig(by="word-length", share=0.3),
    OrderConfig(by="word-length", share=0.3, reshuffle=False),
    OrderConfig(by="word-length", share=0.3, pool=0.4),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpora") / "corpus"
    files, orders = numbered_files(SIZES), {"word-length": STORED}
    return write_corpus(folder, files, vocab_size=ROWS, orders=orders)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 299), max_size=60),
    st.integers(1, 9),
    st.sampled_from([300, 70000]),
)
def test_rows_and_the_rest_are_the_tokens(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[int], length: int, vocab_size: int
) -> None:
    file = tmp_path_factory.mktemp("rows") / "rows-00000.bin"
    left = write_rows(file, np.array(tokens, np.uint32), length, token_dtype(vocab_size))
    assert file.exists() == (len(tokens) >= length)
    dtype = "<u2" if vocab_size == 300 else "<u4"
    written = np.fromfile(file, dtype).tolist() if file.exists() else []
    assert [*written, *left] == tokens
    assert len(left) == len(tokens) % length


@pytest.mark.parametrize("size", [0, 5])
def test_a_file_that_is_cut_off_while_it_is_read_is_named(tmp_path: Path, size: int) -> None:
    """Touching what is gone would end the process."""
    made = write_corpus(tmp_path / "corpus", numbered_files((3, 20_000)))
    assert made.read(np.array([20_002])).tolist() == [[20_002] * 4]
    os.truncate(made.path / "rows-00001.bin", size)
    said = rf"rows-00001\.bin has {size} of 160,000 bytes; restore it .* repeat the same command$"
    for corpus, row in ((made, 20_002), (made, 3)):
        with pytest.raises(InputError, match=said):
            corpus.read(np.array([row]))
    assert made.read(np.array([1])).tolist() == [[1] * 4]
    os.truncate(made.path / "rows-00000.bin", size)
    made._mapped.cache_clear()
    with pytest.raises(InputError, match="rows-00000"):  # also one that is not mapped yet
        made.read(np.array([1]))


def test_a_corpus_that_is_removed_while_it_is_read_is_read_on(tmp_path: Path) -> None:
    made = write_corpus(tmp_path / "corpus", numbered_files((3, 7)))
    made.read(np.arange(10))
    shutil.rmtree(made.path)
    assert made.read(np.array([4, 2])).tolist() == [[4] * 4, [2] * 4]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, ROWS - 1), max_size=50))
def test_rows_are_found_in_files_of_any_size(made: Corpus, indices: list[int]) -> None:
    rows = made.read(np.array(indices, np.int64))
    assert rows.shape == (len(indices), 4)
    assert rows.tolist() == [[index] * 4 for index in indices]


def test_tokens_are_counted_in_all_rows_or_in_some_that_lie_evenly(
    made: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made.token_counts().tolist() == [4] * ROWS
    monkeypatch.setattr(corpus_module, "COUNTED_TOKENS", 4 * ROWS // 10)
    assert np.flatnonzero(made.token_counts()).tolist() == list(range(0, ROWS, 10))


def test_only_some_of_the_files_are_mapped_at_a_time(
    made: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "MOST_MAPPED", 2)
    corpus = Corpus(made.path)
    assert corpus._mapped.cache_info().currsize == 0
    everything = np.arange(ROWS)
    for _ in range(2):
        assert corpus.read(everything)[:, 0].tolist() == everything.tolist()
    assert corpus._mapped.cache_info().currsize == 2


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors as Linux does")
def test_mapped_files_need_no_file_descriptor(made: Corpus) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    corpus, before = Corpus(made.path), descriptors()
    corpus.read(np.arange(ROWS))
    assert corpus._mapped.cache_info().currsize == len(SIZES)
    assert descriptors() == before


def test_files_are_numbered_not_sorted_by_letters(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", numbered_files([2, 2]))
    manifest = (corpus.path / "manifest.json").read_text()
    for old, new in (("00000", "99999"), ("00001", "100000")):
        (corpus.path / f"rows-{old}.bin").rename(corpus.path / f"rows-{new}.bin")
        manifest = manifest.replace(f"rows-{old}", f"rows-{new}")
    (corpus.path / "manifest.json").write_text(manifest)
    assert Corpus(corpus.path).read(np.arange(4))[:, 0].tolist() == [0, 1, 2, 3]


def test_an_order_that_is_not_stored(made: Corpus) -> None:
    expected = r"no order rare-first \(it has: random, word-length\).*data.orders=\[rare-first\]"
    with pytest.raises(InputError, match=expected):
        RowStream(made, 0, OrderConfig(by="rare-first"))


def test_damage_is_noticed(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", numbered_files([5, 5]))
    assert not list(corpus.damaged())
    file = corpus.path / "rows-00001.bin"
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)
    assert list(Corpus(corpus.path).damaged()) == ["rows-00001.bin"]
    file.write_bytes(content[:-2])
    with pytest.raises(InputError, match=r"rows-00001\.bin is missing or cut"):
        Corpus(corpus.path)
    with pytest.raises(InputError, match="is not a corpus"):
        Corpus(tmp_path / "elsewhere")


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_every_epoch_is_a_permutation(made: Corpus, order: OrderConfig) -> None:
    stream = RowStream(made, 3, order)
    epochs = [stream.indices(number * ROWS, ROWS).tolist() for number in range(3)]
    assert all(sorted(epoch) == list(range(ROWS)) for epoch in epochs)
    assert (epochs[0] == epochs[1]) == (not order.reshuffle)
    assert (epochs[1] == epochs[2]) == (not order.reshuffle)


@settings(max_examples=40, deadline=None)
@given(
    start=st.integers(0, 3 * ROWS),
    counts=st.lists(st.integers(0, 2 * ROWS), min_size=1, max_size=4),
    order=st.sampled_from(ORDERS),
)
def test_the_order_does_not_depend_on_how_it_is_asked_for(
    made: Corpus, start: int, counts: list[int], order: OrderConfig
) -> None:
    whole = RowStream(made, 0, order).indices(start, sum(counts))
    stream = RowStream(made, 0, order)
    begins = start + np.cumsum([0, *counts])
    parts = [stream.indices(int(a), count) for a, count in zip(begins, counts, strict=False)]
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_random_order_depends_on_the_seed_alone(made: Corpus) -> None:
    drawn = [
        np.random.Generator(np.random.PCG64(key(3, "order", epoch))).permutation(ROWS)
        for epoch in (0, 1)
    ]
    found = RowStream(made, 3).indices(0, 2 * ROWS)
    assert found.tolist() == np.concatenate(drawn).tolist()
    assert found.tolist() != RowStream(made, 4).indices(0, 2 * ROWS).tolist()


def test_a_stored_order_is_followed_for_its_share(made: Corpus) -> None:
    whole = RowStream(made, 3, OrderConfig(by="word-length")).indices(0, 2 * ROWS).tolist()
    assert whole[:ROWS] == STORED
    assert whole[ROWS:] == RowStream(made, 3).indices(ROWS, ROWS).tolist()
    begun = RowStream(made, 3, OrderConfig(by="word-length", share=0.3)).indices(0, ROWS).tolist()
    assert begun[:30] == STORED[:30]
    assert begun[30:] != STORED[30:]
    other = RowStream(made, 4, OrderConfig(by="word-length", share=0.3)).indices(0, ROWS).tolist()
    assert other[:30] == begun[:30]
    assert other[30:] != begun[30:]


def test_a_stored_order_is_followed_in_a_pool(made: Corpus) -> None:
    def read(seed: int, **options: Any) -> list[int]:
        order = OrderConfig(by="word-length", **options)
        found: list[int] = RowStream(made, seed, order).indices(0, ROWS).tolist()
        return found

    pooled = read(3, pool=0.4)
    assert sorted(pooled) == list(range(ROWS))
    assert pooled[:40] == [row for row in STORED if row in pooled[:40]] != STORED[:40]
    assert pooled[40:] != [row for row in STORED if row in pooled[40:]]  # at random
    assert set(read(4, pool=0.4)[:40]) != set(pooled[:40])
    half = read(3, pool=0.4, share=0.5)
    assert half[:20] == pooled[:20]
    assert half[20:40] != pooled[20:40]
    assert set(half[:40]) == set(pooled[:40])


def test_reading_is_by_place(made: Corpus) -> None:
    stream = RowStream(made, 0, OrderConfig(by="word-length"))
    assert stream.read(10, 5)[:, 0].tolist() == STORED[10:15]
    assert stream.read(10, 0).shape == (0, 4)
