"""What tuned vectors are compared with: BM25, and the vectors of another model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from crammed.data.tokenization.losses import words_are_apart
from crammed.embedding.scoring import retrieval, scores
from crammed.errors import InputError
from crammed.evaluation.backbones.huggingface import HuggingFaceBackbone
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.finetuning.engine import Numerics
from crammed.evaluation.finetuning.vectors import MeanOfTokens
from crammed.files.folders import inside
from crammed.files.regular import read_text
from crammed.files.writing import read_json
from crammed.sentences import word_pattern
from crammed.tasks.rows import Rows
from crammed.terminal.progress import Progress


def bm25_retrieval(
    heldout: Sequence[tuple[str, str]], progress: Progress
) -> dict[str, float] | None:
    """How well BM25 (Robertson and Zaragoza 2009) finds the next passage; see `retrieval`.

    Words are lowercase, without a list of stop words, since the text may be in any language. Where
    words are not apart, up to three characters in a row take their place. The first passage of each
    pair is the query, and the second ones are what is searched.

    Returns:
        None where there are no words to search, or bm25s is not installed, which a line says.
    """
    if len(heldout) < 2:
        return None
    if find_spec("bm25s") is None:
        progress.line("BM25  left out: pip install 'crammed[embed]'")
        return None
    library = import_module("bm25s")
    apart = words_are_apart("\n".join(text for pair in heldout for text in pair))

    def words(texts: list[str]) -> list[list[str]]:
        if not apart:
            return [_characters("".join(text.lower().split())) for text in texts]
        pattern = word_pattern()
        found = library.tokenize(
            texts, token_pattern=pattern, stopwords=None, return_ids=False, show_progress=False
        )
        return [list(each) for each in found]

    queries, passages = (words([*side]) for side in zip(*heldout, strict=True))
    if not any(passages):
        return None
    index = library.BM25()
    index.index(passages, show_progress=False)
    nothing = np.zeros(len(passages), np.float32)
    return retrieval(np.array([index.get_scores(q) if q else nothing for q in queries]))


def _characters(text: str) -> list[str]:
    """Every one, two and three characters in a row."""
    return [text[at : at + size] for size in (1, 2, 3) for at in range(len(text) - size + 1)]


class _Pooled(nn.Module):
    """Hidden states [B, S, D] to a vector for each row, [B, D]."""

    def __init__(self, encoder: nn.Module, pool: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.encoder, self._pool = encoder, pool

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> Tensor:
        return self._pool(self.encoder(ids, mask, types).float(), mask)


_POOLINGS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "mean": MeanOfTokens,
    "cls": lambda encoder: _Pooled(encoder, lambda hidden, _: hidden[:, 0]),
    "max": lambda encoder: _Pooled(
        encoder, lambda hidden, mask: hidden.masked_fill(~mask[..., None], -torch.inf).amax(1)
    ),
}
_OLDER = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys of versions before 6, and what they are called now."""
_IGNORED = ("Transformer", "Pooling", "Normalize")
"""Modules of sentence-transformers. Cosines are the same with and without the last."""


@dataclass(frozen=True)
class Beside:
    """A model whose vectors are scored beside the tuned ones.

    They are what its folder says to sentence-transformers, and else the mean over its tokens.
    """

    backbone: HuggingFaceBackbone
    model: nn.Module
    longest: int

    @classmethod
    def load(cls, spec: str, *, trust_remote_code: bool) -> Beside:
        """Load a run, a folder of transformers or sentence-transformers, or a name on the hub.

        Raises:
            InputError: there is no such model, or its vectors are made in a way that is unknown
                here.
        """
        name, folder = BackboneSpec(spec).files()
        pooling = pooling_of(folder)
        backbone = HuggingFaceBackbone(name, folder, trust_remote_code=trust_remote_code)
        limit = (read_json(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
        known = limit if isinstance(limit, int) and limit > 2 else backbone.trained_length
        model = _POOLINGS[pooling](backbone.encoder())
        return cls(backbone, model, min(known, backbone.trained_length))

    def scores(
        self,
        heldout: Sequence[tuple[str, str]],
        pairs: Rows | None,
        length: int,
        numerics: Numerics,
    ) -> dict[str, Any]:
        """Its name, and its scores on the same texts, as `crammed.embedding.scoring.scores`.

        Args:
            length: tokens at which texts are truncated, unless the model's own limit is lower.
        """
        shorter = min(length, self.longest)
        self.model.to(numerics.device).eval()
        found = scores(self.model, self.backbone, heldout, pairs, shorter, numerics)
        return {"name": self.backbone.name, "length": shorter, **found}


def pooling_of(folder: Path) -> str:
    """How a folder makes a vector of the tokens of a text: mean, cls or max.

    Raises:
        InputError: in another way, or a file that says so is damaged.
    """
    kinds = _modules(folder / "modules.json")
    if other := [kind for kind in kinds if kind not in _IGNORED]:
        raise InputError(
            f"--beside: the vectors of {folder.name} go through {other[0]}, which is unknown here: "
            "name another model"
        )
    if "Pooling" not in kinds:
        return "mean"
    place = inside(folder, kinds["Pooling"], str(folder / "modules.json"))
    values = read_json(place / "config.json") or {}
    modes = values.get("pooling_mode", [key for key in _OLDER if values.get(key) is True])
    named = [str(mode) for mode in (modes if isinstance(modes, list) else [modes])]
    modes = [_OLDER.get(mode, mode) for mode in named]
    shown = " and ".join(modes) or "nothing that is named"
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise InputError(
            f"--beside: the vectors of {folder.name} are pooled by {shown}"
            f", which is unknown here: name a model that takes {' or '.join(_POOLINGS)}"
        )
    return str(modes[0])


def _modules(file: Path) -> dict[str, object]:
    """The folder of each module that a ``modules.json`` lists, by its class."""
    if not file.exists():
        return {}
    try:
        listed = json.loads(read_text(file))
        return {str(each["type"]).rpartition(".")[2]: each["path"] for each in listed}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{file} is not a list of modules of sentence-transformers") from error
