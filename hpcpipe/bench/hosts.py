"""Emulated hosts on one machine: each with a network, host name and shared memory of its own, joined by slow links.

The hosts are namespaces, each held by a sleeping child, and vanish with their holders; it needs root. What runs on them
is not known here.
"""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

NETWORK = "10.77.0"
TOOLS = ("ip", "tc", "nsenter", "unshare", "mount", "hostname", "bash")
HEAD = "h0"
"""The host without ranks, whose link is not slow: the launcher's."""

_HOLD = r"""
set -e
hostname "$1"
if [ "$3" ]; then mkdir "$2/cgroup.$1"; mount --rbind /sys/fs/cgroup "$2/cgroup.$1"; fi
mount -t sysfs sysfs /sys
if [ "$3" ]; then mount --rbind "$2/cgroup.$1" /sys/fs/cgroup; fi
mount -t tmpfs -o size=1g shm /dev/shm
mount --bind "$2/hosts" /etc/hosts
touch "$2/ready.$1"
exec sleep infinity
"""
_SSH = r"""#!/bin/bash
# Stands in for ssh: [options] HOST COMMAND.
while [[ "$1" == -* ]]; do case "$1" in -l|-p|-o|-i|-F) shift 2 ;; *) shift ;; esac; done
host=$1; shift
exec nsenter -t "$(cat {folder}/pid."$host")" --net --uts --ipc --mount --wd="$PWD" -- bash -c "$*"
"""
_SPACES = ("--net", "--uts", "--ipc", "--mount")
_UNSHARE = ("unshare", *_SPACES, "--propagation", "private")
_PATIENCE_S = 20.0
_PR_SET_PDEATHSIG = 1


class Hosts:
    """Hosts h1, h2, ... and the head h0; made by `emulated_hosts`.

    Attributes
    ----------
    names
        Of the hosts for ranks.
    ssh
        A program that runs a command on a host, called as ssh is.
    """

    def __init__(self, folder: Path, holders: "dict[str, subprocess.Popen[bytes]]") -> None:
        self._folder, self._holders = folder, holders
        self.names = [name for name in holders if name not in (HEAD, "switch")]
        self.ssh = folder / "ssh"

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, output: IO[bytes] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a command on a host, which says what it says into `output` if given; it ends when this process does."""
        return subprocess.Popen(
            self.on(name, command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - it calls the kernel and nothing else
        )

    def run(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a command on a host and return its exit code; it ends when this process does."""
        process = self.start(name, command, environment)
        try:
            return process.wait()
        finally:
            process.kill()
            process.wait()

    def on(self, name: str, command: Sequence[str], *, folder: Path | None = None) -> list[str]:
        """Return the command line that runs a command on a host, in a folder (default: the current one)."""
        return [*_enter(self._holders[name], *_SPACES)[:-1], f"--wd={folder or Path.cwd()}", "--", *command]

    def unplug(self, name: str) -> None:
        """Take a host's network away."""
        _call(*_enter(self._holders["switch"], "--net"), "ip", "link", "set", f"to-{name}", "down")


def missing() -> str | None:
    """Return why hosts cannot be emulated here, or None."""
    if not sys.platform.startswith("linux"):
        return "emulated hosts are namespaces of Linux"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"no {' and no '.join(absent)} on PATH (Debian: iproute2, util-linux)"
    probe = "ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 512kb latency 100ms && "
    probe += "ip link add probe0 type veth peer name probe1 && mount -t sysfs sysfs /sys"
    done = subprocess.run([*_UNSHARE, "sh", "-c", probe], capture_output=True, text=True, timeout=20, check=False)
    return None if done.returncode == 0 else f"no namespaces with networks (root is needed): {done.stderr.strip()}"


@dataclass(frozen=True, slots=True)
class HostLink:
    """What a host's link is like; `rate`, `burst` and `latency` as tc's token bucket understands them.

    `rate` is the most that it sends, `burst` what goes at once, `latency` how long a packet may wait. `mtu` is the
    largest packet, `congestion` the congestion control of TCP ("": this machine's own).
    """

    rate: str
    burst: str = "512kb"
    latency: str = "100ms"
    mtu: int = 1500
    congestion: str = ""


