"""The held-out documents of another corpus, which a corpus holds out in place of its own choice.

So corpora that are made in different ways, or of different text, can be compared on the same
documents, on which none of them trains.
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
from crammed.data.preparing.shards import digests_of
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.files.writing import save_array

SEAM_STEP = "seam of the held-out text"
"""The step of a corpus that holds out the end of a document, since each is too large."""
_AT_ONCE = 10_000
"""Documents that are cut into words at once."""


@dataclass(frozen=True)
class GivenHeldout:
    """Held-out documents.

    Attributes:
        file: JSON lines with a field ``text``, as in every corpus.
        sha256: of the file.
        end: the text that is held out, if it is the end of a document of which the rest is trained
            on; None if whole documents are.
        documents, characters: how many there are.
    """

    file: Path
    sha256: str
    end: str | None
    documents: int
    characters: int

    @classmethod
    def of(cls, corpus: Corpus) -> GivenHeldout:
        """Those of a corpus."""
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
        """Whether each document is one of them, by its digest; digests [n, 2]."""
        own = digests_of(heldout_texts(self.file))
        return np.isin(digests[:, 0], own[:, 0]) & np.isin(digests[:, 1], own[:, 1])

    def write_runs(self, file: Path) -> None:
        """Write the hashes of the documents' runs, as `write_heldout_runs` does."""
        save_array(file, heldout_hashes(map(cut_into_chunks, self._lists())))

    def _lists(self) -> Iterator[list[str]]:
        texts = heldout_texts(self.file)
        while some := list(islice(texts, _AT_ONCE)):
            yield some
