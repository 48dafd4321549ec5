"""What a run does before its first update, on its budget: it sets embeddings from its text."""

from __future__ import annotations

from crammed.budget import Work
from crammed.config import RunConfig
from crammed.data.corpus import RowStream
from crammed.model.cooccurrence import begin_with_neighbours
from crammed.model.encoder import MaskedLM
from crammed.terminal.progress import Progress
from crammed.training.plan import Planner

MOST_TOKENS = 16_000_000
"""Most tokens to count, a few seconds of work; float32 counts exactly up to 16.7 million."""
TOKENS_A_SECOND = 50_000
"""Tokens to count for each second of a time budget. Any core can count twenty times as many, so
most of the time is left for training."""


def start_embeddings(
    config: RunConfig,
    model: MaskedLM,
    stream: RowStream,
    corpus_rows: int,
    planner: Planner,
    progress: Progress,
) -> None:
    """Set the embeddings of a new model as `model.embedding_start` says.

    Args:
        stream: the rows of the run, the first of which are counted.
        corpus_rows: number of rows in the corpus.
    """
    if config.model.embedding_start == "random":
        return
    with progress.task("embeddings") as task:
        rows = stream.read(0, rows_to_count(config, corpus_rows, planner))
        table = model.encoder.tokens.weight
        begin_with_neighbours(table, rows, config.model.first_embedding_std, config.seed)
        task.update(1.0, f"initialised from co-occurrence in {rows.size:,} tokens of text")


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
