"""One rank of a run whose grouping changes in every step, and which dies while it changes its channels for the last.

`regroup_rank.py JOB.toml RUN_DIRECTORY RANK STEP WHEN`: which rank dies, in which step, and where it says so.
"""

import os
import signal
import sys
from pathlib import Path

from hpcpipe.job import load_job
from hpcpipe.runtime import World
from hpcpipe.runtime.channel import ReceiveChannel
from hpcpipe.train import Origin, train
from hpcpipe.tune import Grouping

GROUPINGS = (Grouping(1, 1), Grouping(3, 2), Grouping(2, 3), Grouping(12, 1))


def main(job_file, directory, rank, step, when):
    from mpi4py import MPI

    make = ReceiveChannel._make
    now = [-1]

    def dying(channel, slot):
        """Make the slot, unless it is the second one that is made in the fatal step."""
        now.append(now[-1])
        if now[-1] == int(step) and now.count(now[-1]) > 2 and MPI.COMM_WORLD.rank == int(rank):
            Path(when).write_text("dies")
            os.kill(os.getpid(), signal.SIGKILL)
        make(channel, slot)

    ReceiveChannel._make = dying

    def change(step, rank):
        now[:] = [step]
        rank.groupings.change(step + 1, GROUPINGS[step % len(GROUPINGS)])

    world = World(MPI.COMM_WORLD)
    train(load_job(Path(job_file)), world=world, run_directory=Path(directory), origin=Origin(), before_step=change)


if __name__ == "__main__":
    main(*sys.argv[1:])
