"""Fusion buckets: a stage's parameters and gradients in flat buffers, reduced, updated and gathered a bucket at a time.

A replica reduces every gradient but updates only its shard of the parameters, between the two halves of the all-reduce;
so optimizer state is sharded for free.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from hpcpipe.collective import CollectiveBucket, Group, MpiError, measured_costs, pack, padded_length
from hpcpipe.plan import Kind, Task
from hpcpipe.runtime import PeerLostError

if TYPE_CHECKING:
    from mpi4py import MPI

MakeOptimizer = Callable[[torch.nn.Parameter, bool], torch.optim.Optimizer]


class Bucket:
    """Some parameters, which become views of one flat buffer, and their gradients in another."""

    def __init__(
        self, members: Sequence[tuple[int, torch.nn.Parameter]], *, group: Group, make_optimizer: MakeOptimizer
    ) -> None:
        self.indices = [index for index, _ in members]
        self.numel = sum(p.numel() for _, p in members)
        length = padded_length(self.numel, group.comm.size)
        self.values = torch.zeros(length)
        self.gradients = torch.zeros(length)
        pack([p.detach() for _, p in members], self.values[: self.numel], accumulate=False)
        begin = 0
        for _, parameter in members:
            parameter.data = self.values[begin : begin + parameter.numel()].view_as(parameter)
            begin += parameter.numel()
        self._shared: dict[Kind, CollectiveBucket] = {}
        if group.comm.size > 1:
            self._shared[Kind.RS] = CollectiveBucket(group, self.gradients)
            self._shared[Kind.AG] = CollectiveBucket(group, self.values)
        self._shard = self._shared[Kind.RS].shard if self._shared else slice(length)
        parameter = torch.nn.Parameter(self.values[self._shard])
        parameter.grad = self.gradients[self._shard]
        self._optimizer = make_optimizer(parameter, members[0][1].ndim >= 2)
        self.square_norm = 0.0

    def start(self, kind: Kind) -> None:
        """Start the reduce-scatter of the gradients or the all-gather of the parameters."""
        shared = self._shared[kind]
        shared.start_reduce_scatter() if kind is Kind.RS else shared.start_all_gather()

    def test(self, kind: Kind) -> bool:
        """Advance it; return whether it is done."""
        return self._shared[kind].test()

    def update(self, rate: float) -> None:
        """Take one optimizer step on this replica's shard."""
        self.square_norm = float(torch.linalg.vector_norm(self.gradients[self._shard], dtype=torch.float64)) ** 2
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()

    def free(self) -> None:
        """Free the persistent requests."""
        for shared in self._shared.values():
            shared.free()


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
    ) -> None:
        self._group = Group(comm, measured_costs(comm))
        self._of_chunk: list[list[Bucket]] = [[] for _ in parameters]
        self._buckets: list[Bucket] = []
        for chunk in reversed(range(len(parameters))):
            for members in _fuse(parameters[chunk], bucket_bytes):
                self._of_chunk[chunk].append(Bucket(members, group=self._group, make_optimizer=make_optimizer))
            self._buckets += self._of_chunk[chunk]
        self._parameters = parameters
        self._rate = rate
        self._started: list[Task] = []

    def __len__(self) -> int:
        return len(self._buckets)

    @property
    def square_norm(self) -> float:
        """The squared gradient norm of this replica's shards at their last update."""
        return sum(bucket.square_norm for bucket in self._buckets)

    def add(self, chunk: int, gradients: Sequence[torch.Tensor | None], first: bool) -> None:
        """Add one micro-batch's gradients of a chunk, or start a new sum with them; None stands for zeros."""
        whole = [
            torch.zeros_like(parameter) if gradient is None else gradient.contiguous()
            for parameter, gradient in zip(self._parameters[chunk], gradients, strict=True)
        ]
        for bucket in self._of_chunk[chunk]:
            pack([whole[i] for i in bucket.indices], bucket.gradients[: bucket.numel], accumulate=not first)

    def start(self, task: Task) -> None:
        """Start the collective of a task; returns at once."""
        with _peers_blamed():
            self._buckets[task.microbatch].start(task.kind)
        self._started.append(task)

    def test(self) -> list[Task]:
        """Advance what is started and return what is done."""
        with _peers_blamed():
            done = [task for task in self._started if self._buckets[task.microbatch].test(task.kind)]
        self._started = [task for task in self._started if task not in done]
        return done

    def update(self, bucket: int, step: int) -> None:
        """Update this replica's shard of a bucket."""
        self._buckets[bucket].update(self._rate(step))

    def num_bytes(self, bucket: int) -> int:
        """Return the bytes of one flat buffer of a bucket."""
        return self._buckets[bucket].values.nbytes

    def free(self) -> None:
        """Free the persistent requests and the communicator of the buckets (collective)."""
        for bucket in self._buckets:
            bucket.free()
        self._group.free()


def _fuse(
    parameters: Sequence[torch.nn.Parameter], bucket_bytes: int
) -> Iterator[list[tuple[int, torch.nn.Parameter]]]:
    """Group parameters from the last layer to the first; matrices apart from vectors, which take no weight decay."""
    open_groups: dict[bool, list[tuple[int, torch.nn.Parameter]]] = {}
    for index, parameter in reversed(list(enumerate(parameters))):
        group = open_groups.setdefault(parameter.ndim >= 2, [])
        if group and sum(p.nbytes for _, p in group) + parameter.nbytes > bucket_bytes:
            yield group
            group = open_groups[parameter.ndim >= 2] = []
        group.append((index, parameter))
    yield from open_groups.values()


@contextmanager
def _peers_blamed() -> Iterator[None]:
    """Turn an MPI error of a bucket into the loss of a peer: it is another rank's failure that is to be told."""
    try:
        yield
    except MpiError as error:
        raise PeerLostError(str(error)) from error
