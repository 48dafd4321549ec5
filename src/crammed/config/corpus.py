"""How text becomes a corpus: its sources, cleaning, tokenizer and rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from crammed.config.base import Later, Names, PositiveFloat, PositiveInt, Section
from crammed.files.addresses import is_address
from crammed.files.folders import expanded
from crammed.schedule import OpenFraction

LEAST_TOKENS, MOST_TOKENS = 64, 2**24
"""Limits of the vocabulary size that can be requested."""
TextDocuments = Literal["auto", "blank-line", "line", "file"]
FileFormat = Literal[
    "auto",
    "txt",
    "md",
    "rst",
    "html",
    "warc",
    "jsonl",
    "csv",
    "tsv",
    "parquet",
    "arrow",
    "zip",
    "tar",
]
FieldName = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name)]
"""The field of a record, or a column by its name or number."""
Ordering = Literal[
    "sentence-length", "common-first", "rare-first", "word-length", "fragments", "long-documents"
]


class SourceConfig(Section):
    """One source of documents; in a list of sources, a bare word stands for its `path`."""

    path: str
    """A file, a folder or a glob, also of an address such as s3://bucket/texts; `-` (standard
    input), `python-docs`, or `hub:NAME`."""
    name: str | None = None
    """Its name in reports; by default the last part of `path`."""
    documents: TextDocuments | None = None
    """What counts as one document of plain text; by default `data.documents`."""
    format: FileFormat | None = None
    """The format of its files, whatever their names are; by default `data.format`."""
    text_field: FieldName | None = None
    """The field or column that holds the text; by default `data.text_field`."""
    where: dict[str, Names] = Field(default_factory=dict)
    """Keep records whose field (dotted: meta.pile_set_name) has one of these values."""
    weight: Annotated[float, Field(gt=0.0, le=65_535.0, allow_inf_nan=False)] = 1.0
    """How often each document is packed: with 2.5, all of them twice and half a third time."""
    share: PositiveFloat | None = None
    """Its part of the text, relative to those of the other sources: sets `weight` by the sizes."""
    max_characters: PositiveInt | None = None
    """Start no further document once this many characters have been read."""
    suite: Annotated[str | None, Later()] = None
    """A suite of tasks, whose folder (or `hub`) `path` then is: the text is that of the rows that
    its tasks are fine-tuned on, without labels."""

    @model_validator(mode="after")
    def _suites_say_what_text_is(self) -> SourceConfig:
        reading = ("documents", "format", "text_field", "where")
        given = [name for name in reading if getattr(self, name)]
        if self.suite is not None and given:
            raise ValueError(f"a suite says what its texts are: leave {given[0]} out")
        return self

    @property
    def is_remote(self) -> bool:
        """Whether `path` is an address."""
        return is_address(self.path)

    @property
    def is_on_disk(self) -> bool:
        """Whether `path` names files on this machine."""
        elsewhere = self.is_remote or self.path.startswith("hub:")
        return not elsewhere and self.path not in ("-", "python-docs")


class DownstreamConfig(Section):
    """A suite of tasks to keep out of the text, named as ``crammed evaluate`` names it."""

    suite: str = "glue"
    """A built-in suite, a YAML file of tasks, or `blimp`."""
    data: str
    """The folder of its tasks, or `hub`; for `blimp` a file or folder of sentence pairs."""
    words: Annotated[int, Field(ge=10, lt=2**31)] | None = None
    """Drop documents with any passage of so many words of a text; by default with all of it."""

    def absolute(self) -> DownstreamConfig:
        """The same suite, to be found from any folder."""
        suite = str(expanded(self.suite).absolute()) if self._is_file else self.suite
        data = self.data if self.data == "hub" else str(expanded(self.data).absolute())
        return self.model_copy(update={"suite": suite, "data": data})

    def without_folders(self) -> dict[str, Any]:
        """The values as JSON for sharing, with paths reduced to names."""
        suite = Path(self.suite).stem if self._is_file else self.suite
        return {**self.model_dump(), "suite": suite, "data": Path(self.data).name}

    @property
    def _is_file(self) -> bool:
        return Path(self.suite).suffix in (".yaml", ".yml")


class RepeatedConfig(Section):
    """Which lines or paragraphs to cut out, since they occur in several documents."""

    unit: Literal["line", "paragraph"] = "line"
    min_characters: PositiveInt = 30
    """Leave shorter ones alone."""
    documents: Annotated[int, Field(ge=2, lt=2**63)] = 2
    """Cut what occurs in this many documents or more, except where it first occurs."""


class CleanConfig(Section):
    """Which documents stay; `crammed.data.preparing.cleaning.steps` lists the steps in order."""

    unicode: bool = True
    """Normalise text to Unicode form NFC and remove control characters."""
    personal: Literal["keep", "mask"] = "keep"
    """Whether words stand for e-mail and IP addresses, phone, card and account numbers."""
    min_characters: PositiveInt = 1
    max_characters: PositiveInt | None = None
    languages: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
    """Keep documents identified as being in one of these, by ISO 639 codes; outside the rules."""
    gopher: bool = False
    """Gopher's quality rules (Rae et al. 2021, table A1), which need English stop words."""
    c4: bool = False
    """C4's quality rules (Raffel et al. 2020, section 2.2), which need Latin punctuation."""
    function: str | None = None
    """A filter of your own, as FILE.py:FUNCTION; the file's code is run."""
    downstream: Annotated[tuple[DownstreamConfig, ...] | None, Field(strict=False)] = None
    """Suites of tasks: documents that contain one of their texts are dropped. A bare word is the
    folder of GLUE tasks."""
    entities: Annotated[str | None, Field(min_length=1), Later()] = None
    """A spaCy pipeline, as its package or its folder: words such as "person" and "place" stand for
    the named entities that it finds; outside the rules."""
    exact: bool = True
    """Drop documents whose text has occurred before."""
    near: OpenFraction | None = None
    """Drop documents whose word 5-grams overlap an earlier document's by this Jaccard index."""
    repeated: RepeatedConfig | None = None
    """Cut out lines or paragraphs that occur in several documents, except where they first do."""
    substring: Annotated[int, Field(ge=20, lt=2**63)] | None = None
    """Cut out passages of at least this many bytes that have occurred before (Lee et al. 2022)."""
    max_tokens_per_character: PositiveFloat | None = None
    """The paper's compressibility filter: drop documents with this many or more (section 4.4)."""

    @field_validator("function")
    @classmethod
    def _names_a_function(cls, function: str | None) -> str | None:
        if function is not None and not re.fullmatch(r"(?s).+\.py:\w+(@[0-9a-f]{64})?", function):
            raise ValueError("name it as FILE.py:FUNCTION, such as my_filters.py:keep")
        return function

    @field_validator("downstream", mode="before")
    @classmethod
    def _words_are_glue(cls, suites: Any) -> Any:
        listed = [suites] if isinstance(suites, str | Mapping | DownstreamConfig) else suites
        if not isinstance(listed, list | tuple):
            return suites
        for each in listed:
            if isinstance(each, str) and Path(each).suffix in (".yaml", ".yml"):
                raise ValueError(f"name its data too: {{suite: {each}, data: FOLDER}}")
        return [{"data": each} if isinstance(each, str) else each for each in listed]


