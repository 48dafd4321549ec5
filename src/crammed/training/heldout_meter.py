"""Held-out loss during training: points of a curve to look at, on few rows so that it is quick.

The measurement after training uses all held-out rows.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

from crammed.budget import Work
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.data.heldout import rows_of_corpus
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import Diverged
from crammed.model.heldout import heldout_loss
from crammed.quantity import counted
from crammed.rules.sizing import expected_tokens
from crammed.training.session import Session

ROWS_READ_FOR_EACH_HELD_OUT = 100
FEWEST_ROWS = 32
MOST_ROWS = 512


def rows_on_the_way(
    config: RunConfig, speed: float | None = None, corpus_rows: int | None = None
) -> int:
    """Number of held-out rows for a measurement during training, fewer for short runs.

    It follows from what the run directory keeps, or otherwise from the device, so all points of a
    curve use the same rows.

    Args:
        speed: FLOP/s measured when the run began; None if not measured.
        corpus_rows: number of rows in the corpus; None if its length cannot end the run.
    """
    rows_read = expected_tokens(config, speed, corpus_rows) / config.data.row_length
    wanted = min(max(round(rows_read / ROWS_READ_FOR_EACH_HELD_OUT), FEWEST_ROWS), MOST_ROWS)
    return min(wanted, config.data.heldout_rows)


class HeldoutMeter:
    def __init__(self, session: Session, corpus: Corpus) -> None:
        run = session.run
        most = rows_on_the_way(run.config, run.choice.flops_per_second, corpus.rows)
        self._rows = rows_of_corpus(corpus, most)
        self._mask = Specials.of(corpus.tokenizer).mask
        self._session = session

    def measure(self, work: Work, u: float) -> None:
        """Measure now and record the loss as an event of the run.

        Raises:
            Diverged: the loss is not finite.
        """
        model, device = self._session.step.model, self._session.step.device
        device.synchronize()  # so that unfinished updates are booked as training
        average = self._session.step.average
        shown = nullcontext() if average is None else average.shown()
        with self._session.agenda.measuring(u), shown:
            loss = heldout_loss(model.eval(), self._rows, self._mask, device.torch)
            model.train()
        if not all(map(math.isfinite, loss.values())):
            raise Diverged(
                f"the held-out loss is not finite after {counted(work.updates, 'update')}"
            )
        done = {"u": u, "update": work.updates, "tokens": work.tokens}
        self._session.run.event("heldout", **done, rows=len(self._rows.ids), **loss)
