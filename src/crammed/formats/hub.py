"""Data sets of the Hugging Face hub, by name, streamed through the `datasets` library.

``hub:NAME`` and ``hub:NAME/CONFIG`` take one of `READY`; ``hub:OWNER/REPOSITORY``, with
``/CONFIG`` and ``/SPLIT`` after it if need be, takes any other.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from crammed.errors import InputError
from crammed.formats.documents import Wanted


@dataclass(frozen=True)
class HubSet:
    """Where a data set lies on the hub and how its rows are meant."""

    repository: str
    config: str | None = None
    split: str = "train"
    text_field: str | None = "text"
    """None: as `data.text_field` says."""
    converted: bool = False
    """Read the hub's own copy in Parquet: the rest is a script, which `datasets` no longer runs."""
    rows_per_document: int = 1
    """Successive rows to join where a row is only a sentence."""

    @property
    def newest(self) -> str | None:
        """The revision to begin with; None is the repository's own newest."""
        return "refs/convert/parquet" if self.converted else None


# What the paper trained on or compared (section 4.4), then what people use now. The hub's Pile is
# without its parts under copyright; its deduplicated copy has no `meta.pile_set_name`.
READY = {
    "wikipedia": HubSet("wikimedia/wikipedia", "20231101.en"),
    "bookcorpus": HubSet(
        "bookcorpus/bookcorpus", "plain_text", converted=True, rows_per_document=16
    ),
    "the-pile": HubSet("monology/pile-uncopyrighted"),
    "the-pile-deduplicated": HubSet("EleutherAI/the_pile_deduplicated"),
    "c4": HubSet("allenai/c4", "en"),
    "oscar": HubSet("oscar-corpus/oscar", "unshuffled_deduplicated_en", converted=True),
    "openwebtext": HubSet("Skylion007/openwebtext"),
    "fineweb": HubSet("HuggingFaceFW/fineweb", "sample-10BT"),
    "fineweb-edu": HubSet("HuggingFaceFW/fineweb-edu", "sample-10BT"),
    "dclm": HubSet("mlfoundations/dclm-baseline-1.0"),
    "minipile": HubSet("JeanKaddour/minipile"),
}


def find(name: str) -> HubSet:
    """The data set that ``hub:`` and this name stand for.

    Raises:
        InputError: neither a ready name nor one with an owner.
    """
    words = name.split("/")
    if words[0] in READY:
        known, choices = READY[words[0]], words[1:]
    elif len(words) > 1:
        known, choices = HubSet("/".join(words[:2]), text_field=None), words[2:]
    else:
        near = difflib.get_close_matches(name, READY, 1)
        hint = f"did you mean hub:{near[0]}? " if near else ""
        raise InputError(
            f"no ready data set hub:{name}: {hint}ready are {', '.join(sorted(READY))}; "
            "name others as hub:OWNER/REPOSITORY"
        )
    if len(choices) > 2 or not all(words):
        raise InputError(f"hub:{name} should be hub:NAME or hub:OWNER/REPOSITORY, /CONFIG, /SPLIT")
    config, split = (*choices, "", "")[:2]
    return replace(known, config=config or known.config, split=split or known.split)


def open_part(name: str, text_field: str | None, wanted: Wanted) -> HubPart:
    """Look the data set up and fix its revision.

    Args:
        text_field: what the user chose for this source, if anything.

    Raises:
        InputError: no such data set, configuration or split; no network; no `datasets`.
    """
    found = find(name)
    wanted = replace(wanted, text_field=text_field or found.text_field or wanted.text_field)
    builder = builder_of(name, found, found.newest)
    _stream(name, found, builder)  # a split that is not there should fail now
    return HubPart(name, found, builder.hash, wanted)


@dataclass(frozen=True)
class HubPart:
    """The documents of one split of a data set."""

    name: str
    found: HubSet
    revision: str
    """The commit; of a local folder in the hub's layout, a hash of its file names and times."""
    wanted: Wanted

    def fingerprint(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "repository": self.found.repository,
            "config": self.found.config,
            "split": self.found.split,
            "revision": self.revision,
        }

    def documents(self) -> Iterator[str]:
        texts = self._texts()
        while joined := list(islice(texts, self.found.rows_per_document)):
            yield " ".join(joined)

    def _texts(self) -> Iterator[str]:
        for number, row in enumerate(self._rows(), 1):
            text = self.wanted.text_of(row, f"hub:{self.name}, row {number}")
            if text is not None:
                yield text

    def _rows(self) -> Iterator[dict[str, Any]]:
        rows = _stream(self.name, self.found, builder_of(self.name, self.found, self.revision))
        try:
            yield from rows
        except Exception as error:  # whatever the network and a dozen formats come up with
            raise fault(self.name, "cannot be read to its end", error) from error


def builder_of(name: str, found: HubSet, revision: str | None) -> Any:
    """The `datasets` library's builder of a data set, at a revision such as `HubSet.newest`.

    Raises:
        InputError: no such data set or configuration; no network; no `datasets`.
    """
    try:
        import datasets
    except ImportError as error:
        raise InputError(f"hub:{name} needs an extra: pip install 'crammed[data]'") from error
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset_builder(
            found.repository,
            # configurations are folders in the converted copy
            name=None if found.converted else found.config,
            data_dir=found.config if found.converted else None,
            revision=revision,
        )
    except Exception as error:
        raise fault(name, "cannot be opened", error) from error


def _stream(name: str, found: HubSet, builder: Any) -> Any:
    try:
        return builder.as_streaming_dataset(split=found.split)
    except Exception as error:
        raise fault(name, "cannot be opened", error) from error


def fault(name: str, what: str, error: Exception) -> InputError:
    """What the library said, as one line about ``hub:NAME``."""
    why = " ".join(str(error).split())
    return InputError(f"hub:{name} {what}: {why}")
