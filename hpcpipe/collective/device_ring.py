"""Sums and shares of a flat buffer on a GPU, without ever blocking: MPI moves device memory, kernels add on a stream.

A message is sent when the kernel that made it has ended, and a kernel is launched when its message has come: the host
sees events and requests, and tells each side. It knows neither parameters nor what makes the kernels.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch
from mpi4py import MPI

from hpcpipe.collective.abi import MpiError
from hpcpipe.collective.bucket import check_alike, choose
from hpcpipe.collective.device_kernels import MOST_SOURCES, Kernels
from hpcpipe.collective.device_program import DeviceAlgorithm, Place, Program, Shape, make_program
from hpcpipe.collective.group import checked
from hpcpipe.device.messages import DeviceBytes, Event, Gpu

Operation = Literal["reduce_scatter", "all_gather"]

CHUNK_BYTES = 4 << 20
"""What travels in one message: long enough that launching kernels for it (some 10 µs) takes no part in the time."""

_LONGEST_BYTES = 1 << 30
_MOST_SENDS = 16
_TAGS = {"reduce_scatter": 0, "all_gather": 1}


class GpuWithStreams(Gpu, Protocol):
    """What rings need of a GPU."""

    def stream(self) -> Any:
        """Return a new stream."""


class DeviceGroup:
    """Ranks that own buckets together, their duplicate of a communicator, and the stream that sums are made on."""

    def __init__(self, comm: MPI.Intracomm, *, gpu: GpuWithStreams, kernels: Kernels, compute: Any) -> None:
        self.comm = MPI.Intracomm(checked(comm).Dup())
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.gpu, self.kernels, self.compute, self.side = gpu, kernels, compute, gpu.stream()
        self._tags = 0

    def take_tags(self) -> int:
        """Return the first of the tags of a new bucket; MPI promises 32,768."""
        self._tags += len(_TAGS)
        if self._tags > 32_768:
            raise ValueError("this group has no tags left for another bucket: make another group")
        return self._tags - len(_TAGS)

    def free(self) -> None:
        """Free the communicator (collective)."""
        self.comm.Free()


class _Loaded:
    """A program with its memory and requests, and how far it has come."""

    def __init__(self, program: Program, scratch: torch.Tensor, requests: Sequence[MPI.Prequest]) -> None:
        self.program, self.scratch, self.requests = program, scratch, requests
        self.open()

    def open(self) -> None:
        """Go back to the begin."""
        self.started_receives = self.worked_off = self.ended = self.started_sends = self.sent = 0
        self.active: list[tuple[MPI.Prequest, int]] = []  # the number of a receive, or -1 for a send
        self.arrived: set[int] = set()
        self.adding: deque[tuple[int, Event | None]] = deque()

    @property
    def done(self) -> bool:
        """Whether all has been sent, and has come and been added."""
        return self.ended == len(self.program.receives) and self.sent == len(self.program.sends)


class DeviceBucket:
    """Reduce-scatter and all-gather of a buffer in a GPU's memory, for an MPI that takes such; like `CollectiveBucket`.

    Sums have the order, and in fp32 the bits, of the native module. `test` reports an end when the host has seen that
    all is in memory, so whatever is launched afterwards may use it. When something is started, work that was enqueued
    on the compute stream before comes first.

    Parameters
    ----------
    flat
        1-D and contiguous on the group's GPU; of one type and length on all ranks, a multiple of their number.

    Raises
    ------
    ValueError
        The buffer's length does not divide, or the ranks differ.
    MpiError
        An MPI call failed. The bucket cannot be used again.
    """

    def __init__(
        self,
        group: DeviceGroup,
        flat: torch.Tensor,
        *,
        reduce_scatter: DeviceAlgorithm | Literal["auto"] = "auto",
        all_gather: DeviceAlgorithm | Literal["auto"] = "auto",
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._group, self.flat = group, flat
        size, rank = group.comm.size, group.comm.rank
        self.reduce_scatter = self._chosen("reduce_scatter", reduce_scatter)
        self.all_gather = self._chosen("all_gather", all_gather)
        check_alike(group.comm, flat, (self.reduce_scatter, self.all_gather), chunk_bytes)
        if len(flat) % size:
            raise ValueError(f"a buffer of {len(flat)} elements does not divide by {size} ranks: pad it to a multiple")
        self._block = len(flat) // size
        self._chunk = max(1, min(chunk_bytes, _LONGEST_BYTES) // flat.itemsize)
        self._tag = group.take_tags()
        self.shard = slice(rank * self._block, (rank + 1) * self._block)
        self._ready = group.gpu.event()
        self._events: list[Event] = []
        self._loaded: dict[Operation, _Loaded | None] = {}
        self._todo: deque[_Loaded] = deque()
        self._waits = False
        self._broken = False

    def start_reduce_scatter(self) -> None:
        """Start summing; when done, `flat[shard]` holds the sum and the rest of `flat` is scratch."""
        self._start("reduce_scatter")

    def start_all_gather(self) -> None:
        """Start sharing; when done, `flat` holds every rank's shard in its place."""
        self._start("all_gather")

    def start_all_reduce(self) -> None:
        """Start both, one after the other."""
        self._start("reduce_scatter", "all_gather")

    def test(self) -> bool:
        """Do what can be done now, never block; return True when nothing is under way."""
        if self._waits:
            if not self._ready.query():
                return False
            self._waits = False
        try:
            while self._todo and self._advance(self._todo[0]):
                self._todo.popleft()
        except MPI.Exception as error:
            self._broken = True
            rank, ranks = self._group.comm.rank, self._group.comm.size
            raise MpiError(f"rank {rank}: a collective between {ranks} ranks failed: {error}") from error
        return not self._todo

    def wait(self, poll: Literal["spin", "yield", "sleep"] = "yield") -> None:
        """Return when nothing is under way; `poll` says what the core does meanwhile."""
        while not self.test():
            if poll != "spin":
                time.sleep(0 if poll == "yield" else 5e-5)

    def free(self) -> None:
        """Free the requests; raise RuntimeError while something is under way; do nothing after a failure."""
        if self._broken:
            return
        if self._todo:
            raise RuntimeError("this bucket is under way: wait for it before it is freed")
        for loaded in self._loaded.values():
            for request in () if loaded is None else loaded.requests:
                request.Free()
        self._loaded.clear()

    def _chosen(self, operation: Operation, wanted: str) -> DeviceAlgorithm:
        comm, flat = self._group.comm, self.flat
        found = choose(operation, comm, None, flat, wanted)  # type: ignore[arg-type]
        if found == "direct" and operation == "reduce_scatter" and comm.size > MOST_SOURCES:
            if flat.itemsize == 2:
                raise ValueError(f"{comm.size} ranks cannot sum 16-bit gradients on GPUs; {MOST_SOURCES} is the most")
            return "ring"
        if found == "recursive":
            raise ValueError("on a GPU the algorithm must be auto, ring or direct")
        return found

    def _start(self, *operations: Operation) -> None:
        if self._broken:
            raise RuntimeError("an earlier operation on this bucket failed: make a new one")
        if self._todo:
            raise RuntimeError("an operation of this bucket is still under way: wait for it first")
        for operation in operations:
            if operation not in self._loaded:
                self._loaded[operation] = self._load(operation)
            if (loaded := self._loaded[operation]) is not None:
                loaded.open()
                self._todo.append(loaded)
        self._ready.record(self._group.compute)
        self._waits = True

    def _load(self, operation: Operation) -> _Loaded | None:
        group, flat = self._group, self.flat
        algorithm = self.reduce_scatter if operation == "reduce_scatter" else self.all_gather
        program = make_program(operation, algorithm, Shape(group.comm.rank, group.comm.size, self._block, self._chunk))
        if program is None:
            return None
        with group.gpu.on(group.side):
            scratch = group.gpu.empty(program.scratch * flat.itemsize).view(flat.dtype)
        requests = []
        for sends, peer, at in program.requests:
            memory = DeviceBytes(_at(at, flat, scratch).view(torch.uint8))
            make = group.comm.Send_init if sends else group.comm.Recv_init
            requests.append(make([memory, MPI.BYTE], peer, self._tag + _TAGS[operation]))
        return _Loaded(program, scratch, requests)

    def _advance(self, loaded: _Loaded) -> bool:
        """Go as far as can be gone now; return whether the program has ended."""
        while not loaded.done:
            self._start_what_can(loaded)
            if not (self._see_ends(loaded) | self._see_messages(loaded) | self._add(loaded)):
                return False
        return True

    def _start_what_can(self, loaded: _Loaded) -> None:
        receives, sends, requests = loaded.program.receives, loaded.program.sends, loaded.requests
        while loaded.started_receives < len(receives) and receives[loaded.started_receives].after <= loaded.ended:
            request = requests[receives[loaded.started_receives].request]
            request.Start()
            loaded.active.append((request, loaded.started_receives))
            loaded.started_receives += 1
        while loaded.started_sends < len(sends) and sends[loaded.started_sends].after <= loaded.ended:
            if loaded.started_sends - loaded.sent >= _MOST_SENDS:
                break
            request = requests[sends[loaded.started_sends].request]
            request.Start()
            loaded.active.append((request, -1))
            loaded.started_sends += 1

    def _see_messages(self, loaded: _Loaded) -> bool:
        """Note which messages MPI has moved."""
        indices = MPI.Request.Testsome([request for request, _ in loaded.active]) if loaded.active else None
        if not indices:
            return False
        gone = set(indices)
        for index in gone:
            number = loaded.active[index][1]
            if number < 0:
                loaded.sent += 1
            else:
                loaded.arrived.add(number)
        loaded.active = [entry for index, entry in enumerate(loaded.active) if index not in gone]
        return True

    def _add(self, loaded: _Loaded) -> bool:
        """Launch the sums of the messages that have come in their turn."""
        group, moved = self._group, False
        while loaded.worked_off in loaded.arrived:
            loaded.arrived.remove(loaded.worked_off)
            receive = loaded.program.receives[loaded.worked_off]
            loaded.worked_off += 1
            moved = True
            for into, sources in receive.reductions:
                places = [_at(source, self.flat, loaded.scratch) for source in sources]
                group.kernels.add(_at(into, self.flat, loaded.scratch), places, group.side)
            event = None
            if receive.reductions:
                event = self._events.pop() if self._events else group.gpu.event()
                event.record(group.side)
            loaded.adding.append((loaded.worked_off, event))
        return moved

    def _see_ends(self, loaded: _Loaded) -> bool:
        """Note which sums have been made."""
        moved = False
        while loaded.adding and (loaded.adding[0][1] is None or loaded.adding[0][1].query()):
            loaded.ended, event = loaded.adding.popleft()
            if event is not None:
                self._events.append(event)
            moved = True
        return moved


def _at(place: Place, flat: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    return (scratch if place.scratch else flat)[place.begin : place.begin + place.length]
