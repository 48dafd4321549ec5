"""The held-out documents of another corpus, to hold out instead of choosing some.

This allows corpora made in different ways, or from different text, to be compared on the same
documents, which none of them trains on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_texts
from crammed.data.preparing.cleaning.copies import heldout_hashes
from crammed.data.shards import digests_of
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.files.writing import save_array

SEAM_STEP = "seam of the held-out text"
"""Name of the step if the end of a document is held out, since every document is too large."""
_AT_ONCE = 10_000
"""Number of documents cut into chunks at a time."""


@dataclass(frozen=True)
class GivenHeldout:
    """Held-out documents.

    Attributes:
        file: JSON lines with a field ``text``, as in every corpus.
        sha256: hash of the file.
        end: the held-out text, if it is the end of a document whose rest is trained on; None if
            whole documents are held out.
        documents, characters: their numbers.
    """

    file: Path
    sha256: str
    end: str | None
    documents: int
    characters: int

    @classmethod
    def of(cls, corpus: Corpus) -> GivenHeldout:
        """The held-out documents of a corpus."""
        manifest, file = corpus.manifest, corpus.heldout
        split = any(step["step"] == SEAM_STEP for step in manifest["steps"])
        return cls(
            file=file,
            sha256=manifest["files"][file.name]["sha256"],
            end=next(heldout_texts(file)) if split else None,
            documents=manifest["heldout"]["documents"],
            characters=manifest["heldout"]["characters"],
        )

    def among(self, digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """[n] whether each document is among them, by its digest; digests [n, 2]."""
        own = digests_of(heldout_texts(self.file))
        return np.isin(digests[:, 0], own[:, 0]) & np.isin(digests[:, 1], own[:, 1])

    def write_runs(self, file: Path) -> None:
        """Write the hashes of the documents' runs, as `write_heldout_runs` does."""
        save_array(file, heldout_hashes(map(cut_into_chunks, self._lists())))

    def _lists(self) -> Iterator[list[str]]:
        texts = heldout_texts(self.file)
        while some := list(islice(texts, _AT_ONCE)):
            yield some
