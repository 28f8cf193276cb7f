"""The base of every table of a job file. It must not know any table."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the job file: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
