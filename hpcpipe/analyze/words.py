"""What the accounting classes are called and what they mean, for people."""

from hpcpipe.plan import TimeClass

NAME = {each: each.name.lower().replace("_", " ") for each in TimeClass}

SHORT = {
    **NAME,
    TimeClass.RECOMPUTE: "recomp",
    TimeClass.DEPENDENCY: "depend",
    TimeClass.TRANSFER: "transf",
    TimeClass.AGREEMENT: "agree",
    TimeClass.EXPOSED_COMM: "comm",
    TimeClass.CHECKPOINT: "save",
}
"""Headings of narrow columns."""

MEANING = {
    TimeClass.NONE: "no class",
    TimeClass.FORWARD: "forward passes",
    TimeClass.BACKWARD: "backward passes",
    TimeClass.WEIGHT: "weight gradients",
    TimeClass.UPDATE: "optimizer",
    TimeClass.RECOMPUTE: "activations computed again",
    TimeClass.WARMUP: "the step's first work had not reached the stage yet",
    TimeClass.DRAIN: "the stage had ended the step, others had not",
    TimeClass.DEPENDENCY: "nothing was ready, a neighbour had not produced it yet",
    TimeClass.TRANSFER: "nothing was ready, it was produced but still on its way",
    TimeClass.ORDER: "work was ready, the fixed order forbade it",
    TimeClass.CAP: "forwards were ready, the in-flight cap forbade them",
    TimeClass.AGREEMENT: "tensor-parallel peers had nothing ready in common",
    TimeClass.EXPOSED_COMM: "gradients, their norm or parameters were still being reduced or gathered",
    TimeClass.DATA: "loading the batch",
    TimeClass.CHECKPOINT: "saving",
    TimeClass.RUNTIME: "hpcpipe itself: polling, choosing, copying, logging",
}
