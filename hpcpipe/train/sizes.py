"""How large the stages of a model are: FLOPs, parameters and stashed bytes, for predictions without a run.

It counts and gives nothing any memory.
"""

from hpcpipe.job import Job
from hpcpipe.job.precision import BYTES
from hpcpipe.models import cut, outline, recomputed
from hpcpipe.simulate.costs import Costs, Machine, StageSize, analytic_costs
from hpcpipe.train.batches import tokens_of_a_microbatch
from hpcpipe.train.model import boundary_bytes, model_of


def analytic_costs_of(job: Job, machine: Machine) -> Costs:
    """Return the costs of a job's model on a machine."""
    model, placement = model_of(job), job.placement
    layers, tokens = model.layers, tokens_of_a_microbatch(job)
    pieces = cut(layers, placement.virtual_stages, job.parallel.split)
    sizes = []
    for stage in range(placement.stages):
        flops = stashed = 0.0
        parameters = 0
        for chunk in range(placement.chunks):
            piece = pieces[placement.virtual(stage, chunk)]
            parameters += sum(p.numel() for module in outline(layers, piece) for p in module.parameters())
            flops += sum(2.0 * layers[i].cost * tokens for i in piece)
            ranges = recomputed(layers, piece, model.recompute)
            again = {piece.start + position for each in ranges for position in each}
            kept = sum(layers[i].kept for i in piece if i not in again)
            stashed += (
                BYTES[job.precision.compute] * tokens * (kept + model.width * len(ranges))
            )  # of each range the input stays
        sizes.append(StageSize(flops, parameters, stashed))
    return analytic_costs(
        job, sizes, machine, boundary_bytes=boundary_bytes(job, model), bucket_bytes=job.comm.bucket_mb * 1e6
    )
