"""The slots of a stage hold whatever may have been sent to it and not been freed, and for 1F1B no more than that."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task
from hpcpipe.plan.caps import limits_for
from hpcpipe.plan.hints import FAMILIES, SPLIT, placement_of
from hpcpipe.plan.slots import Source, sources
from hpcpipe.plan.variability import Lognormal
from hpcpipe.simulate import Link, Network, simulate_step


def _schedule(hint, dispatch, stages, microbatches, *, stash=None, ordered=True, chunks=2):
    family = FAMILIES.get(hint)
    placement = (
        Placement(stages) if family is None else placement_of(hint, stages=stages, chunks=family.chunks or chunks)
    )
    k = 2 if family is not None and family.takes_k else None
    limits = (Limits(),) * stages
    if dispatch == "ready":
        limits = limits_for(
            placement, hint=hint, microbatches=microbatches, split=hint in SPLIT, in_flight="1.5x", stash=stash, k=k
        )
    return Schedule(hint, dispatch, placement, microbatches, limits, hint in SPLIT, ordered, k)


def _most_waiting(step, schedule):
    """Return by stage, kind and chunk the most messages that were sent and whose micro-batch was not yet freed."""
    freeing = Kind.W if schedule.split else Kind.B
    freed = {
        (stage, row.task): row.end
        for stage, rows in enumerate(step.rows)
        for row in rows
        if row.task is not None and row.task.kind is freeing
    }
    changes = defaultdict(list)
    for message in step.messages:
        task = message.task
        until = freed[message.target, task._replace(kind=freeing)]
        changes[message.target, task.kind, task.chunk] += [(message.sent, 1), (until, -1)]
    most = {}
    for key, times in changes.items():
        count = most[key] = 0
        for _, change in sorted(times):  # what is freed at an instant makes room before something is sent
            count += change
            most[key] = max(most[key], count)
    return most


@settings(max_examples=150)
@given(
    hint=st.sampled_from(["gpipe", "1f1b", "kfkb", "interleaved", "zb-h1", "zb-h2", "zbv", "bf", "bfw"]),
    fixed=st.booleans(),
    stages=st.integers(2, 5),
    microbatches=st.integers(1, 12),
    stash=st.sampled_from([None, 2, 5]),
    ordered=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_no_message_ever_waits_for_a_slot(hint, fixed, stages, microbatches, stash, ordered, seed):
    dispatch = "fixed" if fixed and hint in FAMILIES else "ready"
    schedule = _schedule(hint, dispatch, stages, microbatches, stash=stash if hint in SPLIT else None, ordered=ordered)
    model, network = Lognormal(1.0), Network(Link(300.0, 1.5), seed)

    def duration(stage, task):
        return 1 + round(model.vary(1000.0, seed=seed, step=0, stage=stage, task=task))

    step = simulate_step(schedule, duration=duration, arrival=network.arrival)
    slots = {
        (stage, source.feeds, source.chunk): source.slots
        for stage in range(stages)
        for source in sources(schedule, stage)
    }
    for key, most in _most_waiting(step, schedule).items():
        assert most <= slots[key] <= microbatches


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_1f1b_has_the_slots_of_its_neighbours_warm_up_and_of_its_own(stages):
    schedule = _schedule("1f1b", "fixed", stages, 4 * stages)
    for stage in range(stages):
        expected = [Source(Kind.F, 0, stage - 1, stages - stage + 1)] if stage else []
        expected += [Source(Kind.B, 0, stage + 1, stages - stage)] if stage < stages - 1 else []
        assert sources(schedule, stage) == tuple(expected)


def test_every_message_of_every_placement_has_a_source_and_hand_overs_have_none():
    for stages in range(1, 6):
        for hint, chunks in (("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zbv", 2)):
            schedule = _schedule(hint, "fixed", stages, 6, chunks=chunks)
            placement = schedule.placement
            found = {(stage, s.feeds, s.chunk): s.stage for stage in range(stages) for s in sources(schedule, stage)}
            expected = {}
            for stage in range(stages):
                plan = schedule.stage_plan(stage)
                for chunk in range(placement.chunks):
                    for kind in (Kind.F, Kind.B):
                        follower = plan.follower(Task(kind, 0, chunk))
                        if follower is not None and follower[0] != stage:
                            expected[follower[0], kind, follower[1].chunk] = stage
            assert found == expected
