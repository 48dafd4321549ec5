"""The contrastive loss, and the loop: a text's vector should be nearest to that of its partner.

The partner is the next passage of the same document or, as in SimCSE (arXiv 2104.08821), the same
passage with other dropout. The other texts of the batch are what it must be told from. The loop
also serves `crammed.embedding.denoising`, where a text has no partner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from crammed.budget import Budget, Work
from crammed.embedding.denoising import RATE as DECODER_RATE
from crammed.embedding.denoising import Denoising
from crammed.errors import InputError
from crammed.evaluation.finetuning.batches import Batch, EncodedSplit
from crammed.evaluation.finetuning.engine import Numerics
from crammed.keys import key
from crammed.machine.device import refusing_full_memory
from crammed.schedule import LinearToZero
from crammed.terminal.progress import Progress

Partners = Literal["neighbours", "dropout", "denoise"]
TEMPERATURE = 0.05
DROPOUT = 0.1
RATE, OF_WIDTH = 3e-5, 768
"""The learning rate at this width; narrower encoders take a higher one in inverse proportion."""
WARMUP, CLIP, DECAY = 0.1, 1.0, 0.01


@dataclass(frozen=True)
class Tuning:
    """How to tune.

    Attributes:
        batch: pairs of an update, or texts without partners.
        length: tokens at which texts are truncated.
    """

    budget: Budget
    partners: Partners = "neighbours"
    batch: int = 64
    length: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        ranges = {"batch": (2, 2**16), "length": (8, 2**16), "seed": (0, 2**63 - 1)}
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise InputError(f"--{name} takes a number from {low} to {high}")
        if self.budget.kind == "flops":
            raise InputError(
                f"--budget {self.budget.text}: name time, tokens or updates, such as 10m"
            )

    def values(self) -> dict[str, Any]:
        """The fields, as JSON holds them."""
        return {**asdict(self), "budget": self.budget.text}


def contrastive_loss(one: Tensor, other: Tensor) -> Tensor:
    """Cross-entropy of each row's partner among all rows, by cosine, in both directions.

    Args:
        one, other: vectors, [B, D] each.
    """
    cosines = F.normalize(one, dim=-1) @ F.normalize(other, dim=-1).T
    right = torch.arange(len(one), device=one.device)
    logits = cosines / TEMPERATURE
    return 0.5 * (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right))


class Contrast(nn.Module):
    """The loss of a batch of pairs: see `contrastive_loss`.

    Args:
        model: (ids, mask, types) -> vectors [B, D], with dropout.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batches: Sequence[Batch], numerics: Numerics, _: torch.Generator) -> Tensor:
        """The texts of both sides are one batch each."""
        vectors = []
        for batch in batches:
            with numerics.autocast():
                vectors.append(self.model(batch.ids, batch.mask, batch.types))
        return contrastive_loss(vectors[0], vectors[1])


@refusing_full_memory("a batch does not fit into memory: lower --batch or --length")
def tune(
    objective: Contrast | Denoising,
    width: int,
    rows: EncodedSplit,
    pairs: NDArray[np.int64],
    tuning: Tuning,
    numerics: Numerics,
    progress: Progress,
) -> Work:
    """Tune in place until the budget is spent.

    Args:
        objective: has the model, whose vectors have `width` numbers.
        pairs: numbers of rows, [N, 2]; [N, 1] where a row has no partner; N is at least a batch.

    Raises:
        InputError: a batch does not fit into memory.
    """
    optimizer = _optimizer(objective)
    weights = [*objective.parameters()]
    schedule, rate = LinearToZero(warmup=WARMUP), RATE * OF_WIDTH / width
    work, began, loss = Work(), time.monotonic(), 0.0
    objective.train()
    with progress.task("tuning", 1.0) as task:
        for number, chosen in enumerate(batches(pairs, tuning)):
            seconds = time.monotonic() - began
            u = tuning.budget.share(work, seconds)
            task.update(min(u, 1.0), f"loss {loss:.3f}, {work.tokens:,} tokens")
            if u >= 1.0:
                break
            own = Work(updates=1, rows=chosen.size, tokens=int(rows.lengths[chosen].sum()))
            middle = (u + min(tuning.budget.share(work + own, seconds), 1.0)) / 2  # of this update
            for group in optimizer.param_groups:
                group["lr"] = group["times"] * rate * schedule(middle)
            torch.manual_seed(key(tuning.seed, "dropout", number))
            texts = []
            for side in chosen.T:
                which = torch.from_numpy(side).to(numerics.device)
                texts.append(rows.batch(which, int(rows.widths(side))))
            draw = torch.Generator().manual_seed(key(tuning.seed, "deletions", number))
            value = objective(texts, numerics, draw)
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(weights, CLIP)
            optimizer.step()
            loss = value.item()
            work += own
    return work


def _optimizer(objective: nn.Module) -> torch.optim.Optimizer:
    """AdamW, which decays matrices alone; what is not in the model has a rate of its own."""
    groups = []
    for times, own in ((1.0, True), (DECODER_RATE, False)):
        named = [(n, p) for n, p in objective.named_parameters() if p.requires_grad]
        weights = [p for name, p in named if name.startswith("model.") == own]
        decayed = [p for p in weights if p.ndim > 1]
        others = [p for p in weights if p.ndim < 2]
        groups += [
            {"params": decayed, "weight_decay": DECAY, "times": times},
            {"params": others, "weight_decay": 0.0, "times": times},
        ]
    return torch.optim.AdamW([g for g in groups if g["params"]], betas=(0.9, 0.98), eps=1e-6)


def batches(pairs: NDArray[np.int64], tuning: Tuning) -> Iterator[NDArray[np.int64]]:
    """Random batches of pairs without end, [B, 2 or 1]; every pair once before any again."""
    epoch, size = 0, len(pairs) // tuning.batch * tuning.batch
    while True:
        order = np.random.default_rng(key(tuning.seed, "pairs", epoch)).permutation(len(pairs))
        yield from pairs[order[:size]].reshape(-1, tuning.batch, pairs.shape[1])
        epoch += 1
