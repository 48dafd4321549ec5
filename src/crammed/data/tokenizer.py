"""A WordPiece tokenizer trained on the corpus, the same bytes every time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from crammed.config import TokenizerConfig
from crammed.errors import InputError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens; their ids are their places here, in every tokenizer of ours."""
PAD, UNK, CLS, SEP, MASK = range(len(SPECIALS))

_ALPHABET_SHARE = 0.5
"""Largest share of the vocabulary that single characters may take."""


def train_tokenizer(documents: Callable[[], Iterable[str]], config: TokenizerConfig) -> Tokenizer:
    """Train on `documents`, which is called twice: for the characters, then for the pieces.

    The library's trainer numbers continuing characters in the order of a hash map, so two
    trainings differ. Here the characters are counted first and every ``##c`` is handed to the
    trainer as if it were special, which fixes all ids; the vocabulary is then put into a fresh
    tokenizer, in which only `SPECIALS` are special.

    Raises:
        InputError: the vocabulary is too small for the text's characters.
    """
    characters = _count_characters(documents(), config)
    room = int(_ALPHABET_SHARE * (config.vocab_size - len(SPECIALS)) / 2)
    ranked = sorted(characters, key=lambda c: (-characters[c], c))[:room]
    if not ranked:
        raise InputError("the corpus holds no characters that the tokenizer keeps")
    alphabet = sorted(ranked)
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=2,
        special_tokens=[*SPECIALS, *(f"##{c}" for c in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    draft = _untrained(config, {})
    draft.train_from_iterator(documents(), trainer)
    return finish(_untrained(config, draft.get_vocab(with_added_tokens=True)))


def _count_characters(documents: Iterable[str], config: TokenizerConfig) -> Counter[str]:
    """Characters after normalisation, white space left out."""
    normalizer = _normalizer(config)
    counted: Counter[str] = Counter()
    for text in documents:
        counted.update(normalizer.normalize_str(text))
    return Counter({c: n for c, n in counted.items() if not c.isspace()})


def _normalizer(config: TokenizerConfig) -> Any:
    bert = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=config.strip_accents,
        lowercase=config.lowercase,
    )
    if config.ascii_only:
        return normalizers.Sequence([bert, normalizers.Replace(Regex(r"[^\x00-\x7F]"), "")])
    return bert


def _untrained(config: TokenizerConfig, vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = _normalizer(config)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def finish(tokenizer: Tokenizer) -> Tokenizer:
    """Make `SPECIALS` special, and add [CLS] and [SEP] where a caller asks for special tokens."""
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    ids = [tokenizer.token_to_id(token) for token in SPECIALS]
    if ids != list(range(len(SPECIALS))):
        raise InputError(f"the special tokens {SPECIALS} must have the ids 0 to 4, not {ids}")
    return tokenizer


def to_json(tokenizer: Tokenizer) -> str:
    """tokenizer.json, with the vocabulary in the order of its ids."""
    values = json.loads(tokenizer.to_str())
    vocabulary = values["model"]["vocab"]
    values["model"]["vocab"] = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    return json.dumps(values, ensure_ascii=False, indent=1)
