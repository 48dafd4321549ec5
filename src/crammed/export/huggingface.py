"""Exports a trained model as a folder that transformers loads, checked by comparing logits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from crammed.config import ModelConfig
from crammed.config.finetuning import dropout_at
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import CrammedError, InputError, first_line
from crammed.export import native
from crammed.export.card import Metadata, model_card
from crammed.export.onnx import check_onnx, write_onnx
from crammed.files.folders import check_vacant, new_folder
from crammed.files.regular import read_text
from crammed.files.scratch import scratch_folder
from crammed.files.writing import read_json, write_json, write_text
from crammed.model.blocks import Linear
from crammed.model.trained import TrainedModel, save_weights
from crammed.runs.summary import Training
from crammed.terminal.quiet import quiet_transformers

Format = Literal["auto", "modernbert", "bert", "custom"]
TOLERANCE = 1e-3
"""Largest allowed difference between the exported model's logits and ours; typically < 1e-5."""

_HEADS = (
    "MaskedLM",
    "SequenceClassification",
    "TokenClassification",
    "QuestionAnswering",
    "MultipleChoice",
)
_AUTO_MAP = {
    "AutoConfig": "modeling_crammed.CrammedConfig",
    "AutoModel": "modeling_crammed.CrammedModel",
    **{f"AutoModelFor{head}": f"modeling_crammed.CrammedFor{head}" for head in _HEADS},
}
"""Auto class of transformers -> the class that it loads."""


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        format: the model family that it loads as.
        reasons: why the preferred formats could not be used.
        difference: the largest difference in logits; None where transformers is not installed.
        onnx: that of model.onnx; None without one.
    """

    path: Path
    format: str
    reasons: tuple[str, ...]
    difference: float | None
    onnx: float | None = None


def export(
    final: TrainedModel,
    out: Path,
    wanted: Format = "auto",
    training: Training | None = None,
    metadata: Metadata | None = None,
    onnx: Literal["float32", "int8"] | None = None,
) -> Exported:
    """Write the model to the new folder `out`.

    `auto` chooses the first of ModernBERT, BERT and custom code that can represent the model.
    Custom code loads with ``trust_remote_code=True``.

    Args:
        training: what training did, for the model card.
        metadata: what the hub reads there.
        onnx: the number format of the weights of an additional model.onnx.

    Raises:
        InputError: the wanted format cannot represent the model, or `out` is not new or empty, or
            a library for model.onnx is missing.
        CrammedError: the exported model's logits differ from ours.
    """
    check_vacant(out, "--to")
    if onnx is not None:
        check_onnx()
    chosen, reasons = _choose(final, wanted)
    trained, final = final, as_long_as_trained(final)
    weights = {**final.weights, **initial_pooler(final.config)}
    with new_folder(out) as folder:
        if chosen == "custom":
            config = _custom_config(final)
            write_custom_code(folder)
        else:
            kind = native.FORMATS[chosen]
            config = kind.config(final.config, final.vocab_size)
            views = kind.weights(weights, final.config)
            weights = {name: view.clone() for name, view in views.items()}
        ids = native.special_ids(Specials.of(final.tokenizer))
        write_json(folder / "config.json", {**config, **ids})
        save_weights(folder / "model.safetensors", weights, format="pt")
        _write_tokenizer(final, folder)
        card = model_card(final, chosen, training, metadata or Metadata(), onnx=onnx is not None)
        (folder / "README.md").write_text(card, "utf-8")
        difference = verify(trained, folder, custom=chosen == "custom")
        apart = None
        if onnx is not None:
            model = load_exported(folder, custom=chosen == "custom")
            apart = write_onnx(model, folder, input_names(final.config), int8=onnx == "int8")
    return Exported(out, chosen, tuple(reasons), difference, apart)


def _choose(final: TrainedModel, wanted: Format) -> tuple[str, list[str]]:
    """The format to write, and why earlier ones were ruled out."""
    reasons: list[str] = []
    for name, kind in native.FORMATS.items():
        obstacles = kind.obstacles(final.config)
        if name == wanted and obstacles:
            raise InputError(f"{name} cannot hold this model: {'; '.join(obstacles)}")
        if name == wanted or (wanted == "auto" and not obstacles):
            return name, reasons
        if wanted == "auto":
            reasons.append(f"not {name}: {'; '.join(obstacles)}")
    return "custom", reasons


def as_long_as_trained(final: TrainedModel) -> TrainedModel:
    """The model for inputs of up to a row of its training, without positions never trained."""
    longest = final.trained_length
    weights = dict(final.weights)
    if (table := weights.get("encoder.positions.weight")) is not None:
        weights["encoder.positions.weight"] = table[:longest].clone()
    return replace(
        final, config=final.config.model_copy(update={"max_length": longest}), weights=weights
    )


def initial_pooler(config: ModelConfig) -> dict[str, Tensor]:
    """The parameters of a new pooler, always the same; none if classifiers have no pooler.

    Pretraining has no pooler. If the export had none either, everyone who loads it for a classifier
    would get another one, which adapters such as LoRA do not save.
    """
    if config.classifier != "pooler":
        return {}
    width = config.pooler_width or config.width
    pooler = Linear(config.width, width, device="meta").to_empty(device="cpu")  # draws nothing
    pooler.start(config.init_std, torch.Generator().manual_seed(0))
    return {f"pooler.{name}": parameter.detach() for name, parameter in pooler.named_parameters()}


def _custom_config(final: TrainedModel) -> dict[str, Any]:
    """Everything that the encoder may read from a `ModelConfig`: its fields and its properties."""
    fields = final.config.with_dropout(dropout_at(final.config.width)).complete()
    del fields["max_length"]
    derived = [name for name, kind in vars(ModelConfig).items() if isinstance(kind, property)]
    return {
        **fields,
        **{name: getattr(final.config, name) for name in derived},
        "max_position_embeddings": final.config.max_length,
        "architectures": ["CrammedForMaskedLM"],
        "model_type": "crammed",
        "auto_map": _AUTO_MAP,
        "tokenizer_class": "PreTrainedTokenizerFast",  # pipelines of transformers 4 look here
        "vocab_size": final.vocab_size,
        "tie_word_embeddings": False,
    }


def custom_code() -> dict[str, str]:
    """The files of custom code: the class for transformers, the encoder, and what it imports."""
    package = resources.files("crammed")
    of_class = (package / "export" / "modeling_crammed.py").read_text("utf-8")
    files, names = {"modeling_crammed.py": of_class}, ["classifiers"]
    for name in names:
        text = files[f"{name}.py"] = (package / "model" / f"{name}.py").read_text("utf-8")
        imported = re.findall(r"^from \.(\w+) import", text, re.MULTILINE)
        names += [other for other in imported if other not in names]
    return files


def write_custom_code(folder: Path) -> None:
    """Write the files of custom code."""
    for name, text in custom_code().items():
        (folder / name).write_text(text, "utf-8")


def comes_with_our_code(folder: Path) -> bool:
    """Whether a folder holds the code of this package, and no file of it names any other.

    Raises:
        InputError: a file of its configuration is damaged.
    """
    config = read_json(folder / "config.json") or {}
    if config.pop("auto_map", None) != _AUTO_MAP:
        return False
    others = [read_json(f) for f in folder.glob("*config*.json") if f.name != "config.json"]
    files = {file.name: read_text(file) for file in folder.glob("*.py")}
    return '"auto_map": ' not in json.dumps([config, *others]) and files == custom_code()


def _write_tokenizer(final: TrainedModel, folder: Path) -> None:
    write_text(folder / "tokenizer.json", final.tokenizer.to_str(pretty=True))
    names = Specials.of(final.tokenizer).names(final.tokenizer)
    specials = {f"{part}_token": name for part, name in names.items()}
    write_json(folder / "special_tokens_map.json", specials)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": final.config.max_length,
            "model_input_names": input_names(final.config),
            "clean_up_tokenization_spaces": False,
            **specials,
        },
    )


def input_names(config: ModelConfig) -> list[str]:
    """What the tokenizer gives the model."""
    # Texts of a pair differ in type, so a model with a single type must not get any.
    types = ["token_type_ids"] if config.token_types > 1 else []
    return ["input_ids", *types, "attention_mask"]


@contextmanager
def importable(folder: Path) -> Iterator[Path]:
    """The folder under a valid package name, since transformers 4 imports it as a package."""
    with scratch_folder() as place:
        name = place / "crammed_export"
        name.symlink_to(folder.resolve(), target_is_directory=True)
        yield name


def load_exported(folder: Path, *, custom: bool) -> Any:
    """The folder's masked language model, in evaluation mode."""
    from transformers import AutoModelForMaskedLM

    with quiet_transformers(), importable(folder) as name:
        return AutoModelForMaskedLM.from_pretrained(name, trust_remote_code=custom).eval()


