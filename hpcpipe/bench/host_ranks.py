"""Whether MPI can start one rank on each emulated host, how it does, and how it is kept to the hosts' network."""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcpipe.bench.hosts import HEAD, HostLink, Hosts, emulated_hosts, missing
from hpcpipe.bench.ranks import RESULT_VARIABLE, CannotRunError, pieces_passed_on
from hpcpipe.bench.table import BenchTable
from hpcpipe.cluster.mpiexec import MISSING, Mpiexec, find_mpiexec
from hpcpipe.exit_code import ExitCode

TORCH = {"GLOO_SOCKET_IFNAME": "eth0", "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Keeps torch to the hosts' network too; it would warn that their addresses have no names."""


def mpiexec_for_hosts(links: str) -> Mpiexec:
    """Return the launcher of the MPI that is installed.

    Parameters
    ----------
    links
        What the hosts are made for, as in "slow links": begins the refusal.

    Raises
    ------
    CannotRunError
        Hosts cannot be made here, or there is no launcher; says why.
    """
    if (reason := missing()) is not None:
        raise CannotRunError(f"{links} are emulated between namespaces, which cannot be made here: {reason}")
    mpiexec = find_mpiexec()
    if mpiexec is None:
        raise CannotRunError(MISSING)
    return mpiexec


def launcher(mpiexec: Mpiexec, hosts: Hosts, ranks: int) -> tuple[list[str], dict[str, str]]:
    """Return how ranks are started one a host, and what makes MPI use the hosts' network.

    Raises
    ------
    CannotRunError
        The launcher is of an MPI that is not known here.
    """
    names, ssh = ",".join(hosts.names), str(hosts.ssh)
    if mpiexec.vendor == "mpich":
        words = ["-launcher", "ssh", "-launcher-exec", ssh, "-iface", "eth0", "-hosts", names, "-n", str(ranks)]
        # not UCX: over its TCP MPICH 5.0.2 loses messages that are received from any source, between hosts
        return [str(mpiexec.path), *words], {
            "MPIR_CVAR_CH4_NETMOD": "ofi",
            "FI_PROVIDER": "tcp",
            "FI_TCP_IFACE": "eth0",
        }
    if mpiexec.vendor == "openmpi":
        settings = {"plm_rsh_agent": ssh, "btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0"}
        environment = {f"OMPI_MCA_{key}": value for key, value in settings.items()}
        environment |= {"PRTE_MCA_plm_ssh_agent": ssh, "PRTE_MCA_prte_if_include": "eth0"}
        return [str(mpiexec.path), "--bind-to", "none", "-H", names, "-n", str(ranks)], environment
    raise CannotRunError(f"{mpiexec.path} is neither MPICH's nor Open MPI's; how it is told of hosts is not known here")


def run_on_hosts(
    name: str, mpiexec: Mpiexec, *, ranks: int, rate: str, words: Sequence[str], progress: Callable[[], object]
) -> BenchTable:
    """Return the table of `hpcpipe bench NAME`, run by one rank on each of some hosts, with links of one rate.

    Raises
    ------
    CannotRunError
        The launcher is of an MPI that is not known here, or a rank has failed.
    """
    with tempfile.TemporaryDirectory(prefix="hpcpipe-bench-") as folder, emulated_hosts(ranks, HostLink(rate)) as hosts:
        result = Path(folder) / "table.json"
        start, environment = launcher(mpiexec, hosts, ranks)
        command = [*start, sys.executable, "-m", "hpcpipe", "bench", name, *words]
        environment |= {RESULT_VARIABLE: str(result), "OMP_NUM_THREADS": "1"} | TORCH
        with pieces_passed_on(result, progress):
            code = hosts.run(HEAD, command, mpiexec.environment() | environment)
        if code != 0 or not result.exists():
            raise CannotRunError(f"the ranks on the emulated hosts ended with exit code {code}", ExitCode.RANK_FAILED)
        return BenchTable.from_json(json.loads(result.read_text()))
