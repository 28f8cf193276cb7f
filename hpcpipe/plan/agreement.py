"""What tensor-parallel ranks propose to each other and what they make of it: tasks as bits of a window, and back.

Ranks that have started the same tasks number the others alike, so a bitwise AND of their proposals is a set of tasks
that all of them can run. Pure: how the bits travel is not known here.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

from hpcpipe.plan.stage import Choice, StagePlan
from hpcpipe.plan.task import Kind, Task

RULES = ("common", "propose")
"""`"common"`: all that is ready, and the best of what all have; `"propose"`: the best alone, and nothing unless all
propose the same (RRFP, arXiv 2605.18750, section 4.2)."""

MOST_BYTES = 64


class Window:
    """Numbers the tasks of a step that are not started yet.

    Each kind and chunk has a share of the bits. Where a step has more tasks than there are bits, a share numbers the
    forwards not started, the backwards whose forward is started and the weight gradients whose backward is, the oldest
    micro-batches first; what does not fit waits for its turn. That stops no pipeline, because the oldest micro-batch
    always has a bit: every forward that a stage has started was one of the first there, so if none of the first at the
    next stage has arrived, none of them is started here, and what is started here would not have been among the first.
    """

    def __init__(self, *, microbatches: int, chunks: int, split: bool, most_bytes: int = MOST_BYTES) -> None:
        kinds = (Kind.F, Kind.B, Kind.W) if split else (Kind.F, Kind.B)
        self._lanes = {(kind, chunk): number for number, (kind, chunk) in enumerate(_lanes(kinds, chunks))}
        self._share = min(microbatches, max(1, 8 * most_bytes // len(self._lanes)))
        self._moves = self._share < microbatches
        first = list(range(microbatches))
        self._waiting = {lane: list(first) if lane[0] is Kind.F else [] for lane in self._lanes} if self._moves else {}
        self.num_bytes = 8 * -(-self._share * len(self._lanes) // 64)
        """What a proposal takes, in words of 8 bytes."""

    def start(self, task: Task) -> None:
        """Note that the task was started (on all ranks); what it leads to has a number from now on."""
        if not self._moves:
            return
        self._waiting[task.kind, task.chunk].remove(task.microbatch)
        following = (Kind(task.kind + 1), task.chunk)  # F, B, W
        if following in self._lanes:
            insort(self._waiting[following], task.microbatch)

    def bits(self, tasks: Iterable[Task]) -> int:
        """Return the tasks as bits; those without a number are left out."""
        found = 0
        for task in tasks:
            lane = (task.kind, task.chunk)
            place = bisect_left(self._waiting[lane], task.microbatch) if self._moves else task.microbatch
            if place < self._share:
                found |= 1 << (self._lanes[lane] * self._share + place)
        return found

    def tasks(self, bits: int) -> list[Task]:
        """Return the tasks of bits."""
        found = []
        for (kind, chunk), number in self._lanes.items():
            lane = (bits >> number * self._share) & ((1 << self._share) - 1)
            while lane:
                place = (lane & -lane).bit_length() - 1
                lane &= lane - 1
                found.append(Task(kind, self._waiting[kind, chunk][place] if self._moves else place, chunk))
        return found


class Counts(NamedTuple):
    """How many rounds there were, how many found nothing in common, and how many asked once more for a late task."""

    rounds: int = 0
    deferred: int = 0
    confirmed: int = 0


NONE_YET = Counts()


class Proposals:
    """One rank's side of the agreement on the tasks of one step.

    Parameters
    ----------
    early
        Whether the first round after a task has begun may be made up long before its end. Then what it says of weight
        gradients is asked again: nobody waits for one, and a forward or backward may have come meanwhile.
    """

    def __init__(
        self, plan: StagePlan, rule: str, *, early: bool, counts: Counts = NONE_YET, most_bytes: int = MOST_BYTES
    ) -> None:
        assert rule in RULES, f"{rule!r} is none of {RULES}"
        self._plan = plan
        self._rule = rule
        self._early = early
        self._first = early
        self.counts = counts
        self._window = Window(
            microbatches=plan.microbatches,
            chunks=plan.placement.chunks,
            split=plan.frees is Kind.W,
            most_bytes=most_bytes,
        )
        self.num_bytes = self._window.num_bytes

    def bits(self, running: Task | None = None) -> int:
        """Return what this rank proposes to run next, once `running` is done; 0 if it has nothing to propose."""
        offers = self._plan.offers(running)
        if self._rule == "propose" and offers:
            choice = self._plan.choose_among(offers)
            return 0 if choice is None else self._window.bits([choice.task])
        return self._window.bits(offers)

    def choose(self, common: int) -> Choice | None:
        """Return what all ranks run next; None for another round.

        If they have nothing in common, the policy notes that.
        """
        choice = self._plan.choose_among(self._window.tasks(common)) if common else None
        rounds, deferred, confirmed = self.counts
        again = self._first and choice is not None and choice.task.kind is Kind.W
        self._first = False
        if choice is None:
            self._plan.disagree()
        self.counts = Counts(rounds + 1, deferred + (choice is None), confirmed + again)
        return None if again else choice

    def start(self, task: Task) -> None:
        """Note that a task that was agreed on is started."""
        self._first = self._early
        self._window.start(task)


def _lanes(kinds: Iterable[Kind], chunks: int) -> list[tuple[Kind, int]]:
    return [(kind, chunk) for kind in kinds for chunk in range(chunks)]
