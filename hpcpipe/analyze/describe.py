"""What a run was, for titles and tables: read from the job that its log carries. It knows no times."""

import tomllib
from dataclasses import dataclass

from hpcpipe.events import LogHeader


@dataclass(frozen=True, slots=True)
class Description:
    """Name of the job and its schedule; empty or 0 where the log does not say."""

    name: str = ""
    hint: str = ""
    dispatch: str = ""
    microbatches: int = 0

    @property
    def title(self) -> str:
        """Name, hint and dispatch in a line."""
        words = [self.name, self.hint and f"hint {self.hint}", self.dispatch and f"dispatch {self.dispatch}"]
        return " · ".join(word for word in words if word)


def describe(header: LogHeader) -> Description:
    """Read the job's TOML; a text that is none gives an empty description."""
    try:
        job = tomllib.loads(header.job_toml)
    except tomllib.TOMLDecodeError:
        return Description()

    def look(table: str, key: str) -> object:
        section = job.get(table)
        return section.get(key) if isinstance(section, dict) else None

    microbatches = look("batch", "microbatches")
    return Description(
        name=str(look("job", "name") or ""),
        hint=str(look("schedule", "hint") or ""),
        dispatch=str(look("schedule", "dispatch") or ""),
        microbatches=microbatches if isinstance(microbatches, int) else 0,
    )
