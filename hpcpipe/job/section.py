"""The base of every table of a job file. It must not know any table."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, PrivateAttr


class Section(BaseModel):
    """A table of the job file: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Rooted(Section):
    """A table with paths in it; relative ones start at the job file's folder."""

    _folder: Path = PrivateAttr(default=Path())

    def set_folder(self, folder: Path) -> None:
        """Set where a relative path starts; the loader does it, once."""
        self._folder = folder

    def absolute_paths(self) -> dict[str, str]:
        """Return the keys that hold paths with these made absolute."""
        return {}
