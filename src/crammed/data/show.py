"""Describes a corpus in words, for the terminal and for the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from crammed.data.corpus import Corpus, RowStream, is_damaged
from crammed.data.samples import Sample, first_of_each_step, read_samples
from crammed.data.statistics import labelled_lengths, share_beyond
from crammed.quantity import counted, quantity, times

_BAR = 16
_SHOWN_CHARACTERS = 160
_MUCH = 0.5
"""Share of the tokens in long documents from which longer rows are suggested."""
_LONG_ROW = 512


def describe_corpus(corpus: Corpus) -> list[tuple[str, list[str]]]:
    """The content of the manifest, as pairs of a label and lines.

    Raises:
        InputError: the manifest is damaged.
    """
    with _damage(corpus, "its manifest.json lacks something, or makes no sense"):
        manifest = corpus.manifest
        heldout = manifest["heldout"]
        statistics = manifest.get("statistics")
        lengths = statistics["document_tokens"] if statistics else []
        characters = sum(source["characters"] for source in manifest["sources"])  # with repeats
        words = {
            "corpus": [str(corpus.path)],
            "extends": _extended(manifest),
            "outside the rules": [why] if (why := manifest.get("outside_rules")) else [],
            "sources": describe_sources(manifest),
            "skipped": [f"{each['part']}: {each['why']}" for each in manifest.get("skipped", [])],
            "dropped": [
                f"{step['step']}: {describe_dropped(step)}" for step in dropping_steps(manifest)
            ],
            "documents": [
                f"{manifest['documents']:,} to train on, {heldout['documents']:,} held out"
                + _share(heldout)
            ],
            "lengths": _bars(labelled_lengths(lengths)),
            "tokens": [
                f"{quantity(manifest['tokens'])} in {counted(corpus.rows, 'row')} of "
                f"{corpus.row_length}; {manifest['tokens'] / characters:.3f} per character"
            ],
            "context": _context(corpus, lengths) if lengths else [],
            "vocabulary": [_vocabulary(corpus)],
            "orders": [", ".join(("random", *corpus.orders))],
            "unigram": [f"{heldout['unigram_cross_entropy']:.3f} nats per held-out token"],
        }
        return [(label, lines) for label, lines in words.items() if lines]


@contextmanager
def _damage(corpus: Corpus, how: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise is_damaged(corpus.path, how) from error


def describe_samples(corpus: Corpus, rows: int) -> list[tuple[str, str]]:
    """Samples of dropped documents, and `rows` decoded rows."""
    dropped = [
        (f"dropped {number}", f"{each['step']}, {each['source']}: {each['text']}")
        for number, each in enumerate(dropped_samples(corpus), 1)
    ]
    decoded = [(f"row {number}", text) for number, text in enumerate(sample_rows(corpus, rows), 1)]
    return [*dropped, *decoded]


def sample_rows(corpus: Corpus, count: int) -> list[str]:
    """Rows drawn from the whole corpus, decoded with their special tokens."""
    rows = RowStream(corpus, 0).read(0, min(count, corpus.rows))
    return corpus.tokenizer.decode_batch(rows.tolist(), skip_special_tokens=False)


def dropped_samples(corpus: Corpus) -> list[Sample]:
    """The beginnings of dropped documents, at most two from each step."""
    with _damage(corpus, "crammed data verify says where"):
        return [
            {**sample, "text": _beginning(sample["text"])}
            for sample in first_of_each_step(read_samples(corpus.path), 2)
        ]


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]} ..."


def describe_sources(manifest: Mapping[str, Any]) -> list[str]:
    """Each source with its documents, its share of the characters, and its weight if not 1."""
    sources = manifest["sources"]
    total = max(1, sum(source["characters"] for source in sources))
    weights = [source.get("weight", 1.0) for source in sources]
    return [
        f"{source['name']}: {counted(source['documents'], 'document')}, "
        f"{quantity(source['characters'])} characters ({100 * source['characters'] / total:.1f} %)"
        + ("" if weight == 1.0 else f", after packing each {times(weight)}")
        for source, weight in zip(sources, weights, strict=True)
    ]


def readings(manifest: Mapping[str, Any], epochs: float) -> dict[str, float]:
    """How often a training reads each source if it reads the whole corpus this often."""
    return {each["name"]: epochs * each.get("weight", 1.0) for each in manifest["sources"]}


def _extended(manifest: Mapping[str, Any]) -> list[str]:
    if (extends := manifest.get("extends")) is None:
        return []
    return [f"the {counted(extends['rows'], 'row')} of corpus {extends['sha256'][:16]} come first"]


def _share(heldout: Mapping[str, Any]) -> str:
    """Text such as `` (1.3 % of the text)``; empty for corpora of older versions."""
    share = heldout.get("share")
    return "" if share is None else f" ({100 * share:.1f} % of the text)"


def dropping_steps(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The cleaning steps that dropped or changed something, in order."""
    shown = ("dropped", "characters", "changed")
    return [step for step in manifest["steps"] if any(step.get(name) for name in shown)]


def describe_dropped(step: Mapping[str, Any]) -> str:
    """Text such as ``12 documents (0.4 %), 3.1 k characters``; leaves out what is 0."""
    words = []
    if step["dropped"]:
        share = step["dropped"] / (step["kept"] + step["dropped"])
        words.append(f"{counted(step['dropped'], 'document')} ({100 * share:.1f} %)")
    if step.get("characters"):  # missing in corpora of older versions
        words.append(f"{quantity(step['characters'])} characters")
    if step.get("changed"):
        words.append(f"{counted(step['changed'], 'document')} changed")
    return ", ".join(words)


def _context(corpus: Corpus, histogram: Sequence[int]) -> list[str]:
    """How much of the text lies in documents longer than a row, and what to do if it is much."""
    share = share_beyond(histogram, corpus.row_length)
    words = f"about {100 * share:.0f} % of the tokens are in documents longer than a row"
    if share < _MUCH or corpus.row_length >= _LONG_ROW:
        return [words]
    return [words, f"for a model that takes longer texts, prepare with data.row_length={_LONG_ROW}"]


def _vocabulary(corpus: Corpus) -> str:
    words = f"{corpus.vocab_size:,}"
    if statistics := corpus.manifest.get("statistics"):
        words += (
            f", {statistics['unused_tokens']:,} of them never used; "
            f"{100 * statistics['unknown_share']:.3f} % of the tokens are unknown"
        )
    return words


def _bars(bins: Sequence[tuple[str, int]]) -> list[str]:
    """A bar chart of labelled counts, one line each."""
    if not bins:
        return []
    label_width = max(len(label) for label, _ in bins)
    most = max(count for _, count in bins)
    return [
        f"{label:>{label_width}} tokens  {'█' * math.ceil(_BAR * count / most):<{_BAR}}  {count:,}"
        for label, count in bins
    ]
