"""The norm between the last reduce-scatter and the first update, and buckets that go through their phases together."""

import pytest

from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task

BUCKETS = 3


def _after_gradients(*, replicated, tied=(), buckets=BUCKETS, **more):
    """Run a stage of its own and return the order of what follows the gradients."""
    schedule = Schedule("bf", "ready", Placement(1), 2, (Limits(),), split=True)
    plan = schedule.stage_plan(0, buckets=buckets, replicated=replicated, tied=tied, **more)
    plan.begin(0)
    order = []
    while (choice := plan.choose()) is not None:
        plan.start(choice.task)
        plan.finish(choice.task, 0)
        order.append(choice.task)
    assert plan.done
    assert len(order) == len(set(order))
    return [task for task in order if task.kind not in (Kind.F, Kind.B, Kind.W)]


@pytest.mark.parametrize("phased", [False, True])
@pytest.mark.parametrize(("replicated", "tied"), [(True, ()), (False, (1,)), (False, ())])
def test_the_norm_comes_after_every_sum_and_before_every_update(replicated, tied, phased):
    order = _after_gradients(replicated=replicated, tied=tied, norm=True, phased=phased)
    norm = order.index(Task(Kind.NORM, 0))
    sums = [order.index(task) for task in order if task.kind is Kind.RS]
    updates = [order.index(Task(Kind.UPDATE, bucket)) for bucket in range(BUCKETS)]
    assert max(sums, default=-1) < norm < min(updates)
    assert len(sums) == (BUCKETS if replicated else len(tied))


def test_a_stage_without_parameters_comes_to_the_norm_too():
    assert _after_gradients(replicated=True, buckets=0, norm=True) == [Task(Kind.NORM, 0)]
    assert _after_gradients(replicated=True, buckets=0) == []


@pytest.mark.parametrize("norm", [False, True])
def test_in_phases_all_buckets_are_reduced_then_updated_then_gathered(norm):
    order = _after_gradients(replicated=True, norm=norm, phased=True)
    each = list(range(BUCKETS))
    assert [task.microbatch for task in order if task.kind is not Kind.NORM] == each + 2 * each[::-1]
    kinds = [Kind.RS] * BUCKETS + [Kind.NORM] * norm + [Kind.UPDATE] * BUCKETS + [Kind.AG] * BUCKETS
    assert [task.kind for task in order] == kinds


def test_in_phases_nothing_is_reduced_before_the_last_chunk_and_the_step_ends_after_the_last_all_gather():
    schedule = Schedule("bf", "ready", Placement(1, 2), 1, (Limits(),))
    ends = {}
    for phased in (False, True):
        plan = schedule.stage_plan(0, buckets=[{1}, {0}], replicated=True, phased=phased)
        plan.begin(0)
        order = []
        while not plan.done:
            choice = plan.choose()
            plan.start(choice.task)
            order.append(choice.task)
            if plan.done:
                break
            plan.finish(choice.task, 0)
        first = order.index(Task(Kind.RS, 0))
        ends[phased] = first > order.index(Task(Kind.B, 0, 0)), plan.done
        if phased:
            assert order[-1].kind is Kind.AG
            assert [task.kind for task in order[-6:]] == [k for k in (Kind.RS, Kind.UPDATE, Kind.AG) for _ in range(2)]
    assert ends == {False: (False, True), True: (True, True)}


def test_without_phases_a_bucket_is_updated_as_soon_as_it_is_reduced():
    schedule = Schedule("bf", "ready", Placement(1), 1, (Limits(),), split=True)
    plan = schedule.stage_plan(0, buckets=2, replicated=True)
    plan.begin(0)
    for task in (Task(Kind.F, 0), Task(Kind.B, 0), Task(Kind.W, 0), Task(Kind.RS, 0), Task(Kind.RS, 1)):
        plan.start(task)
        if task != Task(Kind.RS, 0):
            plan.finish(task, 0)
    assert plan.ready == [Task(Kind.UPDATE, 1)]
