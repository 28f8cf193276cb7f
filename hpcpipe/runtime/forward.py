"""Forwards alone, from the first virtual stage to the last: what an evaluation needs, between two steps.

Nothing is stashed and no gradient comes back, so there is nothing to rank: every rank takes micro-batches in groups,
its chunks in order, and sends what it computes. Messages have a communicator of their own.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpcpipe.plan import Placement
from hpcpipe.runtime.channel import Copying, Memory
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.counts import counted, padded
from hpcpipe.runtime.failure import PeerLostError
from hpcpipe.runtime.header import NOTICE_BYTES, Content, Header, Short, read
from hpcpipe.runtime.structure import put_together, take_apart

if TYPE_CHECKING:
    from hpcpipe.runtime.mesh import Mesh
    from hpcpipe.runtime.waiting import Waiting

Run = Callable[[int, int, Any], Any]
"""(chunk, micro-batch, input or None) -> output; the first virtual stage has its own input."""

_UNDER_WAY = 8
"""Sends under way at most: where the next stage is slower, this one waits for it."""


class ForwardPass:
    """Moves the values of forwards between the ranks of one pipeline (collective over it at creation).

    Tasks are done in the order of (group of micro-batches, virtual stage, micro-batch) on every rank, and a task needs
    one that comes before it in this order. A rank waits when more than a few of its sends are under way. With one chunk
    messages only go forwards; with more, a ring of S waiting ranks would need more micro-batches than the S of a group.
    So the ranks cannot wait for each other in a circle.
    """

    def __init__(self, mesh: "Mesh", placement: Placement, *, memory: Memory) -> None:
        self._comm = mesh.forward.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._stage, self._placement, self._memory = mesh.place.stage, placement, memory
        self._sending: list[tuple[MPI.Request, Any]] = []
        self._status = MPI.Status()

    def run(self, microbatches: int, run: Run, *, waiting: "Waiting", moved: Callable[[], None]) -> None:
        """Run all forwards of the rank's chunks; `moved` is called after each."""
        last = self._placement.virtual_stages - 1
        handed: dict[tuple[int, int], Any] = {}
        for virtual, microbatch in self._order(microbatches):
            stage, chunk = self._placement.owner(virtual)
            value = None
            if virtual > 0:
                source, _ = self._placement.owner(virtual - 1)
                here = source == stage
                value = handed.pop((virtual, microbatch)) if here else self._receive(source, microbatch, waiting)
            value = run(chunk, microbatch, value)
            if virtual < last:
                target, _ = self._placement.owner(virtual + 1)
                if target == stage:
                    handed[virtual + 1, microbatch] = value
                else:
                    self._send(target, value, chunk, microbatch, waiting)
                    self._wait_for_sends(_UNDER_WAY, waiting)
            moved()
        self._wait_for_sends(0, waiting)

    def free(self) -> None:
        """Free the communicator (collective)."""
        self._comm.Free()

    def _order(self, microbatches: int) -> Iterator[tuple[int, int]]:
        """Return (virtual stage, micro-batch) of this rank's tasks."""
        group = self._placement.stages if self._placement.chunks > 1 else max(1, microbatches)
        mine = sorted(self._placement.virtual(self._stage, chunk) for chunk in range(self._placement.chunks))
        for begin in range(0, microbatches, group):
            for virtual in mine:
                for microbatch in range(begin, min(begin + group, microbatches)):
                    yield virtual, microbatch

    def _send(self, stage: int, value: Any, chunk: int, microbatch: int, waiting: "Waiting") -> None:
        structure, tensors = take_apart(value)
        content = Content.of(structure, map(self._memory.describe, tensors))
        buffer = self._memory.buffer(padded(content.size))
        for tensor, at in zip(tensors, content.offsets, strict=True):
            self._memory.store(tensor, buffer, at)
        _wait(self._memory.sealed(buffer, content.head_bytes, content.size), waiting)
        Header(0, microbatch, chunk, now(), content).pack_into(self._memory.head(buffer, content.head_bytes))
        _wait(self._memory.addressed(buffer, content.head_bytes), waiting)
        self._sending.append((self._comm.Isend(counted(self._memory.view(buffer), content.size), stage), buffer))

    def _receive(self, stage: int, microbatch: int, waiting: "Waiting") -> Any:
        try:
            while (message := self._comm.Improbe(stage, status=self._status)) is None:
                waiting.idle()
            waiting.busy()
            size = self._status.Get_elements(MPI.BYTE)
            buffer = self._memory.buffer(padded(size))
            request = message.Irecv(counted(self._memory.view(buffer), size))
            while not request.Test():
                waiting.idle()
        except MPI.Exception as error:
            raise PeerLostError("a message of an evaluation failed; most likely a rank has died") from error
        _wait(self._memory.opened(buffer, NOTICE_BYTES), waiting)
        header = read(self._memory.head(buffer))
        if isinstance(header, Short):
            _wait(self._memory.opened(buffer, header.needed), waiting)
            header = read(self._memory.head(buffer))
        assert isinstance(header, Header) and header.microbatch == microbatch, "a message is out of turn"
        content = header.content
        _wait(self._memory.landed(buffer, content.head_bytes, content.size), waiting)
        each = zip(content.offsets, content.tensors, strict=True)
        return put_together(content.structure, [self._memory.load(buffer, at, what) for at, what in each])

    def _wait_for_sends(self, most: int, waiting: "Waiting") -> None:
        while True:
            try:
                self._sending = [(request, buffer) for request, buffer in self._sending if not request.Test()]
            except MPI.Exception as error:
                raise PeerLostError("a message of an evaluation failed; most likely a rank has died") from error
            if len(self._sending) <= most:
                waiting.busy()
                return
            waiting.idle()


def _wait(copying: Copying | None, waiting: "Waiting") -> None:
    """Wait until a device has made its copies."""
    while copying is not None and not copying.done():
        waiting.idle()
    waiting.busy()
