"""Small runs that adapt models of transformers."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from crammed.adaptation.adapting import Adaptation, ask_for
from crammed.adaptation.general_text import Replay
from crammed.adaptation.original import Original
from crammed.pipeline import run_everything
from crammed.runs.resuming import as_begun
from crammed.terminal.progress import SILENT, Progress
from support.models import SHAPE, save_model, save_tokenizer, word_pieces

FAMILIES = ["bert", "modernbert", "distilbert", "deberta"]
if version("transformers") >= "4.50":  # older ones lose the bias of its head, and it is refused
    FAMILIES.append("roberta")
SMALL = ("data.row_length=32", "batch.rows=4", "compute.workers=1", "compute.dtype=float32")


def save_family(folder: Path, family: str) -> Path:
    """Save a small model of one of `FAMILIES` with its tokenizer."""
    if family != "deberta":
        return save_model(folder, family)
    import transformers

    tokenizer = word_pieces()
    save_tokenizer(folder, tokenizer, model_max_length=40)
    values: dict[str, Any] = {**SHAPE, "intermediate_size": 48, "max_position_embeddings": 40}
    values |= {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}
    values |= {"share_att_key": True, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0}
    config = transformers.DebertaV2Config(
        vocab_size=tokenizer.get_vocab_size(), position_biased_input=False, **values
    )
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    return folder


def adapt(
    model: Path,
    text: Path,
    out: Path,
    *words: str,
    budget: str = "4updates",
    progress: Progress = SILENT,
    replay: Replay | None = None,
    old_text: Path | None = None,
) -> dict[str, Any]:
    """Adapt a model in this process; returns the result."""
    original = Original.find(str(model))
    fixed = {"budget": {"limit": budget}, "data": {"sources": [str(text)]}}
    asked = as_begun(out, ask_for(original, [*SMALL, *words], fixed, replay))
    adaptation = Adaptation(original, None if old_text is None else str(old_text))
    return run_everything(asked, out, None, None, progress, adaptation)
