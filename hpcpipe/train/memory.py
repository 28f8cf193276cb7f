"""What a rank of each stage holds, by its parts, for the choice of a grouping under a memory limit.

Counted from the model's layers and the job's settings; nothing gets memory. An emulated device needs no torch here.
"""

from hpcpipe.job import Job
from hpcpipe.job.device import Emulated
from hpcpipe.job.precision import BYTES
from hpcpipe.tune import StageMemory, emulated_memory

FP32 = BYTES["fp32"]


def stage_memory(job: Job) -> tuple[StageMemory, ...]:
    """Return the parts of what a rank of each stage holds; activations as `hpcpipe simulate` reckons them."""
    if isinstance(job.device, Emulated):
        return emulated_memory(job)
    from hpcpipe.train.model import boundary_bytes, model_of
    from hpcpipe.train.sizes import stage_sizes

    model, size, stages = model_of(job), job.batch.microbatch_size, job.parallel.pipeline
    message = boundary_bytes(job, model) / size
    each = bytes_of_a_parameter(job)
    return tuple(
        StageMemory(
            fixed=each * stage_size.parameters,
            activation=stage_size.activation_bytes / size,
            messages=message * _buffers(stage, stages),
        )
        for stage, stage_size in enumerate(stage_sizes(job, model))
    )


def bytes_of_a_parameter(job: Job) -> float:
    """Return the bytes of a parameter: its value, its gradient in fp32, and this rank's shard of all updates need."""
    compute, reduce, replicas = BYTES[job.precision.compute], BYTES[job.precision.reduce], job.parallel.data
    moments = 2 if job.optimizer.name in ("adamw", "adam") else int(job.optimizer.momentum > 0)
    master = FP32 if compute != FP32 else 0
    wire = reduce if reduce != FP32 and replicas > 1 else 0
    return compute + FP32 + wire + (moments * FP32 + master) / replicas


def _buffers(stage: int, stages: int) -> float:
    """Return the buffers of a micro-batch in flight: a slot for its activation and one for its gradient.

    Activations come from the stage before, which may have more in flight, k(S - s + 1) (plan/slots.py).
    """
    activation = 0.0 if stage == 0 else (stages - stage + 1) / (stages - stage)
    return activation + (stage < stages - 1)
