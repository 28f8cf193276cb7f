"""The fusion buckets of a stage: which parameters share one, and the collectives of all of them.

Replicas and stages that use the same parameter meet here; what happens within one bucket is bucket.py's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from math import fsum, isfinite, nan
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import torch
from mpi4py import MPI

from hpcpipe.collective import Group, MpiError, measured_costs
from hpcpipe.collective.backend import Backend, Native, Progress
from hpcpipe.plan import Exchanges, Kind, Task, early_gathers, usual_bucket_bytes
from hpcpipe.runtime import PeerLostError
from hpcpipe.train.bucket import Bucket, MakeOptimizer
from hpcpipe.train.clip import Verdict
from hpcpipe.train.precision import Types
from hpcpipe.train.rebucket import carry_over, common_scalars
from hpcpipe.train.scaler import LossScale

if TYPE_CHECKING:
    from hpcpipe.train.norm import GradientNorm


class Tie(NamedTuple):
    """A parameter that is used in several places: (chunk, number of the parameter) on this rank, in the chain's order.

    `group` are the ranks of this pipeline that hold uses of it; None where all are on this one.
    """

    uses: Sequence[tuple[int, int]]
    group: MPI.Intracomm | None


class _Numbered(NamedTuple):
    chunk: int
    number: int
    parameter: torch.nn.Parameter


class _Members(NamedTuple):
    """The parameters of one chunk in a bucket, from element `begin` on."""

    bucket: Bucket
    use: int
    begin: int
    indices: list[int]


AT_ONCE = 2
"""Exchanges under way together."""


class FusionBuckets:
    """The buckets of one stage, numbered in the order in which a backward makes gradients final.

    Parameters
    ----------
    parameters
        Those of every chunk, in the order of the forward.
    comm
        The replicas of this stage.
    bucket_bytes
        A bucket is closed before it would grow beyond this; a larger parameter has one for itself. None: the usual
        part of `fused_bytes`.
    ties
        Parameters with several uses, in the same order on all ranks; each has a bucket for itself, which come first.
    rate
        Step -> learning rate.
    types
        What is computed in, and what gradients travel in.
    norm
        What all ranks agree on before any updates; None if they update without.
    scale
        What losses were multiplied by.
    counts
        Whether this rank's gradient of a parameter belongs to the norm. Where several ranks hold the same parameter by
        other means than replicas and ties (slices of tensor parallelism), it is true on one of them only.
    gathers_early
        Whether a part of the parameters is gathered in gaps between the sums of a backward (plan/exchanges.py). It pays
        where one backward ends the step and updates wait for nothing else.
    progress
        Who works on what is under way between replicas, as in `CollectiveBucket`.
    backend
        Where buckets lie, and what sums and shares them; it is freed with them.
    """

    def __init__(
        self,
        parameters: Sequence[Sequence[torch.nn.Parameter]],
        *,
        comm: MPI.Intracomm,
        bucket_bytes: int | None,
        make_optimizer: MakeOptimizer,
        rate: Callable[[int], float],
        ties: Sequence[Tie] = (),
        types: Types = Types(),  # noqa: B008 - a tuple
        norm: "GradientNorm | None" = None,
        scale: LossScale | None = None,
        counts: Callable[[torch.nn.Parameter], bool] = lambda _parameter: True,
        gathers_early: bool = False,
        progress: Progress = "poll",
        backend: Backend | None = None,
    ) -> None:
        self._backend = backend = Native() if backend is None else backend
        self._replicas, self._costs = comm, measured_costs(comm)
        self._make_optimizer, self._types, self._counts = make_optimizer, types, counts
        self._gathers_early, self._progress = gathers_early, progress
        self._of_chunk: list[list[_Members]] = [[] for _ in parameters]
        self._buckets: list[Bucket] = []
        self._counted: list[bool] = []
        self._comms = [tie.group for tie in ties if tie.group is not None]
        self._groups = [Group(comm, self._costs)] if ties else []
        for tie in ties:
            uses = [[parameters[chunk][index]] for chunk, index in tie.uses]
            group = None if tie.group is None else Group(tie.group)
            self._counted.append(counts(uses[0][0]))
            bucket = Bucket(
                uses,
                replicas=self._groups[0],
                make_optimizer=make_optimizer,
                group=group,
                types=types,
                progress=progress,
                backend=backend,
            )
            self._groups += [] if group is None else [group]
            for use, (chunk, index) in enumerate(tie.uses):
                self._of_chunk[chunk].append(_Members(bucket, use, 0, [index]))
            self._buckets.append(bucket)
        self.chunks = [frozenset(chunk for chunk, _ in tie.uses) for tie in ties]
        """The chunks whose parameters each bucket holds."""
        self.tied = tuple(index for index, bucket in enumerate(self._buckets) if ties[index].group is not None)
        """The buckets whose gradients are exchanged with other stages."""
        tied = {use for tie in ties for use in tie.uses}
        self._num_tied = len(ties)
        self._own = [
            _Numbered(chunk, index, parameter)
            for chunk, of_chunk in enumerate(parameters)
            for index, parameter in enumerate(of_chunk)
            if (chunk, index) not in tied
        ]
        usual = usual_bucket_bytes(self.fused_bytes, comm.size)
        self.bucket_bytes = usual if bucket_bytes is None else bucket_bytes
        """What holds: as given, by the size of the stage, or since the last cut."""
        self._cut = list(_fuse(self._own, self.bucket_bytes, counts))
        self._group = Group(comm, self._costs)  # of these alone: every bucket takes tags, also of those to come
        for members in self._cut:
            self._add_bucket(members)
        self.early: tuple[int, ...] = ()
        """The buckets that are updated and gathered between the sums of a backward."""
        self._exchanges = self._turns()
        self._parameters = parameters
        self._rate = rate
        self._norm = norm
        self._scale = scale or LossScale()
        self._measured_under = self._scale.value
        self._under_way: list[Task] = []
        self._done: list[Task] = []

    def __len__(self) -> int:
        return len(self._buckets)

    @property
    def members(self) -> Sequence[Bucket]:
        """The buckets by number."""
        return self._buckets

    @property
    def fused_bytes(self) -> int:
        """How large a bucket of all parameters that may share one would be, in the bytes that `bucket_bytes` counts."""
        return 4 * sum(each.parameter.numel() for each in self._own)

    def rebucket(self, bucket_bytes: int) -> bool:
        """Cut anew with another size and carry the optimizer's state over (collective over the replicas).

        Parameters must be gathered and nothing be under way. Parameters and state keep their bits. Tied parameters
        have their buckets for themselves and keep them. Besides what there was before, memory is needed for one bucket
        at a time. Return whether the size makes a difference.
        """
        assert not self._under_way, f"buckets cannot be made anew while {self._under_way} are under way"
        self.bucket_bytes = bucket_bytes
        cut = list(_fuse(self._own, bucket_bytes, self._counts))
        if _numbers(cut) == _numbers(self._cut):
            return False
        group, self._group = self._group, Group(self._replicas, self._costs)
        self._cut, tied = cut, self._num_tied
        old = self._buckets[tied:]
        kept = {id(bucket) for bucket in self._buckets[:tied]}
        del self._buckets[tied:], self._counted[tied:], self.chunks[tied:]
        self._of_chunk = [[each for each in members if id(each.bucket) in kept] for members in self._of_chunk]
        with _peers_blamed():
            scalars = common_scalars(old, self._replicas)
            left = {id(each.parameter) for each in self._own}
            for members in cut:
                carry_over(old, self._add_bucket(members), scalars, self._replicas)
                left -= {id(each.parameter) for each in members}
                for bucket in [each for each in old if not any(id(p) in left for p in each.parameters)]:
                    bucket.free()
                    old.remove(bucket)
            self._backend.release(group)
            group.free()
        self._exchanges = self._turns()
        return True

    @property
    def square_norm(self) -> float:
        """The squared norm of this rank's shards of the step's gradient before clipping; a tied one counts once."""
        return self._square() / self._measured_under**2

    @property
    def verdict(self) -> Verdict | None:
        """What all ranks have agreed on about the step's gradients, if they do."""
        return None if self._norm is None else self._norm.verdict

    @property
    def state_bytes(self) -> int:
        """Bytes that this rank keeps for updates alone: the optimizer's state, and master values in fp32."""
        return sum(bucket.state_bytes for bucket in self._buckets)

    def add(self, chunk: int, gradients: Sequence[torch.Tensor | None], first: bool) -> None:
        """Add one micro-batch's gradients of a chunk, or start a new sum with them; None stands for zeros."""
        whole = [
            torch.zeros_like(parameter) if gradient is None else gradient.contiguous()
            for parameter, gradient in zip(self._parameters[chunk], gradients, strict=True)
        ]
        for bucket, use, begin, indices in self._of_chunk[chunk]:
            bucket.add(use, [whole[index] for index in indices], begin=begin, first=first)

    def start(self, task: Task) -> None:
        """Start the collective of a task when it has its turn; returns at once."""
        self._begin(self._exchanges.ask(task))

    def test(self) -> list[Task]:
        """Advance what is under way and return what is done."""
        self.advance()
        done, self._done = self._done, []
        return done

    def advance(self) -> None:
        """Advance what is under way and begin what has its turn, where nobody asks yet what is done."""
        while ended := [task for task in self._under_way if self._is_done(task)]:
            for task in ended:
                self._under_way.remove(task)
                self._done.append(task)
                self._begin(self._exchanges.end(task))

    def update(self, bucket: int, step: int) -> None:
        """Update this replica's shard of a bucket, unless the ranks have agreed not to."""
        if self._norm is not None:
            if self._norm.verdict.finite:
                self._buckets[bucket].update(self._rate(step), self._norm.verdict.factor)
            return
        self._measure([bucket])
        self._buckets[bucket].update(self._rate(step), 1.0 / self._scale.value)

    def num_bytes(self, task: Task) -> int:
        """Return the size of the buffer that a task works on."""
        if task.kind is Kind.NORM:
            return 0 if self._norm is None else self._norm.num_bytes
        return self._buckets[task.microbatch].num_bytes(task.kind)

    def free(self) -> None:
        """Free the persistent requests and the communicators of the buckets (collective)."""
        if self._norm is not None:
            self._norm.free()
        for bucket in self._buckets:
            bucket.free()
        self._backend.free()
        for group in (*self._groups, self._group):
            group.free()
        for comm in self._comms:
            comm.Free()

    def _add_bucket(self, members: Sequence[_Numbered]) -> Bucket:
        """Make a bucket of some parameters, behind those that there are."""
        self._counted.append(self._counts(members[0].parameter))
        bucket = Bucket(
            [[each.parameter for each in members]],
            replicas=self._group,
            make_optimizer=self._make_optimizer,
            types=self._types,
            progress=self._progress,
            backend=self._backend,
        )
        begin = 0
        for chunk, run in groupby(members, key=attrgetter("chunk")):
            of_chunk = list(run)
            self._of_chunk[chunk].append(_Members(bucket, 0, begin, [each.number for each in of_chunk]))
            begin += sum(each.parameter.numel() for each in of_chunk)
        self._buckets.append(bucket)
        self.chunks.append(frozenset(each.chunk for each in members))
        return bucket

    def _turns(self) -> Exchanges:
        """Let buckets take turns, but for those of tied parameters: they wait for other stages."""
        turns = range(self._num_tied, len(self))
        early = early_gathers([self._buckets[bucket].numel for bucket in turns]) if self._gathers_early else ()
        self.early = tuple(turns[index] for index in early)
        return Exchanges(turns, at_once=AT_ONCE, early=self.early)

    def _begin(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            if task.kind is Kind.NORM:
                assert self._norm is not None
                self._measure(range(len(self)))
                self._norm.start(self._square())
            else:
                with _peers_blamed():
                    self._buckets[task.microbatch].start(task.kind)
            self._under_way.append(task)

    def _is_done(self, task: Task) -> bool:
        if task.kind is Kind.NORM:
            assert self._norm is not None
            return self._norm.test()
        with _peers_blamed():
            return self._buckets[task.microbatch].test()

    def _measure(self, buckets: Iterable[int]) -> None:
        """Take the squared norms of some buckets; nobody waits for them yet."""
        self._measured_under = self._scale.value
        for bucket in buckets:
            self._buckets[bucket].measure()

    def _square(self) -> float:
        """Return the squared norm of all buckets as measured last, for which the host waits."""
        squares = numbers_of([bucket.square_norm for bucket in self._buckets])
        if not all(map(isfinite, squares)):
            return nan
        return fsum(square for square, counted in zip(squares, self._counted, strict=True) if counted)


def numbers_of(values: Sequence[float | torch.Tensor]) -> list[float]:
    """Return numbers of which some are scalars of a GPU, with one copy for all of these, which the host waits for."""
    scalars = [value for value in values if isinstance(value, torch.Tensor)]
    copied = iter(torch.stack(scalars).tolist() if scalars else ())
    return [next(copied) if isinstance(value, torch.Tensor) else value for value in values]


def _fuse(
    parameters: Sequence[_Numbered], bucket_bytes: int, counts: Callable[[torch.nn.Parameter], bool]
) -> Iterator[list[_Numbered]]:
    """Group parameters from the last layer to the first, by their size in fp32.

    Matrices come apart from vectors, which do not decay, and what counts for the norm from what does not. Groups come
    in the order in which they are complete.
    """
    open_groups: dict[tuple[bool, bool], list[_Numbered]] = {}
    for each in reversed(parameters):
        key = each.parameter.ndim >= 2, counts(each.parameter)
        group = open_groups.setdefault(key, [])
        if group and 4 * (sum(other.parameter.numel() for other in group) + each.parameter.numel()) > bucket_bytes:
            yield group
            group = open_groups[key] = []
        group.append(each)
    yield from open_groups.values()


def _numbers(cut: Iterable[Iterable[_Numbered]]) -> list[list[tuple[int, int]]]:
    return [[(each.chunk, each.number) for each in members] for members in cut]


@contextmanager
def _peers_blamed() -> Iterator[None]:
    """Turn an MPI error of a ring into the loss of a peer: it is another rank's failure that is to be told."""
    try:
        yield
    except (MpiError, MPI.Exception) as error:
        raise PeerLostError(str(error)) from error
