"""The shape of a run's summary.json, which people edit and disks damage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crammed.budget import Account
from crammed.errors import InputError
from crammed.files.writing import read_json

Count = Annotated[int, Field(ge=0, lt=2**63)]
Amount = Annotated[float, Field(ge=0.0, le=1e30)]
Guess = Annotated[tuple[str, Amount], Field(strict=False)]


class _Part(BaseModel):
    """Further keys, which nothing reads, are allowed."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Heldout(_Part):
    model_config = ConfigDict(extra="forbid")

    loss_15: Amount = Field(alias="loss@0.15")
    loss_25: Amount = Field(alias="loss@0.25")
    bits_15: Amount = Field(alias="bits_per_character@0.15")
    bits_25: Amount = Field(alias="bits_per_character@0.25")


class _OfSource(_Part):
    tokens: Count
    loss_15: Amount | None = Field(alias="loss@0.15")
    bits_15: Amount | None = Field(alias="bits_per_character@0.15")


class _Corpus(_Part):
    sha256: str
    heldout_sha256: str = ""  # runs of 0.1.0 have none
    sources: list[str]
    documents: Count
    characters: Count
    tokens: Count
    vocab_size: Count


class _Example(_Part):
    before: str
    word: str
    after: str
    guesses: list[Guess]
    rank: Count
    exact: bool = False  # older runs have none: they leave out the spaces around the word


class _Export(_Part):
    format: str
    reasons: list[str]
    logit_difference: Amount | None


class _EarlyEnd(_Part):
    epochs: Amount
    share: Annotated[float, Field(gt=0.0, lt=1.0)]
    spent: str
    budget: str
    text_tokens: Count
    text_bytes: Amount | None


class _Summary(_Part):
    recipe: str
    identity: str
    seed: int
    budget: str
    u: Amount
    charged_seconds: Amount
    accounts: dict[Account, Amount] = Field(min_length=1)
    parameters: Count
    updates: Count
    tokens: Count
    epochs: Amount
    tokens_per_second: Amount | None
    exaflop: Amount
    peak_exaflop: Amount | None
    peak_source: str | None
    memory_bytes: Count | None = None  # runs of 0.1.0 have none
    joules: Amount | None = None
    device: str
    dtype: str
    heldout: _Heldout
    heldout_by_source: dict[str, _OfSource] = Field(default_factory=dict)  # older runs have none
    unigram_cross_entropy: Amount
    mask_token: str
    corpus: _Corpus
    fill_mask: list[_Example]
    export: _Export
    early_end: _EarlyEnd | None = None  # older runs have none
    ended_short: str | None = None


def read_summary(run: Path) -> dict[str, Any] | None:
    """The result of the run in a folder; None if it has not finished.

    Raises:
        InputError: its summary.json is damaged; names the first fault.
    """
    file = run / "summary.json"
    values = read_json(file)
    if values is not None:
        checked(file, values, _Summary)
    return values


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
