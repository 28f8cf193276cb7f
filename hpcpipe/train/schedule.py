"""Learning-rate schedules: pure functions of the step, so that a resumed run continues exactly."""

from collections.abc import Callable
from functools import partial
from math import cos, pi

from hpcpipe.job import Job


def learning_rate(step: int, *, peak: float, schedule: str, warmup: int, steps: int, least: float = 0.0) -> float:
    """Return the rate of a step counted from 0.

    Linear warm-up to `peak` over `warmup` steps, then `constant`; or down to `least`, which a step after the last would
    have: `linear`, or `cosine`, half of one (Loshchilov and Hutter, arXiv 1608.03983, without restarts).
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    progress = (step - warmup) / max(1, steps - warmup)
    left = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + cos(pi * progress))
    return least + (peak - least) * left


def rate_of(job: Job) -> Callable[[int], float]:
    """Return the learning rate of a job by step."""
    return partial(
        learning_rate,
        peak=job.optimizer.lr,
        schedule=job.optimizer.schedule,
        warmup=job.optimizer.warmup,
        steps=job.run.steps,
        least=job.optimizer.min_lr,
    )
