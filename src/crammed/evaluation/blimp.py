"""BLiMP (Warstadt et al. 2020): does a model prefer the acceptable sentence of a pair?

A sentence's score is its pseudo-log-likelihood (Salazar et al. 2020), the sum over its tokens of
log p(token | the sentence with this token masked). Special tokens are neither masked nor counted.
A pair is correct if the good sentence has the higher score; a tie counts as wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone, SparseMaskedLM
from crammed.evaluation.scores.bootstrap import RESAMPLES
from crammed.model.heldout import fitting
from crammed.tasks.pairs import read_pairs
from crammed.terminal.progress import SILENT, Progress

_TOKENS = {"cuda": 1 << 16, "cpu": 1 << 13}
"""Tokens that go through the model at once; other devices use the CPU's value."""
_OFFICIAL = (67, 1000)  # paradigms, and pairs in each


def blimp_score(
    backbone: Backbone, path: Path, device: torch.device, progress: Progress = SILENT
) -> dict[str, Any]:
    """Score an encoder; all shares are in percent.

    Args:
        path: the data, see `read_pairs`.

    Returns:
        ``pairs`` and ``paradigms``, how many there are; ``official``, whether they are all of
        BLiMP; ``blimp``, the mean over paradigms, with its 95 % bootstrap ``interval`` over pairs;
        and the shares of correct pairs by field, phenomenon and paradigm, in ``fields``,
        ``phenomena`` and ``paradigm``.

    Raises:
        InputError: the data cannot be read, a sentence is longer than the model allows, or the
            model has no masked-language-model head or no mask token.
    """
    pairs = read_pairs(path)
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    scores = sentence_scores(backbone, sentences, device, progress)
    right = scores[0::2] > scores[1::2]
    by = {kind: defaultdict[str, list[bool]](list) for kind in ("field", "phenomenon", "paradigm")}
    for pair, correct in zip(pairs, right.tolist(), strict=True):
        for kind, groups in by.items():
            groups[getattr(pair, kind)].append(correct)
    paradigms = by["paradigm"]
    sizes = {len(group) for group in paradigms.values()}
    return {
        "pairs": len(pairs),
        "paradigms": len(paradigms),
        "official": len(paradigms) == _OFFICIAL[0] and sizes == {_OFFICIAL[1]},
        "blimp": 100 * float(np.mean([np.mean(group) for group in paradigms.values()])),
        "interval": _interval(list(paradigms.values())),
        "fields": _shares(by["field"]),
        "phenomena": _shares(by["phenomenon"]),
        "paradigm": _shares(paradigms),
    }


def _shares(groups: dict[str, list[bool]]) -> dict[str, float]:
    return {name: 100 * float(np.mean(groups[name])) for name in sorted(groups)}


def _interval(paradigms: list[list[bool]]) -> list[float]:
    """Resampling the pairs of a paradigm amounts to drawing how many of them are correct."""
    draw = np.random.default_rng(0)
    means = [draw.binomial(len(p), np.mean(p), RESAMPLES) / len(p) for p in paradigms]
    low, high = np.percentile(np.mean(means, axis=0), [2.5, 97.5])
    return [100 * float(low), 100 * float(high)]


def sentence_scores(
    backbone: Backbone,
    sentences: Sequence[str],
    device: torch.device,
    progress: Progress = SILENT,
    model: SparseMaskedLM | None = None,
    title: str = "BLiMP",
) -> NDArray[np.float64]:
    """Pseudo-log-likelihood of each of N sentences in nats, [N].

    Args:
        model: in place of the pretrained one.

    Raises:
        InputError: a sentence is longer than the model allows, or the model has no
            masked-language-model head or no mask token, or computes no finite numbers.
    """
    if backbone.mask is None:
        raise InputError(
            f"the tokenizer of {backbone.name} has no mask token, which BLiMP needs: name a "
            "masked-language model"
        )
    model = backbone.masked_lm(device) if model is None else model
    tokens = backbone.tokenize([(text,) for text in sentences], backbone.max_length, words=False)
    if tokens.cut:
        raise InputError(
            f"{tokens.cut} of {len(sentences)} sentences are longer than the {backbone.max_length} "
            f"tokens that {backbone.name} takes: shorten or remove them, or name another model"
        )
    lengths = np.diff(tokens.offsets)
    scores = np.zeros(len(sentences))
    most = _TOKENS.get(device.type, _TOKENS["cpu"])
    with progress.task(title, float((lengths**2).sum())) as bar:
        done = 0
        for length in np.unique(lengths):  # batches of equal length need no padding
            members = np.flatnonzero(lengths == length)
            ids = tokens.ids[tokens.offsets[members][:, None] + np.arange(length)]
            sentence, at = np.nonzero(~np.isin(ids, list(backbone.specials)))
            start = 0
            while start < len(sentence):
                size = max(1, most // int(length))
                some = slice(start, start + size)
                given = ids[sentence[some]], at[some], backbone.mask, device
                values, fits = fitting(partial(_masked_log_probabilities, model, *given), size)
                if fits < size:
                    most = fits * int(length)
                np.add.at(scores, members[sentence[start : start + fits]], values)
                bar.update(done + start * int(length), f"{len(sentences):,} sentences")
                start += fits
            done += ids.size * int(length)
    if not np.isfinite(scores).all():
        raise InputError(f"{backbone.name} computes no finite numbers: evaluate another model")
    return scores


@torch.inference_mode()
def _masked_log_probabilities(
    model: SparseMaskedLM,
    ids: NDArray[np.int32],
    at: NDArray[np.int64],
    mask: int,
    device: torch.device,
    count: int,
) -> NDArray[np.float64]:
    """For the first rows b of ids [B, S], the log-probability of token at[b] when it is masked."""
    rows = torch.from_numpy(ids[:count]).long().to(device)
    where = torch.from_numpy(at[:count])[:, None].to(device)
    logits = model(rows.scatter(1, where, mask), where)[:, 0].float()
    values = logits.gather(1, rows.gather(1, where))[:, 0] - logits.logsumexp(-1)
    return values.double().cpu().numpy()
