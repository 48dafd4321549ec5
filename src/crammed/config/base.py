"""What every section of a configuration is built from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from crammed.config.kinds import kinds_of

PositiveInt = Annotated[int, Field(gt=0, lt=2**63)]
Size = Annotated[int, Field(gt=0, le=2**20)]
"""One dimension of an array, or a number of things held at once; anything larger is a typo."""
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
Names = Annotated[tuple[str, ...], Field(strict=False)]


class Later:
    """Marks an option that earlier versions lack: a dump leaves it out while it has its default.

    What earlier versions saved and hashed therefore stays as it was. New options need this marker.
    """


class Section(BaseModel):
    """Base of the sections: frozen, without unknown keys, without silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _choose_by_default(cls, values: Any) -> Any:
        """Give a section that does not name its kind the kind of the default value."""
        if not isinstance(values, Mapping):
            return values
        chosen = dict(values)
        for name, choice in kinds_of(cls).items():
            given = chosen.get(name)
            if isinstance(given, Mapping) and choice.key not in given:
                chosen[name] = {choice.key: choice.default, **given}
        return chosen

    @model_serializer(mode="wrap")
    def _as_before(
        self, dump: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, object]:  # pydantic 2.10 looks names up where the section is defined
        values: dict[str, Any] = dump(self)
        if not (info.context or {}).get("complete"):
            for name, field in type(self).model_fields.items():
                later = any(isinstance(mark, Later) for mark in field.metadata)
                if later and self.__dict__[name] == field.default:
                    values.pop(name, None)
        return values

    def complete(self) -> dict[str, Any]:
        """All values as JSON, for people to read."""
        return self.model_dump(mode="json", context={"complete": True})
