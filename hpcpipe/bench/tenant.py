"""Another tenant of the links: on each host a process that sends into its link in bursts, at times known beforehand.

A burst keeps some bytes waiting in the link's queue, as a bulk transfer does, so what others send waits behind them and
nothing is dropped. Who else uses the links is not known here.
"""

import json
import random
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hpcpipe.bench.hosts import Hosts

PORT = 9
"""Of "discard" (RFC 863)."""

SIZE = 8_900
"""Of a datagram, bytes: one packet where the link takes packets of 9,000."""

_KERNEL_BYTES = 16_640
"""What the kernel counts for one datagram of that size that waits: 16 KiB and its description."""

_SO_SNDBUFFORCE = 32
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time. In it the tenant sends for the fraction `busy`, in bursts of `burst_s` on average.

    `window` is how many bytes a burst keeps waiting in a link's queue at most; it is refilled at half.
    """

    name: str
    seconds: float
    busy: float = 0.0
    burst_s: float = 0.1
    window: int = 0


class Burst(NamedTuple):
    """From when to when (s from the first phase's begin) so many bytes wait in a link."""

    begin: float
    end: float
    window: int


def bounds(phases: Sequence[Phase]) -> list[tuple[float, float]]:
    """Return begin and end of each phase, s."""
    ends = [sum(phase.seconds for phase in phases[: number + 1]) for number in range(len(phases))]
    return list(zip([0.0, *ends], ends, strict=False))


def bursts(phases: Sequence[Phase], *, seed: int, link: int) -> list[Burst]:
    """Draw the bursts of a link: pauses and bursts in turn, each evenly from half to one and a half of its mean.

    They are the same for the same seed, link and phases, whoever asks.
    """
    found: list[Burst] = []
    for number, (phase, (begin, end)) in enumerate(zip(phases, bounds(phases), strict=True)):
        if phase.busy <= 0:
            continue
        draws = random.Random(f"tenant {seed} {link} {number}")
        pause_s = phase.burst_s * (1.0 / phase.busy - 1.0)
        start = begin - draws.random() * (phase.burst_s + pause_s)  # a phase begins anywhere in a round
        while start < end:
            stop = start + phase.burst_s * draws.uniform(0.5, 1.5)
            if stop > begin:
                found.append(Burst(max(start, begin), min(stop, end), phase.window))
            start = stop + pause_s * draws.uniform(0.5, 1.5)
    return found


class Tenant:
    """The processes on the hosts, which wait until they are told when the phases begin."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self) -> int:
        """Begin the first phase in a moment and return when: ns of the monotonic clock, which all hosts share."""
        at = time.monotonic_ns() + 200_000_000
        part = self._folder / "begin.part"
        part.write_text(str(at))
        part.rename(self._folder / "begin")
        return at


@contextmanager
def tenant(
    hosts: "Hosts", phases: Sequence[Phase], *, seed: int, to: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[Tenant]:
    """Start the tenant on all hosts; it sends to the host with the address `to`. It ends with the context.

    `folder` must be empty.
    """
    processes: list[Popen[bytes]] = []
    try:
        for link, name in enumerate(hosts.names):
            plan = folder / f"{name}.json"
            plan.write_text(json.dumps(bursts(phases, seed=seed, link=link)))
            command = [sys.executable, "-m", "hpcpipe.bench.tenant", str(plan), str(folder / "begin"), to]
            processes.append(hosts.start(name, command, environment))
        yield Tenant(folder)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _send(plan: Sequence[Burst], start: float, to: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.connect((to, PORT))
        packet = bytes(SIZE)
        for begin, end, window in plan:
            room = max(2, round(window / SIZE)) * _KERNEL_BYTES
            link.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, room // 2)  # the kernel doubles it
            time.sleep(max(0.0, start + begin - time.monotonic()))
            while time.monotonic() < start + end:
                _try(link, packet)


def _try(link: socket.socket, packet: bytes) -> None:
    """Send when there is room; what the other side says of it does not matter."""
    with suppress(ConnectionRefusedError):
        link.send(packet)


def _main(plan: Path, begin: Path, to: str) -> None:
    known = [Burst(*each) for each in json.loads(plan.read_text())]
    while not begin.exists():
        time.sleep(_LOOK_S)
    _send(known, int(begin.read_text()) * 1e-9, to)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
