"""Reads data sets of the Hugging Face hub by name, streamed through the `datasets` library.

``hub:NAME`` stands for one of `SHORT_NAMES`, ``hub:OWNER/REPOSITORY`` for any other data set.
Either may be followed by ``/CONFIG`` and ``/SPLIT``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, islice
from typing import Any

from crammed.errors import InputError, in_one_line
from crammed.extras import import_extra
from crammed.formats.documents import ReadOptions, texts_of
from crammed.formats.lines import STOP, Faults
from crammed.hints import did_you_mean


@dataclass(frozen=True)
class HubDataset:
    """Where a data set is on the hub, and how to read its rows."""

    repository: str
    config: str | None = None
    split: str = "train"
    text_field: str | None = "text"
    """The field that holds the text; None for the one that `data.text_field` names."""
    converted: bool = False
    """Read the hub's copy in Parquet: the original is a script, which `datasets` no longer runs."""
    rows_per_document: int = 1
    """Number of consecutive rows to join, for data sets whose rows are sentences."""

    @property
    def newest(self) -> str | None:
        """The revision to look up; None for the newest on the main branch."""
        return "refs/convert/parquet" if self.converted else None


# What the paper trained on or compared (section 4.4), then what is in use now. The Pile on the hub
# lacks its copyrighted parts; the deduplicated copy has no `meta.pile_set_name`.
SHORT_NAMES = {
    "wikipedia": HubDataset("wikimedia/wikipedia", "20231101.en"),
    "bookcorpus": HubDataset(
        "bookcorpus/bookcorpus", "plain_text", converted=True, rows_per_document=16
    ),
    "the-pile": HubDataset("monology/pile-uncopyrighted"),
    "the-pile-deduplicated": HubDataset("EleutherAI/the_pile_deduplicated"),
    "c4": HubDataset("allenai/c4", "en"),
    "oscar": HubDataset("oscar-corpus/oscar", "unshuffled_deduplicated_en", converted=True),
    "openwebtext": HubDataset("Skylion007/openwebtext"),
    "fineweb": HubDataset("HuggingFaceFW/fineweb", "sample-10BT"),
    "fineweb-edu": HubDataset("HuggingFaceFW/fineweb-edu", "sample-10BT"),
    "dclm": HubDataset("mlfoundations/dclm-baseline-1.0"),
    "minipile": HubDataset("JeanKaddour/minipile"),
}


def parse_name(name: str) -> HubDataset:
    """The data set that ``hub:NAME`` stands for.

    Raises:
        InputError: the name is neither a short name nor OWNER/REPOSITORY.
    """
    parts = name.split("/")
    if parts[0] in SHORT_NAMES:
        known, rest = SHORT_NAMES[parts[0]], parts[1:]
    elif len(parts) > 1:
        known, rest = HubDataset("/".join(parts[:2]), text_field=None), parts[2:]
    else:
        raise InputError(
            f"unknown data set hub:{name}: {did_you_mean(name, SHORT_NAMES, 'hub:')}short names "
            f"are {', '.join(sorted(SHORT_NAMES))}; write others as hub:OWNER/REPOSITORY"
        )
    if len(rest) > 2 or not all(parts):
        raise InputError(
            f"hub:{name} should be hub:NAME or hub:OWNER/REPOSITORY, optionally followed by "
            "/CONFIG and /SPLIT"
        )
    config, split = (*rest, "", "")[:2]
    return replace(known, config=config or known.config, split=split or known.split)


def open_parts(name: str, text_field: str | None, options: ReadOptions) -> list[HubPart]:
    """Look up the data set on the hub and fix its revision; each of its shards is a part.

    A data set whose rows are joined is one part, because a document may go beyond its shard.

    Args:
        text_field: the field that this source sets for itself; None if it sets none.

    Raises:
        InputError: no such data set, configuration or split; no network; no `datasets`.
    """
    dataset = parse_name(name)
    options = replace(options, text_field=text_field or dataset.text_field or options.text_field)
    builder = builder_of(name, dataset, dataset.newest)
    stream = _stream(name, dataset, builder)  # a missing split should fail now
    shards = stream.num_shards if dataset.rows_per_document == 1 else 1
    return [
        HubPart(name, dataset, builder.hash, options, number, shards) for number in range(shards)
    ]


@dataclass(frozen=True)
class HubPart:
    """The documents of one split of a data set, or of one of its shards."""

    data_set: str
    """Its name, after ``hub:``."""
    dataset: HubDataset
    revision: str
    """The commit; for a local folder in the hub's layout, a hash of its file names and times."""
    options: ReadOptions
    shard: int = 0
    shards: int = 1

    @property
    def name(self) -> str:
        """The name of the data set, with the number of the shard if there are several."""
        if self.shards == 1:
            return self.data_set
        return f"{self.data_set}, shard {self.shard + 1} of {self.shards}"

    def fingerprint(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "repository": self.dataset.repository,
            "config": self.dataset.config,
            "split": self.dataset.split,
            "revision": self.revision,
        }

    def state(self) -> dict[str, Any]:
        return self.fingerprint()  # a revision never changes

    def documents(self, faults: Faults = STOP) -> Iterator[str]:
        texts = self._texts(faults)
        while joined := list(islice(texts, self.dataset.rows_per_document)):
            yield " ".join(joined)

    def _texts(self, faults: Faults) -> Iterator[str]:
        places = (f"hub:{self.name}, row {number}" for number in count(1))
        return texts_of(zip(places, self._rows(), strict=False), self.options, faults)

    def _rows(self) -> Iterator[dict[str, Any]]:
        rows = _opened(self.data_set, self.dataset, self.revision)
        try:
            if self.shards > 1:
                rows = rows.shard(num_shards=self.shards, index=self.shard)
            yield from rows
        except Exception as error:  # the network and a dozen formats may raise anything
            raise fault(self.name, "cannot be read to its end", error) from error


@lru_cache(maxsize=1)
def _opened(name: str, dataset: HubDataset, revision: str) -> Any:
    """The rows of a data set, which a process looks up once for all shards that it reads."""
    return _stream(name, dataset, builder_of(name, dataset, revision))


def builder_of(name: str, dataset: HubDataset, revision: str | None) -> Any:
    """The `datasets` library's builder of a data set, at a revision such as `HubDataset.newest`.

    Raises:
        InputError: no such data set or configuration; no network; no `datasets`.
    """
    datasets = import_extra("datasets", "data", f"hub:{name}")
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset_builder(
            dataset.repository,
            # configurations are folders in the converted copy
            name=None if dataset.converted else dataset.config,
            data_dir=dataset.config if dataset.converted else None,
            revision=revision,
        )
    except Exception as error:
        raise fault(name, "cannot be opened", error) from error


def _stream(name: str, dataset: HubDataset, builder: Any) -> Any:
    try:
        return builder.as_streaming_dataset(split=dataset.split)
    except Exception as error:
        raise fault(name, "cannot be opened", error) from error


def fault(name: str, what: str, error: Exception) -> InputError:
    return InputError(f"hub:{name} {what}: {in_one_line(error)}")
