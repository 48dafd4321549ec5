"""Keyed randomness: every random draw depends only on its key (seed, purpose, index)."""

from __future__ import annotations

import hashlib


def key(seed: int, purpose: str, index: int = 0) -> int:
    """A 63-bit integer that depends on these three values and nothing else."""
    text = f"{seed}/{purpose}/{index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def uniform(text: str, digest_size: int = 8) -> float:
    """A uniform number from 0 to 1 that depends only on the text, the same on every machine.

    Args:
        digest_size: bytes of the BLAKE2b digest that is read as a fraction.
    """
    digest = hashlib.blake2b(text.encode(), digest_size=digest_size).digest()
    return int.from_bytes(digest, "big") / (1 << 8 * digest_size)
