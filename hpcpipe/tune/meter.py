"""What one rank measures of a step for the choice of the grouping, and the row of whole numbers in which it tells it.

Fed with the events that the log gets; it owns no clock and talks to nobody. Rows of all ranks are summed in an
all-reduce; whole numbers of ns make the sums exact in any order, so that every rank decides from the same bits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple, Protocol

from hpcpipe.plan import FLAG_BACKWARD, FLAG_RECOMPUTED, Kind
from hpcpipe.tune.edges import EdgeWindow

MOST_MESSAGES = 512
"""Of an edge in a step; of more, the last ones count."""


class Standing(Protocol):
    """Where a rank stands; `runtime.Place` is one."""

    @property
    def pipeline(self) -> int:
        """How many stages there are."""

    @property
    def stage(self) -> int:
        """The rank's own."""

    @property
    def slice(self) -> int:
        """Which tensor-parallel slice it is; the first one speaks."""


class _Row(NamedTuple):
    """A stage's numbers, summed over replicas; ns. The counts say how many replicas have told something."""

    reports: int = 0
    step_reports: int = 0
    step_ns: int = 0
    forward: int = 0
    backward: int = 0
    overhead: int = 0
    activations: int = 0
    activation_median: int = 0
    activation_p90: int = 0
    activation_bytes: int = 0
    gradients: int = 0
    gradient_median: int = 0
    gradient_p90: int = 0
    gradient_bytes: int = 0


WIDTH = len(_Row._fields)


class EdgeTimes(NamedTuple):
    """What the messages of an edge and direction took in a step (ns), and their size; means over replicas."""

    median: float
    p90: float
    num_bytes: float


@dataclass(frozen=True, slots=True)
class Report:
    """What all ranks know of a step; ns.

    Parameters
    ----------
    step_ns
        The step's length, mean over the ranks; None where it was not to be measured.
    forward, backward
        Of a micro-batch, by stage.
    overhead
        What passes between two tasks although the next one is ready, by stage.
    activations, gradients
        By edge: `activations[s]` are the messages from stage s to s + 1, `gradients[s]` those from s + 1 to s; None
        where no message came.
    """

    step_ns: float | None
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    overhead: tuple[float, ...]
    activations: tuple[EdgeTimes | None, ...]
    gradients: tuple[EdgeTimes | None, ...]

    def edges(self) -> Iterator[tuple[tuple[int, int], EdgeTimes]]:
        """Yield (source, target) with what its messages took, where there were any."""
        for stage, (there, back) in enumerate(zip(self.activations, self.gradients, strict=True)):
            if there is not None:
                yield (stage, stage + 1), there
            if back is not None:
                yield (stage + 1, stage), back


class Meter:
    """Measures this rank's steps.

    Parameters
    ----------
    clock_shifts
        By world rank: what to add to its times to get this rank's (ns).
    blind
        Whether tasks compute in the thread that looks for messages. A message that came while one ran is then noticed
        at its end; it may have come at any time since it was sent and the task began, and half of that is taken off.
    """

    def __init__(self, *, place: Standing, clock_shifts: Mapping[int, int], blind: bool = False) -> None:
        self._stages, self._stage, self._speaks = place.pipeline, place.stage, place.slice == 0
        self._shifts, self._blind = clock_shifts, blind
        self._tasks: tuple[list[int], list[int]] = [], []
        self._gaps: list[int] = []
        self._edges = EdgeWindow(MOST_MESSAGES), EdgeWindow(MOST_MESSAGES)
        self._sizes = [0, 0]
        self._began = self._ended = -1
        self.entries = WIDTH * self._stages

    def measure(
        self, kind: int, _chunk: int, t_ready: int, t_start: int, t_end: int, peer: int, nbytes: int, flags: int
    ) -> None:
        """Measure by one event of the log; those of other kinds are of no interest."""
        if kind <= Kind.B:
            if flags & FLAG_RECOMPUTED:
                return
            self._tasks[kind].append(t_end - t_start)
            if 0 <= t_ready <= self._ended:
                self._gaps.append(t_start - self._ended)
            self._began, self._ended = t_start, t_end
        elif kind == Kind.RECV:
            sent = t_ready + self._shifts[peer]
            took = t_end - sent
            if self._blind and self._began < t_end and sent < self._ended <= t_end:
                took -= (self._ended - max(sent, self._began)) // 2
            side = bool(flags & FLAG_BACKWARD)
            self._edges[side].add(took)
            self._sizes[side] = max(self._sizes[side], nbytes)

    def row(self, step_ns: int) -> list[float]:
        """End a step and return what to share: this rank's numbers in its stage's place, zeros elsewhere.

        Parameters
        ----------
        step_ns
            From the end of the step before to the end of this one; 0 if the step is not to be measured, because it is
            the first or because something else than training fell into it.
        """
        shared = [0.0] * self.entries
        forward, backward = self._tasks
        if self._speaks and forward and backward:
            numbers = [1, int(step_ns > 0), step_ns, median_low(forward), median_low(backward)]
            numbers.append(_lower_quartile(self._gaps))  # some had to wait for their turn, which is no overhead
            for edge, size in zip(self._edges, self._sizes, strict=True):
                numbers += [1, edge.median, edge.p90, size] if len(edge) else [0] * 4
            begin = self._stage * WIDTH
            shared[begin : begin + WIDTH] = map(float, numbers)
        forward.clear()
        backward.clear()
        self._gaps.clear()
        for edge in self._edges:
            edge.clear()
        self._sizes = [0, 0]
        self._began = self._ended = -1
        return shared


def _lower_quartile(times: Sequence[int]) -> int:
    return max(0, sorted(times)[(len(times) - 1) // 4]) if times else 0


def read_rows(sums: Sequence[float], *, stages: int) -> Report | None:
    """Return what the summed rows of all ranks say of a step; None while a stage has told nothing."""
    rows = [_Row(*map(int, sums[stage * WIDTH : (stage + 1) * WIDTH])) for stage in range(stages)]
    if any(row.reports == 0 for row in rows):
        return None
    steps = sum(row.step_reports for row in rows)
    reports = sum(row.reports for row in rows)

    def edge(count: int, *sums: int) -> EdgeTimes | None:
        return EdgeTimes(*(total / count for total in sums)) if count else None

    return Report(
        step_ns=sum(row.step_ns for row in rows) / steps if steps == reports else None,
        forward=tuple(row.forward / row.reports for row in rows),
        backward=tuple(row.backward / row.reports for row in rows),
        overhead=tuple(row.overhead / row.reports for row in rows),
        activations=tuple(
            edge(row.activations, row.activation_median, row.activation_p90, row.activation_bytes) for row in rows[1:]
        ),
        gradients=tuple(
            edge(row.gradients, row.gradient_median, row.gradient_p90, row.gradient_bytes) for row in rows[:-1]
        ),
    )
