"""Notice within moments that a rank of this node has died without a word, and end the job, whatever the launcher does.

Several launchers leave the other ranks waiting for ever. Each rank asks the kernel to report the end of the others on
its node (pidfd); a node that vanishes as a whole is the scheduler's to notice.
"""

import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcpipe.exit_code import ExitCode
from hpcpipe.runtime.failure import Failure, abort, hang_verdict
from hpcpipe.runtime.world import World

if TYPE_CHECKING:
    from mpi4py import MPI


_PATIENCE_S = 0.5
_LINUX = sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank of the job, as it introduced itself at the start."""

    rank: int
    pid: int
    host: str
    stage: int
    namespace: int

    @classmethod
    def me(cls, *, rank: int, host: str, stage: int) -> "Peer":
        """Introduce this process; `namespace` names the space in which its process id is meant."""
        return cls(rank, os.getpid(), host, stage, Path("/proc/self/ns/pid").stat().st_ino if _LINUX else 0)


def introduce(world: World, me: Peer) -> tuple[list[Peer], list[Peer]]:
    """Introduce this rank (collective); return the ranks of its node and, on rank 0 alone, all ranks."""
    from mpi4py import MPI

    node = MPI.Intracomm(world.comm.Split_type(MPI.COMM_TYPE_SHARED, world.rank))
    beside = [Peer(**each) for each in World(node).collect(asdict(me))]
    node.Free()
    return beside, [Peer(**each) for each in world.gather(asdict(me))]


def read_peers(run_directory: Path) -> list[Peer]:
    """Return all ranks as rank 0 has written them down.

    Raises
    ------
    OSError, ValueError
        The list cannot be read.
    """
    return [Peer(**each) for each in json.loads((run_directory / "ranks.json").read_text(encoding="utf-8"))]


class PeerWatch:
    """A thread that waits for the death of a local peer. Linux 5.3 or newer; elsewhere it does nothing.

    `last_words` is called in that thread before it ends the job.
    """

    def __init__(
        self,
        comm: "MPI.Intracomm",
        peers: Sequence[Peer],
        *,
        run_directory: Path,
        last_words: Callable[[], None] = lambda: None,
    ) -> None:
        self._last_words = last_words
        self._comm = comm
        self._run_directory = run_directory
        self._poll = select.poll()
        self._peers: dict[int, Peer] = {}
        self._gone: Peer | None = None
        self._stop, self._stopped = os.pipe()
        self._poll.register(self._stop, select.POLLIN)
        mine = next(peer for peer in peers if peer.rank == comm.rank)
        for peer in peers:
            if (peer.host, peer.namespace) == (mine.host, mine.namespace) and peer.rank != mine.rank:
                self._watch(peer)
        self._thread = threading.Thread(target=self._run, name="hpcpipe-peers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching; call when all ranks have agreed that the work is done."""
        os.write(self._stopped, b"x")
        self._thread.join()
        for descriptor in (*self._peers, self._stop, self._stopped):
            os.close(descriptor)

    def _watch(self, peer: Peer) -> None:
        try:
            descriptor = os.pidfd_open(peer.pid)
        except ProcessLookupError:  # it has introduced itself and died
            self._gone = peer
            return
        except (AttributeError, OSError):  # no pidfd here
            return
        self._peers[descriptor] = peer
        self._poll.register(descriptor, select.POLLIN)

    def _run(self) -> None:
        peer = self._gone
        if peer is None:
            ended = [descriptor for descriptor, _ in self._poll.poll()]
            if self._stop in ended:
                return
            peer = self._peers[ended[0]]
        if hang_verdict(self._run_directory).exists():  # it died because the watchdog ends the job
            time.sleep(_PATIENCE_S)
            abort(self._comm, ExitCode.HANG)
        reason = (
            f"rank {peer.rank} (stage {peer.stage}) on {peer.host} died (process {peer.pid}); the job ends on all ranks"
        )
        failure = Failure(peer.rank, peer.stage, peer.host, peer.pid, ExitCode.RANK_FAILED, reason)
        try:
            first = failure.write(self._run_directory)
            if first:
                sys.stderr.write(f"hpcpipe: {reason}\n")
            self._last_words()  # at once: the launcher may end this rank any moment
            if not first:  # it has said itself why, or another witness is about to: our abort must not cut it short
                time.sleep(_PATIENCE_S)
        finally:
            abort(self._comm, ExitCode.RANK_FAILED)
