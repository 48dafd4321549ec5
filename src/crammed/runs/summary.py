"""The result of a run, as its ``summary.json`` holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from crammed.budget import Account
from crammed.errors import InputError
from crammed.files.writing import read_json
from crammed.rules.early_end import EarlyEnd

Count = Annotated[int, Field(ge=0, lt=2**63)]
Amount = Annotated[float, Field(ge=0.0, le=1e30)]
Guess = Annotated[tuple[str, Amount], Field(strict=False)]
HELDOUT = {f"{of}@{rate}" for of in ("loss", "bits_per_character") for rate in ("0.15", "0.25")}
"""The held-out losses that every run has."""


def _all_measured(losses: dict[str, float]) -> dict[str, float]:
    if losses.keys() != HELDOUT:
        raise ValueError(f"must have {', '.join(sorted(HELDOUT))}")
    return losses


Losses = Annotated[dict[str, Amount], AfterValidator(_all_measured)]

BySource = dict[str, dict[str, Count | Amount | None]]


class Part(BaseModel):
    """Part of a result that people edit and disks damage; keys that nothing reads are kept."""

    model_config = ConfigDict(extra="allow", strict=True)

    def values(self) -> dict[str, Any]:
        """As the file holds it."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class OfCorpus(Part):
    """The corpus that a run was trained on; older versions did not write `heldout_sha256`."""

    sha256: str
    heldout_sha256: str | None = None
    sources: list[str]
    documents: Count
    characters: Count
    tokens: Count
    vocab_size: Count


class _Example(Part):
    before: str
    word: str
    after: str
    guesses: list[Guess]
    rank: Count
    exact: bool = False  # older runs have none: they leave out the spaces around the word


class _Export(Part):
    format: str
    reasons: list[str]
    logit_difference: Amount | None


class _OldText(Part):
    """Losses on text of the old domain, of which nothing is trained on."""

    name: str
    sha256: str
    before: Losses
    after: Losses


class Spent(Part):
    """What training of a model was charged."""

    seconds: Amount
    tokens: Count


class AdaptedFrom(Part):
    """What a run adapted.

    Attributes:
        model: name of the original.
        sha256: digest of its configuration, weights and tokenizer.
        random_weights: how many of its tensors began at random, such as those of a missing head.
        new_words: how many words its tokenizer was given.
        heldout, heldout_by_source: its held-out losses before training, as in `Summary`.
        earlier, in_all: what the runs of this package were charged that trained it from scratch,
            before and with this one; None if the original is not one of theirs.
    """

    model: str
    sha256: str
    random_weights: Count
    new_words: Count = 0
    heldout: Losses
    heldout_by_source: BySource = Field(default_factory=dict)
    old_text: _OldText | None = None
    earlier: Spent | None = None
    in_all: Spent | None = None


class Training(Part):
    """What training did, and what came out.

    Attributes:
        heldout: held-out losses in nats and bits per character, by name: ``loss@0.15``.
        rows, memory_bytes: None in runs of 0.1.0.
        joules: as of the last log point; None where they were not measured.
        outside_rules: why the result does not count by docs/rules.md, if it does not.
        adapted: what the run started from; None if it trained from scratch.
    """

    version: int = Field(1, alias="schema")
    recipe: str
    identity: str
    seed: int
    budget: str
    u: Amount
    charged_seconds: Amount
    accounts: dict[Account, Amount] = Field(min_length=1)
    parameters: Count
    updates: Count
    rows: Count | None = None
    tokens: Count
    epochs: Amount
    tokens_per_second: Amount | None
    exaflop: Amount
    peak_exaflop: Amount | None
    peak_source: str | None
    memory_bytes: Count | None = None
    device: str
    dtype: str
    heldout: Losses
    unigram_cross_entropy: Amount
    mask_token: str
    corpus: OfCorpus
    joules: Amount | None = None
    outside_rules: str | None = None
    adapted: AdaptedFrom | None = None

    def spent(self) -> Spent | None:
        """What the model was charged since it was random; None if others have trained it."""
        if self.adapted is not None:
            return self.adapted.in_all
        return Spent(seconds=self.charged_seconds, tokens=self.tokens)


class Summary(Training):
    """What ``summary.json`` holds; older runs lack what has a default."""

    heldout_by_source: BySource = Field(default_factory=dict)
    early_end: EarlyEnd | None = None
    ended_short: str | None = None
    fill_mask: list[_Example]
    export: _Export


def read_summary(run: Path) -> Summary | None:
    """The result of the run in a folder; None if it has not finished.

    Raises:
        InputError: its summary.json is damaged; names the first fault.
    """
    values = read_json(run / "summary.json")
    return None if values is None else checked(run / "summary.json", values, Summary)


Model = TypeVar("Model", bound=BaseModel)


def checked(file: Path, values: Any, model: type[Model]) -> Model:
    """What a file holds, if it has the shape of this model.

    Raises:
        InputError: it has not; names the first fault.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = f"{'.'.join(map(str, fault['loc']))!r}: " if fault["loc"] else ""
        words = fault["msg"].removeprefix("Value error, ")
        raise InputError(
            f"{file} is damaged: {where}{words[0].lower()}{words[1:]}; restore it from a copy"
        ) from error
