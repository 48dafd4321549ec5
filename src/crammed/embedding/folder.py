"""The folder of sentence embeddings, which sentence-transformers opens."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from crammed.embedding.scoring import Vectors
from crammed.errors import CrammedError, InputError, first_line
from crammed.evaluation.backbones.huggingface_files import copy_all_but_weights, single_precision
from crammed.export.huggingface import importable
from crammed.extras import import_extra
from crammed.files.writing import read_json, write_json
from crammed.model.trained import save_weights
from crammed.terminal.quiet import quiet_transformers

TOLERANCE = 1e-3
"""The largest difference between vectors here and there."""
_MODULES = "sentence_transformers.models"


def write_embedder(folder: Path, source: Path, model: Any, length: int, width: int) -> None:
    """Write an encoder of transformers, with the mean of its tokens as vectors.

    Args:
        source: the Hugging Face folder that it was loaded from.
        length: tokens at which texts are truncated.
    """
    copy_all_but_weights(source, folder, length)
    weights = {name: each.detach().cpu().contiguous() for name, each in model.state_dict().items()}
    save_weights(folder / "model.safetensors", weights, format="pt")
    if "token_type_ids" not in signature(model.forward).parameters:
        # Older versions of sentence-transformers would pass what the tokenizer makes by default.
        described = read_json(folder / "tokenizer_config.json") or {}
        names = {"model_input_names": ["input_ids", "attention_mask"]}
        write_json(folder / "tokenizer_config.json", {**described, **names})
    config = {**single_precision(source), "architectures": [type(model).__name__]}
    write_json(folder / "config.json", config)
    write_json(
        folder / "modules.json",
        [
            {"idx": 0, "name": "0", "path": "", "type": f"{_MODULES}.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{_MODULES}.Pooling"},
        ],
    )
    limits = {"max_seq_length": length, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", limits)
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    pooling |= dict.fromkeys(("pooling_mode_cls_token", "pooling_mode_max_tokens"), False)
    write_json(folder / "1_Pooling" / "config.json", pooling)


def check_libraries() -> None:
    """Import what tunes and what checks: a fault of either must cost no budget.

    Raises:
        InputError: one of them cannot be imported.
    """
    import_extra("transformers", "hf", "crammed embed")
    _sentence_transformer()


def _sentence_transformer() -> Any:
    """The class of sentence-transformers that opens such a folder; None if not installed."""
    if find_spec("sentence_transformers") is None:
        return None
    try:
        with quiet_transformers():
            return import_module("sentence_transformers").SentenceTransformer
    except Exception as error:  # of whatever kind its own imports raise
        raise InputError(
            "sentence-transformers, which checks the result, is installed but cannot be imported "
            f"({first_line(error)}): pip install --upgrade sentence-transformers, or uninstall it"
        ) from error


def difference(folder: Path, texts: list[str], ours: Vectors, *, trust: bool) -> float | None:
    """The largest difference between our vectors and those that sentence-transformers computes.

    None where it is not installed.

    Raises:
        CrammedError: the difference is too large.
    """
    if (load := _sentence_transformer()) is None:
        return None
    with quiet_transformers(), importable(folder) as place:
        model = load(str(place), device="cpu", trust_remote_code=trust)
    found = float(np.abs(np.asarray(model.encode(texts)) - ours).max())
    if not found <= TOLERANCE * max(1.0, float(np.abs(ours).max())):
        raise CrammedError(
            f"sentence-transformers' vectors differ from ours by {found:.3g}: not kept"
        )
    return found
