from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from crammed.data.corpus import Corpus
from crammed.data.show import describe_corpus, describe_samples, dropped_samples, sample_rows
from crammed.data.statistics import Statistics
from crammed.errors import InputError
from support.corpora import VOCABULARY, numbered_files, write_corpus


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    characters, tokens = np.array([10, 30, 12, 40]), np.array([3, 2, 3, 9])
    statistics = Statistics.of("web", characters, tokens, np.array([1, 5, 5, 6]), 17)
    return write_corpus(
        tmp_path / "corpus",
        numbered_files([3, 4]),
        sources=[
            {"name": "web", "documents": 3, "characters": 3000},
            {"name": "wiki", "documents": 1, "characters": 1000},
        ],
        statistics=statistics.summary(unknown=1),
        steps=[
            {"step": "c4", "kept": 6, "dropped": 2, "characters": 1200},
            {"step": "exact duplicates", "kept": 6, "dropped": 0, "characters": 0},
        ],
        dropped=[
            {"step": step, "source": "web", "text": f"{step} {number}\n" + "more " * 100}
            for number in range(4)
            for step in ("c4", "near-duplicates")
        ],
        skipped=[{"part": "b.txt", "why": "b.txt is not UTF-8 text"}],
        orders={"rare-first": range(7), "fragments": range(7)},
    )


def test_everything_in_the_manifest_is_described(corpus: Corpus) -> None:
    words = dict(describe_corpus(corpus))
    assert words["sources"] == [
        "web: 3 documents, 3 k characters (75.0 %)",
        "wiki: 1 document, 1 k characters (25.0 %)",
    ]
    assert words["skipped"] == ["b.txt: b.txt is not UTF-8 text"]
    assert words["dropped"] == ["c4: 2 documents (25.0 %), 1.2 k characters"]
    assert words["documents"] == ["4 to train on, 1 held out"]
    bars = [line.split() for line in words["lengths"]]
    assert [(bar[0], bar[-1]) for bar in bars] == [("2", "3"), ("4", "0"), ("8", "1")]
    assert [line.count("█") for line in words["lengths"]] == [16, 0, 6]
    assert words["vocabulary"] == ["17, 14 of them never used; 25.000 % of the tokens are unknown"]
    assert words["orders"] == ["random, fragments, rare-first"]


def test_long_documents_call_for_longer_rows(tmp_path: Path) -> None:
    histogram = [0, 0, 0, 96, 0, 0, 1] + [0] * 25  # 96 documents of 8 to 15 tokens, 1 of 64 to 127

    def context(length: int, histogram: list[int]) -> list[str]:
        folder = tmp_path / f"{length}-{sum(histogram)}"
        statistics = {"document_tokens": histogram, "unused_tokens": 0, "unknown_share": 0.0}
        made = write_corpus(folder, numbered_files([3], length), statistics=statistics)
        return dict(describe_corpus(made))["context"]

    few = "about 8 % of the tokens are in documents longer than a row"
    assert context(16, histogram) == [few]
    histogram[3] = 0
    assert context(16, histogram) == [
        "about 100 % of the tokens are in documents longer than a row",
        "for a model that takes longer texts, prepare with data.row_length=512",
    ]
    assert context(96, histogram)[0].startswith("about 50 % ")
    assert len(context(128, histogram)) == 1


def test_a_corpus_of_an_older_version_is_described(tmp_path: Path) -> None:
    steps = [{"step": "empty", "kept": 9, "dropped": 1}]
    old = write_corpus(tmp_path / "corpus", numbered_files([3]), steps=steps)
    words = dict(describe_corpus(old))
    assert words["dropped"] == ["empty: 1 document (10.0 %)"]
    assert words["vocabulary"] == ["17"]
    assert not {"lengths", "skipped"} & words.keys()
    assert dropped_samples(old) == []


def test_two_samples_of_every_step(corpus: Corpus) -> None:
    samples = dropped_samples(corpus)
    assert [sample["step"] for sample in samples] == 2 * ["c4", "near-duplicates"]
    assert samples[0]["text"].startswith("c4 0 more more")
    assert samples[0]["text"].endswith(" ...")
    assert len(samples[0]["text"]) < 200


def test_rows_are_decoded_with_their_special_tokens(corpus: Corpus) -> None:
    names = {number: token for token, number in VOCABULARY.items()}
    rows = sample_rows(corpus, 100)
    assert sorted(rows) == sorted(" ".join([names[number]] * 4) for number in range(7))
    assert sample_rows(corpus, 0) == []
    labels = [label for label, _ in describe_samples(corpus, 2)]
    assert labels == ["dropped 1", "dropped 2", "dropped 3", "dropped 4", "row 1", "row 2"]


@pytest.mark.parametrize("key", ["sources", "heldout", "documents", "tokens", "steps"])
@pytest.mark.parametrize("value", [None, "x", [5]])
def test_a_manifest_that_makes_no_sense_is_one_line(
    tmp_path: Path, key: str, value: object
) -> None:
    made = write_corpus(tmp_path / "corpus", numbered_files([3]))
    made.manifest[key] = value
    with pytest.raises(InputError, match=r"corpus is damaged: its manifest.json lacks something"):
        describe_corpus(made)


@pytest.mark.parametrize("line", [b"{", b"[]\n", b'{"text": 5, "step": "c4"}\n', b"5\n"])
def test_dropped_documents_that_are_damaged_are_one_line(tmp_path: Path, line: bytes) -> None:
    made = write_corpus(tmp_path / "corpus", numbered_files([3]))
    (made.path / "dropped.jsonl.gz").write_bytes(gzip.compress(line))
    with pytest.raises(InputError, match="is damaged"):
        dropped_samples(made)
