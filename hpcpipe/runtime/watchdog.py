"""Ends a job that stands still: a thread a rank notices it, every rank leaves what it does, one names the culprit.

The ranks speak through files in the run directory: messages may be what hangs, and a stopped process answers nobody.
"""

import faulthandler
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hpcpipe.exit_code import ExitCode
from hpcpipe.job.run_directory import write_once
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.failure import Failure, abort, hang_verdict
from hpcpipe.runtime.hang_view import first_stuck
from hpcpipe.runtime.peers import Peer

if TYPE_CHECKING:
    from mpi4py import MPI

_SHARE, _SHORTEST_S, _LONGEST_S = 1 / 20, 0.05, 10.0
_SILENT_LOOKS = 6
_LAST_S = 5.0


class Counters(Protocol):
    """What shows that a rank moves."""

    progress: int
    turns: int


class Watchdog:
    """Watches one rank from a thread of its own, until `close`.

    A rank that has stood for `timeout_s` suspects a hang and says so by a file. Then every rank writes its state again
    and again; as long as one of them moves, nothing happens: it may be a long step. When each has stood for that long
    or does not answer, the first rank that suspects writes the verdict and ends the job. Time during which this process
    itself was stopped does not count.

    Parameters
    ----------
    everybody
        Called in the thread of a rank that judges a hang: who the ranks are. No other needs to know.
    describe
        Called in the thread: what the rank does (snapshot.py), and its `phase`.
    """

    def __init__(
        self,
        comm: "MPI.Intracomm",
        me: Peer,
        *,
        everybody: Callable[[], Sequence[Peer]],
        run_directory: Path,
        timeout_s: float,
        counters: Counters,
        describe: Callable[[], dict[str, Any]],
    ) -> None:
        self._comm, self._rank = comm, comm.rank
        self._me, self._everybody = me, everybody
        self._peers: dict[int, Peer] = {}
        self._run_directory, self._folder = run_directory, run_directory / "hang"
        self._timeout_s = timeout_s
        self._counters, self._describe = counters, describe
        self._period_s = min(_LONGEST_S, max(_SHORTEST_S, timeout_s * _SHARE))
        self._suspicion = self._folder / f"suspects_{self._rank:05d}"
        self._stalled_s, self._turns = 0.0, False
        self._looks = self._sequence = 0
        self._heard: dict[int, tuple[int, int]] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hpcpipe-watchdog", daemon=True)
        if timeout_s > 0:
            self._be_heard_anyway()
            self._thread.start()

    def close(self) -> None:
        """Stop watching; call when nothing is left that could hang."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        last, progress, turns = now(), self._counters.progress, self._counters.turns
        while not self._closing.wait(self._period_s):
            self._be_heard_anyway()
            time, moved = now(), self._counters.progress
            elapsed, last = (time - last) * 1e-9, time
            self._stalled_s = 0.0 if moved != progress else self._stalled_s + min(elapsed, 2 * self._period_s)
            self._turns, progress, turns = self._counters.turns != turns, moved, self._counters.turns
            with suppress(OSError, ValueError):  # trouble with the disk; the next look may be luckier
                self._look()

    def _be_heard_anyway(self) -> None:
        """Have the stacks written to stderr should this thread never run again because a task holds Python's lock."""
        with suppress(OSError, ValueError, AttributeError):  # there may be no stderr
            faulthandler.dump_traceback_later(self._timeout_s + 4 * self._period_s, file=sys.__stderr__ or 2)

    def _look(self) -> None:
        suspects = self._stalled_s >= self._timeout_s
        if not suspects and not self._folder.exists():
            return
        if suspects:
            self._folder.mkdir(exist_ok=True)
            self._suspicion.touch()
        else:
            self._suspicion.unlink(missing_ok=True)
        others = sorted(self._folder.glob("suspects_*"))
        if not others:
            self._forget()
            return
        self._write_state()
        if hang_verdict(self._run_directory).exists():
            self._obey()
        if not suspects:
            self._looks = 0
            return
        self._looks += 1
        if others[0] == self._suspicion or self._looks > 4 * _SILENT_LOOKS:  # else the first one is expected to judge
            self._judge()

    def _forget(self) -> None:
        """Remove what was left of a suspicion: something moves again."""
        self._looks = 0
        self._heard.clear()
        self._state_path(self._rank).unlink(missing_ok=True)
        with suppress(OSError):  # not empty: others are about to do the same
            self._folder.rmdir()

    def _write_state(self) -> None:
        self._sequence += 1
        me = self._me
        head = {"rank": me.rank, "stage": me.stage, "host": me.host, "pid": me.pid}
        state = {"sequence": self._sequence, "stalled_s": round(self._stalled_s, 3), "turns": self._turns}
        _write(self._state_path(self._rank), {**head, **state, **self._describe()})

    def _judge(self) -> None:
        states, silent = {}, []
        self._peers = self._peers or {peer.rank: peer for peer in self._everybody()}
        for rank in self._peers:
            try:
                state = json.loads(self._state_path(rank).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                state = None
            sequence = -1 if state is None else state.get("sequence", -1)
            if self._heard.get(rank, (None, 0))[0] != sequence:
                self._heard[rank] = sequence, self._looks
            if state is not None and self._looks - self._heard[rank][1] < _SILENT_LOOKS:
                states[rank] = state
            else:
                silent.append(rank)
        if any(state["stalled_s"] < self._timeout_s for state in states.values()):
            return
        if silent and self._looks < _SILENT_LOOKS:  # they may still answer
            return
        stuck = first_stuck(states, {rank: self._process_state(rank) for rank in silent})
        peer = self._peers[stuck.rank]
        reason = (
            f"no rank has made progress for {self._timeout_s:g} s: rank {peer.rank} (stage {peer.stage}) on "
            f"{peer.host} (process {peer.pid}) is the first that is stuck: it {stuck.what}; the state of every rank is "
            f"in {self._folder}"
        )
        for rank in silent:
            if not self._state_path(rank).exists():
                whose = self._peers[rank]
                head = {"rank": rank, "stage": whose.stage, "host": whose.host, "pid": whose.pid}
                _write(self._state_path(rank), {**head, "silent": self._process_state(rank)})
        verdict = {"rank": stuck.rank, "reason": reason}
        if not write_once(hang_verdict(self._run_directory), json.dumps(verdict, indent=1)):
            return
        self._closing.wait(2 * self._period_s)  # so that all have left their last state
        self._end_surely()
        failure = Failure(peer.rank, peer.stage, peer.host, peer.pid, ExitCode.HANG, reason)
        failure.end(self._run_directory, self._comm)

    def _obey(self) -> None:
        """Leave, if nobody ends this rank soon after the verdict."""
        if not self._closing.wait(_LAST_S):
            self._end_surely()
            abort(self._comm, ExitCode.HANG)

    @staticmethod
    def _end_surely() -> None:
        """End this process soon also where MPI_Abort waits for a call of the main thread that never returns."""
        timer = threading.Timer(_LAST_S, os._exit, [int(ExitCode.HANG)])
        timer.daemon = True
        timer.start()

    def _process_state(self, rank: int) -> str:
        """Return what the kernel says of a silent rank, if it is one of this node."""
        peer, mine = self._peers[rank], self._me
        if (peer.host, peer.namespace) != (mine.host, mine.namespace):
            return "does not answer: its process is stopped or dead, or its node is lost"
        try:
            state = Path(f"/proc/{peer.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return "is dead: its process is gone"
        if state in "Tt":
            return "is stopped (SIGSTOP, a debugger or a suspended job)"
        if state in "ZX":
            return "is dead: its process has ended"
        if state == "D":
            return "does not answer: it waits inside the kernel, most likely for a file system"
        return "does not answer: a call holds Python's lock and does not return; its stack is on stderr"

    def _state_path(self, rank: int) -> Path:
        return self._folder / f"rank_{rank:05d}.json"


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
    partial.replace(path)
