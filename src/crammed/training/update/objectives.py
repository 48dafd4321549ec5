"""Objectives besides that of the paper, which are outside its rules."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from crammed.config import RunConfig
from crammed.config.objectives import ContrastConfig, ElectraConfig, ScriptConfig
from crammed.data.masking import MaskedRows, keyed_bits
from crammed.keys import key
from crammed.model.electra import Electra
from crammed.model.encoder import MaskedLM
from crammed.model.layer import picked
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


class _Guessing(MaskedTokens):
    """Base of objectives that put guesses in the place of masked tokens."""

    drawn_as: ClassVar[str]
    """Part of the key of the draws: another word changes the guesses of existing runs."""

    def __init__(self, model: MaskedLM, config: RunConfig, *others: Any) -> None:
        super().__init__(model, config, *others)
        device = model.encoder.tokens.weight.device
        # Made here, not when compiled.
        self._word = torch.tensor(key(config.seed, self.drawn_as), device=device)

    def _guess(self, logits: Tensor, masked: MaskedRows, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The summed loss of logits [B, N, V] for masked tokens, and guesses drawn from them."""
        labels = masked.labels.flatten()
        loss = summed_loss(logits.flatten(0, 1), labels, self._config, self.weights)
        return loss, guessed(self._word, logits.detach(), numbers)


class Script(_Guessing):
    """Predicts masked tokens, and where its own guesses replaced tokens (Nijkamp et al. 2021).

    One network does both. Guesses are drawn from its predictions, and a guess that is right has
    replaced nothing. The log of the mean over the vocabulary of the exponentials of a token's
    logits is the logit of its having been replaced.
    """

    drawn_as = "guess"

    def loss(self, rows: Tensor, numbers: Tensor, count: int) -> Tensor:
        """The summed losses; the second counts as one of as many predictions as the first."""
        config = self._config.objective
        assert isinstance(config, ScriptConfig)
        masked, attended = self._mask(rows, numbers, count), self._attended(rows)
        hidden = self._hidden(masked, attended, numbers)
        logits = self.copy.decode(hidden, self.leaves.decoder).float()
        loss, guesses = self._guess(logits, masked, numbers)
        filled = rows.scatter(1, masked.positions, guesses)
        every = self.copy.decode(self.copy.encoder(filled, attended), self.leaves.decoder)
        replaced = every.float().logsumexp(-1) - math.log(every.shape[-1])
        criticism = F.binary_cross_entropy_with_logits(
            replaced, (filled != rows).float(), reduction="sum"
        )
        return loss + config.weight * (count / rows.shape[1]) * criticism


def guessed(word: Tensor, logits: Tensor, numbers: Tensor) -> Tensor:
    """Tokens [B, N] drawn from the predictions [B, N, V], by the number of the row.

    Args:
        word: as in `keyed_bits`.
    """
    drawn = keyed_bits(word, numbers, logits.shape[1])[..., None].to(logits.dtype) / 2**32
    below = logits.softmax(-1).cumsum(-1) <= drawn
    return below.sum(-1).clamp(max=logits.shape[-1] - 1)


class Replaced(_Guessing):
    """Finds the tokens that a generator has replaced (ELECTRA; Clark et al. 2020).

    The generator, a smaller model, predicts masked tokens, and its guesses take their place. A
    guess that is right has replaced nothing, and no gradients flow through a guess. A share of the
    tokens stays masked, and the model predicts these itself: so it can fill gaps, and the held-out
    loss is its own.
    """

    drawn_as = "generator"

    def loss(self, rows: Tensor, numbers: Tensor, count: int) -> Tensor:
        """The summed losses; that of all tokens counts as one of as many predictions as masks."""
        config, model = self._config.objective, self.copy
        assert isinstance(config, ElectraConfig)
        assert isinstance(model, Electra)
        masked, attended = self._mask(rows, numbers, count), self._attended(rows)
        places, left = masked.positions, config.masks(count)
        logits = self._generated(model.generator, masked, attended)
        generation, guesses = self._guess(logits, masked, numbers)
        filled = masked.ids.scatter(1, places[:, left:], guesses[:, left:])
        hidden = model.encoder(filled, attended)
        own = self._loss_at(picked(hidden, places[:, :left]), masked.labels[:, :left])
        found = F.binary_cross_entropy_with_logits(
            model.detector(hidden).float(), (filled != rows).float(), reduction="none"
        )
        found = found.scatter(1, places[:, :left], 0.0).sum()
        weight = config.weight * count / (rows.shape[1] - left)
        return generation + own + weight * found

    def _generated(
        self, generator: MaskedLM, masked: MaskedRows, attended: Tensor | None
    ) -> Tensor:
        """The generator's logits [B, N, V]."""
        places = masked.positions
        if self.reorders:
            hidden = generator.encoder(masked.ids, attended, positions=places)
        else:
            hidden = picked(generator.encoder(masked.ids, attended), places)
        shared = self.leaves.decoder if self.copy.output is None else None
        return generator.decode(hidden, shared).float()


class Contrast(MaskedTokens):
    """Predicts masked tokens, and tells which halves of rows belong together.

    Each half is encoded by itself, without masks, and stands for itself as the mean of its hidden
    states. Its cosine with the other half of its row is to be higher than those with the halves of
    the other rows that it is compared with (Giorgi et al. 2021).
    """

    def loss(self, rows: Tensor, numbers: Tensor, count: int) -> Tensor:
        """The summed losses; the second counts as one of as many predictions as the first.

        Args:
            rows: whole groups of those that are compared, and perhaps a smaller one at the end.
        """
        config = self._config.objective
        assert isinstance(config, ContrastConfig)
        halves = rows.reshape(2 * len(rows), -1)
        hidden = self.copy.encoder(halves, self._attended(halves))
        vectors = F.normalize(hidden.float().mean(1), dim=-1)
        size = 2 * config.rows
        whole = len(vectors) // size * size
        found = super().loss(rows, numbers, count)
        for group in (vectors[:whole].unflatten(0, (-1, size)), vectors[None, whole:]):
            if group.numel():
                contrast = _contrast(group, config.temperature)
                found = found + config.weight * count * contrast
        return found


def _contrast(vectors: Tensor, temperature: float) -> Tensor:
    """The summed losses of G groups of R rows; those of a row's two halves are averaged.

    The vectors [G, 2 R, D] have length 1, and those of a row's halves stand side by side.
    """
    count, size, _ = vectors.shape
    cosines = vectors @ vectors.mT / temperature
    itself = torch.eye(size, dtype=torch.bool, device=vectors.device)
    others = cosines.masked_fill(itself, -math.inf).flatten(0, 1)
    partners = (torch.arange(size, device=vectors.device) ^ 1).repeat(count)
    return F.cross_entropy(others, partners, reduction="sum") / 2.0


OBJECTIVES: dict[str, type[MaskedTokens]] = {
    "masked": MaskedTokens,
    "script": Script,
    "causal-first": CausalFirst,
    "contrast": Contrast,
    "electra": Replaced,
}
"""The values of `objective.name`."""
