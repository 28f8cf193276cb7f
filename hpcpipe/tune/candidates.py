"""All groupings that keep the batch and fit the memory, and why the others are left out.

What is left out here is so whatever the network does; what the network decides is left out when it is predicted
(predict.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcpipe.job.tune import show_bytes
from hpcpipe.tune.grouping import Grouping, profile
from hpcpipe.tune.memory import StageMemory

EVEN, WIDE = 1.5, 2.0
"""Caps under readiness, as multiples of kFkB's own k(S - s): one that gives no stage more than the first one has, as
equal memory does (plan/caps.py), and one for all stages; beyond twice that little is won."""


class NoGroupingFitsError(ValueError):
    """The memory limit is below what every grouping needs; the text says by how much and on which stage."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A grouping that fits, with the bytes that a rank of each stage holds at most."""

    grouping: Grouping
    peak_bytes: tuple[int, ...]

    @property
    def memory(self) -> tuple[int, int]:
        """Return what it costs, to compare: the fullest rank's bytes, then those of all stages."""
        return max(self.peak_bytes), sum(self.peak_bytes)


@dataclass(frozen=True, slots=True)
class Pruned:
    """A grouping that is left out, and why, in words."""

    grouping: Grouping
    reason: str


@dataclass(frozen=True, slots=True)
class Space:
    """What can be chosen from, the leanest first, and what cannot."""

    candidates: tuple[Candidate, ...]
    pruned: tuple[Pruned, ...] = ()

    def find(self, grouping: Grouping) -> Candidate:
        """Return the candidate of a grouping.

        Raises
        ------
        KeyError
            It is not among those that fit.
        """
        for candidate in self.candidates:
            if candidate.grouping == grouping:
                return candidate
        raise KeyError(f"{grouping} is not among the groupings that fit")


def make_space(
    *,
    batch: int,
    stages: int,
    memory: Sequence[StageMemory],
    limit: int | None,
    dispatch: str,
    sizes: Sequence[int] | None = None,
) -> Space:
    """Return the groupings of `batch` samples on a replica.

    Micro-batches and groups must divide evenly: a padded or ragged one would change the weight of its samples in the
    mean, or stand idle where the others work. So b divides the batch and k the number of micro-batches; all others are
    named as pruned up to the batch.

    Parameters
    ----------
    memory
        By stage.
    limit
        Bytes that a rank may hold, None for as many as it likes.
    dispatch
        Under "ready" each grouping comes with several caps: kFkB's own, multiples of them, and all that the limit
        leaves room for.
    sizes
        The micro-batch sizes to look at, None for all.

    Raises
    ------
    NoGroupingFitsError
        None fits.
    ValueError
        `memory` is of another number of stages.
    """
    if len(memory) != stages:
        raise ValueError(f"memory of {len(memory)} stages, the pipeline has {stages}")
    found: list[Candidate] = []
    pruned: list[Pruned] = []
    closest: tuple[int, int, Grouping] | None = None
    for size in range(1, batch + 1) if sizes is None else sorted(set(sizes)):
        if batch % size:
            pruned.append(Pruned(Grouping(1, size), f"does not divide: {batch} samples are no multiple of {size}"))
            continue
        microbatches = batch // size
        for k in range(1, microbatches + 1):
            if microbatches % k:
                pruned.append(
                    Pruned(Grouping(k, size), f"does not divide: {microbatches} micro-batches are no multiple of {k}")
                )
                continue
            for grouping in _with_caps(k, size, microbatches, stages, memory, limit, dispatch):
                held = grouping.in_flight(stages=stages, batch=batch)
                peak = tuple(each.peak(count, size) for each, count in zip(memory, held, strict=True))
                if limit is None or max(peak) <= limit:
                    found.append(Candidate(grouping, peak))
                    continue
                stage = max(range(stages), key=lambda s: (peak[s], -s))
                over = peak[stage] - limit
                words = f"memory: {show_bytes(peak[stage])} on stage {stage}, {show_bytes(over)} over the limit"
                pruned.append(Pruned(grouping, words))
                if closest is None or over < closest[0]:
                    closest = over, stage, grouping
    if not found:
        if closest is None or limit is None:
            raise ValueError(f"no micro-batch size of {sizes} divides {batch} samples")
        over, stage, grouping = closest
        raise NoGroupingFitsError(
            f"no grouping of {batch} samples fits into {show_bytes(limit)}: even {grouping} needs "
            f"{show_bytes(over)} more on stage {stage}, where {show_bytes(memory[stage].fixed)} are held in any case"
        )
    found.sort(key=lambda each: (each.memory, each.grouping))
    return Space(tuple(found), tuple(pruned))


def _with_caps(
    k: int,
    size: int,
    microbatches: int,
    stages: int,
    memory: Sequence[StageMemory],
    limit: int | None,
    dispatch: str,
) -> Iterator[Grouping]:
    """Yield the grouping with each of its caps; what has no room is yielded all the same, to be refused."""
    if dispatch == "fixed":
        yield Grouping(k, size)
        return
    own = profile(stages, microbatches, k)
    even = tuple(min(own[0], cap) for cap in profile(stages, microbatches, k, EVEN))
    wide = profile(stages, microbatches, k, WIDE)
    if limit is not None:
        rooms = [max(least, each.room(limit, size)) for least, each in zip(own, memory, strict=True)]
        even, wide = tuple(map(min, even, rooms)), tuple(map(min, wide, rooms))
    for caps in dict.fromkeys((own, even, wide)):
        yield Grouping(k, size, caps)
