"""Tensor-parallel ranks agree on what to run next: a nonblocking AND of their proposals beside the running task.

What is proposed and chosen is plan/'s; here bits travel, and every round leaves an event.
"""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpcpipe.plan import Choice, Kind, Recorder, StagePlan, Task, TimeClass
from hpcpipe.plan.agreement import Counts, Proposals
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.failure import PeerLostError

if TYPE_CHECKING:
    from mpi4py import MPI

LEAD_NS = 1_000_000
"""How long before the known end of a task its successor is asked for: long enough for a round, short enough that what
arrives meanwhile has a part in it."""


class Dispatch(Protocol):
    """Who decides what a rank runs next."""

    def begin(self, plan: StagePlan, step: int, recorder: Recorder) -> None:
        """Begin a step; the events of its decisions go to `recorder`."""

    def choose(self) -> Choice | None:
        """Return what to run now, or None to wait; never blocks."""

    def start(self, choice: Choice) -> None:
        """Note that a choice is about to be started."""

    def beside(self, running: Task, due: int | None) -> None:
        """Look after the next decision while a task runs, until `due` where that is known (ns)."""

    def idle(self) -> TimeClass:
        """Note that nothing could be dispatched and return why."""

    def pending(self) -> dict[str, Any] | None:
        """Return what is waited for, for another thread."""


class Alone:
    """Decides for a rank that asks nobody."""

    def begin(self, plan: StagePlan, step: int, recorder: Recorder) -> None:
        """Begin a step; a rank alone has nothing to tell of its decisions."""
        del step, recorder
        self._plan = plan

    def choose(self) -> Choice | None:
        """Return the plan's choice."""
        return self._plan.choose()

    def start(self, choice: Choice) -> None:
        """Do nothing."""

    def beside(self, running: Task, due: int | None) -> None:
        """Do nothing."""

    def idle(self) -> TimeClass:
        """Pass on to the plan."""
        return self._plan.idle()

    def pending(self) -> dict[str, Any] | None:
        """Return that nobody is waited for."""
        return None


class Agreement:
    """Decides together with the other slices of the stage, so that all run F, B and W in one order.

    A round is begun while a task runs, with what will be ready when it is done, and over when all slices have begun it;
    so it costs no time unless a slice has nothing to propose or they have nothing in common. Then the next round
    begins when there is something to propose. The number of rounds of a step is the same on all slices, because each
    begins and ends with what all know.

    Parameters
    ----------
    comm
        The slices of this stage, for nothing but this.
    rule
        One of plan.agreement.RULES.
    blocks
        Whether nothing else happens here while a task runs; then its successor is asked for as it begins.
    """

    def __init__(self, comm: "MPI.Intracomm", *, rule: str, blocks: bool) -> None:
        self._comm = comm
        self._rule = rule
        self._request: MPI.Request | None = None
        self._posted = 0
        self._step = -1
        self._offered = 0
        self._blocks = blocks
        self.counts = Counts()

    def begin(self, plan: StagePlan, step: int, recorder: Recorder) -> None:
        """Begin a step; no round of the one before is under way."""
        assert self._request is None, "a round of the step before is still under way"
        self._plan, self._step, self._recorder = plan, step, recorder
        self._proposals = Proposals(plan, self._rule, early=self._blocks, counts=self.counts)
        words = self._proposals.num_bytes // 8
        self._mine, self._common = np.zeros(words, np.uint64), np.zeros(words, np.uint64)

    def choose(self) -> Choice | None:
        """Return what all slices run now, or None to wait; what concerns buckets is this rank's own affair.

        Reduce-scatters and all-gathers start at once; updates when nothing else can be done here and nobody is asked.
        """
        if (choice := self._plan.choose_alone(updates=not self._plan.undecided)) is not None:
            return choice
        if not self._plan.undecided:
            return None
        if self._request is None and not self._propose(None):
            return self._plan.choose_alone(updates=True)
        if not self._done():
            return None
        common = int.from_bytes(self._common.tobytes(), "little")
        choice = self._proposals.choose(common)
        self._note(choice)
        return choice

    def start(self, choice: Choice) -> None:
        """Note that a choice is about to be started; if it blocks, ask for its successor now."""
        if choice.task.kind > Kind.W:
            return
        self._proposals.start(choice.task)
        if self._blocks:
            self._propose(choice.task)

    def beside(self, running: Task, due: int | None) -> None:
        """Ask for the successor of a task that runs, if it is nearly done or nobody knows."""
        if self._request is None and running.kind <= Kind.W and (due is None or due - now() <= LEAD_NS):
            self._propose(running)

    def idle(self) -> TimeClass:
        """Return why nothing is dispatched: for want of the others' consent if something could be."""
        reason = self._plan.why_idle()
        return TimeClass.AGREEMENT if reason is TimeClass.ORDER else reason

    def pending(self) -> dict[str, Any] | None:
        """Return what this rank has proposed, for another thread."""
        if self._request is None:
            return None
        return {"proposes": sorted(map(str, self._plan.offers())), "for_s": (now() - self._posted) * 1e-9}

    def _propose(self, running: Task | None) -> bool:
        """Begin a round if there is something to propose; return whether one is under way now."""
        bits = self._proposals.bits(running) if self._plan.undecided else 0
        if not bits:
            return False
        from mpi4py import MPI

        self._mine[:] = np.frombuffer(bits.to_bytes(self._mine.nbytes, "little"), np.uint64)
        self._posted, self._offered = now(), bits.bit_count()
        self._request = self._comm.Iallreduce(self._mine, self._common, op=MPI.BAND)
        return True

    def _done(self) -> bool:
        from mpi4py import MPI

        assert self._request is not None
        try:
            done = self._request.Test()
        except MPI.Exception as error:
            raise PeerLostError("the agreement of the tensor slices failed; most likely one has died") from error
        if done:
            self._request = None
        return done

    def _note(self, choice: Choice | None) -> None:
        task, rank_in_hint = (None, -1) if choice is None else (choice.task, choice.rank_in_hint)
        self.counts = self._proposals.counts
        self._recorder.event(
            Kind.AGREE,
            self._step,
            -1 if task is None else task.microbatch,
            0 if task is None else task.chunk,
            self._posted,
            self._posted,
            now(),
            rank_in_hint=rank_in_hint,
            ready_count=self._offered,
        )
