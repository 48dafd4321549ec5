"""How many altered copies of held-out documents stay among the documents to train on.

    python benchmarks/copies.py FILE... [--characters 20_000_000] [--out RESULT.json]

For each file, 2 % of the documents are held out by a hash, and the others that the preparation
drops without any planted copy are counted. Then copies of the held-out documents are planted among
the documents, altered in one way at a time, and those that the corpus trains on are counted;
``kept_before`` is their number with `data.heldout_copies=keep`. Sentences of 8 to 25 words, as
documents of their own, stand for short documents.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from common import report, run
from crammed.config import DataConfig, SourceConfig, TokenizerConfig
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_texts
from crammed.data.preparing.cleaning.unicode import normalise
from crammed.data.preparing.driver import prepare
from crammed.data.preparing.read.source import open_sources
from crammed.data.preparing.select.duplicates import known_documents
from crammed.data.preparing.select.heldout_copies import STEP
from crammed.data.shards import digests_of
from crammed.errors import InputError
from crammed.files.hashes import sha256
from crammed.terminal.progress import SILENT

HELD_OUT = 0.02
SENTENCE = range(8, 26)
"""Words of a sentence that is taken for a short document."""

Words = list[str]
Alter = Callable[[Words, "Others"], str]
"""Makes a copy of a document's words."""


class Others:
    """Words and text of the documents that are not held out, drawn in a fixed order."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._draw = random.Random(0)
        self._words = sorted({word for text in texts[:1000] for word in text.split()})

    def word(self, unlike: str) -> str:
        """A word that differs from this one in more than case and punctuation."""
        while (found := self._draw.choice(self._words)).lower() in unlike.lower():
            pass
        return found

    def words(self, count: int) -> Words:
        """The words of documents, at least so many."""
        found: Words = []
        while len(found) < count:
            found += self._draw.choice(self._texts).split()
        return found

    def place(self, words: Words) -> int:
        return self._draw.randrange(len(words))


def _changed(every: int) -> Alter:
    def alter(words: Words, others: Others) -> str:
        return " ".join(word if n % every else others.word(word) for n, word in enumerate(words, 1))

    return alter


def _inside(times: int) -> Alter:
    def alter(words: Words, others: Others) -> str:
        half = times * len(words) // 2
        return " ".join([*others.words(half), *words, *others.words(half)])

    return alter


def _one_changed(words: Words, others: Others) -> str:
    place = others.place(words)
    return " ".join([*words[:place], others.word(words[place]), *words[place + 1 :]])


OF_DOCUMENTS: dict[str, Alter] = {
    **{f"every {each}th word changed": _changed(each) for each in (8, 10, 12, 20)},
    "the first half": lambda words, _: " ".join(words[: len(words) // 2]),
    **{f"inside {times} times other text": _inside(times) for times in (6, 20)},
    "U+00A0 for spaces": lambda words, _: "\u00a0".join(words),
}
OF_SENTENCES: dict[str, Alter] = {"8 to 25 words, one changed": _one_changed}


class Trial:
    """Prepares one text again and again.

    `dropped` is how many documents are dropped when no copies are planted.
    """

    def __init__(self, texts: Sequence[str], folder: Path) -> None:
        self._texts, self._folder, self._made = texts, folder, 0
        self._tokenizer = TokenizerConfig(vocab_size=8192)
        self._heldout: Path | None = None
        corpus = self._prepared([], "drop")
        self._tokenizer = TokenizerConfig(file=str(corpus.path / "tokenizer.json"))
        self._heldout = corpus.heldout
        self.heldout = list(heldout_texts(corpus.heldout))
        (self.dropped,) = (s["dropped"] for s in corpus.manifest["steps"] if s["step"] == STEP)

    def counts(self, kinds: dict[str, Alter]) -> dict[str, dict[str, int]]:
        """The copies planted, and those kept before and now, for each way to alter them."""
        held = set(self.heldout)
        others = Others([text for text in self._texts if text not in held])
        planted = {
            kind: [normalise(alter(text.split(), others)) for text in self.heldout]
            for kind, alter in kinds.items()
        }
        before = self._prepared([copy for copies in planted.values() for copy in copies], "keep")
        found = {}
        for kind, copies in planted.items():
            found[kind] = {
                "planted": len(copies),
                "kept_before": _among(copies, before),
                "kept": _among(copies, self._prepared(copies, "drop")),
            }
            print(json.dumps({kind: found[kind]}))
        return found

    def _prepared(self, copies: Sequence[str], how: str) -> Corpus:
        self._made += 1
        file = self._folder / "planted.jsonl"
        text = "".join(json.dumps({"text": each}) + "\n" for each in (*self._texts, *copies))
        file.write_text(text, "utf-8")
        held_out = {"heldout_fraction": HELD_OUT, "heldout_rows": 1, "heldout_copies": how}
        data = DataConfig.model_validate({"sources": [str(file)], **held_out})
        heldout = None if self._heldout is None else [str(self._heldout)]
        out = self._folder / f"corpus-{self._made}"
        return prepare(data, self._tokenizer, out, SILENT, heldout=heldout)


def _among(copies: Sequence[str], corpus: Corpus) -> int:
    """How many of the copies a corpus trains on."""
    known = known_documents(corpus)
    assert known is not None
    return int(np.isin(digests_of(copies)[:, 0], known).sum())


def _documents(file: Path, characters: int) -> list[str]:
    """The documents at the beginning of a file, as cleaning leaves them, each once."""
    found: dict[str, None] = {}
    data = DataConfig(sources=(SourceConfig(path=str(file)),))
    size = 0
    for part in (part for source in open_sources(data) for part in source.parts):
        for text in part.documents():
            found[normalise(text)] = None
            size += len(text)
            if size >= characters:
                return list(found)
    return list(found)


def _sentences(texts: Sequence[str]) -> list[str]:
    every = (sentence for text in texts for sentence in re.split(r"(?<=[.!?])\s+", text))
    kept = (" ".join(each.split()) for each in every if len(each.split()) in SENTENCE)
    return list(dict.fromkeys(kept))


def _of_file(file: Path, characters: int) -> dict[str, Any]:
    texts, trials = _documents(file, characters), []
    forms = (("documents", texts, OF_DOCUMENTS), ("sentences", _sentences(texts), OF_SENTENCES))
    for form, of, kinds in forms:
        with TemporaryDirectory(prefix="crammed-benchmark-") as folder:
            trial = Trial(of, Path(folder))
            counts = trial.counts(kinds)
        shown = {"of": form, "documents": len(of), "held_out": len(trial.heldout)}
        trials.append({**shown, "dropped_without": trial.dropped, "copies": counts})
    about = {"source": file.name.partition(".")[0], "sha256": sha256(file)}
    return {**about, "characters": sum(map(len, texts)), "trials": trials}


def main(
    files: list[Path],
    characters: Annotated[
        int, typer.Option(help="Read at most this many characters of each file.")
    ] = 20_000_000,
    out: Path | None = None,
) -> None:
    if missing := [file for file in files if not file.is_file()]:
        raise InputError(f"{missing[0]} is not a file")
    report("copies", out, files=[_of_file(file, characters) for file in files])


if __name__ == "__main__":
    run(main)
