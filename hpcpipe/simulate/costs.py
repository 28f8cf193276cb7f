"""What the stages of a job cost: times of tasks, bytes of activations and messages, and the assumptions behind them.

One place a source: an emulated device says its times, FLOPs and bytes give a model's, a log has recorded ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

from hpcpipe.job import Job
from hpcpipe.job.device import Emulated
from hpcpipe.job.drawn import NS_PER_MS, compute_model, delay_model
from hpcpipe.job.planned import schedule_of
from hpcpipe.job.precision import BYTES
from hpcpipe.plan import usual_bucket_bytes
from hpcpipe.plan.delays import Slowest
from hpcpipe.plan.variability import MicrobatchCost
from hpcpipe.simulate.admitted import AdmittedTimes, order_of_step
from hpcpipe.simulate.links import Link
from hpcpipe.simulate.run import LinkMessages, Messages
from hpcpipe.simulate.times import Times, UsualTimes


@dataclass(frozen=True, slots=True)
class Costs:
    """What a run of a job would meet. `activation_bytes` is what one micro-batch stashes on each whole stage.

    `gathers_early` is as in `simulate_step`.
    """

    times: Times
    messages: Messages
    activation_bytes: tuple[float, ...]
    buckets: tuple[int, ...]
    assumptions: tuple[str, ...]
    gathers_early: bool = False


def emulated_costs(job: Job) -> Costs:
    """Return the costs of a job on an emulated device, with the variability that the job injects."""
    device, stages = job.device, range(job.parallel.pipeline)
    assert isinstance(device, Emulated)
    vary = job.variability
    times = UsualTimes(
        forward=[device.of("forward_ms", stage) * NS_PER_MS for stage in stages],
        backward=[device.of("backward_ms", stage) * NS_PER_MS for stage in stages],
        weight=[device.of("weight_ms", stage) * NS_PER_MS for stage in stages],
        chunks=job.chunks,
        split=job.splits,
        compute=compute_model(vary),
        seed=vary.seed,
    )
    delay, slices = delay_model(vary), job.parallel.tensor
    if delay is not None and slices > 1:
        delay = Slowest(delay, slices)
    link = Link(delay=delay, num_bytes=device.most_bytes)
    return Costs(
        times=_admitted(job, times) if isinstance(times.compute, MicrobatchCost) else times,
        messages=LinkMessages(link, vary.seed),
        activation_bytes=_message_bytes(job),
        buckets=(0,) * len(stages),
        assumptions=(
            "times of the emulated device, a chunk takes its share of its stage's",
            "a micro-batch stashes the bytes of the stage's message on every stage",
            "messages take what [variability] network says and nothing else"
            + (", those of tensor slices the longest of theirs" if slices > 1 else ""),
        ),
    )


def _admitted(job: Job, times: UsualTimes) -> Times:
    """Return the times by place under the job's admission; of this model the cost of a micro-batch is known before."""
    rule, stages = job.schedule.admission, range(job.parallel.pipeline)
    if rule == "as-given":
        return times
    schedule = schedule_of(job, activation_bytes=_message_bytes(job))

    def order(step: int) -> tuple[int, ...]:
        return order_of_step(rule, schedule, times, step=step, stages=stages)

    return AdmittedTimes(times, order)


def _message_bytes(job: Job) -> tuple[float, ...]:
    assert isinstance(job.device, Emulated)
    return tuple(float(job.device.bytes_from(stage)) for stage in range(job.parallel.pipeline))


@dataclass(frozen=True, slots=True)
class Machine:
    """A rank's achieved speed and its links: 1e12 FLOP/s, 1e9 bit/s, µs, and 1e9 byte/s of device memory."""

    tflops: float = 100.0
    gbit: float = 100.0
    latency_us: float = 5.0
    memory_gb: float = 1000.0


@dataclass(frozen=True, slots=True)
class StageSize:
    """What a rank of a stage is: FLOPs of a micro-batch's forward, parameters, and bytes of the activations it stashes.

    `sums` is how often its forward sums an activation over tensor slices; its backward does as often.
    """

    flops: float
    parameters: int
    activation_bytes: float
    sums: int = 0


FLOPS_OF_BACKWARD = 2.0
"""A backward does twice the FLOPs of the forward, half of them for the weights (Narayanan et al., arXiv 2104.04473)."""

BYTES_OF_UPDATE = 28
"""AdamW reads value, gradient and moments and writes back all but the gradient, 4 bytes each; 16-bit values besides."""


def analytic_costs(
    job: Job, sizes: Sequence[StageSize], machine: Machine, *, boundary_bytes: int, bucket_bytes: int | None
) -> Costs:
    """Return the costs of a model from its FLOPs and bytes on a machine where nothing varies.

    `bucket_bytes` is None where the size of the largest stage decides.
    """
    per_flop = 1e9 / (machine.tflops * 1e12)
    replicas = job.parallel.data
    ns_per_byte = 8.0 / machine.gbit
    computed = [size.flops * per_flop for size in sizes]
    slices = job.parallel.tensor
    of_a_sum = 2 * ((slices - 1) / slices * boundary_bytes * ns_per_byte + machine.latency_us * 1e3)
    summed = [size.sums * of_a_sum for size in sizes]
    compute, reduce = BYTES[job.precision.compute], BYTES[job.precision.reduce]
    exchanged = (reduce + compute) / 2  # a value of a reduce-scatter or an all-gather, on average
    moved = [exchanged * size.parameters * (replicas - 1) / replicas for size in sizes]
    updated = BYTES_OF_UPDATE + (compute if compute < 4 else 0)
    most = 4 * max(size.parameters for size in sizes)
    count = max(1, round(most / (bucket_bytes or usual_bucket_bytes(most, replicas)) + 0.5))
    times = UsualTimes(
        forward=[a + b for a, b in zip(computed, summed, strict=True)],
        backward=[FLOPS_OF_BACKWARD * a + b for a, b in zip(computed, summed, strict=True)],
        weight=[FLOPS_OF_BACKWARD / 2 * time for time in computed],
        chunks=job.chunks,
        split=job.splits,
        update=[updated * size.parameters / replicas / machine.memory_gb for size in sizes],
        exchange=[bytes_ * ns_per_byte for bytes_ in moved],
        buckets=count,
        norm=machine.latency_us * 1e3 * ceil(log2(job.parallel.ranks)),
    )
    link = Link(latency_ns=machine.latency_us * 1e3, num_bytes=boundary_bytes, ns_per_byte=ns_per_byte)
    return Costs(
        times=times,
        messages=LinkMessages(link),
        activation_bytes=tuple(size.activation_bytes for size in sizes),
        buckets=(count,) * len(sizes),
        assumptions=(
            f"{machine.tflops:g} TFLOP/s a rank; a backward does twice the FLOPs of its forward, half for the weights",
            f"links of {machine.gbit:g} Gbit/s each way and {machine.latency_us:g} µs; nothing varies",
            f"the optimizer moves {updated} bytes a parameter at {machine.memory_gb:g} GB/s",
            "a transformer block stashes 17 values a token and width (arXiv 2205.05198, without attention scores)",
            *(
                ["a sum over tensor slices is a reduce-scatter and an all-gather on the same links"]
                if slices > 1
                else []
            ),
        ),
        gathers_early=job.gathers_early,
    )
