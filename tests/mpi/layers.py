"""Help for tests that compare trained layers, whatever the layout that they were trained in."""

import random
import time

from hpcpipe.train import Layout


def disturb(seed, *, share=0.2, longest_s=0.005):
    """Return what delays a share of the tasks at random, differently on every rank."""
    from mpi4py import MPI

    def before_step(step, rank):
        if step > 0:
            return
        start, draws = rank.stage.start, random.Random(f"{seed}/{MPI.COMM_WORLD.rank}")

        def slow(*arguments):
            if draws.random() < share:
                time.sleep(draws.random() * longest_s)
            return start(*arguments)

        rank.stage.start = slow

    return before_step


def by_layer(comm, result, job):
    """Return the parameters of all layers on rank 0, by name, whatever the layout; None elsewhere."""
    named = {}
    if result is not None:
        layout = Layout.of(job)
        names = [layout.layers[i].name for piece in layout.pieces[comm.rank // job.parallel.data] for i in piece]
        for name, module in zip(names, result[2].modules, strict=True):
            named |= {f"{name}.{inner}": value.detach().clone() for inner, value in module.named_parameters()}
    gathered = comm.gather(named)
    return {name: value for each in gathered for name, value in each.items()} if comm.rank == 0 else None
