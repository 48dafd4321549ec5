"""Whether the two ways to encode text agree; a module, which worker processes can import."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer

from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.data.tokenization.encoding import CorpusTokenizer


def differing(job: tuple[str, list[str]]) -> tuple[int, int]:
    """The number of documents, and how many of them the two encoders tokenize differently."""
    tokenizer, texts = job
    encoder = CorpusTokenizer(Tokenizer.from_str(tokenizer))
    fast, slow = encoder.encode_chunks(cut_into_chunks(texts)), encoder.encode_texts(texts)
    if np.array_equal(fast[0], slow[0]) and np.array_equal(fast[1], slow[1]):
        return len(texts), 0
    documents = zip(np.split(fast[0], fast[1][:-1]), np.split(slow[0], slow[1][:-1]), strict=True)
    return len(texts), sum(not np.array_equal(a, b) for a, b in documents)
