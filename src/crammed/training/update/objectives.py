"""Objectives besides that of the paper, which are outside its rules."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crammed.config import RunConfig
from crammed.config.objectives import ScriptConfig
from crammed.data.masking import MaskedRows, keyed_bits
from crammed.keys import key
from crammed.model.encoder import MaskedLM
from crammed.training.update.losses import summed_loss
from crammed.training.update.objective import MaskedTokens


class CausalFirst(MaskedTokens):
    """Predicts the next token from those before it, and later masked tokens.

    Gisserot-Boukhlef et al. (2025) find that encoders gain from such a start. An update whose mask
    rate is 1 is of the first part.
    """

    def loss(self, rows: Tensor, numbers: Tensor, count: int) -> Tensor:
        """The summed loss of the masked tokens, or that of all next ones, as if of `count`."""
        length = rows.shape[1]
        if count < length:
            return super().loss(rows, numbers, count)
        before = torch.ones((length, length), dtype=torch.bool, device=rows.device).tril()
        within = self._attended(rows)
        before = before.expand(len(rows), -1, -1) if within is None else within & before
        places = torch.arange(length - 1, device=rows.device).expand(len(rows), -1)
        found = self._loss_of(MaskedRows(rows, places, rows[:, 1:]), before, numbers)
        return found * (length / (length - 1))


class Script(MaskedTokens):
    """Predicts masked tokens, and where its own guesses replaced tokens (Nijkamp et al. 2021).

    One network does both. Guesses are drawn from its predictions, and a guess that is right has
    replaced nothing. The log of the mean over the vocabulary of the exponentials of a token's
    logits is the logit of its having been replaced.
    """

    def __init__(self, model: MaskedLM, config: RunConfig, *others: Any) -> None:
        super().__init__(model, config, *others)
        device = model.encoder.tokens.weight.device
        self._word = torch.tensor(key(config.seed, "guess"), device=device)  # not when compiled

    def loss(self, rows: Tensor, numbers: Tensor, count: int) -> Tensor:
        """The summed losses; the second counts as one of as many predictions as the first."""
        config = self._config.objective
        assert isinstance(config, ScriptConfig)
        masked, attended = self._mask(rows, numbers, count), self._attended(rows)
        hidden = self._hidden(masked, attended, numbers)
        logits = self.copy.decode(hidden, self.leaves.decoder).float()
        loss = summed_loss(logits.flatten(0, 1), masked.labels.flatten(), self._config)
        filled = rows.scatter(1, masked.positions, self._guesses(logits.detach(), numbers))
        every = self.copy.decode(self.copy.encoder(filled, attended), self.leaves.decoder)
        replaced = every.float().logsumexp(-1) - math.log(every.shape[-1])
        criticism = F.binary_cross_entropy_with_logits(
            replaced, (filled != rows).float(), reduction="sum"
        )
        return loss + config.weight * (count / rows.shape[1]) * criticism

    def _guesses(self, logits: Tensor, numbers: Tensor) -> Tensor:
        """Tokens [B, N] drawn from the predictions [B, N, V], by the number of the row."""
        drawn = keyed_bits(self._word, numbers, logits.shape[1])[..., None].to(logits.dtype) / 2**32
        below = logits.softmax(-1).cumsum(-1) <= drawn
        return below.sum(-1).clamp(max=logits.shape[-1] - 1)


OBJECTIVES: dict[str, type[MaskedTokens]] = {
    "masked": MaskedTokens,
    "script": Script,
    "causal-first": CausalFirst,
}
"""The values of `objective.name`."""
