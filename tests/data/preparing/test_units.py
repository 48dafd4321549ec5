"""Lines and paragraphs that several documents have."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crammed.config import RepeatedConfig
from crammed.data import shards
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_texts
from crammed.data.preparing.cleaning.spans import Cuts
from crammed.data.preparing.select import units
from crammed.data.preparing.select.units import in_several, repeated_units, units_of
from crammed.data.show import describe_corpus, dropped_samples
from crammed.data.tokenization.tokenizer import SEP
from support.corpora import prepared, step_of
from support.text import sentences, write_jsonl

Unit = Literal["line", "paragraph"]


def reference(texts: list[str], config: RepeatedConfig) -> list[str]:
    """Each text without what is in several, found by comparing the lines themselves."""
    pieces = []
    for text in texts:
        own: list[str] = []
        for line in text.splitlines(keepends=True):
            if config.unit == "line" or not own:
                own.append(line)
            elif line == "\n" or not own[-1].endswith("\n\n"):
                own[-1] += line
            else:
                own.append(line)
        pieces.append(own)
    having = defaultdict(set)
    for number, own in enumerate(pieces):
        for piece in own:
            having[piece.strip()].add(number)
    seen: set[str] = set()
    left = []
    for own in pieces:
        kept = ""
        for piece in own:
            bare = piece.strip()
            long = len(bare) >= config.min_characters
            if not (long and len(having[bare]) >= config.documents and bare in seen):
                kept += piece
            seen.add(bare)
        left.append(kept)
    return left


def corpus_texts() -> list[str]:
    """Documents with menus, a licence in two paragraphs, refrains, and lines of their own."""
    draw, own = random.Random(0), iter(sentences(4000))
    menus = [
        "Home | News | Sport | Weather | Contact",
        "Alle Rechte vorbehalten, Größe unverändert.",
    ]
    licence = "Permission is granted to anyone to use this.\nNo warranty of any kind is given."
    texts = []
    for number in range(300):
        lines = [next(own) for _ in range(draw.randint(2, 6))]
        if draw.random() < 0.5:
            lines.insert(0, draw.choice(menus))
        if draw.random() < 0.2:
            lines += ["", licence, "", next(own)]
        if draw.random() < 0.1:
            lines += [f"A refrain of song {number} alone."] * 3
        texts.append("\n".join([*lines, "Yes."]))
    return [*texts, "\n".join(menus), *texts[:5]]


def made_of(out: Path, texts: list[str], *words: str, **options: Any) -> Corpus:
    text = write_jsonl(out.with_name("text.jsonl"), texts)
    return prepared(out, text, *words, "data.heldout_copies=keep", **options)


@pytest.mark.parametrize(("unit", "fewest"), [("line", 2), ("line", 3), ("paragraph", 2)])
def test_equals_its_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: Unit, fewest: int
) -> None:
    """Rows are those of the text that the reference leaves, with small blocks, shards and jobs."""
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 20_000)
    monkeypatch.setattr(units, "AT_ONCE", 100)
    texts = corpus_texts()
    words = [f"data.clean.repeated.unit={unit}", f"data.clean.repeated.documents={fewest}"]
    made = made_of(tmp_path / "out", texts, *words)
    before = list(dict.fromkeys(texts))
    left = reference(before, RepeatedConfig(unit=unit, documents=fewest))
    empty = sum(not text.strip() for text in left)
    step = step_of(made, f"repeated {unit}s")
    changed = sum(text != own for text, own in zip(before, left, strict=True))
    assert (step["dropped"], step["changed"]) == (empty, changed - empty)
    assert step["characters"] == sum(map(len, before)) - sum(map(len, left)) > 0
    held = list(heldout_texts(made.heldout))
    assert set(held) <= set(left)
    packed = [text for text in left if text.strip() and text not in held]
    assert made.manifest["documents"] == len(packed)
    tokens = Counter(SEP for _ in packed)
    for text in packed:
        tokens.update(made.tokenizer.encode(text, add_special_tokens=False).ids)
    stream = Counter(made.read(np.arange(made.rows)).ravel().tolist())
    assert stream <= tokens
    assert (tokens - stream).total() == made.manifest["tokens_left_out"]
    assert f"repeated {unit}s: " in " ".join(dict(describe_corpus(made))["dropped"])
    shown = [each["text"] for each in dropped_samples(made) if each["step"].endswith(", cut")]
    on_one_line = [" ".join(text.split()) for text in texts]
    assert all(sum(text in other for other in on_one_line) >= fewest for text in shown)
    assert shown


TEXT = st.lists(st.sampled_from(["one", "twelve", "é", " ", "\t", "\n", "\n", "\n\n"])).map("".join)


@given(TEXT, st.integers(1, 8))
@example("a\n \nb", 1)
def test_units_and_what_is_between_them_make_up_a_text(text: str, shortest: int) -> None:
    for unit, apart in (("line", "\n"), ("paragraph", "\n\n")):
        config = RepeatedConfig(unit=unit, min_characters=shortest)  # type: ignore[arg-type]
        found = list(units_of(text.encode(), config))
        pieces = [each.strip() for each in text.split(apart)]
        assert [each.decode() for each, _, _ in found] == [p for p in pieces if len(p) >= shortest]
        for each, start, end in found:
            assert text.encode()[start:end].strip() == each
            assert end == len(text.encode()) or text.encode()[end - 1 : end] == b"\n"


def test_sorting_cuts_takes_no_more_than_twice_their_memory(tmp_path: Path) -> None:
    draw, count, piece = np.random.default_rng(0), 100_000, 10_000
    numbers = draw.integers((1 << 31) - 200, 1 << 31, size=count)
    starts = draw.permutation(count).astype(np.int32)
    spans = np.stack((starts, starts + 5), axis=1)

    def found() -> Iterator[Cuts]:
        for at in range(0, count, piece):
            yield Cuts(numbers[at : at + piece].copy(), spans[at : at + piece].copy())

    engine, config, kept = Mock(), RepeatedConfig(), np.ones(0, np.bool_)
    engine.map.side_effect = [iter([0]), found()]
    tracemalloc.start()
    try:
        made = repeated_units(engine, [], tmp_path, kept, config, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 35 * count
    finally:
        tracemalloc.stop()
    order = np.lexsort((starts, numbers))
    assert np.array_equal(made.numbers, numbers[order])
    assert np.array_equal(made.spans, spans[order])


def test_the_lines_of_a_block_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with another number of documents; but anew where the block holds other text."""
    read: list[bytes] = []

    def noting(text: bytes, config: RepeatedConfig) -> Iterator[tuple[bytes, int, int]]:
        read.append(text)
        return units_of(text, config)

    monkeypatch.setattr(units, "units_of", noting)
    texts, work = corpus_texts(), tmp_path / "work"
    for number, fewest in enumerate((2, 3)):
        words = f"data.clean.repeated.documents={fewest}"
        made_of(tmp_path / str(number), texts, words, work=work)
    assert len(read) == len(texts)
    others = [text.translate({ord("a"): "o", ord("o"): "a"}) for text in texts]
    again = made_of(tmp_path / "again", others, "data.clean.repeated.unit=line", work=work)
    afresh = made_of(tmp_path / "afresh", others, "data.clean.repeated.unit=line")
    assert again.sha256 == afresh.sha256