class MixConfig(Section):
    """Weights that follow from the sizes of the sources: by temperature, or by their `share`."""

    temperature: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] | None = None
    """Shares in proportion to size ** (1 / temperature): 1 as they are, many nearly equal."""
    most_readings: Annotated[float, Field(ge=1.0, le=65_535.0)] = 4.0
    """How often a document is packed at most, whatever share its source then has."""


class DataConfig(Section):
    """How sources become packed rows."""

    sources: Annotated[tuple[SourceConfig, ...], Field(strict=False)] = ()
    mix: MixConfig = MixConfig()
    documents: TextDocuments = "auto"
    """What counts as one document of plain text; `auto` chooses for each file by its look."""
    format: FileFormat = "auto"
    """The format of files; `auto` goes by their names, and where these say nothing by content."""
    text_field: FieldName = "text"
    """The field of a JSON line, or the column of a table, that holds the text."""
    unreadable: Literal["stop", "skip"] = "stop"
    """Whether damage stops the preparation, or what is damaged is left out and counted."""
    clean: CleanConfig = CleanConfig()
    heldout_fraction: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.004
    """Share of the characters to hold out; a hash of each document decides."""
    heldout_rows: PositiveInt = 2000
    """Hold out at least this many rows, unless that takes more than 5 % of the characters."""
    heldout_copies: Literal["drop", "keep"] = "drop"
    """What happens to documents that repeat much of a held-out one, such as near copies of it."""
    row_length: Annotated[int, Field(ge=8, le=2**20)] = 128
    """Tokens in one row."""
    cls: bool = False
    """Begin every document with [CLS]."""
    sep: bool = True
    """End every document with [SEP]; without it, nothing shows where documents end."""
    orders: Annotated[tuple[Ordering, ...], Field(strict=False)] = ()
    """Orders of the rows to store; random order need not be stored."""

    @model_validator(mode="after")
    def _fragments_need_sep(self) -> DataConfig:
        for name in ("fragments", "long-documents"):
            if name in self.orders and not self.sep:
                raise ValueError(f"the order {name} counts [SEP]: it needs data.sep: true")
        return self

    @field_validator("sources", mode="before")
    @classmethod
    def _words_are_paths(cls, sources: Any) -> Any:
        if not isinstance(sources, list | tuple):
            return sources
        return [{"path": each} if isinstance(each, str) else each for each in sources]

    @model_validator(mode="after")
    def _one_way_to_mix(self) -> DataConfig:
        shares = [source.share is not None for source in self.sources]
        weighted = any(source.weight != 1.0 for source in self.sources)
        if any(shares) and not all(shares):
            without = self.sources[shares.index(False)].path
            raise ValueError(f"give every source a share, or none: {without} has none")
        if weighted and (any(shares) or self.mix.temperature is not None):
            raise ValueError("a share or a temperature sets the weights: leave `weight` out")
        if any(shares) and self.mix.temperature is not None:
            raise ValueError("mix the sources by `share` or by mix.temperature, not by both")
        return self


class TokenizerConfig(Section):
    """The tokenizer: trained on the corpus, or loaded from `file`."""

    kind: Literal["wordpiece", "wordlevel", "bpe", "unigram", "sentencepiece-bpe"] = "wordpiece"
    vocab_size: Annotated[int, Field(ge=LEAST_TOKENS, le=MOST_TOKENS)] = 32768
    lowercase: bool = True
    strip_accents: bool = True
    ascii_only: bool = False
    """Drop every character outside ASCII, after accents are stripped."""
    train_words: PositiveInt = 16_000_000
    """Train on at most this many occurrences of words; a larger corpus is sampled evenly."""
    file: str | None = None
    """A tokenizer to use instead: a tokenizer.json, a folder with one, or `hub:OWNER/NAME`."""

    @property
    def by_chunk(self) -> bool:
        """Whether it is trained on chunks of text (`crammed.data.tokenization.chunks`)."""
        return self.kind in ("wordpiece", "wordlevel")
