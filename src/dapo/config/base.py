"""What every section is built from: its base class and the types of its fields."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def off_is_none(value: Any) -> Any:
    """The word "off" stands for None."""
    return None if value == "off" else value


def finite_float(value: Any) -> Any:
    """YAML-style strings such as "1e-6" are numbers; true and false are not."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")
    return float(value) if isinstance(value, str) else value


def no_bool(value: Any) -> Any:
    """true and false are no whole numbers."""
    if isinstance(value, bool):
        raise ValueError("a whole number is wanted, not true or false")
    return value


Int = Annotated[int, BeforeValidator(no_bool)]
Float = Annotated[float, BeforeValidator(finite_float), Field(allow_inf_nan=False)]
NullableFloat = Annotated[Annotated[Float, Field(gt=0)] | None, BeforeValidator(off_is_none)]
NullableFraction = Annotated[Annotated[Float, Field(ge=0, le=1)] | None, BeforeValidator(off_is_none)]
NullableInt = Annotated[Annotated[Int, Field(ge=1)] | None, BeforeValidator(off_is_none)]
Beta = Annotated[Float, Field(ge=0, lt=1)]
Seed = Annotated[Int, Field(ge=0, lt=2**64)]
NullableStr = Annotated[str | None, BeforeValidator(off_is_none)]


class Section(BaseModel):
    """Base of all sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
