"""The loop of one rank: poll, choose, start, send, until the step's tasks are done; every one leaves an event.

The engine only executes. What may run and in which order is decided in plan/, what a task computes is the stage's. A
started task runs on the device while the loop goes on with messages; where it is done at once, nothing is polled. A
device that does everything in order may be given a task while it has others. The all-gathers of a step end beside the
next one.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

from hpcpipe.device import Finished, Running
from hpcpipe.plan import (
    FLAG_BACKWARD,
    FLAG_DEVICE_TIMES,
    FLAG_RECOMPUTED,
    Choice,
    Kind,
    Recorder,
    StagePlan,
    Task,
    TimeClass,
)
from hpcpipe.runtime.agreement import Alone, Dispatch
from hpcpipe.runtime.channel import Arrival, Neighbour
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.header import Header
from hpcpipe.runtime.mailbox import Mailbox
from hpcpipe.runtime.waiting import Waiting

_DONE = Finished()
_PASSING = (Kind.F, Kind.B)
"""The kinds of task whose output another task needs, be it None."""
_BESIDE = (Kind.RS, Kind.AG, Kind.NORM)
"""The kinds of task in which ranks meet while the device goes on with others."""


class Stage(Protocol):
    """What the tasks of one rank do. Values that go from task to task are the device's own and opaque here."""

    @property
    def has_data(self) -> bool:
        """Whether this rank reads inputs or targets."""

    def load(self, step: int) -> None:
        """Read the step's micro-batches."""

    def start(self, step: int, task: Task, received: Any) -> Running:
        """Start an F, B or W; its result is the value for the task that follows it in the chain.

        `received` is what the task before it in the chain gave, None where the chain begins or the stage keeps it.
        """


class Buckets(Protocol):
    """The gradient buckets: collectives that run beside the tasks, and the optimizer's update."""

    def start(self, task: Task) -> None:
        """Start the reduce-scatter or all-gather of a bucket, or the norm, when it has its turn; returns at once."""

    def test(self) -> list[Task]:
        """Advance the started collectives and return those that are done."""

    def update(self, bucket: int, step: int) -> Running | None:
        """Update the parameters of a bucket; None where it is done on return."""

    def num_bytes(self, task: Task) -> int:
        """Return the size of the buffer that a collective works on."""


class StepTimes(NamedTuple):
    """When the step began and ended on this rank (ns)."""

    begin: int
    end: int


class View(NamedTuple):
    """What another thread may look at; `running` is the task that runs and since when (ns)."""

    step: int
    plan: StagePlan
    finished: Sequence[Task]
    running: tuple[Task, int] | None
    received: Collection[Task]
    collectives: Collection[Task]
    early: Sequence[Task]
    agreement: dict[str, Any] | None = None


class _Wait(NamedTuple):
    reason: TimeClass
    since: int


class _Dispatched(NamedTuple):
    step: int
    choice: Choice
    ready_at: int
    began: int


