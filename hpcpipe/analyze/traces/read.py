"""From a Chrome-trace file to the spans with a meaning, in ns; it makes no rows of them."""

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcpipe.analyze.traces.names import Meaning, Role, meaning
from hpcpipe.events import LogError

_LAST_NUMBER = re.compile(r"(\d+)\D*$")


@dataclass(frozen=True, slots=True)
class Span:
    """A named span of a thread; times in ns since 1970 as far as the trace's clock tells."""

    means: Meaning
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank's spans in order of their start. `ranks` is how many the job had, 0 where the trace does not say.

    `begin` is when its first step began, where the profiler marked none.
    """

    path: Path
    rank: int
    ranks: int
    spans: tuple[Span, ...]
    begin: int = 0

    def of(self, *roles: Role) -> list[Span]:
        """Return the spans of some roles."""
        return [span for span in self.spans if span.means.role in roles]


def read_trace(path: Path) -> Trace:
    """Read a .json or .json.gz file.

    Raises
    ------
    LogError
        It is not a Chrome trace, or nothing tells which rank wrote it.
    """
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rb") as file:
            document = json.loads(file.read())
    except (OSError, EOFError, ValueError) as error:
        raise LogError(f"{path}: cannot be read as JSON: {error}") from None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise LogError(f"{path}: not a Chrome trace: it has no list of traceEvents")
    about: dict[str, Any] = document if isinstance(document, dict) else {}
    base = about.get("baseTimeNanoseconds", 0)
    spans = [span for event in events if (span := _span(event, base if isinstance(base, int) else 0))]
    spans.sort(key=lambda span: (span.start, -span.end))
    world = about.get("distributedInfo")
    world = world if isinstance(world, dict) else {}
    return Trace(path, _rank(path, world), int(world.get("world_size", 0)), tuple(spans))


def _span(event: Any, base: int) -> Span | None:
    if not isinstance(event, dict) or event.get("ph") != "X":
        return None
    means = meaning(str(event.get("name", "")))
    time, length = event.get("ts"), event.get("dur", 0)
    if means is None or not isinstance(time, int | float) or not isinstance(length, int | float):
        return None
    start = base + round(time * 1000)
    return Span(means, start, start + max(0, round(length * 1000)))


def _rank(path: Path, world: dict[str, Any]) -> int:
    if isinstance(world.get("rank"), int):
        return int(world["rank"])
    found = _LAST_NUMBER.search(path.name.split(".")[0])
    if found is None:
        raise LogError(
            f"{path}: nothing tells its rank: no distributedInfo inside, no number in its name; name it rank3.json, say"
        )
    return int(found[1])
