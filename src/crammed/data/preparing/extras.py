"""The optional libraries that a preparation needs."""

from __future__ import annotations

from crammed.config import DataConfig, TokenizerConfig
from crammed.data.preparing.cleaning import entities, language, near, substring
from crammed.data.tokenization.training import unigram_library


def require_extras(data: DataConfig, tokenizer: TokenizerConfig) -> None:
    """Report a missing library now rather than hours later.

    Raises:
        InputError: one is missing; names the extra that installs it.
    """
    if data.clean.near is not None:
        near.minhash_library()
    if data.clean.languages is not None:
        language.identification_library()
    if data.clean.entities is not None:
        entities.entity_library()
    if data.clean.substring is not None:
        substring.suffix_sorting_library()
    if tokenizer.kind == "unigram" and tokenizer.file is None:
        unigram_library()
