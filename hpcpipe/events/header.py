"""What a log says about the run and the rank it comes from: the root attributes of its file.

It knows neither how the rows are stored nor what they mean.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcpipe.events.schema import FORMAT, SCHEMA_VERSION
from hpcpipe.version import __version__

if TYPE_CHECKING:
    import h5py


@dataclass(frozen=True, slots=True)
class LogHeader:
    """One rank of one run. `mesh` and `coords` are (pipeline, data, tensor): sizes, and this rank's place."""

    job_toml: str
    job_sha256: str
    world_size: int
    mesh: tuple[int, int, int]
    rank: int
    coords: tuple[int, int, int]
    host: str
    device: str
    started_utc: str
    job_id: str = ""
    restart: int = 0
    mpi_library: str = ""
    git_revision: str = ""

    @property
    def stage(self) -> int:
        """The rank's place in the pipeline."""
        return self.coords[0]


_NAMES = {"job_toml": "job"}
_TRIPLES = ("mesh", "coords")


def write_header(file: "h5py.File", header: LogHeader, *, complete: bool, node: bool = False) -> None:
    """Write all root attributes; `node` tells a file of a node, whose rows name their rank."""
    import numpy as np

    attributes = file.attrs
    attributes["format"] = FORMAT
    attributes["schema_version"] = SCHEMA_VERSION
    attributes["software"] = "hpcpipe"
    attributes["software_version"] = __version__
    for field in LogHeader.__dataclass_fields__:
        value = getattr(header, field)
        attributes[_NAMES.get(field, field)] = np.asarray(value, dtype="<i4") if field in _TRIPLES else value
    attributes["layout"] = "node" if node else "rank"
    attributes["complete"] = int(complete)


def read_header(file: "h5py.File") -> LogHeader:
    """Read the root attributes.

    Raises
    ------
    KeyError
        One of them is missing.
    """
    values = {field: file.attrs[_NAMES.get(field, field)] for field in LogHeader.__dataclass_fields__}
    for field, value in values.items():
        if field in _TRIPLES:
            first, second, third = (int(number) for number in value)
            values[field] = (first, second, third)
        elif not isinstance(value, str):
            values[field] = int(value)
    return LogHeader(**values)
