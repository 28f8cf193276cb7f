"""A Slurm over several emulated hosts: each node daemon has a network, host name, shared memory and mounts of its own.

The hosts are namespaces held by a sleeping child each, joined by a bridge in one more; they vanish with their holders.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import time
from functools import cache
from pathlib import Path

from slurm_cluster import PATH, Cluster

NETWORK = "10.77.0"

HOST = r"""
set -e
hostname "$1"
mkdir -p "$2/cgroup.$1"
mount --rbind /sys/fs/cgroup "$2/cgroup.$1"   # slurmd wants the machine's, but a sysfs of this network
mount -t sysfs sysfs /sys
mount --rbind "$2/cgroup.$1" /sys/fs/cgroup
mount -t tmpfs -o size=1g shm /dev/shm
mount --bind "$2/hosts" /etc/hosts
touch "$2/ready.$1"
exec sleep infinity
"""


class HostCluster(Cluster):
    """Slurm's controller on h0 and a node daemon on each of h1 to hN."""

    interface = "eth0"

    def __init__(self, folder, *, hosts, cpus=2):
        self._holders = {}
        self._make_hosts(folder.parent, hosts)
        super().__init__(folder, nodes=hosts, cpus=cpus, slurmd_timeout=10)

    def run(self, *command, **options):
        """Run a command on h0."""
        *enter, end = self._on("h0")
        return super().run(*enter, f"--wd={options.get('cwd') or Path.cwd()}", end, *command, **options)

    def kill_host(self, name):
        """Kill everything on a host and take its network away."""
        self.stop_node(name)
        self._call(*self._on("switch", "--net"), "ip", "link", "set", f"to-{name}", "down")

    def start_node(self, name):
        self._spawn(name, "slurmd", "-D", "-f", self.folder / "slurm.conf")

    def close(self):
        """End the daemons and the hosts."""
        super().close()
        for holder in self._holders.values():
            holder.kill()
            holder.wait()

    def _node(self, number):
        return f"h{number}"

    def _adapt(self, text, port):
        text = text.replace("KillWait=30", "KillWait=5")  # a dead host's ranks do not end any sooner
        here = [line for line in text.splitlines() if not line.startswith(("SlurmctldHost=", "NodeName="))]
        nodes = f"h[1-{self.nodes}]"
        here = [line.replace(f"Nodes=n[1-{self.nodes}]", f"Nodes={nodes}") for line in here]
        cpus = f"CPUs={self.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={self.cpus} ThreadsPerCore=1"
        addresses = f"NodeAddr=h[1-{self.nodes}] Port={port + 1} {cpus} RealMemory=8000 State=UNKNOWN"
        partitions = [line for line in here if line.startswith("PartitionName=")]
        rest = [line for line in here if line not in partitions]
        return "\n".join([*rest, f"SlurmctldHost=h0({NETWORK}.1)", f"NodeName={nodes} {addresses}", *partitions, ""])

    def _prefix(self, name):
        return self._on("h0" if name in ("munged", "slurmctld") else name)

    def _on(self, name, *spaces):
        spaces = spaces or ("--net", "--uts", "--ipc", "--mount")
        return ("nsenter", "-t", str(self._holders[name].pid), *spaces, "--")

    def _make_hosts(self, folder, hosts):
        names = [f"h{number}" for number in range(hosts + 1)]
        lines = ["127.0.0.1 localhost", *(f"{NETWORK}.{i + 1} {name}" for i, name in enumerate(names))]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        try:
            self._hold("switch", "unshare", "--net", "sleep", "infinity")
            self._wait_for_namespace("switch")
            switch = self._on("switch", "--net")
            self._call(*switch, "ip", "link", "add", "br0", "type", "bridge")
            self._call(*switch, "ip", "link", "set", "br0", "up")
            unshare = ("unshare", "--net", "--uts", "--ipc", "--mount", "--propagation", "private")
            for name in names:
                self._hold(name, *unshare, "bash", "-c", HOST, "host", name, str(folder))
            for index, name in enumerate(names):
                deadline = time.monotonic() + 10
                while not (folder / f"ready.{name}").exists():
                    assert time.monotonic() < deadline and self._holders[name].poll() is None, f"no host {name}"
                    time.sleep(0.02)
                peer = ("peer", "name", "eth0", "netns", str(self._holders[name].pid))
                self._call(*switch, "ip", "link", "add", f"to-{name}", "type", "veth", *peer)
                self._call(*switch, "ip", "link", "set", f"to-{name}", "master", "br0", "up")
                inside = self._on(name, "--net")
                self._call(*inside, "ip", "link", "set", "lo", "up")
                self._call(*inside, "ip", "addr", "add", f"{NETWORK}.{index + 1}/24", "dev", "eth0")
                self._call(*inside, "ip", "link", "set", "eth0", "up")
        except BaseException:
            for holder in self._holders.values():
                holder.kill()
            raise

    def _hold(self, name, *command):
        self._holders[name] = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - no test makes hosts from a thread
        )

    def _wait_for_namespace(self, name):
        ours = Path("/proc/self/ns/net").readlink()
        deadline = time.monotonic() + 10
        while Path(f"/proc/{self._holders[name].pid}/ns/net").readlink() == ours:
            assert time.monotonic() < deadline and self._holders[name].poll() is None
            time.sleep(0.02)

    @staticmethod
    def _call(*command):
        environment = {**os.environ, "PATH": PATH}
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=environment)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@cache
def missing():
    """Return why no hosts can be emulated here, or None."""
    if shutil.which("ip", path=PATH) is None:
        return "no ip here, which joins emulated hosts; on Debian: apt-get install --no-install-recommends iproute2"
    probe = "ip link add probe0 type veth peer name probe1 && mount -t sysfs sysfs /sys"
    command = ["unshare", "--net", "--uts", "--ipc", "--mount", "--propagation", "private", "sh", "-c", probe]
    try:
        environment = {**os.environ, "PATH": PATH}
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=environment)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else f"no namespaces with networks here: {done.stderr.strip()}"


def _end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
