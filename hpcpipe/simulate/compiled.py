"""The compiled simulator: the decisions of plan/ over flat arrays, hundreds of times as fast as `simulate_step`.

Rows, causes of waits and peaks are the same to the nanosecond. What it cannot run it refuses with a `ValueError`, it
never approximates: hints of a new kind, and settings of a schedule that it does not know yet. It must not know Python
objects for single tasks beyond translating their numbers.
"""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcpipe import _simulate
from hpcpipe.plan import USEFUL, Kind, Limits, Order, Schedule, Task, make_hint, make_policy
from hpcpipe.plan.delays import Bursts, LognormalDelay
from hpcpipe.plan.hints.rounds import ReadyRule
from hpcpipe.simulate.links import Link, Network
from hpcpipe.simulate.step import Arrival

KINDS = (Kind.F, Kind.B, Kind.W)
BUCKET_KINDS = (Kind.RS, Kind.UPDATE, Kind.AG)
WAIT, NORM = -1, -2
"""The codes of rows that are no task of a micro-batch or bucket."""
ROW = np.dtype([("start", np.int64), ("end", np.int64), ("code", np.int32), ("cause", np.int32)])
MESSAGE = np.dtype(
    [
        ("sent", np.int64),
        ("arrived", np.int64),
        ("source", np.int32),
        ("target", np.int32),
        ("code", np.int32),
        ("unused", np.int32),
    ]
)


class NotCompiledError(ValueError):
    """The schedule uses what only `simulate_step` knows."""


_FAMILIES = frozenset(_simulate.families())
_KNOWN = {
    Schedule: {"hint", "dispatch", "placement", "microbatches", "limits", "split", "ordered", "k", "orders", "profile"},
    Link: {"latency_ns", "sigma", "overtaking", "num_bytes", "ns_per_byte", "duplex", "delay"},
}
_MASK = (1 << 64) - 1
_QUIET = Link()


@dataclass(frozen=True, slots=True)
class SimulatedArrays:
    """What happened, as arrays; ns.

    Parameters
    ----------
    begin, end
        When each stage began and was done.
    classes
        Time in each class, [stage][TimeClass]; a stage's classes sum to its time from its begin to the step's end.
    peak_in_flight, peak_stash
        By stage, in chunk forwards.
    gathered
        When the all-gathers end, by stage and bucket.
    rows, messages
        If kept: by stage the tasks and waits in order, with the fields of `ROW`, and all messages in the
        order in which they were sent, with those of `MESSAGE`. `cause` is a `TimeClass`; `code` is -1 for a wait, else
        `CompiledSchedule.task` says which task it is.
    beside
        If kept, reduce-scatters and all-gathers by stage, which take no time of the stage; like `rows`.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    classes: NDArray[np.int64]
    peak_in_flight: NDArray[np.int64]
    peak_stash: NDArray[np.int64]
    gathered: NDArray[np.int64]
    rows: list[NDArray[Any]] | None = None
    messages: NDArray[Any] | None = None
    beside: list[NDArray[Any]] | None = None

    @property
    def step_ns(self) -> int:
        """Return the time from the first stage's begin until every stage is done."""
        return int(self.end.max() - self.begin.min())

    @property
    def bubble_ratio(self) -> float:
        """Return 1 - useful / wall over all stages."""
        return 1.0 - int(self.classes[:, USEFUL].sum()) / int((self.end.max() - self.begin).sum())


