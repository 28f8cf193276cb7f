"""Learning-rate schedules: pure functions of the step, so that a resumed run continues exactly."""

from collections.abc import Callable
from functools import partial
from math import cos, pi

from hpcpipe.job import Job


def learning_rate(step: int, *, peak: float, schedule: str, warmup: int, steps: int) -> float:
    """Return the rate of a step counted from 0.

    Linear warm-up to `peak` over `warmup` steps, then `constant`, or `cosine`: half a cosine down to 0 at the last step
    (Loshchilov and Hutter, 2017, without restarts).
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * 0.5 * (1.0 + cos(pi * progress))


def rate_of(job: Job) -> Callable[[int], float]:
    """Return the learning rate of a job by step."""
    return partial(
        learning_rate,
        peak=job.optimizer.lr,
        schedule=job.optimizer.schedule,
        warmup=job.optimizer.warmup,
        steps=job.run.steps,
    )