class Engine:
    """Runs steps on one rank, one task at a time, or on a device that does tasks in order with some given ahead.

    Parameters
    ----------
    number
        The stage that this rank holds.
    make_plan
        (step, buckets whose all-gather of the step before is still under way) -> the step's plan.
    flags
        What every task's event is marked with.
    dispatch
        Who decides what runs next; without it this rank by its plan.
    computing
        Entered while the stage computes in this thread, so that messages can move meanwhile (pulse.py).
    ahead
        How many tasks a device that does them in order may have at a time. With 2 it never waits for the next one that
        is ready, and that one is chosen no earlier than the begin of the one before it; elsewhere it stays at 1.

    Attributes
    ----------
    progress
        Grows with every step, input and task: while it does not, nothing happens here.
    turns
        Grows with every look at the messages: while it does not, the loop stands in some task or call.
    """

    def __init__(
        self,
        *,
        stage: Stage,
        mailbox: Mailbox,
        buckets: Buckets,
        recorder: Recorder,
        waiting: Waiting,
        number: int,
        make_plan: Callable[[int, Collection[int]], StagePlan],
        flags: int = 0,
        dispatch: Dispatch | None = None,
        computing: AbstractContextManager[None] | None = None,
        ahead: int = 1,
    ) -> None:
        self._ahead = ahead
        self.computing = computing or nullcontext()
        self._stage = stage
        self._mailbox = mailbox
        self._buckets = buckets
        self._recorder = recorder
        self._waiting = waiting
        self._number = number
        self._make_plan = make_plan
        self._plan = make_plan(0, ())
        self._flags = flags
        self._dispatch = dispatch or Alone()
        self._alone = dispatch is None
        self._step = -1
        self.progress = self.turns = 0
        self._stuck = -1
        self._received: dict[Task, Arrival] = {}
        self._handed: dict[Task, Any] = {}
        self._early: list[tuple[Task, Arrival]] = []
        self._collectives: dict[Task, _Dispatched] = {}
        self._running: deque[tuple[_Dispatched, Running]] = deque()
        self._current: _Dispatched | None = None
        self._finished: list[Task] = []
        self._free_at = 0
        self._wait: _Wait | None = None
        self._last_arrival: tuple[Neighbour, Arrival] | None = None

    def run_step(self, step: int) -> StepTimes:
        """Run all tasks of one step on this rank; its all-gathers may still be under way then."""
        begin = self._begin(step)
        plan = self._plan
        while not plan.done:
            self._poll()
            if self._running:
                self._look()
            elif self.progress == self._stuck:  # nothing has come since nothing could run
                self._waiting.idle(self._mailbox.due)
            elif (choice := self._dispatch.choose()) is not None:
                self._start(choice)
            else:
                self._idle()
        self._end_wait()
        return StepTimes(begin, now())

    def note_progress(self) -> None:
        """Note that the rank does something between two steps."""
        self.progress += 1

    @contextmanager
    def unrecorded(self, recorder: Recorder) -> Iterator[None]:
        """Let another recorder have the events meanwhile: the steps within are no part of the run."""
        usual, self._recorder = self._recorder, recorder
        try:
            yield
        finally:
            self._recorder = usual

    def view(self) -> View:
        """Return what goes on, for another thread; it may change while it is looked at."""
        current = self._current
        return View(
            self._step,
            self._plan,
            self._finished,
            None if current is None else (current.choice.task, current.began),
            list(self._received),
            list(self._collectives),
            [task for task, _ in self._early],
            self._dispatch.pending(),
        )

    def gather(self) -> None:
        """Complete the all-gathers, after which all parameters are those of the last step."""
        while self._collectives:
            self._poll()
            self._waiting.idle()

    def drain(self) -> None:
        """Complete the all-gathers and sends that are still under way."""
        self.gather()
        while self._mailbox.sending:
            self._poll()
            self._waiting.idle()

    def _begin(self, step: int) -> int:
        begin = now()
        gathering = [task.microbatch for task in self._collectives]
        self._step, self._plan, self._finished = step, self._make_plan(step, gathering), []
        self.progress += 1
        self._mailbox.begin(step)
        self._stage.load(step)
        loaded = now()
        if self._stage.has_data:
            self._recorder.event(Kind.DATA, step, -1, 0, begin, begin, loaded)
        self._plan.begin(loaded)
        self._dispatch.begin(self._plan, step, self._recorder)
        early, self._early = self._early, []
        for task, arrival in early:
            self._deliver(task, arrival)
        return begin

    def _poll(self) -> None:
        self.turns += 1
        arrivals, sent = self._mailbox.poll()
        self._last_arrival = None
        if arrivals or sent:
            noticed = now()
            for neighbour, arrival in arrivals:
                self._last_arrival = neighbour, arrival
                self._record_message(Kind.RECV, neighbour, arrival.header, arrival.posted, noticed)
                task = Task(neighbour.feeds, arrival.header.microbatch, neighbour.chunk)
                if arrival.header.step == self._step:
                    self._deliver(task, arrival)
                else:
                    assert arrival.header.step == self._step + 1, (
                        f"a message of step {arrival.header.step} in {self._step}"
                    )
                    self._early.append((task, arrival))
            for neighbour, entry in sent:
                self._record_message(Kind.SEND, neighbour, entry.header, entry.posted, noticed)
        for task in self._buckets.test() if self._collectives else ():
            self._finish_collective(task)

    def _deliver(self, task: Task, arrival: Arrival) -> None:
        self._received[task] = arrival
        self.progress += 1
        self._plan.deliver(task, now())

    def _start(self, choice: Choice) -> None:
        task = choice.task
        self._end_wait()
        dispatched = _Dispatched(self._step, choice, self._plan.start(task), now())
        self._dispatch.start(choice)
        if task.kind in _BESIDE:
            self._collectives[task] = dispatched
            self._buckets.start(task)
            return
        if not self._running:
            self._current = dispatched
        if task.kind is Kind.UPDATE:
            running = self._buckets.update(task.microbatch, self._step) or _DONE
        else:
            arrival = self._received.get(task)
            received = self._handed.pop(task, None) if arrival is None else arrival.value
            with self.computing:
                running = self._stage.start(self._step, task, received)
        if running.in_order:
            self._give(dispatched, running)
        elif running.done():
            self._finish(dispatched, running)
        else:
            self._running.append((dispatched, running))

    def _give(self, dispatched: _Dispatched, running: Running) -> None:
        """Note that the device has a task among others, which it does in order: what follows may be given to it."""
        task = dispatched.choice.task
        self._running.append((dispatched, running))
        self.progress += 1
        if task.kind in _PASSING and (follower := self._plan.follower(task)) is not None:
            self._pass_on(follower, running.result())
        self._plan.given(task, dispatched.began)

    def _look(self) -> None:
        """Finish the task that is to end first if it is done; else give the device another, or wait a little."""
        dispatched, running = self._running[0]
        if running.done():
            self._running.popleft()
            self._finish(dispatched, running)
        elif running.in_order and len(self._running) < self._ahead and (choice := self._choose_ahead()) is not None:
            self._start(choice)
        else:
            if not running.in_order:
                self._dispatch.beside(dispatched.choice.task, running.due)
            self._waiting.during(running.due)

    def _choose_ahead(self) -> Choice | None:
        """Return what the device is given behind the tasks that it has; None if that is not known yet."""
        if self.progress == self._stuck:
            return None
        choice = self._dispatch.choose()
        if choice is None and self._alone:
            self._stuck = self.progress
        return choice

    def _finish(self, dispatched: _Dispatched, running: Running) -> None:
        _, (task, rank_in_hint, ready_count), ready_at, began = dispatched
        ended = now()
        plan, self._current = self._plan, self._running[0][0] if self._running else None
        self._finished.append(task)
        self.progress += 1
        flags = self._flags
        if running.in_order:
            began, ended = self._times(running, began, ended)
            flags |= FLAG_DEVICE_TIMES
            ready_at = min(plan.late(task, ready_at), began)
        elif task.kind in _PASSING and (follower := plan.follower(task)) is not None:
            self._pass_on(follower, running.result())
        plan.finish(task, ended)
        if task.kind is plan.frees:
            self._release(task)
        self._recorder.event(
            task.kind,
            self._step,
            task.microbatch,
            task.chunk,
            ready_at,
            began,
            ended,
            rank_in_hint=rank_in_hint,
            ready_count=ready_count,
            flags=flags,
        )
        for again in running.again:
            begin, end = (min(max(time, began), ended) for time in again)
            more = flags | FLAG_RECOMPUTED
            self._recorder.event(Kind.F, self._step, task.microbatch, task.chunk, began, begin, end, flags=more)
        self._waiting.busy()

    def _times(self, running: Running, given: int, noticed: int) -> tuple[int, int]:
        """Return when the device had a task, within what this rank has seen and behind the task before it."""
        begin, end = running.times or (given, noticed)
        begin = min(max(begin, given, self._free_at), noticed)
        self._free_at = end = min(max(end, begin), noticed)
        return begin, end

    def _pass_on(self, follower: tuple[int, Task], output: Any) -> None:
        """Send what a task gave to the stage that needs it, or keep it if that is this one."""
        stage, feeds = follower
        if stage == self._number:
            self._handed[feeds] = output
        else:
            self._mailbox.send(stage, feeds, output, step=self._step)

    def _release(self, last: Task) -> None:
        """Give back the slots of the gradient and of the stashed input, which the task was the last to need."""
        for kind in (Kind.B, Kind.F):
            task = Task(kind, last.microbatch, last.chunk)
            arrival = self._received.pop(task, None)
            if arrival is not None:
                self._mailbox.release(task, arrival.slot)

    def _finish_collective(self, task: Task) -> None:
        step, (_, rank_in_hint, ready_count), ready_at, began = self._collectives.pop(task)
        ended = now()
        self.progress += 1
        if step == self._step:
            self._finished.append(task)
            self._plan.finish(task, ended)
        else:
            self._plan.gathered(task.microbatch, ended)
        self._recorder.event(
            task.kind,
            step,
            task.microbatch,
            0,
            ready_at,
            began,
            ended,
            nbytes=self._buckets.num_bytes(task),
            rank_in_hint=rank_in_hint,
            ready_count=ready_count,
            flags=self._flags,
        )
        self._waiting.busy()

    def _idle(self) -> None:
        reason = self._dispatch.idle()
        self._stuck = self.progress if self._alone else -1
        if self._wait is None or self._wait.reason is not reason:
            self._end_wait()
            self._wait = _Wait(reason, now())
        self._waiting.idle(self._mailbox.due)

    def _end_wait(self) -> None:
        if self._wait is None:
            return
        reason, since = self._wait
        self._wait = None
        peer = microbatch = sent = -1
        chunk = flags = 0
        if self._last_arrival is not None:
            neighbour, arrival = self._last_arrival
            peer, flags = neighbour.peer, FLAG_BACKWARD * (neighbour.feeds is Kind.B)
            microbatch, chunk, sent = arrival.header.microbatch, arrival.header.chunk, arrival.header.sent
        self._recorder.event(
            Kind.WAIT, self._step, microbatch, chunk, sent, since, now(), wait_class=reason, peer=peer, flags=flags
        )

    def _record_message(self, kind: Kind, neighbour: Neighbour, header: Header, posted: int, noticed: int) -> None:
        self._recorder.event(
            kind,
            header.step,
            header.microbatch,
            header.chunk,
            header.sent,
            posted,
            noticed,
            peer=neighbour.peer,
            nbytes=header.payload_bytes,
            flags=FLAG_BACKWARD * (neighbour.feeds is Kind.B),
        )
