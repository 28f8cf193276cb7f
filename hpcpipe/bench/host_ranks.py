"""Whether MPI can start one rank on each emulated host, how it does, and how it is kept to the hosts' network.

What the ranks run is not known here.
"""

from hpcpipe.bench.hosts import Hosts, missing
from hpcpipe.bench.ranks import CannotRunError
from hpcpipe.cluster.mpiexec import MISSING, Mpiexec, find_mpiexec


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
