"""A GPU as a device: tasks are given to one stream ahead of time, and an event says when one is done.

Nothing here waits for the GPU. The stream of the tasks is the thread's current one from the start, so whatever else the
thread computes comes behind the tasks that it was given; it knows neither MPI nor the plan.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from hpcpipe.device.gpu import Counters, Event, Gpu, Stream, ranged

if TYPE_CHECKING:
    from hpcpipe.device.messages import Direct, Staged

_TRIES, _LOOKS = 3, 10_000


class Launched:
    """A task that was given to the GPU: its output is there for whatever is given to it later, done or not."""

    in_order = True
    due = None

    def __init__(self, clock: "Clock", output: Any, begin: Event, end: Event, marks: Sequence[tuple[Event, Event]]):
        self._clock, self._output, self._begin, self._end, self._marks = clock, output, begin, end, marks
        self._times: tuple[int, int] | None = None

    @property
    def times(self) -> tuple[int, int]:
        """When the GPU began and ended it, ns of this host's clock; only when it is done."""
        if self._times is None:
            self._times = self._clock.time_of(self._begin), self._clock.time_of(self._end)
            self._clock.reuse(self._begin, self._end)
        return self._times

    @property
    def again(self) -> Sequence[tuple[int, int]]:
        """When it computed what had been dropped, ns; only when it is done."""
        found = [(self._clock.time_of(begin), self._clock.time_of(end)) for begin, end in self._marks]
        self._clock.reuse(*(event for pair in self._marks for event in pair))
        self._marks = ()
        return found

    def done(self) -> bool:
        """Return whether the GPU has done it."""
        return self._end.query()

    def result(self) -> Any:
        """Return its output, once: whoever needs it keeps it from then on."""
        output, self._output = self._output, None
        return output


class After:
    """What a stream had to do when this was made: is it done."""

    __slots__ = ("_clock", "_event", "_passed")

    def __init__(self, clock: "Clock", stream: Stream) -> None:
        self._clock, self._passed = clock, False
        self._event = clock.mark(stream)

    def done(self) -> bool:
        """Return whether it is done; the event is given back with the first yes."""
        if not self._passed and self._event.query():
            self._passed = True
            self._clock.reuse(self._event)
        return self._passed

    def hold(self, gpu: Gpu, stream: Stream) -> None:
        """Let another stream wait for it."""
        if not self._passed:
            gpu.wait(stream, self._event)


class Clock:
    """Events, and their times on the host's clock: one event whose time is known is the origin of all others.

    The origin's time is known to half of what passes between recording it in an idle stream and seeing that it has
    passed, some 10 µs. GPU and host clocks drift apart by a few µs a second, so `set` it once a step.
    """

    def __init__(self, gpu: Gpu, now: Callable[[], int]) -> None:
        self._gpu, self._now = gpu, now
        self._idle: list[Event] = []
        self._stream = gpu.stream()
        self._origin: Event | None = None
        self._at = 0
        self.uncertainty = 0
        """How well the origin's time is known, ns."""

    def set(self) -> None:
        """Find the origin anew; takes some 30 µs, whatever the GPU does in other streams.

        The first one is waited for, however long others who share the GPU keep it.
        """
        best: tuple[int, int, Event] | None = None
        for _ in range(_TRIES):
            event = self._take()
            before = self._now()
            event.record(self._stream)
            for _ in count() if self._origin is None and best is None else range(_LOOKS):
                if event.query():
                    after = self._now()
                    if best is None or after - before < best[0]:
                        if best is not None:
                            self.reuse(best[2])
                        best = after - before, (before + after) // 2, event
                    else:
                        self.reuse(event)
                    break
        if best is None:  # the GPU has no room for a mark; the origin before this one goes on
            return
        if self._origin is not None:
            self.reuse(self._origin)
        width, self._at, self._origin = best
        self.uncertainty = width // 2

    def mark(self, stream: Stream) -> Event:
        """Record an event."""
        event = self._take()
        event.record(stream)
        return event

    def time_of(self, event: Event) -> int:
        """Return when a mark was passed, ns of the host's clock."""
        assert self._origin is not None, "the clock has not been set"
        return self._at + self._origin.elapsed_ns(event)

    def reuse(self, *events: Event) -> None:
        """Take events back that nobody asks any more."""
        self._idle += events

    def _take(self) -> Event:
        return self._idle.pop() if self._idle else self._gpu.event()


