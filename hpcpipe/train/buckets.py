"""The fusion buckets of a stage: which parameters share one, and the collectives of all of them.

Replicas and stages that use the same parameter meet here; what happens within one bucket is bucket.py's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch

from hpcpipe.collective import Group, MpiError, measured_costs
from hpcpipe.plan import Task
from hpcpipe.runtime import PeerLostError
from hpcpipe.train.bucket import Bucket, MakeOptimizer

if TYPE_CHECKING:
    from mpi4py import MPI


class Tie(NamedTuple):
    """A parameter that is used in several places: (chunk, number of the parameter) on this rank, in the chain's order.

    `group` are the ranks of this pipeline that hold uses of it; None where all are on this one.
    """

    uses: Sequence[tuple[int, int]]
    group: "MPI.Intracomm | None"


class FusionBuckets:
    """The buckets of one stage, numbered in the order in which a backward makes gradients final.

    Parameters
    ----------
    parameters
        Those of every chunk, in the order of the forward; no bucket holds parameters of two.
    comm
        The replicas of this stage.
    bucket_bytes
        A bucket is closed before it would grow beyond this; a larger parameter has one for itself.
    ties
        Parameters with several uses, in the same order on all ranks; each has a bucket for itself, which come first.
    rate
        Step -> learning rate.
    """

    def __init__(
        self,
        parameters: Sequence[Sequence[torch.nn.Parameter]],
        *,
        comm: "MPI.Intracomm",
        bucket_bytes: int,
        make_optimizer: MakeOptimizer,
        rate: Callable[[int], float],
        ties: Sequence[Tie] = (),
    ) -> None:
        self._replicas = Group(comm, measured_costs(comm))
        self._of_chunk: list[list[tuple[Bucket, int, list[int]]]] = [[] for _ in parameters]
        self._buckets: list[Bucket] = []
        self._comms = [tie.group for tie in ties if tie.group is not None]
        self._groups = [self._replicas]
        for tie in ties:
            uses = [[parameters[chunk][index]] for chunk, index in tie.uses]
            group = None if tie.group is None else Group(tie.group)
            self._groups += [] if group is None else [group]
            bucket = Bucket(uses, replicas=self._replicas, make_optimizer=make_optimizer, group=group)
            for use, (chunk, index) in enumerate(tie.uses):
                self._of_chunk[chunk].append((bucket, use, [index]))
            self._buckets.append(bucket)
        self.chunks = [frozenset(chunk for chunk, _ in tie.uses) for tie in ties]
        """The chunks whose parameters each bucket holds."""
        self.tied = tuple(index for index, bucket in enumerate(self._buckets) if ties[index].group is not None)
        """The buckets whose gradients are exchanged with other stages."""
        tied = {use for tie in ties for use in tie.uses}
        for chunk in reversed(range(len(parameters))):
            own = [(index, p) for index, p in enumerate(parameters[chunk]) if (chunk, index) not in tied]
            for members in _fuse(own, bucket_bytes):
                bucket = Bucket([[p for _, p in members]], replicas=self._replicas, make_optimizer=make_optimizer)
                self._of_chunk[chunk].append((bucket, 0, [index for index, _ in members]))
                self._buckets.append(bucket)
                self.chunks.append(frozenset({chunk}))
        self._parameters = parameters
        self._rate = rate
        self._started: list[Task] = []

    def __len__(self) -> int:
        return len(self._buckets)

    @property
    def square_norm(self) -> float:
        """The squared gradient norm of this rank's shards at their last update; a tied parameter counts once."""
        return sum(bucket.square_norm for bucket in self._buckets)

    def add(self, chunk: int, gradients: Sequence[torch.Tensor | None], first: bool) -> None:
        """Add one micro-batch's gradients of a chunk, or start a new sum with them; None stands for zeros."""
        whole = [
            torch.zeros_like(parameter) if gradient is None else gradient.contiguous()
            for parameter, gradient in zip(self._parameters[chunk], gradients, strict=True)
        ]
        for bucket, use, indices in self._of_chunk[chunk]:
            bucket.add(use, [whole[index] for index in indices], first=first)

    def start(self, task: Task) -> None:
        """Start the collective of a task; returns at once."""
        with _peers_blamed():
            self._buckets[task.microbatch].start(task.kind)
        self._started.append(task)

    def test(self) -> list[Task]:
        """Advance what is started and return what is done."""
        with _peers_blamed():
            done = [task for task in self._started if self._buckets[task.microbatch].test()]
        self._started = [task for task in self._started if task not in done]
        return done

    def update(self, bucket: int, step: int) -> None:
        """Update this replica's shard of a bucket."""
        self._buckets[bucket].update(self._rate(step))

    def num_bytes(self, bucket: int) -> int:
        """Return the bytes of one flat buffer of a bucket."""
        return self._buckets[bucket].values.nbytes

    def free(self) -> None:
        """Free the persistent requests and the communicators of the buckets (collective)."""
        for bucket in self._buckets:
            bucket.free()
        for group in self._groups:
            group.free()
        for comm in self._comms:
            comm.Free()


def _fuse(
    parameters: Sequence[tuple[int, torch.nn.Parameter]], bucket_bytes: int
) -> Iterator[list[tuple[int, torch.nn.Parameter]]]:
    """Group numbered parameters from the last layer to the first; matrices apart from vectors, which do not decay."""
    open_groups: dict[bool, list[tuple[int, torch.nn.Parameter]]] = {}
    for index, parameter in reversed(parameters):
        group = open_groups.setdefault(parameter.ndim >= 2, [])
        if group and sum(p.nbytes for _, p in group) + parameter.nbytes > bucket_bytes:
            yield group
            group = open_groups[parameter.ndim >= 2] = []
        group.append((index, parameter))
    yield from open_groups.values()


@contextmanager
def _peers_blamed() -> Iterator[None]:
    """Turn an MPI error of a ring into the loss of a peer: it is another rank's failure that is to be told."""
    try:
        yield
    except MpiError as error:
        raise PeerLostError(str(error)) from error