class CompiledSchedule:
    """A schedule prepared for many runs; caps, durations and links change from run to run without preparing again.

    Raises
    ------
    ValueError
        The schedule is not valid, or uses what only `simulate_step` knows.
    """

    def __init__(self, schedule: Schedule) -> None:
        _refuse_unknown(schedule)
        placement = schedule.placement
        stages, chunks = placement.stages, placement.chunks
        self.schedule = schedule
        self._shape = stages, chunks, schedule.microbatches
        self._caps = self.caps(schedule.limits)
        self._codes = len(KINDS) * chunks * schedule.microbatches
        self._from_zero = np.zeros(stages, dtype=np.int64)
        self._no_buckets = np.zeros((stages, len(BUCKET_KINDS), 0), dtype=np.int64)
        self._native = _simulate.Schedule(
            stages=stages,
            chunks=chunks,
            microbatches=schedule.microbatches,
            v=placement.shape == "v",
            split=schedule.split,
            ordered=schedule.ordered,
        )
        fixed = schedule.dispatch == "fixed"
        if schedule.orders is not None:
            make_policy(schedule.dispatch, Order(schedule.hint, ()))
            self._native.use_orders([self._order(tasks) for tasks in schedule.orders], fixed=fixed)
            return
        # The smallest hint of that name says what it is and refuses what does not fit it, in plan's own words.
        hint = make_hint(schedule.hint, stage=0, stages=1, microbatches=1, k=schedule.k, chunks=chunks)
        make_policy(schedule.dispatch, hint)
        if type(hint) is ReadyRule:
            self._native.use_rule(forward_first=hint.first is Kind.F, rounds=hint.rounds)
        elif type(hint) is not Order:
            raise NotCompiledError(f"the compiled simulator knows no hint like {schedule.hint!r}: use simulate_step")
        elif schedule.hint not in _FAMILIES:
            hints = [self._hint(stage) for stage in range(stages)]
            orders = [h.tasks if fixed else tuple(sorted(h.tasks, key=h.key)) for h in hints]
            self._native.use_orders([self._order(tasks) for tasks in orders], fixed=fixed)
        else:
            self._native.use_family(schedule.hint, k=schedule.k or 1, fixed=fixed)

    def _hint(self, stage: int) -> Order:
        schedule = self.schedule
        hint = make_hint(
            schedule.hint,
            stage=stage,
            stages=schedule.placement.stages,
            microbatches=schedule.microbatches,
            k=schedule.k,
            chunks=schedule.placement.chunks,
            profile=schedule.profile,
        )
        assert isinstance(hint, Order)
        return hint

    def run(
        self,
        durations: ArrayLike,
        *,
        caps: NDArray[np.int64] | None = None,
        link: Link = _QUIET,
        seed: int = 0,
        step: int = 0,
        arrival: Arrival | None = None,
        begin: Sequence[int] | NDArray[np.int64] | None = None,
        agreement_ns: int = 0,
        buckets: Sequence[int] | None = None,
        bucket_durations: ArrayLike = 0,
        replicated: bool = False,
        gathered: ArrayLike | None = None,
        phased: bool = False,
        norm_ns: int | None = None,
        rows: bool = False,
    ) -> SimulatedArrays:
        """Run one step from an empty pipeline until every stage is done.

        Parameters
        ----------
        durations
            Whole ns, [stage][kind: F, B, W][chunk][microbatch]. An axis may have length 1 where all are alike, and the
            last axes may be left out: (1, 3) is one duration a kind, (stages, 3) one a stage and kind. W is not used,
            and may be left out, where the backward is not split.
        caps
            In place of the schedule's, as `caps` makes them.
        link, seed, step
            As in `Network`, whose links are idle at first. A `delay` of a model of one's own is asked message by
            message, which is slow.
        arrival, begin, agreement_ns, buckets, replicated, phased, norm_ns
            As in `simulate_step`. An `arrival` replaces the link and is slow too.
        gathered
            As in `simulate_step`, [stage][bucket]; the last axis may be longer than a stage has buckets.
        bucket_durations
            Whole ns, [stage][RS, UPDATE, AG][bucket], or what broadcasts to that as `durations` does.
        rows
            Whether to keep every task, wait and message: 24 to 32 bytes each.

        Raises
        ------
        RuntimeError
            Nothing can happen any more but tasks are left: the schedule dead-locks.
        ValueError
            Durations that are negative or do not fit.
        """
        native_link = _native_link(link, seed, step)
        if native_link is None:
            arrival = arrival or Network(link, seed, step).arrival
            native_link = _simulate.Link()
        begins = self._from_zero if begin is None else np.ascontiguousarray(begin, dtype=np.int64)
        counts = self._from_zero if buckets is None else np.array(buckets, dtype=np.int64)
        most = int(counts.max())
        stuck, end, classes, in_flight, stash, ends, kept = self._native.run(
            self._caps if caps is None else caps,
            self._of_tasks(durations),
            begins,
            native_link,
            None if arrival is None else self._calling(arrival),
            agreement_ns,
            self._no_buckets if buckets is None else self._of_buckets(bucket_durations, most),
            counts,
            replicated,
            np.zeros((len(begins), most), np.int64) if gathered is None else np.ascontiguousarray(gathered, np.int64),
            phased,
            -1 if norm_ns is None else norm_ns,
            rows,
        )
        if stuck:
            raise RuntimeError(f"the schedule dead-locks: stages {stuck} have tasks left and nothing can run")
        if kept is None:
            return SimulatedArrays(begins, end, classes, in_flight, stash, ends)
        on_stage, beside, messages = kept
        views = _by_stage(*on_stage), messages.view(MESSAGE), _by_stage(*beside)
        return SimulatedArrays(begins, end, classes, in_flight, stash, ends, *views)

    def caps(self, limits: Sequence[Limits]) -> NDArray[np.int64]:
        """Return the caps of all stages for `run`."""
        stages, chunks, _ = self._shape
        if len(limits) != stages:
            raise ValueError(f"limits for {len(limits)} stages, the pipeline has {stages}")
        none = (None,) * chunks
        rows = [
            (each.in_flight, each.stash, *(each.in_flight_by_chunk or none), *(each.stash_by_chunk or none))
            for each in limits
        ]
        if any(len(row) != 2 + 2 * chunks for row in rows):
            raise ValueError(f"in_flight_by_chunk and stash_by_chunk must have one cap for each of {chunks} chunks")
        return np.array([[-1 if cap is None else max(0, cap) for cap in row] for row in rows], dtype=np.int64)

    def task(self, code: int) -> Task:
        """Return the task that a row's `code` stands for."""
        _, chunks, microbatches = self._shape
        if code == NORM:
            return Task(Kind.NORM, 0)
        if code >= self._codes:
            bucket, kind = divmod(code - self._codes, len(BUCKET_KINDS))
            return Task(BUCKET_KINDS[kind], bucket)
        lane, microbatch = divmod(code, microbatches)
        kind, chunk = divmod(lane, chunks)
        return Task(KINDS[kind], microbatch, chunk)

    def code(self, task: Task) -> int:
        """Return the number that stands for a forward, backward or weight gradient in rows and orders."""
        _, chunks, microbatches = self._shape
        return (task.kind * chunks + task.chunk) * microbatches + task.microbatch

    def _order(self, tasks: Sequence[Task]) -> NDArray[np.int32]:
        _, chunks, microbatches = self._shape
        for task in tasks:
            if task.kind not in KINDS or not (0 <= task.microbatch < microbatches and 0 <= task.chunk < chunks):
                raise ValueError(f"an order has the unknown task {task}")
        return np.fromiter(map(self.code, tasks), np.int32, len(tasks))

    def _of_tasks(self, durations: ArrayLike) -> NDArray[np.int64]:
        stages, chunks, microbatches = self._shape
        array = np.asarray(durations)
        kinds = 2 if array.shape[1:2] == (2,) and not self.schedule.split else 3
        return _broadcast(array, (stages, kinds, chunks, microbatches), "durations", "[stage][kind][chunk][microbatch]")

    def _of_buckets(self, durations: ArrayLike, most: int) -> NDArray[np.int64]:
        wanted = self._shape[0], len(BUCKET_KINDS), most
        array = _broadcast(np.asarray(durations), wanted, "bucket_durations", "[stage][RS, UPDATE, AG][bucket]")
        return np.ascontiguousarray(array)

    def _calling(self, arrival: Arrival) -> Any:
        return lambda source, target, code, now: arrival(source, target, self.task(code), now)


