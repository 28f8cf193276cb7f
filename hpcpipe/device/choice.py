"""Which GPU each rank computes on: that of its place on the host, and nobody else's unless sharing is allowed.

It judges what the ranks have told each other and must not ask a GPU or MPI itself.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple


class Seat(NamedTuple):
    """A rank's host, and the GPUs that it sees there, each by what tells it from the others whatever its number."""

    host: str
    gpus: tuple[str, ...]


class Dealt(NamedTuple):
    """The number of each rank's GPU among those that it sees, None where none computes on one; or what is wrong."""

    numbers: tuple[int, ...] | None
    problem: str = ""


def deal(seats: Sequence[Seat], *, required: bool, share: bool, torch: str) -> Dealt:
    """Give every rank a GPU.

    Parameters
    ----------
    seats
        By rank.
    required
        Whether there must be one for each rank; else all compute on the CPU where a rank sees none.
    share
        Whether ranks may share one.
    torch
        The version of torch, which says what it was built for.
    """
    blind = [rank for rank, seat in enumerate(seats) if not seat.gpus]
    if blind and not required:
        return Dealt(None)
    if blind:
        who = f"rank {blind[0]} on {seats[blind[0]].host}"
        more = f" (nor on {len(blind) - 1} other ranks)" if len(blind) > 1 else ""
        return Dealt(
            None,
            f'[device] kind = "cuda", but torch {torch} sees no GPU on {who}{more}: ask for one a rank '
            "(#SBATCH --gpus-per-node=N, [slurm] gpus_per_node), look whether this torch was built for it "
            '(`hpcpipe doctor`), or set kind = "cpu"',
        )
    numbers: list[int] = []
    there: dict[str, int] = defaultdict(int)
    taken: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, seat in enumerate(seats):
        numbers.append(there[seat.host] % len(seat.gpus))
        there[seat.host] += 1
        taken[seat.host, seat.gpus[numbers[-1]]].append(rank)
    crowded = next(((where, ranks) for where, ranks in taken.items() if len(ranks) > 1), None)
    if crowded is None or share:
        return Dealt(tuple(numbers))
    (host, gpu), ranks = crowded
    seen = len({each for seat in seats if seat.host == host for each in seat.gpus})
    who = f"ranks {', '.join(map(str, ranks[:4]))}{' and others' if len(ranks) > 4 else ''}"
    return Dealt(
        None,
        f"{who} would all compute on GPU {gpu} of {host}, where {there[host]} ranks see {seen} "
        f"{'GPU' if seen == 1 else 'GPUs'}: start at most {seen} a node ([slurm] ranks_per_node, "
        f"--ntasks-per-node), or ask for {there[host]} GPUs a node with --gpu-bind=none; to let ranks share a GPU "
        'write share = true in [device], to do without kind = "cpu"',
    )
