"""The steps that clean a document."""

from __future__ import annotations

import unicodedata
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crammed.config import CleanConfig, DownstreamConfig
from crammed.data.preparing.cleaning import unicode
from crammed.data.preparing.cleaning.english import _has_repeated_ngrams
from crammed.data.preparing.cleaning.steps import Change, clean, steps_of
from crammed.data.preparing.cleaning.unicode import normalise
from support.text import sentences, write_rows


def varied(count: int) -> list[str]:
    """Sentences of seven words in which no pair of neighbouring words occurs twice."""
    return [f"Writer{n} the village{n} with basket{n} of apple{n}." for n in range(count)]


PROSE = " ".join(varied(20))
SENTENCE = "The ship's captain saw 12 white gulls over the grey harbour wall at dawn."


@pytest.fixture
def glue(tmp_path: Path) -> tuple[DownstreamConfig, ...]:
    write_rows(tmp_path / "cola/train.jsonl", [{"sentence": SENTENCE, "label": 1}])
    return (DownstreamConfig(data=str(tmp_path)),)


def dropped_by(text: str, **steps: bool | int | str) -> str | None:
    return clean(text, steps_of(CleanConfig(**steps))).dropped_by  # type: ignore[arg-type]


def names(config: CleanConfig) -> list[str]:
    return [name for name, _ in steps_of(config)]


# ---- steps


def test_steps_are_those_that_can_change_or_drop_something(
    glue: tuple[DownstreamConfig, ...],
) -> None:
    assert names(CleanConfig()) == ["unicode", "empty"]
    assert names(CleanConfig(unicode=False)) == ["empty"]
    every = CleanConfig(min_characters=2, gopher=True, c4=True, downstream=glue)
    assert names(every) == ["unicode", "empty", "length", "gopher", "c4", "downstream"]
    assert names(CleanConfig(max_characters=9)) == ["unicode", "empty", "length"]


def test_an_empty_document_is_dropped() -> None:
    assert dropped_by(" \n\t ") == "empty"
    assert dropped_by("\ufeff\u200b") == "empty"
    assert dropped_by("\u00a0", unicode=False) == "empty"
    assert dropped_by(" x ") is None


def test_length_counts_characters_after_normalisation() -> None:
    assert dropped_by("e\u0301" * 4, min_characters=5) == "length"
    assert dropped_by("e\u0301" * 4, min_characters=4, max_characters=4) is None
    assert dropped_by("abcde", max_characters=4) == "length"


def test_a_verdict_keeps_the_text_of_the_last_step_passed() -> None:
    verdict = clean("a\r\nb", steps_of(CleanConfig(min_characters=99)))
    assert (verdict.text, verdict.dropped_by) == ("a\nb", "length")


def test_a_sample_of_a_change_begins_a_little_before_it() -> None:
    assert Change("c4", f"{'a' * 99}bc", f"{'a' * 99}xc").excerpt() == f"{'a' * 60}xc"
    assert Change("c4", "abc", "abcd").excerpt() == "abcd"
    assert Change("c4", f"{'a' * 99}b", "a" * 99).excerpt() == "a" * 60


# ---- unicode


def reference_normalise(text: str) -> str:
    """The step written character by character: its reference implementation."""
    kept = []
    for place, character in enumerate(text):
        if character == "\r":
            kept.append("\n" if text[place + 1 : place + 2] != "\n" else "")
        elif character in "\x0b\x0c\x1c\x1d\x1e\x85":
            kept.append("\n")
        elif unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t":
            continue
        elif character not in "\u200b\u2060\ufeff\ufffd":
            kept.append(character)
    lines = unicodedata.normalize("NFC", "".join(kept)).split("\n")
    for number, line in enumerate(lines):
        while line and line[-1] in " \t":
            line = line[:-1]
        lines[number] = line
    return "\n".join(lines)


ODD = (
    "a eé\u0301\u1100\u1161\u00a0\u2028😀\r\n\t\x00\x0b\x1e\x1f\x7f\x85\x9f"
    "\u200b\u200d\u2060\ufeff\ufffd\ud800\udfff"
)


@given(st.one_of(st.text(ODD), st.text("a \t\r\n\x00\x0c\x7f"), st.text(st.characters())))
@example("a\r\r\n \n\t\n b  ")
@example("e\u200b\u0301")
def test_unicode_equals_its_reference(text: str) -> None:
    assert normalise(text) == reference_normalise(text)
    assert normalise(normalise(text)) == normalise(text)


def test_control_characters_that_separate_words_become_line_breaks() -> None:
    for mark in "\x0b\x0c\x1c\x1d\x1e\x85":
        for word in ("Body", "K\u00f6rper", "\u0926\u0947\u0939"):  # ASCII, Latin, many bytes
            found = normalise(f"Heading {mark}{word * 20}")
            assert found == normalise(found) == f"Heading\n{word * 20}"


