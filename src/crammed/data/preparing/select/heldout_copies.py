"""Keeps documents that repeat held-out text out of training.

Held-out loss would otherwise measure what a model has memorised. Jobs hash the held-out text, the
stage ``select`` compares each shard with it, and further jobs find the copies once all shards
together have revealed what many documents share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crammed.data.preparing.cleaning.copies import MOST_DOCUMENTS, Runs, write_table
from crammed.data.preparing.select.selection import Selection
from crammed.data.preparing.select.selection_job import (
    SelectedShard,
    heldout_documents,
    load_runs,
    read_matches,
)
from crammed.data.samples import SAMPLES_OF_A_SHARD, Sample, sample
from crammed.data.shards import documents, load
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.files.writing import save_array
from crammed.machine.engine import Engine

STEP = "copies of held-out text"


def write_heldout_runs(file: Path, shards: Sequence[SelectedShard], engine: Engine) -> None:
    """Write the table of the held-out documents' runs, 16 bytes for each word."""
    holding = (shard for shard in shards if shard.selection.heldout.any())
    write_table(file, engine.map(_runs, holding))


def _runs(shard: SelectedShard) -> Runs:
    """The runs of a shard's held-out documents."""
    return Runs.of(cut_into_chunks(heldout_documents(shard)))


def _copies(
    job: tuple[SelectedShard, Path, Path],
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """The numbers of the documents that repeat held-out text, their characters, and samples."""
    shard, runs, frequent = job
    matches, characters = read_matches(shard.out)
    copies = matches.without(np.load(frequent)).copies(load_runs(runs))
    numbers = np.flatnonzero(shard.selection.repeats)[copies]
    texts = documents(shard.slices, numbers[:SAMPLES_OF_A_SHARD].tolist())
    return numbers, characters[copies], texts


def without_copies(
    selection: Selection, shards: Sequence[SelectedShard], runs: Path, engine: Engine
) -> Selection:
    """The selection without the documents that repeat held-out text.

    Args:
        runs: the file that `write_heldout_runs` wrote.
    """
    many = MOST_DOCUMENTS + 1
    count = np.load(runs, mmap_mode="r").shape[1]
    spread = np.zeros(count, np.uint8)  # in how many documents each run is, or `many`
    for shard in shards:
        numbers, in_documents = load(shard.out, "matched-runs.npy")
        spread[numbers] = np.minimum(spread[numbers] + np.minimum(in_documents, many), many)
    frequent = runs.with_name("frequent-runs.npy")
    save_array(frequent, np.flatnonzero(spread == many))
    jobs = ((shard, runs, frequent) for shard in shards)
    repeats = selection.repeats.copy()
    samples, dropped, characters, packed = list[Sample](), 0, 0, 0
    for place, (numbers, sizes, texts) in enumerate(engine.map(_copies, jobs)):
        own = repeats[slice(*selection.range_of(place))]
        packed += int((sizes * own[numbers]).sum())
        own[numbers] = 0
        dropped += len(numbers)
        characters += int(sizes.sum())
        samples += [sample(STEP, shards[place].source, text) for text in texts]
    kept = selection.documents - dropped
    step = {"step": STEP, "kept": kept, "dropped": dropped, "characters": characters}
    return replace(
        selection,
        repeats=repeats,
        documents=kept,
        characters=selection.characters - characters,
        packed_characters=selection.packed_characters - packed,
        steps=[*selection.steps, step],
        samples=[*selection.samples, *samples],
    )
