"""One step on one stage: which tasks wait, are ready, run and are done, and why nothing can run.

The runtime and the simulator both drive this object; time is an opaque integer that they pass in.

Deadlock freedom (RRFP, appendix C.4). Let n_B(s) count finished backwards of stage s. Gradients flow backwards, so
n_B(s) <= n_B(s+1), and a strict inequality means that stage s has a ready backward, which no cap forbids. So in a stuck
state all n_B are equal. The last stage has a ready backward whenever n_F > n_B, so there n_F = n_B. If some stage s has
n_F(s) > n_F(s+1), take the last such one: stage s+1 has n_F = n_B, so its cap (at least 1) has room, and it has a ready
forward, so it is not stuck. Hence all counts are equal, and stage 0 admits the next micro-batch or the step is over.
"""

from typing import NamedTuple

from hpcpipe.plan.accounting import TimeClass
from hpcpipe.plan.policy import Policy
from hpcpipe.plan.ready import ReadySet
from hpcpipe.plan.task import Kind, Task


class Choice(NamedTuple):
    """What the policy chose and what it saw."""

    task: Task
    rank_in_hint: int
    ready_count: int


class StagePlan:
    """The ready-set of one stage for one step.

    Parameters
    ----------
    first, last
        Whether the stage has the data (all forwards ready at the start) and the loss (a forward readies its backward).
    cap
        Bound on started forwards minus finished backwards; None for a fixed order, which bounds itself.
    buckets
        Number of fusion buckets; each has an UPDATE, and RS and AG around it where `replicated`.
    """

    def __init__(
        self,
        *,
        first: bool,
        last: bool,
        microbatches: int,
        policy: Policy,
        cap: int | None,
        buckets: int,
        replicated: bool,
    ) -> None:
        self._first = first
        self._last = last
        self._microbatches = microbatches
        self._policy = policy
        self._cap = cap
        self._buckets = buckets
        self._replicated = replicated
        self._ready = ReadySet(policy.hint)
        self._ready_at: dict[Task, int] = {}
        self._room_at = 0
        self._started_forwards = 0
        self._finished_backwards = 0
        self._pending = (2 * microbatches) + buckets * (3 if replicated else 1)
        self.peak_in_flight = 0

    @property
    def done(self) -> bool:
        """Whether every task of the step has finished."""
        return self._pending == 0

    @property
    def in_flight(self) -> int:
        """Micro-batches whose forward has started and whose backward has not finished."""
        return self._started_forwards - self._finished_backwards

    @property
    def _room(self) -> bool:
        return self._cap is None or self.in_flight < self._cap

    def begin(self, now: int) -> None:
        """Start the step: the first stage has its data."""
        if self._first:
            for microbatch in range(self._microbatches):
                self._add(Task(Kind.F, microbatch), now)

    def deliver(self, task: Task, now: int) -> None:
        """Note that the input of a forward or the gradient of a backward has arrived."""
        self._add(task, now)

    def choose(self) -> Choice | None:
        """Return what to run now, or None to wait. Nothing changes until `start`."""
        task = self._policy.choose(self._ready, forwards=self._room)
        if task is None:
            return None
        return Choice(task, self._policy.hint.key(task), len(self._ready))

    def start(self, task: Task) -> int:
        """Note that the task was dispatched; return the time since which it could have run."""
        self._ready.remove(task)
        self._policy.started(task)
        ready_at = self._ready_at.pop(task)
        if task.kind is Kind.F:
            self._started_forwards += 1
            self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
            ready_at = max(ready_at, self._room_at)
        return ready_at

    def finish(self, task: Task, now: int) -> None:
        """Note that the task is done and ready what depends on it on this stage."""
        self._pending -= 1
        if task.kind is Kind.F and self._last:
            self._add(Task(Kind.B, task.microbatch, task.chunk), now)
        elif task.kind is Kind.B:
            if not self._room:
                self._room_at = now
            self._finished_backwards += 1
            if self._finished_backwards == self._microbatches:
                for bucket in range(self._buckets):
                    self._add(Task(Kind.RS if self._replicated else Kind.UPDATE, bucket), now)
        elif task.kind is Kind.RS:
            self._add(Task(Kind.UPDATE, task.microbatch), now)
        elif task.kind is Kind.UPDATE and self._replicated:
            self._add(Task(Kind.AG, task.microbatch), now)

    def idle(self) -> TimeClass:
        """Note that nothing could be dispatched and return why."""
        self._policy.idle()
        if self._ready.tops(forwards=self._room):
            return TimeClass.ORDER
        if len(self._ready):
            return TimeClass.CAP
        if self._started_forwards == 0:
            return TimeClass.WARMUP
        if self._finished_backwards == self._microbatches:
            return TimeClass.EXPOSED_COMM
        return TimeClass.DEPENDENCY

    def _add(self, task: Task, now: int) -> None:
        self._ready.add(task)
        self._ready_at[task] = now
