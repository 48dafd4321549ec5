"""Initialisation on the budget: weights are computed from the text before the first update."""

from __future__ import annotations

from crammed.budget import Work
from crammed.config import RunConfig
from crammed.data.corpus import RowStream
from crammed.model.cooccurrence import begin_with_neighbours
from crammed.terminal.progress import Progress
from crammed.training.gradinit import begin_with_scales
from crammed.training.plan import Planner
from crammed.training.update.step import TrainStep

MOST_TOKENS = 16_000_000
"""Most tokens to count, a few seconds of work; float32 counts exactly up to 16.7 million."""
TOKENS_A_SECOND = 50_000
"""Tokens to count for each second of a time budget; any core can count twenty times as many."""


def start_weights(
    config: RunConfig,
    step: TrainStep,
    stream: RowStream,
    corpus_rows: int,
    planner: Planner,
    progress: Progress,
) -> None:
    """Set the embeddings of a new model (`model.embedding_start`), then scales (`train.grad_init`).

    Args:
        stream: the rows of the run, the first of which are counted.
        corpus_rows: number of rows in the corpus.

    Raises:
        InputError: a batch of `train.grad_init` does not fit into the device's memory.
    """
    if config.model.embedding_start != "random":
        with progress.task("embeddings") as task:
            rows = stream.read(0, rows_to_count(config, corpus_rows, planner))
            table = step.model.encoder.tokens.weight
            begin_with_neighbours(table, rows, config.model.first_embedding_std, config.seed)
            task.update(1.0, f"initialised from co-occurrence in {rows.size:,} tokens of text")
    if (scaling := config.train.grad_init) is not None:
        with progress.task("scales", 1.0) as task:
            most = rows_to_count(config, corpus_rows, planner)
            rows = stream.read(0, max(1, min(2 * scaling.updates * scaling.rows, most)))
            scales = begin_with_scales(config, scaling, step, rows, task.update)
            low, high = scales.min().item(), scales.max().item()
            task.update(1.0, f"of the initial weights, between {low:.3g} and {high:.3g}")


def rows_to_count(config: RunConfig, corpus_rows: int, planner: Planner) -> int:
    """How many rows of the text to set the embeddings from.

    Each row counts once, and never more rows than the run will read, if that is known.
    """
    length, budget = config.data.row_length, config.budget.limit
    most = int(min(corpus_rows * length, MOST_TOKENS, planner.limits.most_tokens)) // length
    if budget.kind == "time":
        return min(most, int(budget.limit * TOKENS_A_SECOND) // length)
    work = Work()
    while work.rows < most and (update := planner.next(work)) is not None:
        work += update.cost
    return min(most, work.rows)
