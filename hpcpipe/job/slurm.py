"""The table `[slurm]`: what a job asks of the batch system, in values that are safe to write into a script.

It must not know how a script looks (cluster/render.py), only what no line of one may hold.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator

from hpcpipe.job.section import Section
from hpcpipe.job.values import LARGEST, Count, auto_or_count, wrong
from hpcpipe.job.words import describe, show

TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d{1,2}))?(?::(?P<third>\d{1,2}))?")
SIGNAL = re.compile(r"(?P<name>USR2|TERM)@(?P<seconds>\d{1,5})")
MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/:@=-]*")
MPI = re.compile(r"[a-z0-9_]*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9-]*(?:=.*)?", re.DOTALL)
SPACES = "\N{NO-BREAK SPACE}\N{IDEOGRAPHIC SPACE}"  # Python does not call them printable
LONGEST = 1000  # Slurm reads a directive into a buffer of a few thousand bytes
OURS = {
    "array": "hpcpipe submit --sweep",
    "chdir": "the folder in which hpcpipe submit is called",
    "cpus-per-task": "cpus_per_rank",
    "dependency": "hpcpipe submit --after",
    "gpus-per-node": "gpus_per_node",
    "job-name": "[job] name",
    "nodes": "nodes",
    "no-requeue": "requeue = false",
    "ntasks": "[parallel]",
    "ntasks-per-node": "ranks_per_node",
    "open-mode": "",
    "output": "",
    "requeue": "requeue",
    "signal": "signal",
    "time": "time",
}
"""Options that other keys set; none may be set twice."""


def _line(value: str) -> str:
    """Refuse what would end a line of a script or drive a terminal."""
    odd = next((c for c in value if not (c.isprintable() or c in SPACES)), None)
    if odd is not None:
        raise wrong(f"holds the character {show(odd)}", "line ends and control characters cannot be given to Slurm")
    if len(value.encode()) > LONGEST:
        raise wrong(f"has {len(value.encode())} bytes", f"Slurm takes at most {LONGEST}")
    return value


def _time(value: str) -> str:
    if seconds_of(value) is None:
        raise wrong(
            f"must be a time as Slurm reads it, got {show(value)}",
            'minutes, "hours:minutes:seconds" or "days-hours:minutes:seconds", for example time = "12:00:00"',
        )
    return value


def _signal(value: str) -> str:
    if value == "" or SIGNAL.fullmatch(value):
        return value
    if "USR1" in value:
        raise wrong(f"= {show(value)} cannot be used: NCCL takes SIGUSR1", 'write signal = "USR2@300"')
    if value.startswith("B:"):
        raise wrong(f"= {show(value)} would reach the batch script alone", 'write signal = "USR2@300"; ranks get it')
    raise wrong(
        f"must name a signal and how many seconds before the end it comes, got {show(value)}",
        'for example signal = "USR2@300" or signal = "TERM@120"; "" for none',
    )


def _module(value: str) -> str:
    if not MODULE.fullmatch(value):
        raise wrong(f"holds {show(value)}, which is no module's name", 'for example modules = ["gcc/12.2", "openmpi"]')
    return value


def _mpi(value: str) -> str:
    if not MPI.fullmatch(value):
        raise wrong(f"must be a word that `srun --mpi=list` shows, got {show(value)}", 'for example mpi = "pmix"')
    return value


def _env(value: Any) -> dict[str, str]:
    example = 'for example env = { FI_PROVIDER = "cxi" }'
    if not isinstance(value, dict):
        raise wrong(f"must be a table of variables, got {describe(value)}", example)
    for name, text in value.items():
        if not VARIABLE.fullmatch(name):
            raise wrong(f"names {show(name)}, which no variable can be called", example)
        if not isinstance(text, str):
            raise wrong(
                f"sets {name} to {describe(text)}, but variables hold texts", f"write {name} = {show(str(text))}"
            )
        _line(text)
    return dict(value)


def _folder(value: str) -> str:
    if value and not value.startswith("/"):
        raise wrong(f"must be an absolute path, got {show(value)}", 'for example stage_to = "/tmp" or "/dev/shm"')
    return _line(value)


def _option(value: str) -> str:
    _line(value)
    if not OPTION.fullmatch(value):
        raise wrong(f"holds {show(value)}, which is no option", 'one option an entry, for example "--mem=0"')
    return value


def _sbatch_option(value: str) -> str:
    name = _option(value).lstrip("-").partition("=")[0]
    if name in OURS:
        instead = f"use {OURS[name]}" if OURS[name] else "remove it"
        raise wrong(f"sets --{name}, which hpcpipe submit sets itself", instead)
    if name == "wrap":
        raise wrong("sets --wrap, but the job has a script", "write shell lines into prologue")
    return value


def seconds_of(time: str) -> int | None:
    """Return a Slurm time limit in seconds; None if it is none."""
    match = TIME.fullmatch(time)
    if match is None:
        return None
    days, first, second, third = (int(match[name] or 0) for name in ("days", "first", "second", "third"))
    if match["days"] is not None:
        total = days * 86400 + first * 3600 + second * 60 + third
    elif match["third"] is not None:
        total = first * 3600 + second * 60 + third
    else:
        total = first * 60 + second
    return total or None


Line = Annotated[str, AfterValidator(_line)]
Nodes = Annotated[str | int, auto_or_count("nodes", 2)]
RanksPerNode = Annotated[str | int, auto_or_count("ranks_per_node", 4)]


class Slurm(Section):
    """`[slurm]`: what `hpcpipe submit` asks of Slurm, and what a job checks when it finds itself in one."""

    nodes: Nodes = Field(default="auto", description='nodes, or "auto": as many as the ranks fill', examples=[2])
    ranks_per_node: RanksPerNode = Field(
        default="auto", description='ranks of a node, or "auto": one a GPU, or all on the nodes given', examples=[4]
    )
    gpus_per_node: int = Field(default=0, ge=0, le=LARGEST, description="GPUs of a node, each for one rank")
    cpus_per_rank: Count = Field(default=1, description="cores of each rank")
    time: Annotated[str, AfterValidator(_time)] = Field(
        default="01:00:00", description="time limit as Slurm reads it", examples=["12:00:00"]
    )
    partition: Line = Field(default="", description="partition, or several by commas")
    account: Line = Field(default="", description="account that is charged")
    qos: Line = Field(default="", description="quality of service")
    constraint: Line = Field(default="", description="features that the nodes must have")
    mpi: Annotated[str, AfterValidator(_mpi)] = Field(
        default="", description='how srun serves MPI ("pmi2", "pmix", …), or "" for the site\'s default'
    )
    cpu_bind: Line = Field(default="", description='srun --cpu-bind, or "" for the site\'s default')
    gpu_bind: Line = Field(
        default="none", description="srun --gpu-bind; with none a rank takes the GPU of its local id"
    )
    signal: Annotated[str, AfterValidator(_signal)] = Field(
        default="USR2@300", description='signal to the ranks and how many seconds before the end, or ""'
    )
    requeue: bool = Field(default=True, description="whether the job goes back into the queue when it is stopped")
    max_restarts: int = Field(default=100, ge=0, le=LARGEST, description="how often it goes back at most")
    modules: list[Annotated[str, AfterValidator(_module)]] = Field(default=[], description="modules to load, in order")
    env: Annotated[dict[str, str], PlainValidator(_env)] = Field(default={}, description="variables to set")
    prologue: list[Line] = Field(default=[], description="your own shell lines, run on the first node before srun")
    broadcast: bool = Field(default=False, description="whether rank 0 reads the job file for all")
    stage_to: Annotated[str, AfterValidator(_folder)] = Field(
        default="",
        description="folder on each node's own disk or in its memory to copy the Python environment to",
        examples=["/tmp"],
    )
    extra: list[Annotated[str, AfterValidator(_sbatch_option)]] = Field(
        default=[], description="more options of sbatch, one an entry"
    )
    srun_extra: list[Annotated[str, AfterValidator(_option)]] = Field(
        default=[], description="more options of srun, one an entry"
    )

    def sizes(self, ranks: int) -> tuple[int, int]:
        """Return nodes and ranks of a node for so many ranks; their product differs where the table does not fit."""
        nodes, per_node = self.nodes, self.ranks_per_node
        if isinstance(per_node, str):
            per_node = self.gpus_per_node or (max(1, ranks // nodes) if isinstance(nodes, int) else ranks)
            per_node = min(per_node, ranks)
        if isinstance(nodes, str):
            nodes = max(1, ranks // per_node)
        return nodes, per_node

    @property
    def lead_s(self) -> int:
        """How many seconds before the end the signal comes; 0 without one."""
        match = SIGNAL.fullmatch(self.signal)
        return int(match["seconds"]) if match else 0