def _by_stage(raw: NDArray[np.uint8], offsets: list[int]) -> list[NDArray[Any]]:
    table = raw.view(ROW)
    return [table[start:stop] for start, stop in pairwise(offsets)]


def _broadcast(array: NDArray[Any], wanted: tuple[int, ...], name: str, axes: str) -> NDArray[np.int64]:
    """Return whole ns with the wanted shape, where axes of length 1 and missing last ones are repeated."""
    if array.dtype != np.int64:
        if not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"{name} are {array.dtype}: whole ns are needed, round them first")
        array = array.astype(np.int64)
    if array.size and array.min() < 0:
        raise ValueError(f"a duration in {name} is {array.min()} ns: it must not be negative")
    given: tuple[int, ...] = array.shape
    shape = given + (1,) * (len(wanted) - len(given))
    if len(shape) != len(wanted) or any(shape[i] not in (1, wanted[i]) for i in range(len(wanted))):
        raise ValueError(
            f"{name} have the shape {given}: {axes} is {wanted}, where an axis may have length 1 and the last may be "
            "left out"
        )
    array = array.reshape(shape)
    return array if shape == wanted else np.broadcast_to(array, wanted)


def _native_link(link: Link, seed: int, step: int) -> _simulate.Link | None:
    """Return the link, or None where its delay is of a kind that only Python knows."""
    _refuse_unknown(link)
    delay = link.delays
    if type(delay) is LognormalDelay:
        sigma = delay.sigma
    elif type(delay) is Bursts and delay.every > 0:
        sigma = 0.0
    else:
        return None
    native = _simulate.Link(
        base=delay.base,
        sigma=sigma,
        overtaking=delay.overtaking,
        duplex=link.duplex,
        occupied_ns=round(link.num_bytes * link.ns_per_byte),
        seed=seed & _MASK,
        step=_signed(step),
    )
    if type(delay) is Bursts:
        native.use_bursts(every=delay.every, length=delay.length, factor=delay.factor)
    return native


def _refuse_unknown(settings: Schedule | Link) -> None:
    """Refuse settings that came after this module was written, unless they are as if they were not there."""
    known = _KNOWN[type(settings)]
    for field in fields(settings):
        if field.name in known:
            continue
        usual = field.default_factory() if field.default_factory is not MISSING else field.default
        if getattr(settings, field.name) != usual:
            raise NotCompiledError(
                f"the compiled simulator does not know {type(settings).__name__}.{field.name}: use simulate_step"
            )


def _signed(number: int) -> int:
    """Return the 64 low bits of a number as a signed one; draws take them only."""
    low = number & _MASK
    return low - (1 << 64) if low >> 63 else low
