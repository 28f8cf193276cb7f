"""torch's optimizers over one flat shard, from the `[optimizer]` table."""

import torch

from hpcpipe.job import Job


def make_optimizer(job: Job, parameter: torch.nn.Parameter, decay: bool) -> torch.optim.Optimizer:
    """Return the optimizer of one shard; `decay` says whether weight decay applies to it (not to norms and biases)."""
    settings = job.optimizer
    weight_decay = settings.weight_decay if decay else 0.0
    if settings.name == "sgd":
        return torch.optim.SGD([parameter], lr=settings.lr, momentum=settings.momentum, weight_decay=weight_decay)
    return torch.optim.AdamW(
        [parameter], lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=weight_decay
    )
