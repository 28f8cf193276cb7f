"""How large the stages of a model are: FLOPs, parameters and stashed bytes, for predictions without a run.

It counts and gives nothing any memory.
"""

from dataclasses import replace

from hpcpipe.job import Job
from hpcpipe.job.planned import schedule_of
from hpcpipe.job.precision import BYTES
from hpcpipe.models import cut, outline, recomputed
from hpcpipe.simulate.costs import Costs, Machine, StageSize, analytic_costs
from hpcpipe.train.admission import varying_times
from hpcpipe.train.batches import tokens_of_a_microbatch
from hpcpipe.train.model import Model, boundary_bytes, model_of

SUMS_OF_A_BLOCK = 2
"""Over tensor slices, behind the attention and behind the MLP (arXiv 1909.08053)."""
WHOLE_OF_A_BLOCK = 10 / 34
"""The share of a block's stashed values that every tensor slice holds (Korthikanti, arXiv 2205.05198, table 2)."""


def stage_sizes(job: Job, model: Model) -> list[StageSize]:
    """Return what a rank of each stage of a job's model is."""
    placement, slices = job.placement, job.parallel.tensor
    layers, tokens = model.layers, tokens_of_a_microbatch(job)
    pieces = cut(layers, placement, job.parallel.split)
    sliced = WHOLE_OF_A_BLOCK + (1.0 - WHOLE_OF_A_BLOCK) / slices
    sizes = []
    for stage in range(placement.stages):
        flops = stashed = 0.0
        parameters = sums = 0
        for chunk in range(placement.chunks):
            piece = pieces[placement.virtual(stage, chunk)]
            parameters += sum(p.numel() for module in outline(layers, piece) for p in module.parameters())
            sums += SUMS_OF_A_BLOCK * sum(layers[i].block for i in piece) if slices > 1 else 0
            flops += sum(2.0 * layers[i].cost * tokens for i in piece)
            ranges = recomputed(layers, piece, model.recompute)
            again = {piece.start + position for each in ranges for position in each}
            kept = sum(layers[i].kept * (sliced if layers[i].block else 1.0) for i in piece if i not in again)
            stashed += (
                BYTES[job.precision.compute] * tokens * (kept + model.width * len(ranges))
            )  # of each range the input stays
        sizes.append(StageSize(flops / slices, parameters // slices, stashed, sums))
    return sizes


def analytic_costs_of(job: Job, machine: Machine) -> Costs:
    """Return the costs of a job's model on a machine."""
    model, placement = model_of(job), job.placement
    sizes = stage_sizes(job, model)
    costs = analytic_costs(
        job, sizes, machine, boundary_bytes=boundary_bytes(job, model), bucket_bytes=job.comm.bucket_bytes
    )
    if model.costs is None:
        return costs
    pieces = cut(model.layers, placement, job.parallel.split)
    times = varying_times(
        costs.times,
        job,
        model,
        schedule=schedule_of(job, activation_bytes=costs.activation_bytes),
        pieces=[[pieces[placement.virtual(s, c)] for c in range(placement.chunks)] for s in range(placement.stages)],
        flops_per_s=machine.tflops * 1e12,
    )
    known = "micro-batches take as long as the sizes of their images and texts say; messages and memory are of the mean"
    return replace(costs, times=times, assumptions=(*costs.assumptions, known))
