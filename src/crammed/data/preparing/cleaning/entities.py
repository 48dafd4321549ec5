"""Puts plain words in place of named entities, each the kind of the entity that stood there.

"Ada Lovelace was born in London in 1815." becomes "person was born in place in date." Geiping and
Goldstein (2022) have such a step in their public code, which writes the labels themselves, PERSON
and GPE, between tokens that spaces then separate. Here all other text stays as it is, and a kind is
one or more ordinary words, so that nothing rare enters the vocabulary.

A pipeline of `spaCy`_ finds the entities. It is named by its package or its folder. Once it has
been found, ``@`` and a hash of its files follow, so that all workers use the same. Most pipelines
are trained on labelled text, so a corpus made with one is outside the rules of docs/rules.md.

.. _spaCy: https://spacy.io
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from crammed.errors import InputError, first_line
from crammed.extras import import_extra, version_of
from crammed.files.folders import expanded
from crammed.files.hashes import sha256

KEY = "data.clean.entities"
PIECE = 100_000
"""Characters that a pipeline is given at a time: its memory grows with their number."""
_KINDS = {
    "CARDINAL": "number",
    "FAC": "building",
    "GPE": "place",
    "LOC": "location",
    "MISC": "name",
    "NORP": "group",
    "ORG": "organization",
    "PER": "person",
}
"""Labels that are not words: those of OntoNotes and of WikiNER, which most pipelines have."""
_PIECE = re.compile(rf"(?s).{{1,{PIECE}}}\Z|.{{1,{PIECE - 1}}}\n|.{{1,{PIECE - 1}}}\s|.{{{PIECE}}}")
"""The rest of a text; or as much as fits, up to the last line feed, else space, else anywhere."""


def located(named: str) -> str:
    """The pipeline with the absolute path of its folder, or its package, and its files' hash.

    Raises:
        InputError: spaCy is missing, or there is no such pipeline.
    """
    name, expected = _parts(named)
    place, folder = _place(name)
    return f"{place}@{expected or _digest(folder)}"


def without_folder(named: str) -> str:
    """The pipeline as a manifest names it: its package or the name of its folder, and the hash."""
    name, expected = _parts(located(named))
    return f"{Path(name).name}@{expected}"


def of_pipeline(named: str) -> str:
    """What is the same wherever the pipeline is."""
    return without_folder(named).rpartition("@")[2]


def entity_step(named: str) -> Callable[[str], str]:
    """A step that puts plain words in place of a document's named entities.

    Raises:
        InputError: spaCy is missing; there is no such pipeline, it is not the one that was found,
            it cannot be loaded, or it finds no entities. The step raises it if the pipeline fails.
    """
    nlp = _pipeline(named)

    def step(text: str) -> str:
        text = text.encode("utf-8", "replace").decode()  # halves of surrogate pairs: as written
        try:
            with nlp.memory_zone():  # else it keeps every word that it has ever seen
                return "".join(_simplified(piece, nlp(piece)) for piece in pieces(text))
        except Exception as error:
            raise InputError(f"{KEY}: {_parts(named)[0]} failed: {first_line(error)}") from error

    return step


def words_for(label: str) -> str:
    """The plain words for a label: WORK_OF_ART is a "work of art"."""
    return _KINDS.get(label, label.replace("_", " ").lower())


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of at most `PIECE` characters, cut where lines or words end if possible.

    Where they are cut depends on nothing but the text.
    """
    return (found[0] for found in _PIECE.finditer(text))


def entity_library() -> Any:
    """The library that finds named entities; if missing, an `InputError` names the extra."""
    return import_extra("spacy", "entities", KEY)


def found_by() -> str:
    """The library and its version, on which what is found depends."""
    return f"spacy {version_of('spacy')}"


def _simplified(text: str, document: Any) -> str:
    parts: list[str] = []
    end = 0
    for entity in document.ents:  # in order, and apart
        parts += text[end : entity.start_char], words_for(entity.label_)
        end = entity.end_char
    return "".join([*parts, text[end:]])


@lru_cache(maxsize=1)
def _pipeline(named: str) -> Any:
    """The pipeline itself, loaded once in each process."""
    spacy = entity_library()
    name, expected = _parts(named)
    place, folder = _place(name)
    if expected and _digest(folder) != expected:
        raise InputError(f"{KEY}: {name} changed while text was cleaned: repeat the command")
    try:
        nlp = spacy.load(place)
    except Exception as error:
        raise InputError(f"{KEY}: {name} cannot be loaded: {first_line(error)}") from error
    metas = map(nlp.get_pipe_meta, nlp.pipe_names)
    if not any({"doc.ents", "doc.spans"}.intersection(meta.assigns) for meta in metas):
        raise InputError(
            f"{KEY}: {name} finds no named entities: name a pipeline with a component such as ner"
        )
    return nlp


def _place(name: str) -> tuple[str, Path]:
    """What spaCy loads, and the folder of its files."""
    util = entity_library().util
    if util.is_package(name):
        return name, util.get_package_path(name)
    folder = expanded(name).absolute()
    if not (folder / "config.cfg").is_file():
        download = f"python -m spacy download {name}" if name.isidentifier() else "its folder"
        raise InputError(
            f"{KEY}: {name} is neither an installed spaCy pipeline nor the folder of one: type "
            f"{download}, or a pipeline such as en_core_web_sm"
        )
    return str(folder), folder


def _digest(folder: Path) -> str:
    """A hash of the names and contents of a pipeline's files."""
    whole = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            whole.update(f"{file.relative_to(folder).as_posix()}\n{sha256(file)}\n".encode())
    return whole.hexdigest()


def _parts(named: str) -> tuple[str, str]:
    """The package or folder, and the hash of its files, empty if it is not known."""
    found = re.fullmatch(r"(?s)(.+)@([0-9a-f]{64})", named)
    return (found[1], found[2]) if found else (named, "")
