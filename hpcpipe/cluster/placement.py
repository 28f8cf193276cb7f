"""Do the ranks of a launcher fit the job: as many, one world, a GPU for each? If not, which line to change.

It judges what ranks say about themselves and must not know how they were asked.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hpcpipe.cluster.environment import World
from hpcpipe.job import Job

ADVICE_PMI = (
    "let the launcher and MPI speak the same interface: `srun --mpi=pmi2` for MPICH and Intel MPI, `srun --mpi=pmix` "
    "for Open MPI, the site's default for Cray; `srun --mpi=list` shows what there is"
)


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a rank sits; `visible` are the GPUs that it may use, `whole` those of its step as Slurm numbers them.

    Both are None where no variable tells. `on_node` is how many GPUs the job has on the node, 0 where nobody tells.
    """

    rank: int
    node: str
    local_rank: int
    visible: tuple[str, ...] | None = None
    whole: tuple[str, ...] | None = None
    on_node: int = 0


def judge_interface(served: str | None, library: str) -> str | None:
    """Return what is wrong where srun serves what the MPI library was not built for, as far as that is known for sure.

    Parameters
    ----------
    served
        The `--mpi=` of srun.
    library
        What the library says of itself: MPICH tells how it was configured.
    """
    configured = next((line for line in library.splitlines() if line.startswith("MPICH configure:")), None)
    if served is None or not served.startswith("pmix") or configured is None or "pmi" in configured:
        return None
    name = " ".join(library.splitlines()[0].split())
    return (
        f"srun serves {served} to its ranks, but {name} was built without PMIx and "
        'would end them; write `--mpi=pmi2` on the srun line ([slurm] mpi = "pmi2", or MPI=pmi2 for the scripts)'
    )


def judge_world(job: Job, given: World, *, size: int) -> str | None:
    """Return what is wrong with the number of ranks, or None.

    Parameters
    ----------
    given
        What the launcher says in this process's environment.
    size
        How many ranks MPI sees.
    """
    if size == 1 and given.size > 1:
        return f"{given.launcher} started {given.size} tasks, but each is a world of its own, rank 0 of 1; {ADVICE_PMI}"
    if size == job.parallel.ranks:
        return None
    wanted = job.parallel
    sources = [f"MPI sees {size}"] if given.size != size else []
    sources += [f"SLURM_STEP_NUM_TASKS = {given.size}"] if given.launcher == "slurm" else []
    nodes, per_node = job.slurm.sizes(wanted.ranks)
    change = (
        f"write `#SBATCH --nodes={nodes}` and `#SBATCH --ntasks-per-node={per_node}`, and no other -n on the srun line"
        if given.launcher == "slurm"
        else f"start {wanted.ranks} ranks"
    )
    return (
        f"{size} ranks were started, but [parallel] asks for {wanted.ranks} = pipeline {wanted.pipeline} * "
        f"data {wanted.data} * tensor {wanted.tensor}"
        + (f" ({', '.join(sources)})" if sources else "")
        + f"; {change}, or change [parallel]"
    )


def judge_gpus(seats: Sequence[Seat], *, gpus_per_node: int) -> str | None:
    """Return what is wrong with the GPUs of a job that wants `gpus_per_node`, or None."""
    nodes: dict[str, list[Seat]] = defaultdict(list)
    for seat in seats:
        nodes[seat.node].append(seat)
    return next((found for node, there in nodes.items() if (found := _judge_node(node, there, gpus_per_node))), None)


def gpu_of(seat: Seat) -> str | None:
    """Return the GPU that a rank takes: the only one that it sees, else the one of its local id; None if unknown."""
    if not seat.visible:
        return None
    if len(seat.visible) > 1:
        return seat.visible[seat.local_rank % len(seat.visible)]
    if seat.whole is None or len(seat.whole) == 1:
        return (seat.whole or seat.visible)[0]
    return None  # a container of devices renumbers what is in it: everybody's GPU is then called 0


def _judge_node(node: str, seats: Sequence[Seat], gpus_per_node: int) -> str | None:
    blind = [seat for seat in seats if not seat.visible]
    ask = f"`#SBATCH --gpus-per-node={gpus_per_node}`"
    if blind:
        return (
            f"[slurm] gpus_per_node = {gpus_per_node}, but rank {blind[0].rank} on {node} was given no GPU; write "
            f"{ask} (or --gres=gpu:N, where the site wants that) and pass nothing that takes it back on the srun line"
        )
    seen = {gpu for seat in seats for gpu in seat.visible or ()}
    there = max(len(seen), *(seat.on_node for seat in seats))
    if len(seats) > there and all(gpu_of(seat) is not None for seat in seats):
        return (
            f"{len(seats)} ranks on {node} share {there} {'GPU' if there == 1 else 'GPUs'} ({','.join(sorted(seen))}), "
            f"but each needs its own; write {ask}, or start at most {there} a node (ranks_per_node, --ntasks-per-node)"
        )
    taken: dict[str, Seat] = {}
    for seat in seats:
        gpu = gpu_of(seat)
        if gpu is None:
            continue
        if gpu in taken:
            return (
                f"ranks {taken[gpu].rank} and {seat.rank} on {node} would both compute on GPU {gpu}; write "
                "`--gpu-bind=none` on the srun line, so that each rank takes the GPU of its local id, or bind each to "
                "its own with `--gpus-per-task=1`"
            )
        taken[gpu] = seat
    return None
