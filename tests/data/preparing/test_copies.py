"""Near copies of held-out documents are left out of training, and nothing else is."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from crammed.config import RunConfig
from crammed.config.migration import migrate
from crammed.data import shards
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_texts
from crammed.data.preparing.cleaning import copies
from crammed.data.preparing.cleaning.copies import (
    LONG,
    MOST_DOCUMENTS,
    RUN,
    SHORT,
    HeldoutRuns,
    Runs,
    write_table,
)
from crammed.data.show import describe_corpus
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.data.tokenization.tokenizer import SEP
from crammed.errors import InputError
from support.corpora import step_of

STEP = "copies of held-out text"


def prose(words: int, seed: int) -> list[str]:
    """Words of which no 13 in a row occur with another seed."""
    draw = random.Random(seed)
    return [f"{draw.choice('abcdefgh')}{draw.randrange(4000)}" for _ in range(words)]


def variant(words: list[str], seed: int) -> list[str]:
    """The same with one word replaced."""
    changed = list(words)
    changed[random.Random(seed).randrange(len(words))] = f"other{seed}"
    return changed


def packed(corpus: Corpus) -> list[list[str]]:
    """The words of the documents in the rows; the last may be cut off."""
    stream = corpus.read(np.arange(corpus.rows)).flatten()
    pieces = np.split(stream, np.flatnonzero(stream == SEP) + 1)
    texts = corpus.tokenizer.decode_batch([piece.tolist() for piece in pieces])
    return [text.split() for text in texts]


def dropped(corpus: Corpus) -> int:
    counts = {step["step"]: step["dropped"] for step in corpus.manifest["steps"]}
    return int(counts.get(STEP, 0))


def near(one: list[str], other: list[str]) -> bool:
    return len(one) == len(other) and sum(a != b for a, b in zip(one, other, strict=True)) <= 1


def runs_of(texts: list[list[str]]) -> Runs:
    return Runs.of(cut_into_chunks([" ".join(words) for words in texts]))


def plain_table(found: list[Runs]) -> NDArray[np.uint64]:
    """What `write_table` writes, in memory."""
    pairs, documents = [], 0
    for runs in found:
        for hashed, document, place in zip(runs.hashes, runs.documents, runs.places, strict=True):
            pairs.append((int(hashed), int(document + documents) << 32 | int(place + 1)))
        documents += len(runs.words)
    return np.array(sorted(pairs, key=lambda pair: pair[0]), np.uint64).reshape(-1, 2).T


@pytest.mark.parametrize("at_once", [1, 20, 1000])
def test_the_table_of_runs_is_the_same_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    texts = [[prose(length, seed % 3) for seed in range(4)] for length in (0, 5, 9, 30)]
    found = [runs_of(some) for some in texts]
    monkeypatch.setattr(copies, "AT_ONCE", at_once)
    file = tmp_path / "runs.npy"
    for some in ([], found):
        write_table(file, some)
        table = np.load(file, mmap_mode="r")
        assert np.array_equal(table, plain_table(some))
        assert HeldoutRuns(table).words.tolist() == (
            [*[0] * 8, *[9] * 4, *[30] * 4] if some else []
        )
        assert list(tmp_path.iterdir()) == [file]


def copied(train: list[list[str]], held: list[list[str]]) -> list[int]:
    """The numbers of the training documents that repeat the held-out ones."""
    text = cut_into_chunks([" ".join(words) for words in train])
    runs = HeldoutRuns(plain_table([runs_of(held)]))
    return list(map(int, runs.matches(text).copies(runs)))


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_no_variant_of_a_held_out_document_is_left(
    make_corpus: Callable[..., Corpus], kind: str
) -> None:
    originals = [prose(40, seed) for seed in range(400)]
    variants = [variant(words, seed) for seed, words in enumerate(originals)]
    texts = [" ".join(words) for words in [*originals, *variants]]
    options = [f"tokenizer.kind={kind}", "tokenizer.vocab_size=400", "data.heldout_fraction=0.25"]
    corpus = make_corpus(texts, *options)
    held = [text.split() for text in heldout_texts(corpus.heldout)]
    assert len(held) == pytest.approx(200, abs=5)
    assert not [words for words in packed(corpus) if any(near(words, each) for each in held)]
    both = sum(near(one, other) for one in held for other in held) - len(held)
    assert dropped(corpus) == len(held) - both
    manifest = corpus.manifest
    assert manifest["documents"] + len(held) + dropped(corpus) == len(texts)
    step = step_of(corpus, STEP)
    assert step["kept"] == len(texts) - dropped(corpus)
    total = manifest["characters"] + manifest["heldout"]["characters"] + step["characters"]
    assert total == sum(map(len, texts))
    assert STEP in " ".join(dict(describe_corpus(corpus))["dropped"])
    samples = gzip.decompress((corpus.path / "dropped.jsonl.gz").read_bytes()).decode()
    assert STEP in samples


def test_copies_may_be_kept(make_corpus: Callable[..., Corpus]) -> None:
    texts = [" ".join(variant(prose(40, n // 2), n)) for n in range(200)]
    corpus = make_corpus(texts, "data.heldout_copies=keep")
    assert corpus.manifest["documents"] + corpus.manifest["heldout"]["documents"] == 200
    assert not [step for step in corpus.manifest["steps"] if step["step"] == STEP]


def test_text_that_is_one_document_again_and_again_is_refused(
    make_corpus: Callable[..., Corpus],
) -> None:
    texts = [" ".join(prose(2000, 0) * 30)]
    with pytest.raises(InputError, match=r"repeats one that is held out: .*heldout_copies=keep"):
        make_corpus(texts)


@pytest.mark.parametrize("documents_of_a_shard", [3, 100])
def test_what_many_documents_share_does_not_make_them_copies(
    make_corpus: Callable[..., Corpus], monkeypatch: pytest.MonkeyPatch, documents_of_a_shard: int
) -> None:
    """A licence that is two thirds of every document, over several shards and in one."""
    licence = prose(60, 999)
    texts = [" ".join(licence + prose(30, seed)) for seed in range(100)]
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", documents_of_a_shard * len(texts[0]))
    corpus = make_corpus(texts, "compute.workers=1")
    assert (len(list(corpus.path.glob("rows-*.bin"))) > 15) == (documents_of_a_shard == 3)
    assert dropped(corpus) == 0
    assert corpus.manifest["documents"] + corpus.manifest["heldout"]["documents"] == 100


def test_a_quotation_does_not_make_a_copy_and_a_large_part_does() -> None:
    held = prose(200, 0)
    quoting = prose(100, 1) + held[50:65] + prose(100, 2)
    repeating = prose(100, 3) + held[50:110] + prose(100, 4)
    assert copied([quoting, repeating, prose(300, 5)], [held]) == [1]


@pytest.mark.parametrize("words", [28, 40, 111, 500])
def test_a_word_changed_in_every_dozen_hides_no_copy(words: int) -> None:
    held = [prose(words, seed) for seed in range(12)]
    train = [
        [f"other{place}" if place % 12 == seed else word for place, word in enumerate(each)]
        for seed, each in enumerate(held)
    ]
    assert copied([*train, prose(words, 99)], held) == list(range(12))


@pytest.mark.parametrize("words", [RUN, 12, LONG, 25, SHORT, SHORT + 1, 60])
def test_a_copy_is_found_in_much_other_text(words: int) -> None:
    held = prose(words, 0)
    other = [prose(3 * words, seed) for seed in (1, 2)]
    half = held[: (words + 1) // 2]
    train = [[*other[0], *held, *other[1]], [*other[1], *half, *other[0]]]
    assert copied(train, [prose(50, 3), held]) == ([0] if len(half) < LONG else [0, 1])


@pytest.mark.parametrize("words", range(RUN, SHORT + 3))
def test_a_word_changed_added_or_left_out_hides_no_short_copy(words: int) -> None:
    held = prose(words, words)
    changed = [[*held[:n], "other", *held[n + 1 :]] for n in range(words)]
    shorter = [held[:n] + held[n + 1 :] for n in range(words)]
    longer = [[*held[:n], "other", *held[n:]] for n in range(words + 1)]
    two = [["other", *held[1:4], "other", *held[5:]]] if words < LONG else []
    for train in (changed, shorter, longer):
        assert copied([*train, *two], [prose(9, 0), held]) == list(range(len(train)))


def test_shorter_documents_are_copies_only_if_they_are_the_same() -> None:
    held = [prose(n, n) for n in range(1, RUN)]
    same = [[f"{word.upper()}," for word in words] for words in held]
    assert copied(same, held) == list(range(len(held)))
    longer = [[*words, "more"] for words in held[:-1]]
    assert copied(longer, held) == []
    assert copied([["!", "?"], []], [["..."], *held]) == []
    assert copied([["a"]], [[]]) == copied([["a"]], []) == []


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\u2009", "\u00ad \u200b"])
def test_other_white_space_hides_no_copy(space: str) -> None:
    held = [prose(60, seed) for seed in range(5)]
    train = [[space.join(words)] for words in [*held, prose(60, 9)]]
    assert copied(train, held) == list(range(5))


@pytest.mark.parametrize("letters", ["กขคงจฉชซฌญดต", "あいうえおかきく", "日本語国人年大十"])
def test_copies_are_found_where_no_spaces_are_written(letters: str) -> None:
    draw = random.Random(1)
    held, other = ("".join(draw.choices(letters, k=200)) for _ in range(2))
    changed = held[:100] + held[101:]
    assert copied([["ก" + changed], [other]], [[held]]) == [0]


def test_a_run_does_not_go_on_in_the_next_document() -> None:
    held = prose(28, 0)
    parts = [held[:7], held[7:14], held[14:21], held[21:]]
    assert copied(parts, [held]) == []
    assert copied([held[:14], [], held[14:]], [held]) == [0, 2]
    assert copied([held], [*parts]) == []


@given(
    words=st.integers(RUN, 120),
    seed=st.integers(0, 10**6),
    before=st.lists(st.integers(0, 30), max_size=5),
)
def test_a_variant_is_found_wherever_it_stands(words: int, seed: int, before: list[int]) -> None:
    held = prose(words, seed)
    others = [prose(n, seed + 1 + place) for place, n in enumerate(before)]
    train = [*others, variant(held, seed), prose(50, seed + 100)]
    assert copied(train, [prose(30, seed + 101), held]) == [len(others)]


def test_text_made_of_templates_is_no_copy_of_other_such_text() -> None:
    draw = random.Random(0)
    lines = [prose(RUN, seed) for seed in range(300)]
    one, other = (
        [word for line in draw.choices(lines, k=600) for word in (*line, str(draw.random()))]
        for _ in range(2)
    )
    assert copied([one, prose(20, 1) + other], [other]) == [1]


def plain_copies(train: list[list[str]], held: list[list[str]]) -> list[int]:
    """The rule, written word by word: its reference implementation."""

    def covered(words: list[str], other: list[list[str]], passage: int) -> int:
        """The words in passages of which every run is a run of the others."""
        known = {tuple(each[n : n + RUN]) for each in other for n in range(len(each) - RUN + 1)}
        inside: set[int] = set()
        for begin in range(len(words) - passage + 1):
            runs = range(begin, begin + passage - RUN + 1)
            if all(tuple(words[n : n + RUN]) in known for n in runs):
                inside.update(range(begin, begin + passage))
        return len(inside)

    def much(words: list[str], other: list[str]) -> bool:
        least = min(max(LONG, len(words) / 2), len(words))
        return len(words) >= RUN and covered(words, [other], RUN) >= least

    def wholes(words: list[str]) -> set[tuple[str, ...]]:
        if not 0 < len(words) <= SHORT:
            return set()
        less = range(len(words)) if len(words) >= RUN else ()
        return {tuple(words), *(tuple(words[:n] + words[n + 1 :]) for n in less)}

    def is_copy(words: list[str]) -> bool:
        if any(wholes(words) & wholes(each) for each in held):
            return True
        shared = covered(words, held, LONG)
        if shared and shared >= 0.2 * len(words):
            return True
        return any(much(words, each) or much(each, words) for each in held)

    return [number for number, words in enumerate(train) if is_copy(words)]


@given(
    st.lists(st.lists(st.integers(0, 8), max_size=6), max_size=4),
    st.lists(st.lists(st.integers(0, 8), max_size=6), max_size=4),
)
def test_copies_are_those_of_the_plain_rule(one: list[list[int]], other: list[list[int]]) -> None:
    """Documents are made of pieces of one text and of a word of their own."""
    text = prose(45, 0)
    pieces = [text[5 * n : 5 * n + 5] for n in range(8)] + [["own"]]
    train, held = (
        [[word for number in each for word in pieces[number]] for each in texts]
        for texts in (one, other)
    )
    assert copied(train, held) == plain_copies(train, held)


def test_matches_count_documents_and_not_occurrences() -> None:
    held = prose(RUN, 0)
    train = [held + prose(20, n) + held for n in range(1, MOST_DOCUMENTS + 1)]
    runs = HeldoutRuns(plain_table([runs_of([held])]))
    matches = runs.matches(cut_into_chunks([" ".join(words) for words in train]))
    numbers, documents = matches.spread()
    assert (len(numbers), documents.tolist()) == (1, [MOST_DOCUMENTS])
    assert len(matches.copies(runs)) == MOST_DOCUMENTS
    nothing = matches.without(np.arange(len(runs.hashes)))
    assert nothing.copies(runs).tolist() == nothing.spread()[0].tolist() == []


def test_runs_on_corpora_of_older_versions_say_that_copies_were_kept(corpus: Corpus) -> None:
    old = json.loads(RunConfig(recipe="any", corpus="a" * 64).model_dump_json())
    del old["data"]["heldout_copies"]
    assert migrate(old)["data"]["heldout_copies"] == "keep"
    assert "heldout_copies" not in migrate({**old, "corpus": None})["data"]
    assert corpus.settings()["data"]["heldout_copies"] == "drop"
    older = Corpus(corpus.path)
    del older.manifest["data"]["heldout_copies"]
    assert older.settings()["data"]["heldout_copies"] == "keep"


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=2 * SHORT), max_size=12))
def test_runs_are_those_of_a_plain_count(texts: list[list[str]]) -> None:
    runs = Runs.of(cut_into_chunks([" ".join(words) for words in texts]))
    expected: set[tuple[str, tuple[str, ...], int, int]] = set()
    for number, words in enumerate(texts):
        for place in range(len(words) - RUN + 1):
            expected.add(("run", tuple(words[place : place + RUN]), number, place))
        if 0 < len(words) <= SHORT:
            expected.add(("whole", tuple(words), number, -1))
        if RUN <= len(words) <= SHORT:
            for place in range(len(words)):
                shorter = tuple(words[:place] + words[place + 1 :])
                expected.add(("whole", shorter, number, -1))
    found = set(
        zip(runs.hashes.tolist(), runs.documents.tolist(), runs.places.tolist(), strict=True)
    )
    assert len(found) == len(expected)
    assert len({each[0] for each in found}) == len({each[:2] for each in expected})
    assert sorted(each[1:] for each in found) == sorted(each[2:] for each in expected)
    assert runs.words.tolist() == list(map(len, texts))
