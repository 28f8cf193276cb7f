"""How long messages of one edge and direction take: windowed quantiles, a fit over sizes, and a detector of preemption.

Fed with times that somebody else took; it owns no clock. Memory is bounded, and a message costs a binary search.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Literal

State = Literal["quiet", "preempted"]


class EdgeWindow:
    """The last messages of an edge, sorted at any time; ns."""

    def __init__(self, size: int = 64) -> None:
        if size < 1:
            raise ValueError(f"a window of {size} messages: it needs at least 1")
        self._size = size
        self._times: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, ns: int) -> None:
        """Note how long a message took; a negative time, of clocks that disagree a little, counts as 0."""
        ns = max(0, ns)
        if len(self._times) == self._size:
            del self._sorted[bisect_left(self._sorted, self._times.popleft())]
        self._times.append(ns)
        insort(self._sorted, ns)

    def quantile(self, share: float) -> int:
        """Return the least time that at least `share` of the messages do not exceed.

        Raises
        ------
        ValueError
            The window is empty.
        """
        if not self._sorted:
            raise ValueError("no message has come over this edge yet")
        return self._sorted[max(0, ceil(share * len(self._sorted)) - 1)]

    @property
    def median(self) -> int:
        """Return the lower median (ns)."""
        return self.quantile(0.5)

    @property
    def p90(self) -> int:
        """Return the time that nine of ten messages do not exceed (ns)."""
        return self.quantile(0.9)

    def clear(self) -> None:
        """Forget all messages."""
        self._times.clear()
        self._sorted.clear()


@dataclass(frozen=True, slots=True)
class LinkFit:
    """A message of n bytes takes `latency_ns` + n · `ns_per_byte`."""

    latency_ns: float
    ns_per_byte: float

    def at(self, num_bytes: float) -> float:
        """Return the time of a message (ns)."""
        return self.latency_ns + num_bytes * self.ns_per_byte


ROUNDS = 8
HUBER = 1.345
"""Residuals beyond this many robust deviations count less (Huber, 1964; 95 % efficient where nothing is wrong)."""


def fit_link(samples: Sequence[tuple[float, float]]) -> LinkFit | None:
    """Return the line through (bytes, ns), by least squares whose outliers are weighted down; None for one size only.

    Neither part is negative: a slope below 0 is latency alone, a latency below 0 is bandwidth alone.
    """
    if len({size for size, _ in samples}) < 2:
        return None
    weights = [1.0] * len(samples)
    fit = _line(samples, weights)
    for _ in range(ROUNDS):
        residuals = [ns - fit.at(size) for size, ns in samples]
        scale = 1.4826 * median(map(abs, residuals))
        if scale <= 1e-9 * max(1.0, *(abs(ns) for _, ns in samples)):
            break
        weights = [min(1.0, HUBER * scale / max(abs(r), 1e-12)) for r in residuals]
        fit = _line(samples, weights)
    return fit


def _line(samples: Sequence[tuple[float, float]], weights: Sequence[float]) -> LinkFit:
    total = sum(weights)
    x = sum(w * size for w, (size, _) in zip(weights, samples, strict=True)) / total
    y = sum(w * ns for w, (_, ns) in zip(weights, samples, strict=True)) / total
    spread = sum(w * (size - x) ** 2 for w, (size, _) in zip(weights, samples, strict=True))
    slope = sum(w * (size - x) * (ns - y) for w, (size, ns) in zip(weights, samples, strict=True)) / spread
    if slope <= 0:
        return LinkFit(max(0.0, y), 0.0)
    if y - slope * x >= 0:
        return LinkFit(y - slope * x, slope)
    square = sum(w * size * size for w, (size, _) in zip(weights, samples, strict=True))
    return LinkFit(0.0, sum(w * size * ns for w, (size, ns) in zip(weights, samples, strict=True)) / square)


class BurstDetector:
    """Says when an edge becomes preempted and when it is quiet again, from one number a step.

    The quiet level is the lower quartile of the last quiet values; two thresholds above it (hysteresis), each for
    `confirm` steps in a row, so that a single slow step changes nothing. Where the network stays as it is for a whole
    window, that is what is normal now: a level that rose for good ends up as the quiet one. What falls as far below the
    quiet level becomes it, so a run that begins in somebody's burst notices its end.

    Parameters
    ----------
    rise, fall
        An edge is preempted from `rise` times the quiet level on and quiet again below `fall` times it.
    floor
        What a value must exceed the quiet level by to count at all (ns): noise of the clock and of looking.
    confirm
        Steps in a row.
    window
        Steps that the quiet level remembers, and after which a preempted one is taken for normal.
    """

    def __init__(
        self, *, rise: float = 2.0, fall: float = 1.5, floor: float = 50_000.0, confirm: int = 2, window: int = 256
    ) -> None:
        if not 1.0 <= fall <= rise:
            raise ValueError(f"rise = {rise} and fall = {fall}: 1 <= fall <= rise must hold")
        if confirm < 1 or window < confirm:
            raise ValueError(f"confirm = {confirm} and window = {window}: 1 <= confirm <= window must hold")
        self._rise, self._fall, self._floor = rise, fall, floor
        self._confirm, self._window = confirm, window
        self._quiet: deque[float] = deque(maxlen=window)
        self._sorted: list[float] = []
        self._since = self._against = 0
        self._pending: list[float] = []
        self.state: State = "quiet"
        self.left = 0.0
        """The level before the last change (ns)."""

    @property
    def wavers(self) -> bool:
        """Whether the last values speak for a change that is not confirmed yet."""
        return self._against != 0

    @property
    def baseline(self) -> float | None:
        """Return the quiet level (ns); None before the first value."""
        return self._sorted[(len(self._sorted) - 1) // 4] if self._sorted else None

    def update(self, value: float) -> bool:
        """Take the next step's value (ns); return whether the state changed with it."""
        level = self.baseline
        if level is None:
            self._remember(value)
            return False
        self._since += 1
        if self.state == "quiet":
            side = self._side(value, level)
            if self._pending and side != self._against:  # a short disturbance was none: it belongs to what is usual
                for late in self._pending:
                    self._remember(late)
                self._pending.clear()
            self._against = side
            if not side:
                self._remember(value)
                return False
            self._pending.append(value)
            if len(self._pending) < self._confirm:
                return False
            if side < 0:
                self._adopt(self._pending)
                return self._change("quiet", level)
            self._pending.clear()
            return self._change("preempted", level)
        self._pending.append(value)
        if self._since >= self._window:
            self._adopt(self._pending[-self._window :])
            self._change("quiet", level)
            return False  # the network is as it was: only the word for it changed
        calm = value < max(self._fall * level, level + self._floor / 2)
        self._against = self._against + 1 if calm else 0
        if self._against < self._confirm:
            return False
        slow = sorted(self._pending)[len(self._pending) // 2]
        self._pending.clear()
        return self._change("quiet", slow)

    def _side(self, value: float, level: float) -> int:
        """Return whether a value is far above (1) or far below (-1) the quiet level, or about there (0)."""
        if value > max(self._rise * level, level + self._floor):
            return 1
        return -1 if value < min(level / self._rise, level - self._floor) else 0

    def _change(self, state: State, left: float) -> bool:
        self.state, self.left, self._since, self._against = state, left, 0, 0
        return True

    def _adopt(self, values: Sequence[float]) -> None:
        """Take these for the quiet level, and nothing else."""
        self._quiet.clear()
        self._sorted.clear()
        for value in values:
            self._remember(value)
        self._pending = []

    def _remember(self, value: float) -> None:
        if len(self._quiet) == self._window:
            del self._sorted[bisect_left(self._sorted, self._quiet.popleft())]
        self._quiet.append(value)
        insort(self._sorted, value)
