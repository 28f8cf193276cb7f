"""One flat buffer that ranks sum and share, without ever blocking; the algorithms are in native/.

This face chooses among them and checks what the ranks must agree on. It knows nothing of parameters.
"""

import atexit
from typing import TYPE_CHECKING, Literal

import numpy as np
from mpi4py import MPI

from hpcpipe.collective.abi import native
from hpcpipe.collective.costs import ALGORITHMS, Algorithm, CostTable, Operation, default_algorithm
from hpcpipe.collective.group import Group, checked

if TYPE_CHECKING:
    import torch

_PROGRESS = ("poll", "thread", "auto")


class CollectiveBucket:
    """Reduce-scatter and all-gather of one buffer over persistent requests; at most one of them is under way.

    The order of every sum is fixed by the algorithm and the ranks, so its bits are the same on every run: "ring" and
    "direct" add part b in the order of the ranks b+1, b+2, ..., b; "recursive" (halving) in a tree. 16-bit types are
    added in fp32, by "direct" rounded once, by the others at every rank a sum passes. Between `start_...` and
    completion nobody else may touch `flat`.

    Parameters
    ----------
    group
        A group, or a communicator to make one of, which this bucket then frees. Every rank makes its buckets in the
        same order (collective).
    flat
        1-D, contiguous, float32, float64, float16 or bfloat16, in CPU memory; of one type and length on all ranks, a
        multiple of their number.
    reduce_scatter, all_gather
        The algorithm; "auto" takes the cheapest by the group's costs among those that give the same bits, which for
        16-bit types is "direct" alone.
    chunk_bytes
        What travels in one message at most; 0 for what suits the algorithm.
    progress
        "poll": work is done in `test` and `wait`. "thread": by a thread of this process, which needs
        MPI_THREAD_MULTIPLE. "auto": "thread" where that is given, else "poll".

    Raises
    ------
    TypeError, ValueError
        The buffer is of another kind, its length does not divide, or the ranks differ.
    MpiError
        An MPI call failed; the text names this rank and its peer. The bucket cannot be used again.
    """

    def __init__(
        self,
        group: Group | MPI.Intracomm,
        flat: "torch.Tensor | np.ndarray",
        *,
        reduce_scatter: Algorithm | Literal["auto"] = "auto",
        all_gather: Algorithm | Literal["auto"] = "auto",
        chunk_bytes: int = 0,
        progress: Literal["poll", "thread", "auto"] = "poll",
    ) -> None:
        if isinstance(group, Group):
            comm, costs = group.comm, group.costs
        else:
            comm, costs = checked(group), None
        self.reduce_scatter = choose("reduce_scatter", comm, costs, flat, reduce_scatter)
        self.all_gather = choose("all_gather", comm, costs, flat, all_gather)
        if progress not in _PROGRESS:
            raise ValueError(f"progress is {progress!r}: it must be one of {', '.join(_PROGRESS)}")
        self.threaded = progress == "thread" or (progress == "auto" and native.has_thread_multiple())
        check_alike(comm, flat, (self.reduce_scatter, self.all_gather), chunk_bytes)
        shared = group if isinstance(group, Group) else Group(group)
        self._owned = None if shared is group else shared
        self._bucket = native.Bucket(
            shared.native,
            flat.detach() if hasattr(flat, "detach") else flat,
            reduce_scatter=self.reduce_scatter,
            all_gather=self.all_gather,
            chunk_bytes=chunk_bytes,
            threaded=self.threaded,
        )
        if self.threaded:
            atexit.register(native.stop_progress)  # before MPI ends; a second call does nothing
        self.flat = flat
        self.shard = slice(self._bucket.shard_begin, self._bucket.shard_end)

    def start_reduce_scatter(self) -> None:
        """Start summing over the ranks; when done, `flat[shard]` holds the sum and the rest of `flat` is scratch."""
        self._bucket.start_reduce_scatter()

    def start_all_gather(self) -> None:
        """Start sharing; when done, `flat` holds every rank's shard in its place."""
        self._bucket.start_all_gather()

    def start_all_reduce(self) -> None:
        """Start both, one after the other; when done, `flat` holds the sums, with the bits that the two would give."""
        self._bucket.start_all_reduce()

    def test(self) -> bool:
        """Do what can be done now (a thread does it by itself), never block; return True when nothing is under way."""
        return self._bucket.test()

    def wait(self, poll: Literal["spin", "yield", "sleep"] = "yield") -> None:
        """Return when nothing is under way; `poll` says what the core does meanwhile."""
        self._bucket.wait(poll)

    def free(self) -> None:
        """Free the requests, and the group where the bucket made it (then collective).

        Raises RuntimeError while something is under way; does nothing after a failure.
        """
        self._bucket.free()
        if self._owned is not None:
            self._owned.free()


def choose(
    operation: Operation,
    comm: MPI.Intracomm,
    costs: CostTable | None,
    flat: "torch.Tensor | np.ndarray",
    wanted: Algorithm | Literal["auto"],
) -> Algorithm:
    """Return the algorithm for a buffer; raise ValueError where there is no such one."""
    if wanted in ALGORITHMS:
        return wanted
    if wanted != "auto":
        raise ValueError(f"the algorithm of {operation} is {wanted!r}: it must be auto, {', '.join(ALGORITHMS)}")
    num_bytes = getattr(flat, "nbytes", 0)
    if comm.size <= 2 or (operation == "reduce_scatter" and str(getattr(flat, "dtype", "")).endswith("float16")):
        return "direct"
    return costs.cheapest(operation, num_bytes) if costs else default_algorithm(num_bytes)


def check_alike(
    comm: MPI.Intracomm, flat: "torch.Tensor | np.ndarray", algorithms: tuple[Algorithm, Algorithm], chunk_bytes: int
) -> None:
    """Raise ValueError on every rank unless all ranks make the same kind of bucket (collective)."""
    length = len(flat)
    kind = int.from_bytes(str(getattr(flat, "dtype", "")).removeprefix("torch.").encode()[:7], "big")
    values = [length, kind, ALGORITHMS.index(algorithms[0]), ALGORITHMS.index(algorithms[1]), chunk_bytes]
    extremes = np.array([values, [-value for value in values]], dtype=np.int64)
    comm.Allreduce(MPI.IN_PLACE, extremes, op=MPI.MAX)
    longest, shortest = int(extremes[0, 0]), -int(extremes[1, 0])
    if longest != shortest:
        raise ValueError(
            f"rank {comm.rank}: this bucket has {length} elements, but over the ranks they have "
            f"{shortest} to {longest}: all must be equally long"
        )
    for what, most, least in zip(("types", "reduce-scatters", "all-gathers", "chunks"), *extremes[:, 1:], strict=True):
        if most != -least:
            raise ValueError(
                f"rank {comm.rank}: this bucket is of {flat.dtype}, {algorithms[0]}, {algorithms[1]}, {chunk_bytes}, "
                f"but the {what} of the ranks differ: all must be alike"
            )
