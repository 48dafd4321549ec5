"""The folder of a fine-tuned model: that of a Hugging Face classifier, and task.json beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor

from crammed.config import PositiveInt, Section
from crammed.config.base import Later
from crammed.errors import InputError
from crammed.evaluation.backbones.huggingface import WRAPPED
from crammed.evaluation.backbones.huggingface_files import (
    PAIR_LAYER,
    copy_all_but_weights,
    single_precision,
)
from crammed.evaluation.finetuning.task import LabelScale
from crammed.files.regular import read_text
from crammed.files.writing import write_json
from crammed.model.trained import save_weights
from crammed.tasks.task import Labels, Task

DESCRIPTION, WEIGHTS = "task.json", "model.safetensors"
_OF_ONE_NUMBER = ("regression", "choice")
"""Kinds of tasks whose models have one output, which stands for no class."""
_PROBLEMS = {
    "classification": "single_label_classification",
    "multi-label": "multi_label_classification",
    "regression": "regression",
}
"""What transformers calls the kinds of tasks that its losses tell apart."""


class Description(Section):
    """What task.json holds.

    Attributes:
        task: the task; its columns name the texts of the rows to predict.
        labels: names of the classes in the order of their numbers; for kind choice, of the answers.
        max_length: tokens at which sequences are truncated.
        majority: for kind tokens, the class predicted for truncated words.
        apart: whether each of two texts is read by itself.
        scale: for kind regression, what turns the model's output into a value.
        encoder: name of the encoder that was fine-tuned.
        seed: which of the seeds, from 0, has the median score.
        scores: the scores of its task, as `crammed evaluate` has them.
    """

    task: Task
    labels: Labels = ()
    max_length: PositiveInt
    majority: int = 0
    apart: Annotated[bool, Later()] = False
    scale: Annotated[LabelScale, Later()] = LabelScale()
    encoder: str
    seed: int
    scores: dict[str, Any]

    @property
    def outputs(self) -> int:
        return 1 if self.task.kind in _OF_ONE_NUMBER else len(self.labels)


def read_description(folder: Path) -> Description:
    """What a folder says of its task.

    Raises:
        InputError: it holds no fine-tuned model of ours, or task.json is damaged.
    """
    file = folder / DESCRIPTION
    if not file.exists():
        raise InputError(
            f"{folder} holds no fine-tuned model: make one with crammed finetune MODEL --suite "
            "SUITE --data DIR --out DIR"
        )
    try:
        return Description.model_validate_json(read_text(file))
    except (OSError, ValueError, RecursionError, ValidationError) as error:
        raise InputError(f"{file} is damaged: fine-tune again") from error


def write_model(folder: Path, source: Path, weights: Path, description: Description) -> None:
    """Write a model: the files of its encoder in `source`, with other weights and labels.

    config.json still names the class of the encoder.

    Raises:
        InputError: `source` is no Hugging Face folder.
    """
    copy_all_but_weights(source, folder, description.max_length)
    trained, before = load_file(weights), f"{WRAPPED}."
    if description.apart:
        save_weights(folder / PAIR_LAYER, _beginning(trained, "linear."), format="pt")
        before = f"encoder.{before}"
    save_weights(folder / WEIGHTS, _beginning(trained, before), format="pt")
    write_json(folder / DESCRIPTION, description.model_dump(mode="json"))
    task = description.task
    names = (task.name,) if task.kind in _OF_ONE_NUMBER else description.labels
    config = {
        **single_precision(source),
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": _PROBLEMS.get(task.kind),
    }
    config.pop("num_labels", None)
    write_json(folder / "config.json", config)


def _beginning(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights whose names begin with a prefix, by the rest of their names."""
    return {n.removeprefix(prefix): each for n, each in weights.items() if n.startswith(prefix)}
