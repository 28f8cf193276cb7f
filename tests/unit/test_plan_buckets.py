"""Reduce-scatters beside the remaining backward, all-gathers beside the next step's forwards."""

import pytest
from virtual_pipeline import VirtualPipeline

from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task, TimeClass
from hpcpipe.plan.spread import spread_buckets
from hpcpipe.simulate.links import Link
from hpcpipe.simulate.run import LinkMessages, Scenario, simulate_run
from hpcpipe.simulate.times import UsualTimes


@pytest.mark.parametrize(
    ("count", "chunks", "wanted"),
    [
        (0, 2, []),
        (1, 1, [[0]]),
        (3, 1, [[0], [0], [0]]),
        (2, 2, [[1], [0]]),
        (4, 2, [[1], [1], [0], [0]]),
        (2, 4, [[2, 3], [0, 1]]),
        (2, 3, [[1, 2], [0, 1]]),  # both hold a part of the middle one
        (3, 2, [[1], [0, 1], [0]]),
    ],
)
def test_buckets_of_like_size_hold_the_last_chunks_first(count, chunks, wanted):
    assert [list(each) for each in spread_buckets(count, chunks)] == wanted


def plan(dispatch="ready", hint="interleaved", *, microbatches=2, buckets=2, gathering=(), replicated=True):
    """Return the plan of the only stage, with two chunks."""
    schedule = Schedule(hint, dispatch, Placement(1, 2), microbatches, (Limits(),))
    return schedule.stage_plan(0, buckets=buckets, replicated=replicated, gathering=gathering)


def run(each, *, finishing=lambda _task: True):
    """Dispatch until nothing can run; tasks end at once unless `finishing` says no."""
    order = []
    while (choice := each.choose()) is not None:
        each.start(choice.task)
        order.append(choice.task)
        if finishing(choice.task):
            each.finish(choice.task, 0)
    return order


@pytest.mark.parametrize("dispatch", ["ready", "fixed"])
def test_the_last_chunk_is_reduced_while_the_first_one_has_backwards_left(dispatch):
    each = plan(dispatch)
    each.begin(0)
    order = run(each, finishing=lambda task: task.kind is not Kind.RS)
    last = max(i for i, task in enumerate(order) if task.kind is Kind.B and task.chunk == 1)
    assert order[last + 1] == Task(Kind.RS, 0)
    assert any(task == Task(Kind.B, m, 0) for task in order[last + 2 :] for m in range(2))


def test_a_step_is_done_when_its_all_gathers_are_under_way():
    each = plan()
    each.begin(0)
    order = run(each, finishing=lambda task: task.kind is not Kind.AG)
    assert {task for task in order if task.kind is Kind.AG} == {Task(Kind.AG, 0), Task(Kind.AG, 1)}
    assert each.done


@pytest.mark.parametrize("dispatch", ["ready", "fixed"])
def test_an_eager_update_goes_before_the_backwards_that_are_left_and_the_others_after_them(dispatch):
    """What comes beside it starts before it, because starting that takes no time."""
    schedule = Schedule("interleaved", dispatch, Placement(1, 4), 1, (Limits(),))
    each = schedule.stage_plan(0, buckets=4, replicated=True, eager=[1])
    each.begin(0)
    order = run(each)
    updates = [Task(Kind.UPDATE, bucket) for bucket in range(4)]
    last = order.index(Task(Kind.B, 0, 0))
    assert [order.index(update) < last for update in updates] == [False, True, False, False]
    eager = order.index(updates[1])
    assert order[eager - 1] == Task(Kind.RS, 1) and order[eager + 1] == Task(Kind.AG, 1)
    assert each.done


def test_a_recorded_order_is_run_as_it_is_whatever_is_eager():
    schedule = Schedule("interleaved", "ready", Placement(1, 4), 1, (Limits(),))
    recorded = schedule.stage_plan(0, buckets=4, replicated=True)
    recorded.begin(0)
    order = run(recorded)
    again = schedule.stage_plan(0, buckets=4, replicated=True, eager=[0, 1], recorded=order)
    again.begin(0)
    assert run(again) == order


@pytest.mark.parametrize("dispatch", ["ready", "fixed"])
def test_forwards_of_a_chunk_wait_for_its_parameters_and_the_others_do_not(dispatch):
    each = plan(dispatch, gathering=[0])  # the bucket of chunk 1
    each.begin(0)
    assert all(task.chunk == 0 and task.kind is Kind.F for task in run(each))
    assert dispatch == "fixed" or each.idle() is TimeClass.EXPOSED_COMM
    each.gathered(0, 5)
    run(each)
    assert each.done


def test_a_forward_that_needs_two_buckets_waits_for_both():
    each = plan(microbatches=1, buckets=4, gathering=[2, 3])
    each.begin(0)
    assert each.choose() is None
    each.gathered(3, 1)
    assert each.choose() is None
    each.gathered(2, 2)
    assert each.choose().task == Task(Kind.F, 0)


def test_what_a_message_brings_early_is_held_too():
    schedule = Schedule("1f1b", "ready", Placement(2), 2, (Limits(), Limits()))
    each = schedule.stage_plan(1, buckets=1, replicated=True, gathering=[0])
    each.begin(0)
    assert each.idle() is TimeClass.WARMUP
    each.deliver(Task(Kind.F, 0), 3)
    assert each.choose() is None
    assert each.idle() is TimeClass.EXPOSED_COMM
    each.gathered(0, 7)
    assert each.start(each.choose().task) == 7, "it could run from then on"


def test_a_fixed_order_updates_in_its_waits_and_lists_no_bucket():
    late = {(1, Task(Kind.B, 0, 0)): 100}
    schedule = Schedule("interleaved", "fixed", Placement(2, 2), 2, (Limits(), Limits()))
    pipeline = VirtualPipeline.of(schedule, latency=lambda stage, task: late.get((stage, task), 0), buckets=2).run()
    order = pipeline.order[0]
    assert order.index(Task(Kind.UPDATE, 0)) < max(i for i, task in enumerate(order) if task.kind is Kind.B)


FORWARD, BACKWARD = 100, 200


def windows(exchange, *, chunks=1, buckets=1, stages=1):
    """Return the length of a step well within a run; one micro-batch, `exchange` ns for RS or AG of all buckets."""
    times = UsualTimes(
        [FORWARD] * stages,
        [BACKWARD] * stages,
        [0] * stages,
        chunks=chunks,
        exchange=[exchange] * stages,
        buckets=buckets,
    )
    schedule = Schedule(
        "interleaved" if chunks > 1 else "1f1b", "ready", Placement(stages, chunks), 1, (Limits(),) * stages
    )
    scenario = Scenario(schedule, times, LinkMessages(Link()), [buckets] * stages, replicated=True)
    return simulate_run(scenario, range(6)).window_ns[3]


def test_one_chunk_hides_nothing():
    assert windows(exchange=70) == FORWARD + BACKWARD + 2 * 70


def test_many_chunks_hide_the_reduce_scatter_in_the_backward_and_the_all_gather_in_the_forward():
    """DeAR: of each only one part, that of the first chunk, is exposed where the exchange fits beside the work."""
    chunks, exchange = 10, 70
    assert windows(exchange, chunks=chunks, buckets=chunks) == FORWARD + BACKWARD + 2 * exchange // chunks
