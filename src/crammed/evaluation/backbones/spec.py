"""Which encoder to evaluate: finds and loads one of our runs or any Hugging Face model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone, digest
from crammed.evaluation.backbones.huggingface import HuggingFaceBackbone
from crammed.evaluation.backbones.huggingface_files import find, model_files
from crammed.evaluation.backbones.run_directory import RunBackbone, run_files
from crammed.model.trained import exported_model, has_trained_model, is_adapted


@dataclass(frozen=True)
class BackboneSpec:
    """Where an encoder comes from; small enough to send to another process, which loads it again.

    Attributes:
        spec: a run directory, a Hugging Face folder, or a name on the hub.
        trust_remote_code: whether Python code that comes with a model may run, if it is not that
            of this package.
    """

    spec: str
    trust_remote_code: bool = False

    def load(self) -> Backbone:
        """Load the encoder.

        Raises:
            InputError: there is no such model, a part of it is missing or damaged, or it needs
                something that is not installed or not allowed.
        """
        path = Path(self.spec)
        if has_trained_model(path) and not is_adapted(path):
            return RunBackbone(path)
        return HuggingFaceBackbone(*self.files(), trust_remote_code=self.trust_remote_code)

    def files(self) -> tuple[str, Path]:
        """Name and folder of a Hugging Face model, downloaded unless it is cached.

        Of a run, it is the exported model.

        Raises:
            InputError: there is no such model.
        """
        path = Path(self.spec)
        if has_trained_model(path):
            return path.resolve().name, exported_model(path)
        if path.exists():
            if not (path / "config.json").is_file():
                raise InputError(
                    f"{path} is neither a finished run (no final/config.json) nor a Hugging Face "
                    "folder (no config.json)"
                )
        elif not re.fullmatch(r"[\w.-]*\w(/\w[\w.-]*)?", self.spec):
            raise InputError(f"no such run directory or Hugging Face folder: {self.spec}")
        return find(self.spec)


def local_digest(folder: Path) -> str:
    """The `Backbone.sha256` of the model in a folder, without loading the model.

    Raises:
        InputError: the folder holds no model.
    """
    if is_adapted(folder):
        folder = exported_model(folder)
    return digest(run_files(folder) if has_trained_model(folder) else model_files(folder))
