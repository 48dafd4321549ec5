"""Held-out documents of another corpus or in files of their own, instead of chosen ones.

This allows corpora made in different ways, or from different text, to be compared on the same
documents, which none of them trains on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.config import CleanConfig, DataConfig, SourceConfig
from crammed.data import shards
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_texts
from crammed.data.preparing.cleaning.copies import Runs, write_table
from crammed.data.preparing.cleaning.steps import clean, steps_of
from crammed.data.preparing.read.cleaned import Block
from crammed.data.preparing.read.fetching import fetched
from crammed.data.preparing.read.reading_job import cut_by_characters
from crammed.data.preparing.read.source import open_sources
from crammed.data.preparing.select.duplicates import ALL, digests_between, occur
from crammed.data.preparing.select.selection_job import heldout_line
from crammed.data.shards import digests_of
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.errors import InputError
from crammed.files.hashes import sha256
from crammed.files.writing import write_gzip
from crammed.terminal.progress import Progress

SEAM_STEP = "seam of the held-out text"
"""Name of the step if the end of a document is held out, since every document is too large."""


@dataclass(frozen=True)
class GivenHeldout:
    """Held-out documents.

    Attributes:
        file: JSON lines with a field ``text``, and perhaps ``source``, as in every corpus.
        sha256: hash of the file.
        end: the held-out text, if it is the end of a document whose rest is trained on; None if
            whole documents are held out.
        documents, characters: their numbers.
        parts: fingerprints of the files that they are from, unless they are those of a corpus.
    """

    file: Path
    sha256: str
    end: str | None
    documents: int
    characters: int
    parts: tuple[dict[str, Any], ...] = ()

    @classmethod
    def given(
        cls,
        heldout: Corpus | Sequence[str],
        data: DataConfig,
        folder: Path,
        progress: Progress,
        option: str = "--heldout",
    ) -> GivenHeldout:
        """Those of a corpus, as `of`, or of files, as `read`, which `option` names."""
        if isinstance(heldout, Corpus):
            return cls.of(heldout)
        named = tuple(SourceConfig(path=path) for path in heldout)
        data = fetched(data.model_copy(update={"sources": named}), folder, progress)
        return cls.read(data, folder, option)

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

    @classmethod
    def read(cls, data: DataConfig, folder: Path, option: str = "--heldout") -> GivenHeldout:
        """All documents of `data.sources`, whose characters are cleaned.

        Args:
            folder: where to keep them.

        Raises:
            InputError: a file is missing, unreadable or of an unknown format, or all are empty.
        """
        parts = [part for source in open_sources(data) for part in source.parts]
        own = data.clean
        changing = CleanConfig(unicode=own.unicode, personal=own.personal, entities=own.entities)
        steps = steps_of(changing)
        sizes = Counter[str]()
        times, names = Counter[str](), list[str]()
        for part in parts:
            times[part.name] += 1
            again = f" ({times[part.name]})" if times[part.name] > 1 else ""
            names.append(f"{part.name}{again}")

        def lines() -> Iterator[bytes]:
            for part, name in zip(parts, names, strict=True):
                for text in part.documents():
                    if (found := clean(text, steps)).dropped_by is None:
                        sizes.update(documents=1, characters=len(found.text))
                        yield heldout_line(found.text, name if len(parts) > 1 else None)

        file = folder / "given-heldout.jsonl.gz"
        write_gzip(file, lines())
        if not sizes:
            raise InputError(f"{option} {parts[0].name} holds no text")
        known = tuple(part.fingerprint() for part in parts)
        return cls(file, sha256(file), None, sizes["documents"], sizes["characters"], known)

    def among(self, block: Block) -> NDArray[np.int64]:
        """The numbers of the documents of a block that are among them, by their digests."""
        digests, numbers = digests_between(block, 0, ALL)
        first, second = self._digests
        return numbers[occur(digests[:, 0], first) & occur(digests[:, 1], second)]

    @cached_property
    def _digests(self) -> NDArray[np.uint64]:
        """[2, n] both halves of their digests, each ascending."""
        return np.sort(np.ascontiguousarray(digests_of(heldout_texts(self.file)).T))

    def write_runs(self, file: Path) -> None:
        """Write the hashes of the documents' runs, as `write_heldout_runs` does."""
        lists = cut_by_characters(heldout_texts(self.file), shards.SHARD_CHARACTERS)
        write_table(file, (Runs.of(cut_into_chunks(some)) for some in lists))
