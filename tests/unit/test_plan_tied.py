"""Buckets whose parameters other stages use too: reduced and gathered even where there is no replica."""

import pytest

from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task


def _run_to_the_update(*, split, replicated, tied):
    """Run a stage of its own and return the order of what follows the gradients, and the plan."""
    schedule = Schedule("bf", "ready", Placement(1), 2, (Limits(),), split=split)
    plan = schedule.stage_plan(0, buckets=3, replicated=replicated, tied=tied)
    plan.begin(0)
    order = []
    while (choice := plan.choose()) is not None:
        plan.start(choice.task)
        plan.finish(choice.task, 0)
        order.append(choice.task)
    assert plan.done
    return [task for task in order if task.kind not in (Kind.F, Kind.B, Kind.W)], order


@pytest.mark.parametrize("split", [False, True])
def test_only_a_tied_bucket_is_exchanged_without_replicas(split):
    after, order = _run_to_the_update(split=split, replicated=False, tied=[1])
    assert sorted(after) == sorted(
        [Task(Kind.RS, 1), Task(Kind.AG, 1), *(Task(Kind.UPDATE, bucket) for bucket in range(3))]
    )
    steps = [after.index(Task(kind, 1)) for kind in (Kind.RS, Kind.UPDATE, Kind.AG)]
    assert steps == sorted(steps)
    last = Kind.W if split else Kind.B
    assert max(order.index(Task(last, m)) for m in range(2)) < order.index(Task(Kind.RS, 1))


def test_with_replicas_a_tie_changes_nothing_for_the_plan():
    tied, _ = _run_to_the_update(split=False, replicated=True, tied=[1])
    assert tied == _run_to_the_update(split=False, replicated=True, tied=[])[0]
    assert len(tied) == 9
