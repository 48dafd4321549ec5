"""What the model puts into the gaps of sentences it has never seen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from crammed.data.sources import open_text
from crammed.data.tokenizer import MASK, SEP
from crammed.device import Device
from crammed.model.final import FinalModel


@dataclass(frozen=True)
class Example:
    """A sentence with one word taken out, and the model's five best guesses.

    Attributes:
        before, word, after: the sentence around the word.
        guesses: (token, probability), best first.
        rank: place of the right token among all, 1 for the best.
    """

    before: str
    word: str
    after: str
    guesses: list[tuple[str, float]]
    rank: int


def fill_mask_examples(
    final: FinalModel, heldout: Path, device: Device, count: int = 8
) -> list[dict[str, Any]]:
    """Mask one word in each of the first `count` fitting sentences of held-out text."""
    model = final.masked_lm(device.torch)
    examples = []
    for before, word, after in _sentences(heldout, final.tokenizer):
        left, right = (
            final.tokenizer.encode(part, add_special_tokens=False).ids for part in (before, after)
        )
        if len(left) + len(right) + 2 > final.row_length:
            continue
        ids = torch.tensor([[*left, MASK, *right, SEP]], device=device.torch)
        with torch.inference_mode():
            at = torch.tensor([[len(left)]], device=device.torch)
            logits = model(ids, at)[0, 0].float().cpu()
        probabilities = logits.softmax(-1)
        right_id = final.tokenizer.encode(word, add_special_tokens=False).ids[0]
        values, indices = probabilities.topk(5)
        guesses = [
            (str(final.tokenizer.id_to_token(index)), round(value, 4))
            for index, value in zip(indices.tolist(), values.tolist(), strict=True)
        ]
        rank = 1 + int((logits > logits[right_id]).sum())
        examples.append(asdict(Example(before, word, after, guesses, rank)))
        if len(examples) == count:
            break
    return examples


def _sentences(heldout: Path, tokenizer: Tokenizer) -> Iterator[tuple[str, str, str]]:
    """The first sentence of each document that has a word of one token in its middle."""
    with open_text(heldout) as lines:
        for line in lines:
            text = " ".join(json.loads(line)["text"].split())
            for sentence in re.findall(r"[A-Z][^.!?]{40,140}[.!?]", text)[:1]:
                words = sentence.split(" ")
                middle = len(words) // 2
                for at in (middle, middle + 1, middle - 1, middle + 2):
                    if not 0 < at < len(words) - 1 or not re.fullmatch(r"[a-z]{4,}", words[at]):
                        continue
                    if len(tokenizer.encode(words[at], add_special_tokens=False).ids) == 1:
                        yield " ".join(words[:at]), words[at], " ".join(words[at + 1 :])
                        break
