"""Refuses weights of Hugging Face models that would be read as other numbers, or in part."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn

from crammed.errors import InputError
from crammed.model.tensors import all_finite


def check_weights(name: str, model: Any, unexpected: Iterable[str]) -> None:
    """Check a model of transformers, and which of the stored weights it left out.

    Those of heads may be left out, but not those of layers.

    Raises:
        InputError: a weight is not finite, or the model has fewer layers than the folder.
    """
    for key, weight in model.named_parameters():
        if not all_finite([weight]):
            raise InputError(
                f"the weights of {name} are damaged: {key} is not finite; restore them from a copy"
            )
    own = f"{model.base_model_prefix}."
    lists = {n: len(each) for n, each in model.named_modules() if isinstance(each, nn.ModuleList)}
    for key in sorted(unexpected):
        for parent, count in lists.items():
            found = re.match(
                rf"{re.escape(parent.removeprefix(own))}\.(\d+)\.", key.removeprefix(own)
            )
            if found and int(found[1]) >= count:
                raise InputError(
                    f"the weights of {name} do not match its config.json: they have more than "
                    f"{count} layers, such as {key}; correct num_hidden_layers"
                )


def check_numbers(name: str, files: Iterable[Path], model: nn.Module) -> None:
    """Check that weights are stored as floating-point numbers: transformers converts any.

    Raises:
        InputError: some are not, as in a quantized model.
    """
    own = tuple(f".{key}" for key, _ in model.named_parameters())
    for file in files:
        if file.suffix != ".safetensors":
            continue
        with safe_open(file, "pt") as stored:
            for key in stored.keys():  # noqa: SIM118  (it is no mapping)
                kind = stored.get_slice(key).get_dtype()
                if not kind.startswith(("F", "BF")) and f".{key}".endswith(own):
                    raise InputError(
                        f"the weights of {name} are not floating-point numbers: {key} is {kind}; "
                        "name a version of the model that is not quantized"
                    )
