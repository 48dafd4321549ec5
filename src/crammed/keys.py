"""Keyed randomness: every random draw depends only on its key (seed, purpose, index)."""

from __future__ import annotations

import hashlib


def key(seed: int, purpose: str, index: int = 0) -> int:
    """A 63-bit integer that depends on these three values and nothing else."""
    text = f"{seed}/{purpose}/{index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def uniform(text: str, digest_size: int = 8) -> float:
    """A uniform number from 0 to 1, the same on every machine: a BLAKE2b digest of the text."""
    digest = hashlib.blake2b(text.encode(), digest_size=digest_size).digest()
    return int.from_bytes(digest, "big") / (1 << 8 * digest_size)
