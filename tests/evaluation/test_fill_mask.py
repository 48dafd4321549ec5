from __future__ import annotations

from pathlib import Path

from crammed.data.corpus import Corpus
from crammed.evaluation.fill_mask import fill_mask_examples
from crammed.machine.device import Device
from support.models import untrained
from support.text import documents, tiny, write_jsonl


def test_fill_mask_examples_rank_the_right_word(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    final = untrained(corpus.tokenizer, tiny("crammed").model)
    held = write_jsonl(tmp_path / "held.jsonl", documents(30, seed=9))
    examples = fill_mask_examples(final, held, cpu, count=4)
    assert len(examples) == 4
    for example in examples:
        assert 1 <= example["rank"] <= final.vocab_size
        probabilities = [p for _, p in example["guesses"]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert (example["rank"] == 1) == (example["guesses"][0][0] == example["word"])
