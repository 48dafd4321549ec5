"""Keeps documents that repeat held-out text out of training.

Held-out loss would otherwise measure what a model has memorised. Jobs hash the held-out text, the
stage ``select`` compares each shard with it, and the driver drops the copies, which only
all shards together reveal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from crammed.data.preparing.cleaning.copies import MOST_DOCUMENTS, HeldoutRuns, Runs, write_table
from crammed.data.preparing.read.cleaned import Shard
from crammed.data.preparing.select.selection import Selection
from crammed.data.preparing.select.selection_job import (
    ShardSelection,
    heldout_documents,
    read_matches,
)
from crammed.data.samples import SAMPLES_OF_A_SHARD, Sample, sample
from crammed.data.shards import Slices, documents
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.machine.engine import Engine

STEP = "copies of held-out text"


def write_heldout_runs(
    file: Path, shards: Sequence[Shard], selection: Selection, engine: Engine
) -> None:
    """Write the table of the held-out documents' runs, 16 bytes for each word."""
    pairs = zip(shards, selection.shards, strict=True)
    jobs = ((shard.slices, chosen) for shard, chosen in pairs if chosen.heldout.any())
    write_table(file, engine.map(_runs, jobs))


def _runs(job: tuple[Slices, ShardSelection]) -> Runs:
    """The runs of a shard's held-out documents."""
    return Runs.of(cut_into_chunks(heldout_documents(*job)))


def without_copies(
    selection: Selection, shards: Sequence[Shard], outs: Sequence[Path], runs: Path
) -> Selection:
    """The selection without the documents that repeat held-out text.

    Args:
        outs: path of each shard's files from the stage ``select`` on.
        runs: the file that `write_heldout_runs` wrote.
    """
    held = HeldoutRuns(np.load(runs, mmap_mode="r"))
    spread = np.zeros(len(held.hashes), np.uint8)  # in how many documents each run is, or `many`
    many = MOST_DOCUMENTS + 1
    for out in outs:
        numbers, in_documents = read_matches(out).spread
        spread[numbers] = np.minimum(spread[numbers] + np.minimum(in_documents, many), many)
    frequent = np.flatnonzero(spread == many)
    left, samples, dropped, characters, packed = [], list[Sample](), 0, 0, 0
    for shard, out, chosen in zip(shards, outs, selection.shards, strict=True):
        found = read_matches(out)
        copies = found.matches.without(frequent).copies(held)
        numbers = np.flatnonzero(chosen.repeats)[copies]
        repeats = chosen.repeats.copy()
        repeats[numbers] = 0
        left.append(replace(chosen, repeats=repeats))
        dropped += len(copies)
        characters += int(found.characters[copies].sum())
        packed += int((found.characters[copies] * chosen.repeats[numbers]).sum())
        for text in documents(shard.slices, numbers[:SAMPLES_OF_A_SHARD].tolist()):
            samples.append(sample(STEP, shard.source.name, text))
    kept = selection.documents - dropped
    step = {"step": STEP, "kept": kept, "dropped": dropped, "characters": characters}
    return replace(
        selection,
        shards=left,
        documents=kept,
        characters=selection.characters - characters,
        packed_characters=selection.packed_characters - packed,
        steps=[*selection.steps, step],
        samples=[*selection.samples, *samples],
    )
