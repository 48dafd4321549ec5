"""Examples of how a trained model fills gaps in sentences that it has never seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from tokenizers import Encoding, Tokenizer

from crammed.data.heldout import heldout_texts
from crammed.data.tokenization.tokenizer import Specials
from crammed.evaluation.backbones.base import SparseMaskedLM
from crammed.machine.device import Device
from crammed.sentences import at_border, columns, is_unspaced, is_word, sentences

EXAMPLES = 8
_SHORTEST, _LONGEST = 40, 140
"""Columns of a sentence."""
_SENTENCES_A_DOCUMENT = 50
_CHARACTERS_A_DOCUMENT = 20_000


class Trained(Protocol):
    """A masked language model whose training has ended."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def row_length(self) -> int: ...

    def masked_lm(self, device: torch.device) -> SparseMaskedLM: ...


def fill_mask_examples(final: Trained, heldout: Path, device: Device) -> list[dict[str, Any]]:
    """Mask one word in a sentence of each of the first `EXAMPLES` suitable held-out documents.

    Args:
        heldout: JSON lines with a field ``text``.

    Returns:
        for each sentence, ``before``, ``word`` and ``after``: the masked word (where no spaces are
        written, perhaps a part of one) and the text around it; ``guesses``: tokens and their
        probabilities, best first; ``rank``: that of the right token in the vocabulary, from 1; and
        ``exact``: whether the text has the white space around the word; older versions lost it.
    """
    model = final.masked_lm(device.torch)
    specials = Specials.of(final.tokenizer)
    examples = []
    gaps = (_gap_of_document(text, final) for text in heldout_texts(heldout))
    for before, word, after, ids, gap in islice(filter(None, gaps), EXAMPLES):
        right_id, masked = ids[gap], [*ids, specials.sep]
        masked[gap] = specials.mask
        with torch.inference_mode():
            at = torch.tensor([[gap]], device=device.torch)
            logits = model(torch.tensor([masked], device=device.torch), at)[0, 0].float().cpu()
        values, indices = logits.softmax(-1).topk(5)
        guesses = [
            (_shown(final.tokenizer, index), round(value, 4))
            for index, value in zip(indices.tolist(), values.tolist(), strict=True)
        ]
        rank = 1 + int((logits > logits[right_id]).sum())
        example: dict[str, Any] = {"before": before, "word": word, "after": after}
        examples.append({**example, "guesses": guesses, "rank": rank, "exact": True})
    return examples


def shortest_example(examples: Sequence[Mapping[str, Any]], mask: str) -> str:
    """The shortest of a run's sentences with `mask` in its gap; only the mask if there is none.

    Sentences with quotation marks, or what else a shell reads, only count if all have some.
    """
    sentences = [
        mask.join((each["before"], each["after"]))
        if each.get("exact")
        else f"{each['before']} {mask} {each['after']}"
        for each in examples
    ]
    plain = [each for each in sentences if not set(each) & set("\"'`$\\!")]
    return min(plain or sentences, key=len, default=mask)


def _shown(tokenizer: Tokenizer, index: int) -> str:
    text = tokenizer.decode([index], skip_special_tokens=False).strip()
    return text if text == "##" else text.removeprefix("##")


_Gap = tuple[str, str, str, list[int], int]
"""The text before a word, the word, the text after it, the sentence's ids, and the word's index."""


def _gap_of_document(text: str, final: Trained) -> _Gap | None:
    """A sentence of a document in which some word is a single token; None if it has none."""
    for sentence in _suitable(text[:_CHARACTERS_A_DOCUMENT]):
        encoding = final.tokenizer.encode(sentence, add_special_tokens=False)
        if len(encoding.ids) + 1 > final.row_length:
            continue
        if (found := _gap(sentence, encoding)) is not None:
            gap, start, end = found
            return sentence[:start], sentence[start:end], sentence[end:], encoding.ids, gap
    return None


def _suitable(text: str) -> Iterator[str]:
    """Sentences of a suitable length, then paragraphs, then the beginning of what is too long."""
    found = list(islice(sentences(text), _SENTENCES_A_DOCUMENT))
    for wanted in (True, False):
        for sentence, ended in found:
            if ended == wanted and _SHORTEST <= columns(sentence) <= _LONGEST:
                yield sentence
    for sentence, _ in found:
        if columns(sentence) > _LONGEST:
            beginning = sentence[:_LONGEST].rpartition(" ")[0]
            if columns(beginning) >= _SHORTEST:
                yield beginning


def _gap(sentence: str, encoding: Encoding) -> tuple[int, int, int] | None:
    """The token to mask: its index, and where its word begins and ends.

    It is the nearest to the middle that is a word by itself; words in small letters come first,
    since names can hardly be guessed.
    """
    spans = [_trimmed(sentence, *offsets) for offsets in encoding.offsets]
    words = [
        (sentence[start:end] != sentence[start:end].lower(), abs(index - len(spans) / 2), index)
        for index, (start, end) in enumerate(spans[1:-1], 1)
        if spans[index - 1][1] <= start and end <= spans[index + 1][0]
        and _is_whole(sentence, start, end)
    ]  # fmt: skip
    if not words:
        return None
    index = min(words)[2]
    return index, *spans[index]


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """A span without the white space at its ends, which some tokenizers include."""
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())


def _is_whole(text: str, start: int, end: int) -> bool:
    word = text[start:end]
    if not is_word(word) or not (at_border(text, start) and at_border(text, end)):
        return False
    return columns(word) >= 2 if is_unspaced(word[0]) else columns(word) >= 4
