# ruff: noqa: RUF001  (letters of other scripts)

from __future__ import annotations

from pathlib import Path

import pytest

from crammed.config import TokenizerConfig
from crammed.data.corpus import Corpus
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.data.tokenization.training import train_from_texts, train_from_words
from crammed.evaluation.fill_mask import EXAMPLES, fill_mask_examples, shortest_example
from crammed.machine.device import Device
from support.models import untrained
from support.text import documents, tiny, write_jsonl

TEXTS = {
    "Japanese": "このプログラムは文書の中の言葉を数えて、その結果を表として画面に表示します。",
    "Chinese": "程序统计文档中词语的数量，并以表格显示结果。",
    "Thai": "โปรแกรมนี้นับจำนวนคำในเอกสาร และแสดงผลลัพธ์เป็นตารางบนหน้าจอ",
    "Hindi": "यह प्रोग्राम दस्तावेज़ में शब्दों की संख्या गिनता है और परिणाम दिखाता है।",
    "Arabic": "يحسب هذا البرنامج عدد الكلمات في المستند، ثم يعرض النتيجة على الشاشة.",
    "German": "Größe: klein. Das Programm zählt Wörter, z. B. im Text, und zeigt das Ergebnis an.",
}
SPACED = ("Hindi", "Arabic", "German")


def test_fill_mask_examples_rank_the_right_word(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    held = write_jsonl(tmp_path / "held.jsonl", documents(30, seed=9))
    examples = fill_mask_examples(final, held, cpu)
    assert len(examples) == EXAMPLES
    for example in examples:
        assert 1 <= example["rank"] <= final.vocab_size
        probabilities = [p for _, p in example["guesses"]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert (example["rank"] == 1) == (example["guesses"][0][0] == example["word"])


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
@pytest.mark.parametrize("language", TEXTS)
def test_gaps_are_words_of_sentences_in_any_language(
    tmp_path: Path, cpu: Device, language: str, kind: str
) -> None:
    text = TEXTS[language]
    config = TokenizerConfig.model_validate(
        {"kind": kind, "vocab_size": 600, "strip_accents": False}
    )
    texts = [text] * 9 if language in SPACED else [text[:at] for at in range(len(text))]
    words = cut_into_chunks(texts)
    counts = zip(words.distinct.to_pylist(), words.counts.tolist(), strict=True)
    tokenizer = (
        train_from_words(counts, config)
        if kind == "wordpiece"
        else train_from_texts(texts, sum(map(len, texts)), config)
    )
    held = write_jsonl(tmp_path / "held.jsonl", [text])
    (example,) = fill_mask_examples(untrained(tokenizer, tiny("crammed").model), held, cpu)
    sentence = example["before"] + example["word"] + example["after"]
    assert sentence == text.removeprefix("Größe: klein. ")
    assert example["before"].strip()
    assert example["after"].strip()
    assert all(each.isalpha() or not each.isascii() for each in example["word"])
    if language in SPACED:
        assert example["word"] in text.translate(dict.fromkeys(map(ord, ",،"))).split()


def test_the_example_to_try_is_the_shortest_sentence() -> None:
    older = {"before": "An older", "word": "run", "after": "leaves out the spaces."}
    exact = {"before": "これは", "word": "文", "after": "です。", "exact": True}
    assert shortest_example([older, exact], "[MASK]") == "これは[MASK]です。"
    assert shortest_example([older], "[MASK]") == "An older [MASK] leaves out the spaces."
    assert shortest_example([], "<mask>") == "<mask>"
    quoting = {"before": '"Yes', "after": '"'}
    assert shortest_example([quoting, older], "[MASK]") == shortest_example([older], "[MASK]")
    assert shortest_example([quoting], "[MASK]") == '"Yes [MASK] "'
