"""Protocols: hyperparameters for fine-tuning (the files in ``protocols/``)."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from crammed.config import Protocol
from crammed.config.yamlfile import read_section
from crammed.errors import InputError
from crammed.model.trained import has_trained_model
from crammed.runs.directory import read_config


def load_protocol(name: str) -> Protocol:
    """Load a built-in protocol by name, or the user's own by the path of its .yaml file.

    Raises:
        InputError: there is no such protocol, or it is invalid.
    """
    built_in = resources.files("crammed") / "evaluation" / "protocols"
    return read_section("protocol", name, built_in, Protocol)


def protocol_for(model: str, named: str | Protocol | None, seeds: int | None) -> Protocol:
    """The protocol that was named; otherwise a run's own; otherwise the paper's.

    Args:
        model: a run directory, a Hugging Face folder or a name on the hub.
        named: a protocol, or its name or file, if one was given.
        seeds: number of fine-tuning seeds, if it was given.

    Raises:
        InputError: as `load_protocol`, or the run's configuration cannot be read, or a probe is
            to have several seeds.
    """
    if isinstance(named, Protocol):
        protocol = named
    elif named is not None:
        protocol = load_protocol(named)
    elif has_trained_model(Path(model)):
        own = read_config(Path(model)).finetune
        protocol = Protocol.model_validate(own.model_dump(exclude={"tasks"}))
    else:
        protocol = load_protocol("cramming")
    if protocol.probe is not None and seeds is not None and seeds > 1:
        raise InputError(f"--seeds {seeds}: a probe involves no randomness, so leave it out")
    return protocol if seeds is None else protocol.model_copy(update={"seeds": seeds})
