"""How large the stages of a model are: FLOPs, parameters and stashed bytes, for predictions without a run.

It counts and gives nothing any memory.
"""

import torch

from hpcpipe.job import Job
from hpcpipe.job.schema import Gpt, Text
from hpcpipe.models import build, cut, recomputed
from hpcpipe.simulate.costs import Costs, Machine, StageSize, analytic_costs
from hpcpipe.train.layout import layers_of

VALUES_OF_A_BLOCK = 17
"""Values that a block's backward needs, a token and width: 34 bytes of 2 each (Korthikanti, arXiv 2205.05198)."""

BYTES = 4


def analytic_costs_of(job: Job, machine: Machine) -> Costs:
    """Return the costs of a job's model on a machine."""
    model, data, placement = job.model, job.data, job.placement
    assert isinstance(model, Gpt)
    assert isinstance(data, Text)
    layers = layers_of(model, data)
    pieces = cut(layers, placement.virtual_stages, job.parallel.split)
    tokens = job.batch.microbatch_size * data.seq_len
    sizes = []
    for stage in range(placement.stages):
        flops = stashed = 0.0
        parameters = 0
        for chunk in range(placement.chunks):
            piece = pieces[placement.virtual(stage, chunk)]
            with torch.device("meta"):
                modules = build(layers, piece, seed=0)
            parameters += sum(p.numel() for module in modules for p in module.parameters())
            flops += sum(2.0 * layers[i].cost * tokens for i in piece)
            again = recomputed(layers, piece, model.recompute)  # of each of these ranges the input stays
            kept = sum(layers[i].block for i in piece) - sum(map(len, again))
            others = sum(not layers[i].block for i in piece)
            stashed += BYTES * tokens * model.dim * (VALUES_OF_A_BLOCK * kept + len(again) + others)
            if piece.stop == len(layers):
                stashed += BYTES * tokens * model.vocab_size
        sizes.append(StageSize(flops, parameters, stashed))
    return analytic_costs(
        job, sizes, machine, boundary_bytes=BYTES * tokens * model.dim, bucket_bytes=job.comm.bucket_mb * 1e6
    )
