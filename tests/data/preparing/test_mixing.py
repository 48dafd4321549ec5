"""Sources mixed by share or by temperature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crammed.config import MixConfig, TokenizerConfig
from crammed.data.corpus import Corpus
from crammed.data.preparing.read.source import Source
from crammed.data.preparing.select.mixing import mixed_weights
from crammed.data.show import describe_sources, readings
from crammed.errors import InputError
from support.corpora import prepared_and_told
from support.text import documents, tiny, write_jsonl

SIZES = {"wiki": 8000, "news": 1000, "web": 27000}


def weights(shares: dict[str, float | None], **mix: Any) -> dict[str, float]:
    sources = [Source(name, (), 1.0, share, None, {}) for name, share in shares.items()]
    return mixed_weights(sources, SIZES, MixConfig(**{"most_readings": 100.0, **mix}))


def test_shares_become_weights_of_which_the_least_is_one() -> None:
    found = weights({"wiki": 0.6, "news": 0.4})
    assert found == {"wiki": 1.0, "news": pytest.approx(0.4 / 0.6 * 8)}
    assert weights({"wiki": 60.0, "news": 40.0}) == pytest.approx(found)  # only their ratio counts


def test_a_temperature_flattens_the_sizes() -> None:
    every: dict[str, float | None] = dict.fromkeys(SIZES)
    assert weights(every, temperature=1.0) == pytest.approx(dict.fromkeys(SIZES, 1.0))
    found = weights(every, temperature=3.0)
    packed = {name: SIZES[name] * weight for name, weight in found.items()}
    assert found["web"] == 1.0
    assert packed["wiki"] / packed["news"] == pytest.approx(2.0)  # cube roots of 8 and 1
    assert packed["web"] / packed["news"] == pytest.approx(3.0)


def test_the_cap_limits_one_source_and_leaves_the_others() -> None:
    every: dict[str, float | None] = dict.fromkeys(SIZES)
    free = weights(every, temperature=3.0)
    capped = weights(every, temperature=3.0, most_readings=4.0)
    assert free["news"] > 4.0
    assert capped == {**free, "news": 4.0}


def test_a_source_without_text_gets_no_share() -> None:
    assert weights({"wiki": None, "empty": None}, temperature=2.0)["empty"] == 1.0
    with pytest.raises(InputError, match="empty is to be a share of the text, but none of it"):
        weights({"wiki": 1.0, "empty": 1.0})


@pytest.mark.parametrize(
    ("sources", "mix", "words"),
    [
        ([{"share": 1.0}, {}], {}, "give every source a share, or none: b has none"),
        ([{"share": 1.0, "weight": 2.0}, {"share": 1.0}], {}, "leave `weight` out"),
        ([{"weight": 2.0}, {}], {"temperature": 2.0}, "leave `weight` out"),
        ([{"share": 1.0}, {"share": 1.0}], {"temperature": 2.0}, "not by both"),
    ],
)
def test_two_ways_to_mix_are_refused(
    sources: list[dict[str, Any]], mix: dict[str, float], words: str
) -> None:
    named = [{"path": path, **each} for path, each in zip("ab", sources, strict=True)]
    with pytest.raises(InputError, match=words):
        tiny(data={"sources": named, "mix": mix})


def make(
    folder: Path, *overrides: str, shares: tuple[float, float], **options: Any
) -> tuple[Corpus, str]:
    """A corpus of 400 documents and 60 others, five times each, and what was said meanwhile."""
    sources = []
    for name, count, share in zip(("wiki", "news"), (400, 60), shares, strict=True):
        texts = documents(count, seed=count)
        file = write_jsonl(folder / f"{name}.jsonl", texts if name == "wiki" else 5 * texts)
        sources.append({"path": str(file), "name": name, "share": share})
    return prepared_and_told(folder / "made", sources, *overrides, **options)


def test_a_corpus_has_the_shares_that_were_asked_for(tmp_path: Path) -> None:
    corpus, said = make(tmp_path, shares=(3.0, 1.0))
    wiki, news = corpus.manifest["sources"]
    share = news["characters"] / (wiki["characters"] + news["characters"])
    assert share == pytest.approx(0.25, abs=0.01)
    assert wiki["weight"] == 1.0
    assert "mix  news  25.0 % of the text, each document packed 2." in said
    assert describe_sources(corpus.manifest)[1].endswith(f"packing each {news['weight']:.2f} times")
    assert readings(corpus.manifest, 3.0) == {"wiki": 3.0, "news": 3.0 * news["weight"]}


def test_a_size_is_chosen_for_the_text_that_mixing_packs(tmp_path: Path) -> None:
    seen = list[float]()

    def choose(tokens: float) -> TokenizerConfig:
        seen.append(tokens)
        return TokenizerConfig(vocab_size=300)

    keep = "data.heldout_copies=keep"
    made, _ = make(tmp_path, keep, "data.mix.most_readings=9", shares=(0.5, 0.5), choose=choose)
    packed = sum(source["characters"] for source in made.manifest["sources"])
    assert packed > 1.5 * made.manifest["characters"]
    assert seen == [pytest.approx(packed / 4, rel=0.05)]


def test_a_share_that_the_cap_forbids_is_told(tmp_path: Path) -> None:
    corpus, said = make(tmp_path, "data.mix.most_readings=2", shares=(0.5, 0.5))
    assert [source["weight"] for source in corpus.manifest["sources"]] == [1.0, 2.0]
    assert "; 50.0 % would take more than data.mix.most_readings=2\n" in said
    assert said.count("would take more") == 1