def test_passages_are_cut_out_of_what_is_left(tmp_path: Path) -> None:
    pytest.importorskip("pydivsufsort")
    words = ["data.clean.repeated.unit=line", "data.clean.substring=25"]
    texts = corpus_texts()
    made = made_of(tmp_path / "out", texts, *words)
    left = [
        text for text in reference(list(dict.fromkeys(texts)), RepeatedConfig()) if text.strip()
    ]
    other = made_of(tmp_path / "own" / "out", left, words[1])
    step = step_of(made, "repeated passages")
    assert step == step_of(other, "repeated passages")
    assert step["changed"] > 0
    assert made.manifest["documents"] + made.manifest["heldout"]["documents"] == step["kept"]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=20), st.integers(2, 3))
def test_in_several_equals_its_reference(pairs: list[tuple[int, int]], fewest: int) -> None:
    pairs.sort(key=lambda pair: pair[1])
    hashes, numbers = (np.array([pair[n] for pair in pairs], np.uint64) for n in (0, 1))
    found = in_several(hashes, numbers.astype(np.int64), fewest)
    having = {own: {number for hash_, number in pairs if hash_ == own} for own, _ in pairs}
    expected = {
        place
        for place, (own, _) in enumerate(pairs)
        if len(having[own]) >= fewest and own in (hash_ for hash_, _ in pairs[:place])
    }
    assert (set(found.tolist()), len(found)) == (expected, len(expected))
