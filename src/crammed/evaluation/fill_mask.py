"""Examples of how a trained model fills gaps in sentences that it has never seen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from crammed.data.tokenization.tokenizer import Specials
from crammed.formats.lines import open_text
from crammed.machine.device import Device
from crammed.model.trained import TrainedModel


@dataclass(frozen=True)
class Example:
    """A sentence with one masked word, and the model's five best guesses.

    Attributes:
        before, word, after: the word and the text around it.
        guesses: (token, probability), best first.
        rank: rank of the correct token in the whole vocabulary; 1 is the best.
    """

    before: str
    word: str
    after: str
    guesses: list[tuple[str, float]]
    rank: int


def fill_mask_examples(
    final: TrainedModel, heldout: Path, device: Device, count: int = 8
) -> list[dict[str, Any]]:
    """Mask one word in each of the first `count` suitable sentences of held-out text.

    Args:
        heldout: JSON lines with a field ``text``.

    Returns:
        each `Example` as a dictionary.
    """
    model = final.masked_lm(device.torch)
    specials = Specials.of(final.tokenizer)
    examples = []
    for before, word, after, ids, gap in _sentences(heldout, final.tokenizer):
        if len(ids) + 1 > final.row_length:
            continue
        right_id, masked = ids[gap], [*ids, specials.sep]
        masked[gap] = specials.mask
        with torch.inference_mode():
            at = torch.tensor([[gap]], device=device.torch)
            logits = model(torch.tensor([masked], device=device.torch), at)[0, 0].float().cpu()
        probabilities = logits.softmax(-1)
        values, indices = probabilities.topk(5)
        guesses = [
            (final.tokenizer.decode([index], skip_special_tokens=False).strip(), round(value, 4))
            for index, value in zip(indices.tolist(), values.tolist(), strict=True)
        ]
        rank = 1 + int((logits > logits[right_id]).sum())
        examples.append(asdict(Example(before, word, after, guesses, rank)))
        if len(examples) == count:
            break
    return examples


def _sentences(
    heldout: Path, tokenizer: Tokenizer
) -> Iterator[tuple[str, str, str, list[int], int]]:
    """For each document, its first sentence, if a word near the middle of it is a single token.

    Yields the text before the word, the word, the text after it, the sentence's token ids, and the
    word's index among them.
    """

    def ids_of(words: list[str]) -> list[int]:
        return list(tokenizer.encode(" ".join(words), add_special_tokens=False).ids)

    with open_text(heldout) as lines:
        for line in lines:
            text = " ".join(json.loads(line)["text"].split())
            for sentence in re.findall(r"[A-Z][^.!?]{40,140}[.!?]", text)[:1]:
                words = sentence.split(" ")
                middle = len(words) // 2
                for at in (middle, middle + 1, middle - 1, middle + 2):
                    if not 0 < at < len(words) - 1 or not re.fullmatch(r"[a-z]{4,}", words[at]):
                        continue
                    gap, ids = len(ids_of(words[:at])), ids_of(words)
                    if ids_of(words[: at + 1]) == ids[: gap + 1]:  # the word adds one token
                        before, after = " ".join(words[:at]), " ".join(words[at + 1 :])
                        yield before, words[at], after, ids, gap
                        break
