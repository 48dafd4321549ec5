"""The manifest of a corpus: its sources, what each step did, and the hash of every file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

import crammed
from crammed.config import DataConfig, TokenizerConfig
from crammed.config.corpus import LEAST_TOKENS
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_rows
from crammed.data.preparing.cleaning import entities
from crammed.data.preparing.cleaning.language import identified_by
from crammed.data.preparing.cleaning.steps import settings_of
from crammed.data.preparing.pack.packing_job import Packed
from crammed.data.preparing.read.cleaned import CleanedText
from crammed.data.preparing.read.part import Part
from crammed.data.preparing.read.reading_job import fingerprints
from crammed.data.preparing.read.source import listed, open_sources
from crammed.data.preparing.select.given_heldout import GivenHeldout
from crammed.data.preparing.select.mixing import Mixed
from crammed.data.samples import Sample, write_samples
from crammed.data.statistics import Statistics, unigram_cross_entropy
from crammed.data.tokenization.tokenizer import Specials, vocabulary_size
from crammed.errors import InputError
from crammed.files.hashes import sha256
from crammed.files.writing import write_gzip, write_json
from crammed.formats.lines import json_values
from crammed.quantity import counted

SCHEMA = 2
PARTS = "parts.jsonl.gz"
MOST_PARTS = 1000
"""Parts that a manifest lists; more are listed in the file `PARTS`."""


@dataclass(frozen=True)
class StageResults:
    """What the stages of a preparation found.

    Attributes:
        tokens_left_out: tokens that did not fill a row.
        given: the held-out documents, if they were given.
    """

    text: CleanedText
    mixed: Mixed
    tokenizer: Tokenizer
    packed: Sequence[Packed]
    statistics: Statistics
    tokens_left_out: int
    given: GivenHeldout | None


def write_manifest(
    corpus: Path, data: DataConfig, tokenizer_config: TokenizerConfig, results: StageResults
) -> None:
    """Write dropped.jsonl.gz, parts.jsonl.gz and then manifest.json, the last of all files.

    Raises:
        InputError: the held-out text is shorter than a row.
    """
    for left in (corpus / "manifest.json", *corpus.glob(".*")):  # left by a call that was killed
        left.unlink(missing_ok=True)
    write_samples(corpus, _samples(results))
    if tokenizer_config.file is not None:  # its vocabulary is what it is
        size = max(LEAST_TOKENS, vocabulary_size(results.tokenizer))
        tokenizer_config = tokenizer_config.model_copy(update={"vocab_size": size})
    packed, statistics = results.packed, results.statistics
    sources = _sources(corpus, results.text)
    tokens = sum(each.tokens for each in packed)
    manifest = {
        "schema": SCHEMA,
        "crammed": crammed.__version__,
        **settings_json(data, tokenizer_config),
        **_outside_rules(data),
        "sources": [
            {
                **source,
                "weight": results.mixed.weights[source["name"]],
                "documents": statistics.documents[source["name"]],
                "characters": statistics.characters[source["name"]],
            }
            for source in sources
        ],
        "skipped": [
            *results.text.skipped,
            *(
                {"part": each.part, "records": each.records, "why": str(each)}
                for each in results.text.lost
            ),
        ],
        "steps": _steps(data, results),
        "documents": sum(each.unique for each in packed),
        "characters": sum(each.characters for each in packed),
        "tokens": tokens,
        "rows": (tokens - results.tokens_left_out) // data.row_length,
        "row_length": data.row_length,
        "tokens_left_out": results.tokens_left_out,
        "vocab_size": vocabulary_size(results.tokenizer),
        "statistics": statistics.summary(Specials.of(results.tokenizer).unk),
        "heldout": _heldout(corpus, data, results),
        "files": listed_files(
            corpus, {f"rows-{number:05d}.bin": each.sha256 for number, each in enumerate(packed)}
        ),
    }
    write_json(corpus / "manifest.json", manifest)


def _outside_rules(data: DataConfig) -> dict[str, str]:
    """Why a model that is trained on the corpus does not count by docs/rules.md."""
    clean = data.clean
    whys = []
    if clean.languages is not None:
        whys.append(
            f"data.clean.languages: {identified_by()}, a trained model, chose the documents"
        )
    if clean.entities is not None:
        name = entities.without_folder(clean.entities).partition("@")[0]
        by = f"{name} ({entities.found_by()}), a trained model"
        whys.append(f"{entities.KEY}: {by}, chose words to replace")
    return {"outside_rules": "; ".join(whys)} if whys else {}


def _sources(corpus: Path, text: CleanedText) -> list[dict[str, Any]]:
    """Each source with its parts, which are left out if there are many: then a file lists them."""
    few = list(islice(_parts(text), MOST_PARTS + 1))
    listed = len(few) <= MOST_PARTS
    if not listed:
        write_parts(corpus, ({"source": place, **part} for place, part in _parts(text)))
    return [
        {
            "name": source.name,
            "weight": source.weight,
            **({"parts": [part for n, part in few if n == place]} if listed else {}),
        }
        for place, source in enumerate(text.sources)
    ]


def _parts(text: CleanedText) -> Iterator[tuple[int, dict[str, Any]]]:
    """The fingerprint of every part that was read, with the place of its source."""
    for place, folders in enumerate(text.folders):
        for folder in folders:
            for part in fingerprints(folder):
                yield place, part


def write_parts(folder: Path, parts: Iterable[Mapping[str, Any]]) -> None:
    """Write the file `PARTS`: fingerprints of parts, each with the number of its source."""
    write_gzip(folder / PARTS, (json.dumps(part).encode() + b"\n" for part in parts))


def read_parts(corpus: Corpus) -> Iterator[dict[str, Any]]:
    """What `write_parts` wrote; nothing if the manifest itself lists the parts."""
    if PARTS in corpus.manifest["files"]:
        yield from json_values(corpus.path / PARTS)


def parts_of(corpus: Corpus) -> Iterator[dict[str, Any]]:
    """The fingerprints of all parts that a corpus was made from."""
    for part in read_parts(corpus):
        del part["source"]
        yield part
    for source in corpus.manifest["sources"]:
        yield from source.get("parts", ())


def settings_json(data: DataConfig, tokenizer: TokenizerConfig) -> dict[str, Any]:
    """The settings that a manifest keeps, as ``data`` and ``tokenizer``.

    It keeps neither sources nor anything else that names a folder on this machine.
    """
    return {
        "data": {
            **data.model_dump(mode="json", exclude={"sources", "unreadable"}),
            "clean": settings_of(data.clean),
        },
        "tokenizer": tokenizer.model_dump(mode="json", exclude={"file"}),
    }


def changed_files(corpus: Corpus, data: DataConfig, *, hashed: bool = True) -> list[str]:
    """Names of the sources' files that are new or have changed since the corpus was made.

    Files that are gone or cannot be read any more do not count, nor does standard input, which
    cannot be read again.

    Args:
        hashed: whether to read and hash all files instead of comparing only their sizes.
    """
    skipped = [each for each in corpus.manifest["skipped"] if "records" not in each]
    parts = chain(parts_of(corpus), (each["content"] for each in skipped if "content" in each))
    known = {json.dumps(part if hashed else _sized(part["name"], part)) for part in parts}
    names = {each["part"] for each in skipped if "content" not in each}  # of older versions
    files = [each for each in data.sources if each.max_characters is None and each.is_on_disk]

    def now(part: Part) -> dict[str, Any]:
        return part.fingerprint() if hashed else _sized(part.name, part.state())

    changed = []
    for file in files:  # each by itself: one that is gone says nothing about the others
        with suppress(InputError):
            (source,) = open_sources(
                data.model_copy(update={"sources": (file,), "unreadable": "skip"})
            )
            for part in source.parts:
                with suppress(InputError):
                    if part.name not in names and json.dumps(now(part)) not in known:
                        changed.append(part.name)
    return changed


def unchanged(corpus: Corpus, data: DataConfig, *, hashed: bool = True) -> Corpus:
    """The corpus, if its text is still as it was prepared.

    Args:
        hashed: as for `changed_files`.

    Raises:
        InputError: the text has changed.
    """
    if changed := changed_files(corpus, data, hashed=hashed):
        files = f"{counted(len(changed), 'file')} {'is' if len(changed) == 1 else 'are'}"
        raise InputError(
            f"{files} new or changed since {corpus.path} was prepared ({listed(changed)}): choose "
            "another --out"
        )
    return corpus


def _sized(name: str, part: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "bytes": part.get("bytes")}


def _samples(results: StageResults) -> Iterator[Sample]:
    """Samples of the documents that steps dropped, in the order of the steps."""
    yield from results.text.samples
    yield from results.mixed.selection.samples
    for each in results.packed:
        yield from each.samples


def _steps(data: DataConfig, results: StageResults) -> list[dict[str, Any]]:
    """Documents kept, dropped and changed by each step, in order, and the characters dropped."""
    dropped = results.text.dropped
    kept = results.text.documents + sum(documents for documents, _ in dropped.values())
    steps: list[dict[str, Any]] = []
    for step, (documents, characters) in dropped.items():
        kept -= documents
        counts = {"kept": kept, "dropped": documents, "characters": characters}
        more = {"changed": changed} if (changed := results.text.changed[step]) else {}
        steps.append({"step": step, **counts, **more})
    steps += results.mixed.selection.steps
    if data.clean.max_tokens_per_character is not None:
        steps.append(
            {
                "step": "tokens per character",
                "kept": sum(each.unique for each in results.packed),
                "dropped": sum(each.dense for each in results.packed),
                "characters": sum(each.dense_characters for each in results.packed),
            }
        )
    return steps


def _heldout(corpus: Path, data: DataConfig, results: StageResults) -> dict[str, Any]:
    file = corpus / "heldout.jsonl.gz"
    row, more = data.row_length, "" if results.given else ", raise data.heldout_fraction"
    rows = heldout_rows(
        *(results.tokenizer, file, data.heldout_rows, row),
        framed=data.sep,
        too_short=f"the held-out text is shorter than one row of {row} tokens: add text{more} or "
        "lower data.row_length",
    )
    counts = results.statistics.token_counts
    return {
        "documents": results.mixed.selection.heldout_documents,
        "characters": results.mixed.selection.heldout_characters,
        "share": results.mixed.selection.heldout_share,
        "rows": len(rows.ids),
        "tokens_per_character": rows.tokens_per_character,
        "unigram_cross_entropy": unigram_cross_entropy(counts, rows.ids),
        **({"parts": list(results.given.parts)} if results.given and results.given.parts else {}),
    }


def listed_files(corpus: Path, hashes: Mapping[str, str | None]) -> dict[str, dict[str, Any]]:
    """Size and hash of every file in a folder; some hashes are known already."""
    return {
        name: {
            "bytes": os.path.getsize(corpus / name),
            "sha256": hashes.get(name) or sha256(corpus / name),
        }
        for name in sorted(os.listdir(corpus))
        if name != "manifest.json"
    }