@contextmanager
def emulated_hosts(count: int, link: HostLink | None = None, *, cgroups: bool = False) -> Iterator[Hosts]:
    """Make hosts with such links (None: as fast as this machine can), and end them at the end.

    With `cgroups` they see this machine's control groups, without which some daemons do not start.

    Raises
    ------
    OSError
        They cannot be made; `missing` says why.
    """
    holders: dict[str, subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryDirectory(prefix="hpcpipe-hosts-") as own:
        folder = Path(own)
        try:
            _make(folder, holders, count, link, cgroups=cgroups)
            yield Hosts(folder, holders)
        finally:
            _end_all(holders)


def _end_all(holders: "dict[str, subprocess.Popen[bytes]]") -> None:
    """Kill what runs on the hosts: ranks may outlive their launcher."""
    networks = {_network(Path(f"/proc/{holder.pid}")) for holder in holders.values() if holder.poll() is None}
    networks -= {None, _network(Path("/proc/self"))}
    for process in Path("/proc").glob("[0-9]*"):
        if _network(process) in networks:
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
    for holder in holders.values():
        holder.kill()
        holder.wait()


def _network(process: Path) -> Path | None:
    try:
        return (process / "ns" / "net").readlink()
    except OSError:
        return None


def _make(
    folder: Path, holders: "dict[str, subprocess.Popen[bytes]]", count: int, link: HostLink | None, *, cgroups: bool
) -> None:
    names = [f"h{number}" for number in range(count + 1)]
    lines = ["127.0.0.1 localhost", *(f"{NETWORK}.{number + 1} {name}" for number, name in enumerate(names))]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    ssh = folder / "ssh"
    ssh.write_text(_SSH.replace("{folder}", shlex.quote(own := str(folder))))
    ssh.chmod(0o755)
    holders["switch"] = _hold(*_UNSHARE, "bash", "-c", 'touch "$1/ready.switch"; exec sleep infinity', "switch", own)
    for name in names:
        holders[name] = _hold(*_UNSHARE, "bash", "-c", _HOLD, "host", name, own, "yes" if cgroups else "")
        (folder / f"pid.{name}").write_text(str(holders[name].pid))
    for name, holder in holders.items():
        _wait_for(folder / f"ready.{name}", holder)
    switch = _enter(holders["switch"], "--net")
    _call(*switch, "ip", "link", "add", "br0", "type", "bridge")
    _call(*switch, "ip", "link", "set", "br0", "up")
    for number, name in enumerate(names):
        inside = _enter(holders[name], "--net")
        peer = ("peer", "name", "eth0", "netns", str(holders[name].pid))
        mtu = () if link is None else ("mtu", str(link.mtu))
        _call(*switch, "ip", "link", "add", f"to-{name}", *mtu, "type", "veth", *peer, *mtu)
        _call(*switch, "ip", "link", "set", f"to-{name}", "master", "br0", "up")
        _call(*inside, "ip", "link", "set", "lo", "up")
        _call(*inside, "ip", "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", "eth0")
        _call(*inside, "ip", "link", "set", "eth0", "up")
        if link is not None and link.congestion:
            route = (f"{NETWORK}.0/24", "dev", "eth0", "scope", "link", "src", f"{NETWORK}.{number + 1}")
            _call(*inside, "ip", "route", "replace", *route, "congctl", link.congestion)
        if link is not None and name != HEAD:
            bucket = ("rate", link.rate, "burst", link.burst, "latency", link.latency)
            _call(*inside, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *bucket)


def _hold(*command: str) -> "subprocess.Popen[bytes]":
    nothing = subprocess.DEVNULL
    return subprocess.Popen(
        command,
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - hosts are made before any thread
    )


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for(path: Path, holder: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if holder.poll() is not None or time.monotonic() > end:
            raise OSError(f"the emulated host {path.suffix[1:]} did not come up")
        time.sleep(0.01)


def _enter(holder: "subprocess.Popen[bytes]", *spaces: str) -> tuple[str, ...]:
    return ("nsenter", "-t", str(holder.pid), *spaces, "--")


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    if done.returncode != 0:
        raise OSError(f"{shlex.join(command)}: {done.stderr.strip()}")
