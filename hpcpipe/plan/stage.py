"""One step on one stage: which tasks wait, are ready, run and are done, and why nothing can run.

A step is done when its all-gathers are under way: they end beside the next step, whose forwards wait for them. The
runtime and the simulator both drive this object; time is an opaque integer that they pass in. Why no cap can stop the
pipeline stands in flight.py.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hpcpipe.plan.accounting import TimeClass
from hpcpipe.plan.flight import NO_LIMITS, Flight, Limits
from hpcpipe.plan.hint import communication_first
from hpcpipe.plan.placement import Placement
from hpcpipe.plan.policy import Policy
from hpcpipe.plan.ready import ReadySet
from hpcpipe.plan.spread import spread_buckets
from hpcpipe.plan.task import Kind, Task

_AGREED = (Kind.F, Kind.B, Kind.W)
"""What all tensor-parallel slices of a stage run in one order; each runs its buckets' tasks by itself."""


class Choice(NamedTuple):
    """What the policy chose and what it saw."""

    task: Task
    rank_in_hint: int
    ready_count: int


class StagePlan:
    """The ready-set of one stage for one step.

    Parameters
    ----------
    placement, stage
        Which virtual stages of the model are here. The first of the chain has the data (its forwards are ready at the
        start), the last has the loss (a forward readies its backward).
    limits
        Caps on what is in flight; none for a fixed order, which bounds itself.
    split
        Whether the weight gradients are tasks of their own (W) that follow the input gradients (B).
    ordered
        Whether a micro-batch's W waits for that of the one admitted before it, so that sums have a fixed order.
    buckets
        The chunks whose parameters each fusion bucket holds, or how many buckets there are (spread.py). Each has an
        UPDATE, and RS and AG around it where `replicated`.
    tied
        The buckets that have RS and AG even without replicas, because other stages use the same parameters.
    gathering
        The buckets whose all-gather of the step before is not done: no forward of their chunks runs until it is.
    norm
        Whether all updates wait for a NORM, in which ranks tell each other about their gradients, after the last RS.
    phased
        Whether all buckets are reduced, then all updated, then all gathered, from the last gradient to the step's end,
        beside nothing else. The order of the sums stays the same.
    eager
        The buckets whose update runs as soon as their gradient is reduced. Those of the others run where nothing else
        can: they end nothing that another stage waits for, but a gather cannot begin before them.
    """

    def __init__(
        self,
        *,
        placement: Placement,
        stage: int,
        microbatches: int,
        policy: Policy,
        limits: Limits = NO_LIMITS,
        split: bool = False,
        ordered: bool = True,
        buckets: int | Sequence[Collection[int]] = 0,
        replicated: bool = False,
        tied: Collection[int] = (),
        gathering: Collection[int] = (),
        norm: bool = False,
        phased: bool = False,
        eager: Collection[int] = (),
    ) -> None:
        self.placement = placement
        self.stage = stage
        self.microbatches = microbatches
        self._policy = policy
        self.frees = Kind.W if split else Kind.B
        """The kind of task whose end frees what its micro-batch held."""
        self._split = split
        self._ordered = ordered
        self._buckets = spread_buckets(buckets, placement.chunks) if isinstance(buckets, int) else buckets
        self._shared = [replicated or bucket in tied for bucket in range(len(self._buckets))]
        self._gathering = set(gathering)
        self._held: list[Task] = []
        self._all_gathers_running = 0
        self._ready = ReadySet(policy.hint)
        self._ready_at: dict[Task, int] = {}
        self._chunks = range(placement.chunks)
        self._room_at = [0] * placement.chunks
        self.flight = Flight(
            microbatches=microbatches, chunks=placement.chunks, split=split, ordered=ordered, limits=limits
        )
        self._next_weight = [0] * placement.chunks
        self._waiting_weights: set[Task] = set()
        self._given: dict[Task, list[Task]] = {}
        self._late: dict[Task, int] = {}
        self._started = False
        self._gradients_left = [microbatches] * placement.chunks
        self._unfinished = len(self._chunks)
        self.undecided = (3 if split else 2) * microbatches * placement.chunks
        """How many forwards, backwards and weight gradients have not been started."""
        self._norm, self._phased = norm, phased
        self._eager, self._urgent = eager, list[Task]()
        self._sums_left, self._updates_left = sum(self._shared), len(self._buckets)
        self._pending = self.undecided + self._updates_left + 2 * self._sums_left + norm

    @property
    def done(self) -> bool:
        """Whether every task of the step has finished, or, of all-gathers that may end beside the next, has started."""
        return self._pending == (0 if self._phased else self._all_gathers_running)

    @property
    def ready(self) -> list[Task]:
        """The tasks that could run now, in no order."""
        return list(self._ready)

    def begin(self, now: int) -> None:
        """Start the step: the first virtual stage has its data."""
        stage, chunk = self.placement.owner(0)
        if stage == self.stage:
            for microbatch in range(self.microbatches):
                self._add(Task(Kind.F, microbatch, chunk), now)

    def deliver(self, task: Task, now: int) -> None:
        """Note that the input of a forward or the gradient of a backward has arrived from another stage."""
        self._add(task, now)

    def gathered(self, bucket: int, now: int) -> None:
        """Note that the all-gather that the step before had started is done."""
        self._gathering.remove(bucket)
        held, self._held = self._held, []
        for task in held:
            self._add(task, now)

    def choose(self) -> Choice | None:
        """Return what to run now, or None to wait. Nothing changes until `start`."""
        candidates = self._candidates()
        task: Task | None
        if self._urgent:
            task = communication_first(candidates) or self._urgent[0]
        else:
            task = self._policy.choose(candidates, self._ready)
        if task is None:
            return None
        return Choice(task, self._policy.hint.key(task), len(self._ready))

    def offers(self, running: Task | None = None) -> list[Task]:
        """Return the forwards, backwards and weight gradients that could run, once `running` is done, in no order."""
        tasks = [task for task in self._ready if task.kind in _AGREED]
        if running is None:
            return [task for task in tasks if self._admitted(task)]
        with self.flight.supposing(running):
            return [task for task in (*tasks, *self._readied_by(running)) if self._admitted(task)]

    def choose_among(self, tasks: Collection[Task]) -> Choice | None:
        """Return what to run now of some tasks that all can run."""
        key = self._policy.hint.key
        best: dict[tuple[Kind, int], Task] = {}
        for task in sorted(tasks, key=key):
            best.setdefault((task.kind, task.chunk), task)
        chosen = self._policy.choose(list(best.values()), self._ready)
        return None if chosen is None else Choice(chosen, key(chosen), len(tasks))

    def choose_alone(self, *, updates: bool) -> Choice | None:
        """Return what to run now of the buckets' tasks, for which other slices of this stage need not be asked.

        With `updates` also one that takes the rank's time.
        """
        own = [task for task in self._ready if task.kind not in _AGREED and (updates or task.kind is not Kind.UPDATE)]
        return self.choose_among(own) if own else None

    def disagree(self) -> None:
        """Note that the slices of this stage had nothing in common to run."""
        self._policy.idle()

    def start(self, task: Task) -> int:
        """Note that the task was dispatched; return the time since which it could have run."""
        self._ready.remove(task)
        if task in self._urgent:
            self._urgent.remove(task)
        self._policy.started(task)
        self._started = True
        self._all_gathers_running += task.kind is Kind.AG
        self.undecided -= task.kind in _AGREED
        ready_at = self._ready_at.pop(task)
        if task.kind is Kind.F:
            self.flight.start_forward(task)
            return max(ready_at, self._room_at[task.chunk])
        return ready_at

    def given(self, task: Task, now: int) -> None:
        """Note that a started task was given to a device that does everything in the order in which it was given.

        What depends on it on this stage alone may be given to the device behind it, and what it frees may be used by
        what comes behind it; what other ranks or gradient buckets need of it waits for `finish`.
        """
        readied: list[Task] = []
        self._given[task] = readied
        self._lead(task, now, readied)

    def finish(self, task: Task, now: int) -> None:
        """Note that the task is done and ready what depends on it on this stage."""
        self._pending -= 1
        self._all_gathers_running -= task.kind is Kind.AG
        if task in self._given:
            for each in self._given.pop(task):
                (self._ready_at if each in self._ready_at else self._late)[each] = now
        else:
            self._lead(task, now, [])
        if task.kind is self.frees:
            self._finish_gradient(task, now)
        elif task.kind is Kind.RS:
            self._finish_sum(task.microbatch, now)
        elif task.kind is Kind.NORM:
            self._add_all(Kind.UPDATE, now)
        elif task.kind is Kind.UPDATE:
            self._finish_update(task.microbatch, now)

    def late(self, task: Task, ready_at: int) -> int:
        """Return since when a task could run that was started while what it needs was not done, else `ready_at`."""
        return max(self._late.pop(task, ready_at), ready_at)

    def follower(self, task: Task) -> tuple[int, Task] | None:
        """Return the stage and task that a forward's or backward's output feeds; None at the end of the chain."""
        virtual = self.placement.virtual(self.stage, task.chunk)
        if task.kind is Kind.F:
            if virtual == self.placement.virtual_stages - 1:
                return self.stage, Task(Kind.B, task.microbatch, task.chunk)
            stage, chunk = self.placement.owner(virtual + 1)
        elif virtual == 0:
            return None
        else:
            stage, chunk = self.placement.owner(virtual - 1)
        return stage, Task(task.kind, task.microbatch, chunk)

    def idle(self) -> TimeClass:
        """Note that nothing could be dispatched and return why."""
        self._policy.idle()
        return self.why_idle()

    def why_idle(self) -> TimeClass:
        """Return why nothing is dispatched; ORDER where something could be."""
        if self._candidates():
            return TimeClass.ORDER
        if len(self._ready):
            return TimeClass.CAP
        if self._held or not self._unfinished:
            return TimeClass.EXPOSED_COMM
        return TimeClass.DEPENDENCY if self._started else TimeClass.WARMUP

    def _candidates(self) -> list[Task]:
        """Return the best task of every lane that may run; where a cap is closed, few forwards may."""
        closed = [chunk for chunk in self._chunks if not self.flight.room(chunk)]
        tops = self._ready.tops(closed)
        for chunk in closed:
            admitted = (Task(Kind.F, m, chunk) for m in self.flight.admitted(chunk))
            tops += [task for task in admitted if task in self._ready]
        return tops

    def _admitted(self, task: Task) -> bool:
        """Whether the caps let a ready task run."""
        if task.kind is not Kind.F or self.flight.room(task.chunk):
            return True
        return task.microbatch in self.flight.admitted(task.chunk)

    def _readied_by(self, running: Task) -> list[Task]:
        """Return the tasks that will be ready here when the running one is done; `finish` readies the same."""
        found = []
        if running.kind in (Kind.F, Kind.B):
            follower = self.follower(running)
            if follower is not None and follower[0] == self.stage and self._is_gathered(follower[1]):
                found.append(follower[1])
            weight = Task(Kind.W, running.microbatch, running.chunk)
            if running.kind is Kind.B and self._split and self._in_turn(weight):
                found.append(weight)
        elif running.kind is Kind.W and self._ordered:
            following = Task(Kind.W, running.microbatch + 1, running.chunk)
            found += [following] if following in self._waiting_weights else []
        return found

    def _lead(self, task: Task, now: int, readied: list[Task]) -> None:
        """Ready the forwards, backwards and weight gradients that need the task, and free what it held."""
        if task.kind in (Kind.F, Kind.B):
            if (follower := self.follower(task)) is not None and follower[0] == self.stage:
                readied.append(follower[1])
            weight = Task(Kind.W, task.microbatch, task.chunk)
            if task.kind is Kind.B and self._split:
                if self._in_turn(weight):
                    readied.append(weight)
                else:
                    self._waiting_weights.add(weight)
        elif task.kind is Kind.W and self._ordered:
            self._next_weight[task.chunk] += 1
            following = Task(Kind.W, task.microbatch + 1, task.chunk)
            if following in self._waiting_weights:
                self._waiting_weights.remove(following)
                readied.append(following)
        for each in readied:
            self._add(each, now)
        if task.kind in (Kind.B, Kind.W):
            had_room = [self.flight.room(chunk) for chunk in self._chunks]
            self.flight.finish(task)
            for chunk in self._chunks:
                if not had_room[chunk] and self.flight.room(chunk):
                    self._room_at[chunk] = now

    def _is_gathered(self, task: Task) -> bool:
        """Whether the parameters of a forward are there."""
        return task.kind is not Kind.F or not any(task.chunk in self._buckets[bucket] for bucket in self._gathering)

    def _in_turn(self, weight: Task) -> bool:
        return not self._ordered or weight.microbatch == self._next_weight[weight.chunk]

    def _finish_gradient(self, task: Task, now: int) -> None:
        """Count a complete gradient; ready the buckets after the last."""
        self._gradients_left[task.chunk] -= 1
        if self._gradients_left[task.chunk] == 0:
            self._finish_chunk(task.chunk, now)

    def _finish_chunk(self, finished: int, now: int) -> None:
        """Ready the buckets whose gradients are final with a chunk's; in phases, those of all chunks with the last."""
        self._unfinished -= 1
        for bucket, chunks in enumerate(self._buckets):
            if self._phased:
                is_final = self._unfinished == 0
            else:
                is_final = finished in chunks and not any(self._gradients_left[chunk] for chunk in chunks)
            if is_final and self._shared[bucket]:
                self._add(Task(Kind.RS, bucket), now)
            elif is_final and not self._norm and not self._phased:
                self._add(Task(Kind.UPDATE, bucket), now)
        self._finish_sums(now)

    def _finish_sum(self, bucket: int, now: int) -> None:
        """Ready what follows a bucket's reduce-scatter, or the last one's."""
        self._sums_left -= 1
        if not self._norm and not self._phased:
            update = Task(Kind.UPDATE, bucket)
            self._add(update, now)
            if bucket in self._eager:
                self._urgent.append(update)
        self._finish_sums(now)

    def _finish_sums(self, now: int) -> None:
        """Ready what waits for all gradients of the stage, if these are final and reduced."""
        if self._sums_left or self._unfinished:
            return
        if self._norm:
            self._add(Task(Kind.NORM, 0), now)
        elif self._phased:
            self._add_all(Kind.UPDATE, now)

    def _finish_update(self, bucket: int, now: int) -> None:
        """Ready the all-gather of a bucket, or those of all after the last update."""
        self._updates_left -= 1
        if not self._phased:
            if self._shared[bucket]:
                self._add(Task(Kind.AG, bucket), now)
        elif self._updates_left == 0:
            self._add_all(Kind.AG, now)

    def _add_all(self, kind: Kind, now: int) -> None:
        for bucket, shared in enumerate(self._shared):
            if kind is Kind.UPDATE or shared:
                self._add(Task(kind, bucket), now)

    def _add(self, task: Task, now: int) -> None:
        """Ready a task; a forward whose parameters are not gathered is held until they are."""
        if not self._is_gathered(task):
            self._held.append(task)
            return
        self._ready.add(task)
        self._ready_at[task] = now
