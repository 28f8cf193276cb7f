"""Collectives between the tensor-parallel slices of a stage: they wait, and their sums have the same bits on all.

It knows neither layers nor schedules; of a task it knows the name, to tell one that meets another.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from mpi4py import MPI

from hpcpipe.collective.abi import MpiError
from hpcpipe.collective.bucket import CollectiveBucket
from hpcpipe.collective.fusion import pack, padded_length, unpack
from hpcpipe.collective.group import Group

if TYPE_CHECKING:
    import torch

LARGE_BYTES = 32 << 10
"""From here on more than two slices reduce in parts instead of each gathering everything (benchmarks/tensor.py)."""

MOST_BUCKETS = 8
"""Sizes for which the parts' requests are kept; further ones are gathered."""

_OPERATIONS = ("all-reduce", "all-gather", "meeting")
_NO_TASK = (-1, -1, -1, -1)


class Waiting(Protocol):
    """How a rank waits."""

    def idle(self) -> None:
        """Wait a little, longer the longer nothing has come."""

    def busy(self) -> None:
        """Start over."""


class CollectiveMismatchError(RuntimeError):
    """Slices of a stage met in collectives of different tasks; the message names both."""


class TensorGroup:
    """The slices of a stage, this one being `index` of `count`.

    Sums are made in fp32 (fp64 for fp64) in the order of the slices, or part by part on the slice that owns the part,
    always in the same order: they have the same bits on all slices and in every run. Other messages go on meanwhile,
    because MPI is asked again and again. From a GPU tensors come through the host, which waits for what makes them.

    Parameters
    ----------
    comm
        The slices, for nothing but these collectives.
    waiting
        How this rank waits for the others.
    check
        Whether each collective first tells the others its task, and a mismatch is an error instead of a hang or a
        wrong sum.
    describe
        The number of a task's kind -> its name.
    lost
        The error to raise when a collective fails because another rank has died.

    Attributes
    ----------
    under_way
        The collective that this rank waits in, for another thread; empty if it waits in none.
    beside
        Called again and again while this rank waits. Collectives of buckets must go on: another slice may need their
        result before it comes to the one that is waited for here.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        waiting: Waiting,
        check: bool = False,
        describe: Callable[[int], str] = str,
        lost: type[Exception] = ConnectionError,
        large_bytes: int = LARGE_BYTES,
    ) -> None:
        self._comm = comm
        self.index, self.count = comm.rank, comm.size
        self._waiting = waiting
        self._check = check
        self._describe = describe
        self._lost = lost
        self._large_bytes = large_bytes
        self._task: tuple[int, int, int, int] = _NO_TASK
        self._collectives = 0
        self._rooms: dict[tuple[str, int], np.ndarray] = {}
        self._group: Group | None = None
        self._buckets: dict[tuple[str, int], CollectiveBucket] = {}
        self.under_way = ""
        self.beside: Callable[[], None] = lambda: None

    def announce(self, step: int, kind: int, microbatch: int, chunk: int) -> None:
        """Say which task the next collectives belong to."""
        self._task = step, kind, microbatch, chunk
        self._collectives = 0

    def all_reduce(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return the sum of the slices' tensors, of one shape and type on all, as a new one."""
        self._begin("all-reduce", tensor.nbytes)
        value, dtype = tensor.detach().contiguous().cpu(), _summed_in(tensor)
        length = value.numel()
        num_bytes = length * dtype.itemsize
        key = dtype.str, length
        if self.count > 2 and num_bytes >= self._large_bytes and (key in self._buckets or self._has_room()):
            total = self._reduce_in_parts(value, key)
        else:
            gathered = self._room(*key)
            pack([value], gathered[self.index])
            self._wait(self._comm.Iallgather(MPI.IN_PLACE, gathered))
            total = gathered[0]
            for other in gathered[1:]:
                total += other
        result = value.new_empty(value.shape)
        unpack(total[:length], [result])
        self._end()
        return result.to(tensor.device)

    def all_gather(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return the slices' fp32 or fp64 tensors, of one shape on all, stacked in a new first dimension."""
        self._begin("all-gather", tensor.nbytes)
        value = tensor.detach().contiguous().cpu()
        result = value.new_empty((self.count, *value.shape))
        result[self.index] = value
        self._wait(self._comm.Iallgather(MPI.IN_PLACE, result.numpy()))
        self._end()
        return result.to(tensor.device)

    def meet(self) -> Callable[[], bool]:
        """Tell the others this rank's task; what is returned says whether all have, and refuses other tasks."""
        mine = np.array([*self._task, self._next(), _OPERATIONS.index("meeting"), 0], np.int64)
        told = np.empty((self.count, len(mine)), np.int64)
        request = self._comm.Iallgather(mine, told)

        def met() -> bool:
            if not self._blamed(request.Test):
                return False
            self._compare(mine, told)
            return True

        return met

    def free(self) -> None:
        """Free what large sums keep (collective)."""
        for bucket in self._buckets.values():
            bucket.free()
        self._buckets.clear()
        if self._group is not None:
            self._group.free()
            self._group = None

    def _reduce_in_parts(self, value: "torch.Tensor", key: tuple[str, int]) -> np.ndarray:
        """Sum a large buffer by a reduce-scatter and an all-gather."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if self._group is None:
                self._group = Group(self._comm)
            flat = np.zeros(padded_length(key[1], self.count), np.dtype(key[0]))
            bucket = CollectiveBucket(self._group, flat, reduce_scatter="direct", all_gather="direct")
            self._buckets[key] = bucket
        pack([value], bucket.flat)
        bucket.start_all_reduce()
        self._until(bucket.test)
        total = bucket.flat
        assert isinstance(total, np.ndarray)
        return total

    def _has_room(self) -> bool:
        return len(self._buckets) < MOST_BUCKETS

    def _room(self, dtype: str, length: int) -> np.ndarray:
        """Return the buffer that tensors of this size are gathered in."""
        room = self._rooms.get((dtype, length))
        if room is None:
            if len(self._rooms) >= MOST_BUCKETS:
                self._rooms.clear()
            room = self._rooms[dtype, length] = np.empty((self.count, length), np.dtype(dtype))
        return room

    def _next(self) -> int:
        self._collectives += 1
        return self._collectives - 1

    def _begin(self, operation: str, num_bytes: int) -> None:
        number = self._next()
        self.under_way = f"{operation} {number} of {self._name(self._task)}"
        if self._check:
            mine = np.array([*self._task, number, _OPERATIONS.index(operation), num_bytes], np.int64)
            told = np.empty((self.count, len(mine)), np.int64)
            self._wait(self._comm.Iallgather(mine, told))
            self._compare(mine, told)

    def _end(self) -> None:
        self.under_way = ""

    def _compare(self, mine: np.ndarray, told: np.ndarray) -> None:
        """Raise CollectiveMismatchError unless all slices have told the same."""
        for index, theirs in enumerate(told):
            if not np.array_equal(theirs, mine):
                raise CollectiveMismatchError(
                    f"slice {self.index} of {self.count} is in {self._full(mine)}, but slice {index} in "
                    f"{self._full(theirs)}: they would add up different things"
                )

    def _full(self, told: Iterable[int]) -> str:
        step, kind, microbatch, chunk, number, operation, num_bytes = (int(each) for each in told)
        size = f" of {num_bytes} bytes" if num_bytes else ""
        task = self._name((step, kind, microbatch, chunk))
        return f"{_OPERATIONS[operation]} {number}{size} of {task} in step {step}"

    def _name(self, task: tuple[int, int, int, int]) -> str:
        if task == _NO_TASK:
            return "no task"
        _, kind, microbatch, chunk = task
        return f"{self._describe(kind)}{microbatch}" + (f".{chunk}" if chunk else "")

    def _wait(self, request: MPI.Request) -> None:
        self._until(request.Test)

    def _until(self, done: Callable[[], bool]) -> None:
        self._waiting.busy()
        while not self._blamed(done):
            self.beside()
            self._waiting.idle()
        self._waiting.busy()

    def _blamed(self, test: Callable[[], bool]) -> bool:
        """Test for completion; an error of MPI is another rank's failure."""
        try:
            return test()
        except (MPI.Exception, MpiError) as error:
            raise self._lost(
                "a collective of the tensor-parallel ranks failed; most likely one of them has died"
            ) from error


def _summed_in(tensor: "torch.Tensor") -> np.dtype[Any]:
    return np.dtype(np.float64 if str(tensor.dtype) == "torch.float64" else np.float32)
