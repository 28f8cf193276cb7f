"""Where a rank stands in the mesh of pipeline, data and tensor parallelism, and the communicators of its rows.

Forward and backward messages have communicators of their own: with two stages the next and the previous neighbour are
the same rank, and on one communicator their messages would swap.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True, slots=True)
class Place:
    """Coordinates of one rank. Tensor-parallel ranks are neighbours, then data-parallel ones, then stages."""

    pipeline: int
    data: int
    tensor: int
    stage: int
    replica: int
    slice: int

    @classmethod
    def of(cls, rank: int, *, pipeline: int, data: int, tensor: int) -> "Place":
        """Return the place of a world rank in a mesh of `pipeline` * `data` * `tensor` ranks."""
        rest, tensor_slice = divmod(rank, tensor)
        stage, replica = divmod(rest, data)
        return cls(pipeline, data, tensor, stage, replica, tensor_slice)

    def rank_of(self, stage: int) -> int:
        """Return the world rank that holds `stage` of this rank's pipeline."""
        return (stage * self.data + self.replica) * self.tensor + self.slice

    @property
    def first(self) -> bool:
        """Whether the stage has the data."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether the stage has the loss."""
        return self.stage == self.pipeline - 1

    def __str__(self) -> str:
        parts = [f"stage {self.stage}"]
        parts += [f"replica {self.replica}"] if self.data > 1 else []
        return ", ".join(parts + ([f"slice {self.slice}"] if self.tensor > 1 else []))


class Mesh:
    """The communicators of one rank; collective over `world` at creation, freed by `free`.

    `slices` are the tensor-parallel ranks of this stage and replica, None where there is one. They agree on `agreement`
    what to run: its collectives and those of `slices` are not started in one order on all of them.

    `sharing_ranks` is how many ranks of the node, this one included, may use the core of this rank that most may use,
    `one_node` whether all ranks are on this node.
    """

    def __init__(self, world: "MPI.Intracomm", *, pipeline: int, data: int, tensor: int) -> None:
        from mpi4py import MPI

        self.world = world.Dup()
        self.place = place = Place.of(world.rank, pipeline=pipeline, data=data, tensor=tensor)
        self.forward = _split(world, place.replica * tensor + place.slice, place.stage)
        self.backward = self.forward.Dup()
        self.replicas = _split(world, place.stage * tensor + place.slice, place.replica)
        self.slices: MPI.Intracomm | None = None
        self.agreement: MPI.Intracomm | None = None
        if tensor > 1:
            self.slices = _split(world, place.stage * data + place.replica, place.slice)
            self.agreement = self.slices.Dup()
        node = MPI.Intracomm(world.Split_type(MPI.COMM_TYPE_SHARED))
        self.sharing_ranks = _count_sharing(node)
        self.one_node = bool(node.size == world.size)
        node.Free()
        for comm in self._communicators():
            comm.Set_errhandler(MPI.ERRORS_RETURN)

    def free(self) -> None:
        """Free the communicators (collective)."""
        for comm in self._communicators():
            comm.Free()

    def _communicators(self) -> "tuple[MPI.Intracomm, ...]":
        own = (self.world, self.forward, self.backward, self.replicas)
        return own if self.slices is None or self.agreement is None else (*own, self.slices, self.agreement)


def _split(world: "MPI.Intracomm", color: int, key: int) -> "MPI.Intracomm":
    from mpi4py import MPI

    return MPI.Intracomm(world.Split(color, key))


def _count_sharing(node: "MPI.Intracomm") -> int:
    """Return how many ranks of the node share this rank's cores: all of them unless the launcher has bound ranks."""
    from mpi4py import MPI

    mine = sorted(os.sched_getaffinity(0))
    length = np.array([mine[-1] + 1])
    node.Allreduce(length.copy(), length, op=MPI.MAX)
    uses, sums = np.zeros(length[0], dtype=np.int32), np.zeros(length[0], dtype=np.int32)
    uses[mine] = 1
    node.Allreduce(uses, sums)
    return int(sums[mine].max())
