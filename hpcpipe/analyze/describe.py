"""What a run was, for titles, tables and links: read from the job that its log carries. It knows no times."""

import tomllib
from dataclasses import dataclass
from typing import Any

from hpcpipe.events import LogHeader, RunLog
from hpcpipe.plan import Placement
from hpcpipe.plan.hints import FAMILIES

Job = dict[str, Any]


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
    job = read_job(header)
    microbatches = look(job, "batch", "microbatches")
    return Description(
        name=str(look(job, "job", "name") or ""),
        hint=str(look(job, "schedule", "hint") or ""),
        dispatch=str(look(job, "schedule", "dispatch") or ""),
        microbatches=microbatches if isinstance(microbatches, int) else 0,
    )


def title(run: RunLog, first: int, last: int) -> str:
    """Return the line over a picture: what the run was, that it was simulated or emulated if so, and which steps."""
    shown = f"step {first}" if first == last else f"steps {first} to {last}"
    said, made = describe(run.header), provenance(run.header)
    words = (made if said.name != made else "", said.title or run.path.name, shown)
    return " · ".join(word for word in words if word)


def provenance(header: LogHeader) -> str:
    """Return "simulated" or "emulated" where no device did the work, else nothing."""
    return next((word for word in ("simulated", "emulated") if header.device.startswith(word)), "")


def placement(header: LogHeader) -> Placement:
    """Return where the job's virtual stages lie, as the runtime places them: round, but where the hint wants a V."""
    job = read_job(header)
    hint, given = look(job, "schedule", "hint"), look(job, "parallel", "chunks")
    chunks = given if isinstance(given, int) and given > 0 else None
    family = FAMILIES.get(hint) if isinstance(hint, str) else None
    if family is not None and (chunks is None or family.chunks in (None, chunks)):
        return Placement(header.mesh[0], family.chunks or chunks or 2, family.shape)
    return Placement(header.mesh[0], chunks or 1)


def read_job(header: LogHeader) -> Job:
    """Return the job's tables; none where the text is not TOML."""
    try:
        return tomllib.loads(header.job_toml)
    except tomllib.TOMLDecodeError:
        return {}


def look(job: Job, table: str, key: str) -> object:
    """Return a key of a table, or None."""
    section = job.get(table)
    return section.get(key) if isinstance(section, dict) else None
