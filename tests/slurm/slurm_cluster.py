"""A real Slurm on this machine: munged, slurmctld and many slurmd, with keys, sockets and ports of their own.

The daemons stay children of the test process and die with it. Its GPUs are device files like /dev/null: Slurm hands out
and binds them as it does real ones, and only a program that computes on them could tell.
"""

import ctypes
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

from slurm_processes import end_all, kill, processes

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "srun", "scancel", "scontrol", "sinfo", "squeue")
PR_SET_PDEATHSIG = 1
PORTS_TRIED = 3
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
LITTLE_TO_SAY = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
"""For MPICH: ranks tell each other 100 bytes through PMI. Addresses of UCX take 8,000, and Slurm takes what one read
gives for a whole request of PMI-1 (src/plugins/mpi/pmi2/pmi1.c: "TODO: read until newline"); some starts hung."""

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
FirstJobId={first_job}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoAddrCache
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
TmpFS={folder}/tmp/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
SwitchType=switch/none
MailProg=/bin/true
MpiDefault=none
ReturnToService=2
KillWait=30
MinJobAge=600
SlurmctldTimeout=30
SlurmdTimeout={slurmd_timeout}
MessageTimeout=20
TCPTimeout=5
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PropagateResourceLimitsExcept=MEMLOCK
GresTypes=gpu
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} Boards=1 \
SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=8000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=0
PartitionName=urgent Nodes=n[1-{nodes}] MaxTime=INFINITE State=UP PriorityTier=10
"""


class DaemonEndedError(RuntimeError):
    """A daemon has ended by itself; the message has its last words."""


def missing():
    """Return why no Slurm can be started here, or None."""
    lacking = [name for name in (*DAEMONS, *CLIENTS) if shutil.which(name, path=PATH) is None]
    if lacking:
        return (
            f"no {lacking[0]} here; on Debian: apt-get install --no-install-recommends slurmctld slurmd "
            "slurm-client munge"
        )
    return None if os.geteuid() == 0 else "slurmd starts jobs of users, so it must be started by root"


class Cluster:
    """A running cluster; `close` ends everything that it started."""

    interface = "lo"

    def __init__(self, folder, *, nodes, cpus, gpus=0, slurmd_timeout=60):
        self.folder = Path(folder)
        self.nodes, self.cpus = nodes, cpus
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.environment |= LITTLE_TO_SAY | {"FI_TCP_IFACE": self.interface}
        for name in [name for name in self.environment if name.startswith(("SLURM_", "SBATCH_", "SRUN_"))]:
            if name != "SLURM_CONF":
                del self.environment[name]
        self._daemons, self._reaper = {}, None
        for attempt in range(PORTS_TRIED):
            self._configure(cpus, gpus, slurmd_timeout)
            try:
                self._start()
                return
            except DaemonEndedError:  # somebody else may have taken a port meanwhile
                self.close()
                if attempt == PORTS_TRIED - 1:
                    raise
                shutil.rmtree(self.folder)
            except BaseException:
                self.close()
                raise

    def run(self, *command, timeout=60, check=True, cwd=None, environment=None, text=True):
        """Run a command of Slurm and return the finished process; what it says on failure is in the error."""
        done = subprocess.run(
            [str(word) for word in command],
            env={**self.environment, **(environment or {})},
            cwd=cwd,
            capture_output=True,
            text=text,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{command[0]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def sbatch(self, *words, cwd, environment=None):
        """Submit and return the job's id."""
        return self.run("sbatch", "--parsable", *words, cwd=cwd, environment=environment).stdout.strip()

    def job(self, job_id):
        """Return what Slurm knows of a job, by key; of a job array's first element where the array is asked for."""
        text = self.run("scontrol", "show", "job", "-o", job_id).stdout.splitlines()[0]
        return dict(re.findall(r"(\w[\w:/]*)=(\S*)", text))

    def wait_for(self, job_id, *states, timeout=90):
        """Return what Slurm knows of a job as soon as it is in one of the states."""
        begun = time.monotonic()
        while (job := self.job(job_id))["JobState"] not in states:
            waited = time.monotonic() - begun
            if waited > timeout:
                raise AssertionError(f"job {job_id} is {job['JobState']} ({job.get('Reason')}), not {states}")
            time.sleep(min(0.5, 0.05 + waited / 20))  # asking takes time of the cores that the jobs compute on
        return job

    def wait_for_end(self, job_id, timeout=90):
        """Return what Slurm knows of a job that has ended."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")
        return self.wait_for(job_id, *ended, timeout=timeout)

    def stop_node(self, name):
        """Kill a node's daemon and all that it has started, as a power cut does."""
        daemon = self._daemons.pop(name)
        kill([daemon.pid, *processes(self._mark, of_node=name)])
        daemon.wait()

    def start_node(self, name):
        """Start a node's daemon."""
        self._spawn(name, "slurmd", "-D", "-f", self.folder / "slurm.conf", "-N", name)

    def wait_until_idle(self, number=None, timeout=60):
        """Wait until so many nodes, all by default, are idle."""
        wanted, deadline = self.nodes if number is None else number, time.monotonic() + timeout
        while True:
            said = self.run("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N", check=False).stdout.split()
            if len(said) >= wanted:
                return
            self._raise_if_one_has_ended()
            if time.monotonic() > deadline:
                log = (self.folder / "log" / "slurmctld.log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"{len(said)} of {wanted} nodes are idle\n{log}")
            time.sleep(0.05)

    def _raise_if_one_has_ended(self):
        for name, daemon in self._daemons.items():
            if daemon.poll() is not None:
                words = (self.folder / "log" / f"{name}.out").read_text(errors="replace").splitlines()[-3:]
                raise DaemonEndedError(f"{name} has ended: {' '.join(words)}")

    def close(self):
        """End all daemons, then their jobs, and remove what these leave in shared memory."""
        for daemon in self._daemons.values():
            daemon.kill()
        for daemon in self._daemons.values():
            daemon.wait()
        self._daemons.clear()
        end_all(self._mark)
        if self._reaper is not None:
            self._reaper.communicate(timeout=30)

    def _configure(self, cpus, gpus, slurmd_timeout):
        folder = self.folder
        for part in ("run", "log", "state", "dev"):
            (folder / part).mkdir(parents=True)
        for node in range(1, self.nodes + 1):
            (folder / "spool" / self._node(node)).mkdir(parents=True)
            (folder / "tmp" / self._node(node)).mkdir(parents=True)
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        port = _free_ports(1 + self.nodes)
        text = CONFIGURATION.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            port=port,
            first_job=1
            + int(time.time()) % 60_000_000,  # MPICH names shared memory by it, and killed ranks leave theirs
            first=port + 1,
            last=port + self.nodes,
            nodes=self.nodes,
            cpus=cpus,
            gpus=gpus,
            slurmd_timeout=slurmd_timeout,
        )
        if gpus:
            for gpu in range(gpus):
                os.mknod(folder / "dev" / f"nvidia{gpu}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            names = f"{folder}/dev/nvidia[0-{gpus - 1}]"
            (folder / "gres.conf").write_text(f"NodeName=n[1-{self.nodes}] Name=gpu File={names}\n")
        else:
            text = text.replace("GresTypes=gpu\n", "").replace(" Gres=gpu:0", "")
            (folder / "gres.conf").touch()
        (folder / "slurm.conf").write_text(self._adapt(text, port))

    @property
    def _mark(self):
        """The variable that all processes of this cluster have."""
        return f"SLURM_CONF={self.folder / 'slurm.conf'}"

    def _start(self):
        run = self.folder / "run"
        if self._reaper is None:
            command = [sys.executable, str(Path(__file__).with_name("slurm_processes.py")), self._mark]
            self._reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._spawn(
            "munged",
            "munged",
            "--foreground",
            "--force",
            f"--key-file={self.folder / 'munge.key'}",
            f"--socket={run / 'munge.sock'}",
            f"--pid-file={run / 'munged.pid'}",
            f"--seed-file={run / 'munge.seed'}",
            f"--log-file={self.folder / 'log' / 'munged.log'}",
        )
        deadline = time.monotonic() + 10
        while not (run / "munge.sock").exists():
            self._raise_if_one_has_ended()
            assert time.monotonic() < deadline, (self.folder / "log" / "munged.out").read_text()
            time.sleep(0.02)
        self._spawn("slurmctld", "slurmctld", "-D", "-c", "-f", self.folder / "slurm.conf")
        for node in range(1, self.nodes + 1):
            self.start_node(self._node(node))
        self.wait_until_idle()

    def _spawn(self, name, program, *words):
        with (self.folder / "log" / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                [*self._prefix(name), shutil.which(program, path=PATH), *map(str, words)],
                env={k: v for k, v in self.environment.items() if k != "PYTHONPATH"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - no test starts daemons from a thread
            )

    def _node(self, number):
        return f"n{number}"

    def _adapt(self, text, port):
        """Change the configuration, for clusters of another kind."""
        return text

    def _prefix(self, name):
        """Return what a daemon's command begins with, for clusters of another kind."""
        return ()


def _end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_ports(number):
    """Return the first of so many neighbouring ports that nobody has, below those that the kernel hands out."""
    step = number + 1
    for first in range(20000 + secrets.randbelow(6000), 32000, step):
        sockets = [socket.socket() for _ in range(number)]
        try:
            for offset, one in enumerate(sockets):
                one.bind(("", first + offset))
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
        return first
    raise AssertionError("no free ports")
