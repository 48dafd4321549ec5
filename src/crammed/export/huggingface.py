"""A trained model as a folder that Hugging Face loads, checked by comparing logits."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import CrammedError, InputError
from crammed.export import native
from crammed.export.card import model_card
from crammed.files import new_folder, write_json
from crammed.model.trained import TrainedModel
from crammed.quiet import quiet_transformers

Format = Literal["auto", "modernbert", "bert", "custom"]
TOLERANCE = 1e-3
"""Largest difference of logits between the exported model and ours; typical is below 1e-5."""


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        format: the class family it loads as.
        reasons: why not the better ones.
        difference: largest logit difference, or None where transformers is not installed.
    """

    path: Path
    format: str
    reasons: tuple[str, ...]
    difference: float | None


def export(
    final: TrainedModel, out: Path, wanted: Format = "auto", summary: dict[str, Any] | None = None
) -> Exported:
    """Write the model to the new folder `out`.

    `auto` takes the first that fits of ModernBERT, BERT and custom code (which loads with
    ``trust_remote_code=True``).

    Args:
        summary: the run's summary, for the model card.

    Raises:
        InputError: the wanted format cannot hold the model, or `out` is in the way.
        CrammedError: the exported model does not compute what ours does.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists already: choose another --to")
    chosen, reasons = _choose(final, wanted)
    with new_folder(out) as folder:
        if chosen == "modernbert":
            config = native.modernbert_config(final.config, final.vocab_size)
            weights = native.modernbert_weights(final.weights, final.config)
        elif chosen == "bert":
            config = native.bert_config(final.config, final.vocab_size)
            weights = native.bert_weights(final.weights, final.config)
        else:
            config, weights = _custom_config(final), final.weights
            _copy_code(folder)
        ids = native.special_ids(Specials.of(final.tokenizer))
        write_json(folder / "config.json", {**config, **ids})
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        _write_tokenizer(final, folder)
        (folder / "README.md").write_text(model_card(final, chosen, summary), "utf-8")
        difference = verify(final, folder, custom=chosen == "custom")
    return Exported(out, chosen, tuple(reasons), difference)


def _choose(final: TrainedModel, wanted: Format) -> tuple[str, list[str]]:
    obstacles = {
        "modernbert": native.modernbert_obstacles(final.config),
        "bert": native.bert_obstacles(final.config),
        "custom": [],
    }
    if wanted != "auto":
        if obstacles[wanted]:
            raise InputError(f"{wanted} cannot hold this model: {'; '.join(obstacles[wanted])}")
        return wanted, []
    reasons: list[str] = []
    for name, found in obstacles.items():
        if not found:
            return name, reasons
        reasons.append(f"not {name}: {'; '.join(found)}")
    raise AssertionError("custom code holds every model")


def _custom_config(final: TrainedModel) -> dict[str, Any]:
    fields = final.config.model_dump(mode="json", exclude={"max_length"})
    return {
        **fields,
        "max_position_embeddings": final.config.max_length,
        "ffn_width": final.config.ffn_width,
        "ffn_hidden": final.config.ffn_hidden,
        "dropout": native.FINETUNE_DROPOUT,
        "architectures": ["CrammedForMaskedLM"],
        "model_type": "crammed",
        "auto_map": {
            "AutoConfig": "modeling_crammed.CrammedConfig",
            "AutoModel": "modeling_crammed.CrammedModel",
            "AutoModelForMaskedLM": "modeling_crammed.CrammedForMaskedLM",
            "AutoModelForSequenceClassification": (
                "modeling_crammed.CrammedForSequenceClassification"
            ),
            "AutoModelForTokenClassification": "modeling_crammed.CrammedForTokenClassification",
        },
        "vocab_size": final.vocab_size,
        "tie_word_embeddings": False,
    }


def _copy_code(folder: Path) -> None:
    package = resources.files("crammed")
    for source, name in (
        (package / "export" / "modeling_crammed.py", "modeling_crammed.py"),
        (package / "model" / "encoder.py", "encoder_crammed.py"),
    ):
        with resources.as_file(source) as path:
            shutil.copyfile(path, folder / name)


def _write_tokenizer(final: TrainedModel, folder: Path) -> None:
    final.tokenizer.save(str(folder / "tokenizer.json"))
    names = Specials.of(final.tokenizer).names(final.tokenizer)
    specials = {f"{part}_token": name for part, name in names.items()}
    types = ["token_type_ids"] if final.config.token_types else []
    write_json(folder / "special_tokens_map.json", specials)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": final.config.max_length,
            "model_input_names": ["input_ids", *types, "attention_mask"],
            "clean_up_tokenization_spaces": False,
            **specials,
        },
    )


def verify(final: TrainedModel, folder: Path, *, custom: bool) -> float | None:
    """Largest logit difference between the folder's model, loaded by transformers, and ours.

    Two rows of different lengths, so that padding is part of the check. None without transformers.

    Raises:
        CrammedError: the difference is above `TOLERANCE`.
    """
    try:
        from transformers import AutoModelForMaskedLM
    except ImportError:
        return None
    length = min(32, final.config.max_length)
    draw = torch.Generator().manual_seed(0)
    specials = Specials.of(final.tokenizer)
    ids = torch.randint(final.vocab_size, (2, length), generator=draw)
    ids[:, 0], ids[:, -1] = specials.cls, specials.sep
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0
    with quiet_transformers():
        theirs_model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=custom).eval()
    ours_model = final.masked_lm(torch.device("cpu"))
    with torch.inference_mode():
        theirs = theirs_model(input_ids=ids, attention_mask=mask).logits
        ours = ours_model(ids, mask=mask.bool())
    difference = float((theirs - ours)[mask.bool()].abs().max())
    if not difference <= TOLERANCE:
        raise CrammedError(
            f"the exported model's logits differ from ours by {difference:.3g}: not exported"
        )
    return difference
