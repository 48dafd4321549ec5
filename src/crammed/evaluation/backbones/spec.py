"""Which encoder to evaluate: a run of ours, or any Hugging Face model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone, digest
from crammed.evaluation.backbones.huggingface import HuggingFaceBackbone
from crammed.evaluation.backbones.huggingface_files import find, model_files
from crammed.evaluation.backbones.run_directory import RunBackbone, run_files


@dataclass(frozen=True)
class BackboneSpec:
    """Which encoder; small enough to send to another process, which loads it again.

    Attributes:
        spec: a run directory, a Hugging Face folder, or a name on the hub.
        dropout: of our own runs; Hugging Face models keep their configuration's.
        trust_remote_code: whether a model may bring Python code of its own.
    """

    spec: str
    dropout: float
    trust_remote_code: bool = False

    def load(self) -> Backbone:
        """Load it.

        Raises:
            InputError: there is none, a part of it is missing or damaged, or it needs what is not
                installed or not allowed.
        """
        path = Path(self.spec).expanduser()
        if (path / "final" / "config.json").is_file():
            return RunBackbone.of_run(path, self.dropout)
        if path.exists():
            if not (path / "config.json").is_file():
                raise InputError(
                    f"{path} is neither a finished run (no final/config.json) nor a Hugging Face "
                    "folder (no config.json)"
                )
        elif not re.fullmatch(r"[\w.-]*\w(/\w[\w.-]*)?", self.spec):
            raise InputError(f"no such model: {self.spec} (a run directory, a Hugging Face folder)")

        return HuggingFaceBackbone(*find(self.spec), trust_remote_code=self.trust_remote_code)


def local_digest(folder: Path) -> str:
    """The `Backbone.sha256` of the model in a folder, which is not loaded for it.

    Raises:
        InputError: there is none.
    """

    is_run = (folder / "final" / "config.json").is_file()
    return digest(run_files(folder) if is_run else model_files(folder))
