"""What every section of a configuration is built from."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
Names = Annotated[tuple[str, ...], Field(strict=False)]


class Section(BaseModel):
    """Base of the sections: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)