def verify(final: TrainedModel, folder: Path, *, custom: bool) -> float | None:
    """Compare the logits of the folder's model, loaded by transformers, with our model's.

    The two rows have different lengths, so that padding is part of the check.

    Returns:
        The largest difference; None where transformers is not installed.

    Raises:
        InputError: the installed version of transformers cannot load it.
        CrammedError: the difference is above `TOLERANCE`.
    """
    try:
        import transformers
    except ImportError:
        return None
    try:
        theirs_model = load_exported(folder, custom=custom)
    except Exception as error:  # whatever another version of it may raise
        raise InputError(
            f"transformers {transformers.__version__} cannot load the export "
            f"({first_line(error)}): pip install --upgrade transformers, then repeat the command"
        ) from error
    length = min(512, final.trained_length)
    draw = torch.Generator().manual_seed(0)
    specials = Specials.of(final.tokenizer)
    ids = torch.randint(final.vocab_size, (2, length), generator=draw)
    ids[:, 0], ids[:, -1] = specials.cls, specials.sep
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0
    ours_model = final.masked_lm(torch.device("cpu"))
    with torch.inference_mode():
        theirs = theirs_model(input_ids=ids, attention_mask=mask).logits
        ours = ours_model(ids, mask=mask.bool())
    return checked((theirs - ours)[mask.bool()])


def checked(differences: Tensor) -> float:
    """The largest of these differences of logits.

    Raises:
        CrammedError: it is above `TOLERANCE`.
    """
    difference = float(differences.abs().max())
    if not difference <= TOLERANCE:
        raise CrammedError(
            f"the exported model's logits differ from the trained model's by {difference:.3g}: "
            "not exported"
        )
    return difference
