"""A trained model on disk, under our own names: weights, configuration, tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from crammed.config import ModelConfig
from crammed.config.corpus import MOST_TOKENS
from crammed.config.migration import migrate
from crammed.config.yamlfile import validated
from crammed.data.tokenization.tokenizer import read_tokenizer
from crammed.errors import InputError
from crammed.files.folders import new_folder
from crammed.files.hashes import HASHES, damage, write_hashes
from crammed.files.regular import read_text
from crammed.files.writing import read_json, write_json, write_text
from crammed.model.electra import lasting
from crammed.model.encoder import MaskedLM
from crammed.model.tensors import UNREADABLE, Damaged, misfit, read_tensors

SCHEMA = 2
"""Version of ``config.json``; from 2 on, the folder contains the hashes of its files."""
EXPORT = "export"
"""The folder in a finished run that holds its model for Hugging Face."""


def save_weights(path: Path, weights: dict[str, Tensor], **metadata: str) -> None:
    """Write a file of weights with the permissions of any new file.

    Files written by safetensors itself are readable only by their owner.
    """
    path.touch()
    mode = path.stat().st_mode
    save_file(weights, path, metadata=metadata or None)
    path.chmod(mode)


@dataclass(frozen=True)
class TrainedModel:
    """A trained masked language model and its tokenizer.

    Attributes:
        row_length: tokens per row in training.
        weights: the parameters of `MaskedLM` by name, on the CPU.
    """

    config: ModelConfig
    vocab_size: int
    row_length: int
    tokenizer: Tokenizer
    weights: dict[str, Tensor]

    @property
    def trained_length(self) -> int:
        """The longest input that the model has seen, in tokens."""
        return min(self.row_length, self.config.max_length)

    def masked_lm(self, device: torch.device) -> MaskedLM:
        """The model with these weights, in evaluation mode."""
        with torch.random.fork_rng(devices=[]):  # weights drawn here are replaced below
            model = MaskedLM(self.config, self.vocab_size)
        model.load_state_dict(self.weights, strict=True)
        return model.to(device).eval()

    def save(self, folder: Path) -> None:
        """Write the model to a folder that does not exist yet."""
        with new_folder(folder) as aside:
            save_weights(aside / "model.safetensors", self.weights)
            write_text(aside / "tokenizer.json", self.tokenizer.to_str(pretty=True))
            values = {
                "schema": SCHEMA,
                "vocab_size": self.vocab_size,
                "row_length": self.row_length,
                "model": self.config.model_dump(mode="json"),
            }
            write_json(aside / "config.json", values)
            write_hashes(aside)


def trained_model(
    model: MaskedLM, config: ModelConfig, row_length: int, tok: Tokenizer
) -> TrainedModel:
    """The `TrainedModel` of a model in memory, with its weights on the CPU."""
    weights = {n: p.detach().cpu().contiguous() for n, p in lasting(model).items()}
    return TrainedModel(config, model.encoder.tokens.num_embeddings, row_length, tok, weights)


def has_trained_model(run: Path) -> bool:
    """Whether a folder is a run directory whose training is finished."""
    own = any((run / "final" / name).is_file() for name in ("config.json", HASHES))
    return own or is_adapted(run)


def is_adapted(run: Path) -> bool:
    """Whether a folder is a finished run that adapted a pretrained model: it has its export alone.

    Raises:
        InputError: its result is damaged.
    """
    there = not (run / "final").exists() and (run / EXPORT).is_dir()
    return there and bool((read_json(run / "summary.json") or {}).get("adapted"))


def exported_model(run: Path) -> Path:
    """The Hugging Face folder of a finished run.

    Raises:
        InputError: it has none.
    """
    folder = run / EXPORT
    if not folder.is_dir():
        raise InputError(f"{run} has no exported model: crammed export {run} --to {folder}")
    return folder


def load_trained(run: Path) -> TrainedModel:
    """Read the trained model of a run directory.

    Raises:
        InputError: the folder holds no trained model, or a damaged one.
    """
    folder, hint = run / "final", "name a run directory whose run is finished"
    if not run.exists():
        raise InputError(f"{run} does not exist: {hint}")
    if is_adapted(run):
        raise InputError(f"{run} adapted a pretrained model, which {run / EXPORT} holds")
    if not has_trained_model(run):
        raise InputError(f"{run} holds no trained model: {hint}")
    try:
        return _read(folder)
    except Damaged as error:
        raise InputError(
            f"{folder} is damaged ({error}): restore it from a copy, or train "
            "it again with another --out"
        ) from error


def check_trained(run: Path) -> None:
    """Check the trained model of a run directory against its hashes, unless it was removed.

    Raises:
        InputError: the model is damaged.
    """
    if (run / "final").exists() and damage(run / "final"):
        load_trained(run)  # raises an error that says what is wrong


def _read(folder: Path) -> TrainedModel:
    if (folder / HASHES).exists() and (fault := damage(folder)):
        raise Damaged(fault)
    file = folder / "config.json"
    try:
        values = json.loads(read_text(file))
        sections = migrate({"model": values["model"]})
        vocab_size, row_length = int(values["vocab_size"]), int(values["row_length"])
        hashed = values["schema"] > 1
    except UNREADABLE as error:
        raise Damaged(f"{file.name} does not describe a model") from error
    if hashed and not (folder / HASHES).exists():
        raise Damaged(f"{HASHES} is missing")
    config = validated(ModelConfig, sections["model"], str(file))
    weights = read_tensors(folder / "model.safetensors")
    if fault := _misfit(weights, config, vocab_size):
        raise Damaged(f"model.safetensors does not match config.json: {fault}")
    try:
        tokenizer = read_tokenizer(folder / "tokenizer.json", vocab_size)
    except InputError as error:
        raise Damaged("tokenizer.json is not a readable tokenizer") from error
    return TrainedModel(config, vocab_size, row_length, tokenizer, weights)


def _misfit(weights: dict[str, Tensor], config: ModelConfig, vocab_size: int) -> str | None:
    if not 0 < vocab_size <= MOST_TOKENS:
        return f"no vocabulary has {vocab_size} tokens"
    if config.layers > len(weights):
        return f"it has {len(weights)} tensors"
    with torch.device("meta"):  # no memory is allocated, whatever size the file claims
        model = MaskedLM(config, vocab_size)
    return misfit(weights, dict(model.named_parameters()))
