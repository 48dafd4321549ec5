"""Every random draw has a key: (seed, purpose, index). Nothing else decides it."""

from __future__ import annotations

import hashlib


def key(seed: int, purpose: str, index: int = 0) -> int:
    """A 63-bit number that depends on all three and on nothing else."""
    text = f"{seed}/{purpose}/{index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
