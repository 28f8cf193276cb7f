"""A Slurm over emulated hosts: each node daemon has a network, host name, shared memory and mounts of its own."""

from contextlib import ExitStack

from slurm_cluster import Cluster

from hpcpipe.bench.hosts import NETWORK, emulated_hosts, missing

__all__ = ["HostCluster", "missing"]


class HostCluster(Cluster):
    """Slurm's controller on h0 and a node daemon on each of h1 to hN."""

    interface = "eth0"

    def __init__(self, folder, *, hosts, cpus=2):
        self._stack = ExitStack()
        self._hosts = self._stack.enter_context(emulated_hosts(hosts, cgroups=True))
        super().__init__(folder, nodes=hosts, cpus=cpus, slurmd_timeout=10)

    def run(self, *command, **options):
        """Run a command on h0."""
        return super().run(*self._hosts.on("h0", command, folder=options.get("cwd")), **options)

    def kill_host(self, name):
        """Kill everything on a host and take its network away."""
        self.stop_node(name)
        self._hosts.unplug(name)

    def start_node(self, name):
        self._spawn(name, "slurmd", "-D", "-f", self.folder / "slurm.conf")

    def close(self):
        """End the daemons and the hosts."""
        super().close()
        self._stack.close()

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
        host = "h0" if name in ("munged", "slurmctld") else name
        return self._hosts.on(host, ())