class Cuda:
    """One GPU of one rank.

    Parameters
    ----------
    now
        The clock of the run, ns.
    messages
        Makes what holds messages, from the GPU and the streams of the tasks, of what comes in and of what goes out.
    nvtx
        Whether every task is a range that profilers show.

    Attributes
    ----------
    compute
        The stream of the tasks.
    memory
        Where messages lie.
    """

    threads = 0

    def __init__(
        self,
        gpu: Gpu,
        *,
        now: Callable[[], int],
        messages: "Callable[[Cuda], Staged | Direct]",
        nvtx: bool = False,
    ) -> None:
        self.gpu = gpu
        self.device = gpu.device
        self._nvtx = nvtx
        self.compute, self.inward, self.outward = gpu.stream(), gpu.stream(), gpu.stream()
        gpu.use(self.compute)
        self.clock = Clock(gpu, now)
        self.clock.set()
        self.memory = messages(self)
        self._settled: Counters | None = None

    @property
    def name(self) -> str:
        """The GPU's own name."""
        return self.gpu.name

    def begin_step(self) -> None:
        """Set the clock."""
        self.clock.set()

    def launch(self, label: str, body: Callable[[], Any], again: Sequence[tuple[Event, Event]] = ()) -> Launched:
        """Give the GPU what `body` computes, behind everything that it has been given; `again` is read after that.

        Raises
        ------
        MemoryError
            The GPU's memory is full.
        """
        with ranged(self.gpu, label) if self._nvtx else nullcontext(), self.gpu.on(self.compute):
            begin = self.clock.mark(self.compute)
            try:
                output = body()
            except torch.OutOfMemoryError as error:
                raise MemoryError(
                    f"the memory of {self.name} was full in {label} (peak {self.peak_bytes() / 1e9:.2f} GB): lower "
                    "[schedule] in_flight and stash or [batch] microbatch_size, set [model] recompute, or use more "
                    f"stages; torch says: {error}"
                ) from error
            end = self.clock.mark(self.compute)
        return Launched(self.clock, output, begin, end, tuple(again))

    def mark(self) -> Event:
        """Mark where the tasks' stream is, for what is computed again within a task."""
        return self.clock.mark(self.compute)

    def after(self, stream: Stream | None = None) -> After:
        """Return when a stream, without one that of the tasks, has done what it has now."""
        return After(self.clock, self.compute if stream is None else stream)

    def order(self, stream: Stream, after: After) -> None:
        """Let a stream wait for something on the GPU; the host does not wait."""
        after.hold(self.gpu, stream)

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the GPU, made in the stream of the tasks."""
        if tensor.device == self.device:
            return tensor
        with self.gpu.on(self.compute):  # torch keeps the pinned copy until this one is made
            return tensor.pin_memory().to(self.device, non_blocking=True)

    def peak_bytes(self) -> int:
        """Return the most bytes that tensors have taken on the GPU at a time."""
        return self.gpu.counters().peak_bytes

    def grown(self) -> str:
        """Return how much memory the allocator has asked of the GPU since this was last asked, empty for nothing.

        In the steady state every step finds what it needs among what the steps before it have freed.
        """
        counters = self.gpu.counters()
        before, self._settled = self._settled, counters
        if before is None:
            return ""
        more, retries = counters.device_allocs - before.device_allocs, counters.retries - before.retries
        if not more and not retries:
            return ""
        return f"{more} new blocks of GPU memory, {retries} of them after freeing cached ones"