MARKS = "\u0301\u0323\u0327\u0345\u0344\u05b0\u0f73\u0f71\u3099\U0001e8d0"


@given(st.lists(st.tuples(st.text("aé", max_size=3), st.text(MARKS, max_size=99)), max_size=9))
def test_many_marks_are_normalised_as_few_are(pieces: list[tuple[str, str]]) -> None:
    text = "".join(letters + marks for letters, marks in pieces)
    assert normalise(text) == unicodedata.normalize("NFC", text)


def test_marks_cost_no_more_than_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's normal form swaps marks until they are in order; 80,000 once took 17 seconds."""
    swaps = 0

    def counting(form: Literal["NFC", "NFD"], text: str) -> str:
        nonlocal swaps
        classes = list(map(unicodedata.combining, unicodedata.normalize("NFD", text)))
        swaps += sum(a > b > 0 for a, b in pairwise(classes))
        return unicodedata.normalize(form, text)

    monkeypatch.setattr(unicode, "normalize", counting)
    normalise("e" + "\u0301\u0323" * 1000)
    assert swaps < 5


# ---- gopher


def gopher(text: str) -> str | None:
    return dropped_by(text, gopher=True)


def test_gopher_keeps_prose() -> None:
    assert gopher(PROSE) is None
    assert gopher("\n".join(varied(8))) is None, "56 words are enough"
    assert gopher("\n\n".join(varied(50))) is None


SHORT_WORDS = [f"{one}{other}" for one in "abcdefghij" for other in "klmnopqrst"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(" ".join(varied(7)), id="fewer than 50 words"),
        pytest.param(" ".join(varied(14_286)), id="more than 100,000 words"),
        pytest.param(" ".join([*SHORT_WORDS, "with", "the"]), id="short words"),
        pytest.param(PROSE.replace("er", "er" * 20), id="long words"),
        pytest.param(PROSE.replace("Writer", "#Writer"), id="hashes"),
        pytest.param(PROSE.replace("apple", "...apple"), id="three dots"),
        pytest.param(PROSE.replace("apple", "…apple"), id="ellipses"),
        pytest.param(PROSE.replace(". ", ".\n• "), id="bullets"),
        pytest.param(PROSE.replace(". ", ".\n- "), id="dashes"),
        pytest.param(
            "\n".join(line + ".." * (n % 3 == 0) for n, line in enumerate(varied(20))),
            id="lines that break off",
        ),
        pytest.param(PROSE.replace("village", "300").replace("basket", "700"), id="numbers"),
        pytest.param(PROSE.replace("with", "by").replace("of", "or"), id="stop words"),
    ],
)
def test_gopher_drops_poor_text(text: str) -> None:
    assert gopher(text) == "gopher"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(" ".join(varied(14_285)), id="fewer than 100,000 words"),
        pytest.param(PROSE.replace("Writer1", "#Writer1"), id="hashes"),
        pytest.param(
            "\n".join(f"- {line}" if n % 9 else line for n, line in enumerate(varied(20))),
            id="bullets",
        ),
        pytest.param(
            "\n".join(line + ".." * (n % 4 == 0) for n, line in enumerate(varied(20))),
            id="lines that break off",
        ),
        pytest.param(PROSE.replace("village", "300"), id="numbers"),
        pytest.param(PROSE.replace("with", "by"), id="stop words"),
    ],
)
def test_gopher_keeps_text_just_within_its_rules(text: str) -> None:
    assert gopher(text.replace("#Writer10", "Writer10")) is None


def test_gopher_drops_repeated_lines_by_number() -> None:
    """They stay below a fifth of the characters, but in the end exceed 30 % of the lines."""
    long = [f"{one} {other}" for one, other in zip(varied(60), varied(120)[60:], strict=True)]
    assert gopher("\n".join([*long, *["So it is."] * 24])) is None
    assert gopher("\n".join([*long, *["So it is."] * 30])) == "gopher"


def test_gopher_drops_repeated_lines_by_characters() -> None:
    """Lines of four words, three times each: no 5-gram repeats, nor do 30 % of the lines."""

    def text(times: int) -> str:
        long = [" ".join(f"extraordinary{n}{part}" for part in "abcd") for n in range(6)]
        lines = varied(40)
        for n in range(6 * times):
            lines.insert(2 * n, long[n % 6])
        return "\n".join(lines)

    assert gopher(text(2)) is None
    assert gopher(text(3)) == "gopher"


def test_gopher_drops_repeated_paragraphs() -> None:
    """Paragraphs of one short line among others of ten: many paragraphs, but few lines."""
    long = ["\n".join(varied(100)[10 * n : 10 * n + 10]) for n in range(10)]
    assert gopher("\n\n".join([*long, *["So it is."] * 5])) is None
    assert gopher("\n\n".join([*long, *["So it is."] * 7])) == "gopher"


