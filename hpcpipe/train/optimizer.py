"""torch's optimizers over one flat shard, from the `[optimizer]` table."""

from functools import cache
from inspect import unwrap
from typing import Any

import torch

from hpcpipe.job import Job


def make_optimizer(job: Job, parameter: torch.nn.Parameter, decay: bool) -> torch.optim.Optimizer:
    """Return the optimizer of one shard; `decay` says whether weight decay applies to it (not to norms and biases).

    Its state is there from the beginning, all zeros, so that what a rank keeps does not change after the first step.
    """
    settings = job.optimizer
    weight_decay = settings.weight_decay if decay else 0.0
    optimizer: torch.optim.Optimizer
    if settings.name == "sgd":
        rule = _plain(torch.optim.SGD)
        optimizer = rule([parameter], lr=settings.lr, momentum=settings.momentum, weight_decay=weight_decay)
        if settings.momentum:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    rule = _plain(torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam)
    optimizer = rule([parameter], lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=weight_decay)
    moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
    optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}
    return optimizer


@cache
def _plain(rule: type[torch.optim.Optimizer]) -> Any:
    """Return the rule without what torch.compile wraps its methods in: that imports the compiler, a second and a half.

    The functions inside are torch's own, so an update has the same bits.
    """
    methods = {"add_param_group": unwrap(rule.add_param_group), "step": torch.no_grad()(unwrap(rule.step))}
    return type(rule.__name__, (rule,), methods)
