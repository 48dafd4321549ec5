"""Makes sentence embeddings of an encoder and text, and scores them beside the encoder's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crammed.config import ComputeConfig
from crammed.embedding.beside import Beside, bm25_retrieval
from crammed.embedding.card import card
from crammed.embedding.denoising import Denoising
from crammed.embedding.folder import check_libraries, difference, write_embedder
from crammed.embedding.passages import Passages
from crammed.embedding.scoring import read_pairs, scores, vectors
from crammed.embedding.tuning import DROPOUT, Contrast, Tuning, tune
from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.huggingface import HuggingFaceBackbone, inner
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.finetuning.batches import EncodedSplit
from crammed.evaluation.finetuning.engine import Numerics
from crammed.evaluation.finetuning.vectors import MeanOfTokens, encoded
from crammed.export.card import Metadata
from crammed.export.huggingface import comes_with_our_code
from crammed.files.folders import check_vacant, empty, new_folder
from crammed.files.writing import read_json, write_json, write_text
from crammed.keys import key
from crammed.machine.device import choose_device
from crammed.quantity import truncated
from crammed.tasks.rows import Rows
from crammed.terminal.progress import Progress

RESULT = "embedding.json"
_SINGLE = Numerics(torch.device("cpu"), torch.float32, graphs=False)
"""As sentence-transformers computes the vectors that ours are compared with."""


def make(
    model: str,
    sources: Sequence[str],
    out: Path,
    tuning: Tuning,
    pairs: Path | None,
    compute: ComputeConfig,
    progress: Progress,
    *,
    beside: str | None = None,
    trust_remote_code: bool = False,
    license: str | None = None,
) -> dict[str, Any]:
    """Tune an encoder, and keep it in a new folder for sentence-transformers.

    Args:
        model: a run, a Hugging Face folder, or a name on the hub.
        pairs: a file of rated pairs of texts to score on.
        beside: another model, whose vectors are scored as well.
        license: for the model card, in place of that of the encoder.

    Returns:
        what ``embedding.json`` holds; ``difference`` is None without sentence-transformers.

    Raises:
        InputError: the folder exists, a library is missing, or something given cannot be used.
        CrammedError: sentence-transformers computes other vectors from the folder.
    """
    check_vacant(out, "--out")
    check_libraries()
    rated = None if pairs is None else read_pairs(pairs)
    backbone, source, trust = _encoder(model, trust_remote_code=trust_remote_code)
    metadata = Metadata.inherited(source, license)
    other = None if beside is None else Beside.load(beside, trust_remote_code=trust_remote_code)
    tuning = _within_trained_length(tuning, backbone, progress)
    passages = Passages.read(sources, tuning.length, tuning.seed, progress)
    partners = _pairs(passages, tuning)
    numerics = Numerics.on(choose_device(compute))
    mean = MeanOfTokens(backbone.encoder_to_train(tuning.seed, DROPOUT)).to(numerics.device)
    scored = (mean, backbone, passages.heldout, rated, tuning.length, numerics)
    _say_cut(rated, backbone, tuning.length, numerics, progress)
    with progress.task("scoring it untuned"):
        before = scores(*scored)
    others = _others(other, passages.heldout, rated, tuning.length, numerics, progress)
    rows = _rows(passages, backbone, tuning, numerics, progress)
    with new_folder(out) as folder:  # before the budget is spent: another process may be making it
        save = partial(_written, folder, backbone, source, passages.texts[:8], tuning.length, trust)
        save(MeanOfTokens(backbone.encoder_to_train(tuning.seed, DROPOUT)))
        empty(folder)  # saved untuned because what fails now would fail after tuning
        assert backbone.width is not None, "it was checked"
        objective = _objective(mean, backbone, tuning).to(numerics.device)
        work = tune(objective, backbone.width, rows, partners, tuning, numerics, progress)
        with progress.task("scoring it tuned"):
            after = scores(*scored, tuned=True)
        spent = {"updates": work.updates, "tokens": work.tokens, "passages": len(rows)}
        result = {"model": backbone.name, "sources": passages.sources, **tuning.values(), **spent}
        result |= {"before": before, "after": after, **others, "difference": save(mean)}
        write_json(folder / RESULT, result)
        write_text(folder / "README.md", card(result, metadata, trust=trust))
    return result


def _encoder(model: str, *, trust_remote_code: bool) -> tuple[HuggingFaceBackbone, Path, bool]:
    """The encoder to tune, its folder, and whether it comes with code that is allowed to run."""
    name, source = BackboneSpec(model).files()
    trust = trust_remote_code or comes_with_our_code(source)
    backbone = HuggingFaceBackbone(name, source, trust_remote_code=trust)
    if backbone.width is None:
        raise InputError(f"config.json of {name} has no hidden_size: name another encoder")
    files = (source / "config.json", source / "tokenizer_config.json")
    code = any("auto_map" in (read_json(file) or {}) for file in files)
    return backbone, source, trust and code


def _within_trained_length(tuning: Tuning, backbone: Backbone, progress: Progress) -> Tuning:
    """The tuning with texts no longer than the encoder was trained on; says so if that is less."""
    if tuning.length <= (longest := backbone.trained_length):
        return tuning
    progress.line(f"note  texts are truncated at {longest} tokens, which the model was trained on")
    return replace(tuning, length=longest)


def _written(
    folder: Path,
    backbone: HuggingFaceBackbone,
    source: Path,
    texts: list[str],
    length: int,
    trust: bool,
    mean: MeanOfTokens,
) -> float | None:
    """Write the folder of an encoder; returns the difference of its vectors of texts from ours."""
    assert backbone.width is not None
    write_embedder(folder, source, inner(mean.encoder), length, backbone.width)
    ours = vectors(mean.cpu(), backbone, texts, length, _SINGLE)
    return difference(folder, texts, ours, trust=trust)


def _say_cut(
    rated: Rows | None,
    backbone: HuggingFaceBackbone,
    length: int,
    numerics: Numerics,
    progress: Progress,
) -> None:
    """Say how many of the rated texts are truncated."""
    if rated is not None:
        each = [(text,) for texts in rated.texts for text in texts]
        if cut := encoded(backbone, each, length, numerics.device).cut:
            progress.line(f"note  --pairs: {truncated(cut, length)}")


def _others(
    beside: Beside | None,
    heldout: Sequence[tuple[str, str]],
    rated: Rows | None,
    length: int,
    numerics: Numerics,
    progress: Progress,
) -> dict[str, Any]:
    """What the tuned vectors are compared with; see `bm25_retrieval` and `Beside.scores`."""
    found: dict[str, Any] = {"bm25": bm25_retrieval(heldout, progress), "beside": None}
    if beside is not None:
        with progress.task(f"scoring {beside.backbone.name}"):
            found["beside"] = beside.scores(heldout, rated, length, numerics)
    return found


def _rows(
    passages: Passages,
    backbone: HuggingFaceBackbone,
    tuning: Tuning,
    numerics: Numerics,
    progress: Progress,
) -> EncodedSplit:
    with progress.task("tokenizing") as task:
        texts = [(text,) for text in passages.texts]
        rows = encoded(backbone, texts, tuning.length, numerics.device)
        task.update(1, f"{len(rows):,} passages")
    if rows.cut:
        progress.line(f"note  {truncated(rows.cut, tuning.length)}")
    return rows


def _objective(
    mean: MeanOfTokens, backbone: HuggingFaceBackbone, tuning: Tuning
) -> Contrast | Denoising:
    """What is learned, with the model in it."""
    if tuning.partners != "denoise":
        return Contrast(mean)
    assert backbone.width is not None
    table = inner(mean.encoder).get_input_embeddings().weight
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key(tuning.seed, "decoder"))
        return Denoising(mean, table, backbone.width, tuning.length, backbone.specials)


def _pairs(passages: Passages, tuning: Tuning) -> NDArray[np.int64]:
    """Numbers of the passages that belong together, [N, 2], or of all, [N, 1].

    Raises:
        InputError: there are fewer than a batch has.
    """
    pairs: NDArray[np.int64] = np.arange(len(passages.texts))[:, None]
    what = "passages"
    if tuning.partners == "neighbours":
        if not passages.pairs:
            raise InputError("no document has two passages: add --partners dropout")
        pairs, what = np.array(passages.pairs, np.int64), "pairs of passages"
    if len(pairs) < tuning.batch:
        raise InputError(
            f"{len(pairs)} {what} are fewer than one batch of {tuning.batch}: name more text with "
            "--data, or a smaller --batch"
        )
    return pairs.repeat(2, axis=1) if tuning.partners == "dropout" else pairs