@pytest.mark.parametrize(("n", "share"), [(2, 0.20), (3, 0.18), (4, 0.16)])
def test_gopher_drops_a_frequent_phrase(n: int, share: float) -> None:
    """2000 words of six letters, with the same n words again and again before different words."""

    def text(times: int) -> str:
        unique = [f"aa{number:04d}" for number in range(2000 - times * n)]
        phrase = " ".join(["phrase", "letter", "circle", "wooden"][:n])
        return " ".join(
            ["with the", *(f"{phrase} {word}" for word in unique[:times]), *unique[times:]]
        )

    assert gopher(text(int(share * 2000 / n) - 1)) is None
    assert gopher(text(int(share * 2000 / n) + 1)) == "gopher"


@pytest.mark.parametrize(
    ("n", "share"), [(5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10)]
)
def test_gopher_drops_repeated_long_phrases(n: int, share: float) -> None:
    """2000 words of six letters, with passages of n words that occur twice, and none longer."""

    def text(passages: int) -> str:
        unique = [f"aa{number:04d}" for number in range(2000 - passages * (n + 1))]
        repeated = [" ".join([*unique[2 * n * at :][:n], f"bb{at:04d}"]) for at in range(passages)]
        return " ".join([*unique, "the", "with", *repeated])

    assert gopher(text(int(share * 2000 / n) - 1)) is None
    assert gopher(text(int(share * 2000 / n) + 1)) == "gopher"


def repeats_plainly(words: list[str]) -> bool:
    """The rule for n-grams, counted one by one: its reference implementation."""
    total = sum(map(len, words))
    for n in range(2, 11):
        places = range(len(words) - n + 1)
        counts = Counter(tuple(words[at : at + n]) for at in places)
        most = max(counts.values(), default=0)
        if n <= 4 and most > 1:
            longest = max(len("".join(gram)) for gram in counts if counts[gram] == most)
            if longest * most / total > {2: 0.20, 3: 0.18, 4: 0.16}[n]:
                return True
        if n >= 5:
            grams = [words[at : at + n] for at in places]
            again = [at for at in places if grams[at] in grams[:at]]
            covered = {at + nth for at in again for nth in range(n)}
            if sum(len(words[at]) for at in covered) / total > (20 - n) / 100:
                return True
    return False


@given(
    st.lists(
        st.one_of(st.sampled_from(["a", "bb", "c"]), st.integers(0, 999).map(str)), min_size=1
    ),
    st.lists(st.integers(0, 99).map(lambda n: f"long{n}"), max_size=12),
    st.integers(0, 2),
)
def test_repeated_phrases_are_those_of_a_plain_count(
    words: list[str], phrase: list[str], times: int
) -> None:
    unique = [f"unique{n}" for n in range(20)]
    text = [*phrase, *words, *phrase * times, *unique * (len(words) % 2)]
    assert _has_repeated_ngrams(text) == repeats_plainly(text)


# ---- c4


def c4(text: str) -> str | None:
    """What is left of the text; None if it is dropped."""
    verdict = clean(text, steps_of(CleanConfig(c4=True)))
    assert verdict.dropped_by in (None, "c4")
    return verdict.text if verdict.dropped_by is None else None


GOOD = sentences(3)


@pytest.mark.parametrize(
    "line",
    [
        "A line without an end that people would see as one",
        "It breaks off just before the end...",
        "Only four words here.",
        "Please switch JavaScript on to see this page.",
        "By reading on you accept our Terms of Use.",
        "This page uses cookies to know you better.",
    ],
)
def test_c4_drops_bad_lines(line: str) -> None:
    assert c4("\n".join([*GOOD, line])) == "\n".join(GOOD)


@pytest.mark.parametrize("end", [".", "!", "?", '."', ".\u201d"])
def test_c4_keeps_lines_that_end_as_sentences_do(end: str) -> None:
    text = "\n".join([*GOOD, f"She said that it would rain{end}"])
    assert c4(text) == text


@pytest.mark.parametrize("text", ["function() { return }", "Lorem Ipsum dolor sit amet."])
def test_c4_drops_documents_with_code_or_filler(text: str) -> None:
    assert c4("\n".join([*GOOD, text])) is None


def test_c4_drops_documents_of_fewer_than_three_sentences() -> None:
    assert c4("\n".join(GOOD[:2])) is None
    assert c4(" ".join(GOOD)) == " ".join(GOOD)


def test_c4_removes_citation_marks() -> None:
    marked = [f"{line}[{n}]" for n, line in enumerate(GOOD)]
    assert c4("\n".join(marked)) == "\n".join(GOOD)
