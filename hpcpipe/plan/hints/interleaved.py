"""Interleaved 1F1B: v chunks a stage, dealt round the stages, so that the bubble is v times shorter.

Megatron's order (Narayanan et al., arXiv 2104.04473, section 2.2), at v times the messages and a longer warm-up.
"""

from hpcpipe.plan.task import Kind, Task


def interleaved(*, stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """Return the stage's order: 2(S - 1 - s) + (v - 1)S warm-up forwards, then F and B in turn, then backwards.

    Forwards take S micro-batches through chunk 0, then through chunk 1 and so on, before the next S; backwards do the
    same from the last chunk down. Where S does not divide M, the last group is filled up with micro-batches that do
    not exist and these are left out of the finished order: shortening the group before pairing forwards with backwards
    lets stages wait for each other in a circle (S = 4, M = 5, v = 2), leaving tasks out of an executable order cannot.

    With t = F + B of a whole stage and S dividing M, a step takes (M + (S - 1)/v)t.
    """
    forwards, backwards = [], []
    for begin in range(0, microbatches, stages):
        group = range(begin, begin + stages)
        forwards += [Task(Kind.F, m, chunk) for chunk in range(chunks) for m in group]
        backwards += [Task(Kind.B, m, chunk) for chunk in reversed(range(chunks)) for m in group]
    warmup = min(len(forwards), 2 * (stages - 1 - stage) + (chunks - 1) * stages)
    order = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        order += [forward, backward]
    order += backwards[len(forwards) - warmup :]
    return tuple(task for task in order if task.microbatch < microbatches)
