"""A trained model on disk, in our own names: weights, configuration, tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from crammed.config import ModelConfig
from crammed.config.migration import migrate
from crammed.config.yamlfile import validated
from crammed.errors import InputError
from crammed.files import new_folder, write_json
from crammed.model.encoder import MaskedLM


def save_weights(path: Path, weights: dict[str, Tensor], **metadata: str) -> None:
    """Write a file of weights with the permissions of any new file.

    What safetensors writes can be read by the owner alone.
    """
    path.touch()
    mode = path.stat().st_mode
    save_file(weights, path, metadata=metadata or None)
    path.chmod(mode)


@dataclass(frozen=True)
class TrainedModel:
    """A trained masked language model and its tokenizer.

    Attributes:
        row_length: tokens of the rows that it was trained on.
        weights: the parameters of `MaskedLM` by name, on the CPU.
    """

    config: ModelConfig
    vocab_size: int
    row_length: int
    tokenizer: Tokenizer
    weights: dict[str, Tensor]

    def masked_lm(self, device: torch.device) -> MaskedLM:
        """The model with these weights, in evaluation mode."""
        model = MaskedLM(self.config, self.vocab_size)
        model.load_state_dict(self.weights, strict=True)
        return model.to(device).eval()

    def save(self, folder: Path) -> None:
        """Write the model to a folder that does not exist yet."""
        with new_folder(folder) as aside:
            save_weights(aside / "model.safetensors", self.weights)
            self.tokenizer.save(str(aside / "tokenizer.json"))
            values = {
                "schema": 1,
                "vocab_size": self.vocab_size,
                "row_length": self.row_length,
                "model": self.config.model_dump(mode="json"),
            }
            write_json(aside / "config.json", values)


def trained_model(
    model: MaskedLM, config: ModelConfig, row_length: int, tok: Tokenizer
) -> TrainedModel:
    """A model in memory as a `TrainedModel`, with its weights on the CPU."""
    weights = {n: p.detach().cpu().contiguous() for n, p in model.named_parameters()}
    return TrainedModel(config, model.encoder.tokens.num_embeddings, row_length, tok, weights)


def has_trained_model(run: Path) -> bool:
    """Whether a folder is a run directory whose training is finished."""
    return (run / "final" / "config.json").is_file()


def load_trained(run: Path) -> TrainedModel:
    """Read the trained model of a run directory.

    Raises:
        InputError: the folder holds none.
    """
    folder = run / "final"
    file = folder / "config.json"
    try:
        values = json.loads(file.read_text("utf-8"))
        sections = migrate({"model": values["model"]})
        vocab_size, row_length = int(values["vocab_size"]), int(values["row_length"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{run} holds no trained model: name a run directory whose run is finished"
        ) from error
    return TrainedModel(
        config=validated(ModelConfig, sections["model"], str(file)),
        vocab_size=vocab_size,
        row_length=row_length,
        tokenizer=Tokenizer.from_file(str(folder / "tokenizer.json")),
        weights=load_file(folder / "model.safetensors"),
    )
