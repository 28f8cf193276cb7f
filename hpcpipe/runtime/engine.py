"""The loop of one rank: poll, choose, run, send, until the step's tasks are done; every one leaves an event.

The engine only executes. What may run and in which order is decided in plan/, what a task computes in stage.py.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from hpcpipe.plan import Choice, Kind, StagePlan, Task, TimeClass
from hpcpipe.runtime.channel import Arrival
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.header import Header
from hpcpipe.runtime.mailbox import Mailbox, Neighbour
from hpcpipe.runtime.stage import Stage
from hpcpipe.runtime.waiting import Waiting

FLAG_BACKWARD = 1


class Recorder(Protocol):
    """Where events go; times in ns of this rank's clock, but `t_ready` of a message in its sender's."""

    def event(
        self,
        kind: int,
        step: int,
        microbatch: int,
        chunk: int,
        t_ready: int,
        t_start: int,
        t_end: int,
        wait_class: int = 0,
        peer: int = -1,
        nbytes: int = 0,
        rank_in_hint: int = -1,
        ready_count: int = 0,
        flags: int = 0,
    ) -> None:
        """Keep one event; cheap, without input or output."""


class Buckets(Protocol):
    """The gradient buckets: collectives that run beside the tasks, and the optimizer's update."""

    def start(self, task: Task) -> None:
        """Start the reduce-scatter or all-gather of a bucket; returns at once."""

    def test(self) -> list[Task]:
        """Advance the started collectives and return those that are done."""

    def update(self, bucket: int, step: int) -> None:
        """Update the parameters of a bucket."""

    def num_bytes(self, bucket: int) -> int:
        """Return the size of a bucket."""


class StepTimes(NamedTuple):
    """When the step began and ended on this rank (ns)."""

    begin: int
    end: int


class _Wait(NamedTuple):
    reason: TimeClass
    since: int


class Engine:
    """Runs steps on one rank."""

    def __init__(
        self,
        *,
        stage: Stage,
        mailbox: Mailbox,
        buckets: Buckets,
        recorder: Recorder,
        waiting: Waiting,
        make_plan: Callable[[], StagePlan],
    ) -> None:
        self._stage = stage
        self._mailbox = mailbox
        self._buckets = buckets
        self._recorder = recorder
        self._waiting = waiting
        self._make_plan = make_plan
        self._plan = make_plan()
        self._step = -1
        self._received: dict[Task, Arrival] = {}
        self._early: list[tuple[Task, Arrival]] = []
        self._collectives: dict[Task, tuple[Choice, int, int]] = {}
        self._wait: _Wait | None = None
        self._last_arrival: tuple[Neighbour, Arrival] | None = None

    def run_step(self, step: int) -> StepTimes:
        """Run all tasks of one step on this rank."""
        begin = self._begin(step)
        while not self._plan.done:
            self._poll()
            choice = self._plan.choose()
            if choice is None:
                self._idle()
            else:
                self._run(choice)
        self._end_wait()
        return StepTimes(begin, now())

    def drain(self) -> None:
        """Complete the sends that are still under way."""
        while self._mailbox.sending:
            self._poll()
            self._waiting.idle()

    def _begin(self, step: int) -> int:
        begin = now()
        self._step, self._plan = step, self._make_plan()
        self._stage.load(step)
        loaded = now()
        if self._stage.has_data:
            self._recorder.event(Kind.DATA, step, -1, 0, begin, begin, loaded)
        self._plan.begin(loaded)
        early, self._early = self._early, []
        for task, arrival in early:
            self._deliver(task, arrival)
        return begin

    def _poll(self) -> None:
        arrivals, sent = self._mailbox.poll()
        noticed = now()
        self._last_arrival = None
        for neighbour, arrival in arrivals:
            self._last_arrival = neighbour, arrival
            self._record_message(Kind.RECV, neighbour, arrival.header, arrival.posted, noticed)
            task = Task(neighbour.feeds, arrival.header.microbatch, arrival.header.chunk)
            if arrival.header.step == self._step:
                self._deliver(task, arrival)
            else:
                assert arrival.header.step == self._step + 1, f"a message of step {arrival.header.step} in {self._step}"
                self._early.append((task, arrival))
        for neighbour, entry in sent:
            self._record_message(Kind.SEND, neighbour, entry.header, entry.posted, noticed)
        for task in self._buckets.test() if self._collectives else ():
            self._finish_collective(task)

    def _deliver(self, task: Task, arrival: Arrival) -> None:
        self._received[task] = arrival
        self._plan.deliver(task, now())

    def _run(self, choice: Choice) -> None:
        task = choice.task
        self._end_wait()
        ready_at = self._plan.start(task)
        began = now()
        if task.kind in (Kind.RS, Kind.AG):
            self._collectives[task] = choice, ready_at, began
            self._buckets.start(task)
            return
        output = self._compute(task)
        ended = now()
        self._plan.finish(task, ended)
        if output is not None:
            self._mailbox.send(task.kind, output, step=self._step, microbatch=task.microbatch, chunk=task.chunk)
        if task.kind is Kind.B:
            self._release(task)
        self._recorder.event(
            task.kind,
            self._step,
            task.microbatch,
            task.chunk,
            ready_at,
            began,
            ended,
            rank_in_hint=choice.rank_in_hint,
            ready_count=choice.ready_count,
        )
        self._waiting.busy()

    def _compute(self, task: Task) -> torch.Tensor | None:
        if task.kind is Kind.UPDATE:
            self._buckets.update(task.microbatch, self._step)
            return None
        arrival = self._received.get(task)
        tensor = arrival.tensor if arrival else None
        if task.kind is Kind.F:
            return self._stage.forward(self._step, task.microbatch, tensor)
        return self._stage.backward(task.microbatch, tensor)

    def _release(self, backward: Task) -> None:
        """Give back the slots of the gradient and of the stashed input, which the backward was the last to need."""
        for task in (backward, backward._replace(kind=Kind.F)):
            arrival = self._received.pop(task, None)
            if arrival is not None:
                self._mailbox.release(task.kind, arrival.slot)

    def _finish_collective(self, task: Task) -> None:
        choice, ready_at, began = self._collectives.pop(task)
        ended = now()
        self._plan.finish(task, ended)
        self._recorder.event(
            task.kind,
            self._step,
            task.microbatch,
            0,
            ready_at,
            began,
            ended,
            nbytes=self._buckets.num_bytes(task.microbatch),
            rank_in_hint=choice.rank_in_hint,
            ready_count=choice.ready_count,
        )
        self._waiting.busy()

    def _idle(self) -> None:
        reason = self._plan.idle()
        if self._wait is None or self._wait.reason is not reason:
            self._end_wait()
            self._wait = _Wait(reason, now())
        self._waiting.idle()

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
