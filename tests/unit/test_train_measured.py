"""The schedule that follows measured times: what is measured, what is shared, and that all stages agree."""

from types import SimpleNamespace

import pytest

from hpcpipe.job.tune import Tune
from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task
from hpcpipe.runtime import Place, StepTimes
from hpcpipe.train.measured import ConstantSchedule, MeasuredSchedule
from hpcpipe.train.sources import schedule_source

STAGES = 2
TIMES = StepTimes(0, 1)


class Events:
    def __init__(self):
        self.kept = []

    def event(self, *arguments, **more):
        self.kept.append((*arguments, *more.values()))


def _schedule(hint="critical", chunks=1):
    limits = (Limits(),) * STAGES
    return Schedule(hint, "ready", Placement(STAGES, chunks, "v" if chunks > 1 else "round-robin"), 4, limits, True)


def _source(schedule, place, clock_shifts, events=None):
    return schedule_source(
        SimpleNamespace(tune=Tune()),
        schedule,
        events or Events(),
        groupings=None,
        place=place,
        clock_shifts=clock_shifts,
    )


def _sources(schedule, replicas=1, shifts=None, events=None):
    return {
        (stage, replica): _source(
            schedule,
            Place(STAGES, replicas, 1, stage, replica, 0),
            shifts or dict.fromkeys(range(STAGES * replicas), 0),
            events,
        )
        for stage in range(STAGES)
        for replica in range(replicas)
    }


def _step(source, stage, durations, *, chunks=1):
    """Run one step's tasks: F, B and W of every chunk take the given ns."""
    for chunk in range(chunks):
        for kind, ns in zip((Kind.F, Kind.B, Kind.W), durations, strict=True):
            for microbatch in range(4):
                source.recorder.event(kind, 0, microbatch, chunk, 0, 100, 100 + ns, rank_in_hint=1, ready_count=2)


def _share(sources):
    rows = [source.row(0, TIMES) for source in sources.values()]
    sums = [sum(values) for values in zip(*rows, strict=True)]
    for source in sources.values():
        assert source.take(0, sums) == ()


def test_only_a_hint_that_is_made_from_times_measures_them():
    place = Place(STAGES, 1, 1, 0, 0, 0)
    plain = _source(_schedule("zb-h1"), place, {})
    assert isinstance(plain, ConstantSchedule)
    assert (plain.entries, plain.row(0, TIMES)) == (0, [])
    assert isinstance(_source(_schedule(), place, {}), MeasuredSchedule)


@pytest.mark.parametrize(("chunks", "replicas"), [(1, 1), (2, 1), (1, 3)])
def test_all_ranks_make_the_profile_of_all_stages(chunks, replicas):
    sources = _sources(_schedule(chunks=chunks), replicas)
    times = {0: (1000, 1500, 700), 1: (2000, 2500, 900)}
    for _ in range(2):
        for (stage, replica), source in sources.items():
            _step(source, stage, [ns + 10_000 * replica for ns in times[stage]], chunks=chunks)
        _share(sources)
    profiles = [source.schedule.profile for source in sources.values()]
    assert len(set(profiles)) == 1, "every rank computes from the same bits"
    for stage, expected in times.items():
        assert profiles[0].durations[stage] == tuple((ns,) * chunks for ns in expected), "of replica 0 alone"
    orders = [sources[stage, 0].schedule.order(stage) for stage in range(STAGES)]
    assert [len(order) for order in orders] == [3 * 4 * chunks] * STAGES


def test_a_message_is_measured_by_the_wait_that_it_ended_on_this_clock():
    sources = _sources(_schedule(), shifts={0: 0, 1: 5_000})
    waiting = sources[0, 0]
    for _ in range(2):
        for (stage, _replica), source in sources.items():
            _step(source, stage, (1000, 1000, 1000))
        waiting.recorder.event(Kind.WAIT, 0, 1, 0, 10_000, 12_000, 16_500, wait_class=3, peer=1)
        waiting.recorder.event(Kind.WAIT, 0, -1, 0, -1, 20_000, 90_000, wait_class=3)
        _share(sources)
    assert waiting.schedule.profile.delay == 16_500 - 10_000 - 5_000


def test_events_go_on_unchanged():
    source = _sources(_schedule(), events=(events := Events()))[0, 0]
    _step(source, 0, (1000, 1000, 1000))
    assert events.kept[0] == (Kind.F, 0, 0, 0, 0, 100, 1100, 0, -1, 0, 1, 2, 0)
    assert len(events.kept) == 12


def test_nothing_changes_before_every_stage_has_measured_and_then_ever_more_rarely():
    sources = _sources(_schedule())
    changes = []
    for step in range(1, 20):
        for (stage, _replica), source in sources.items():
            if not (step < 4 and stage == 1):
                _step(source, stage, (1000 + step, 1000, 1000))
        before = sources[0, 0].schedule
        _share(sources)
        if sources[0, 0].schedule is not before:
            changes.append(step)
    assert changes == [4, 8, 16]


def test_a_task_of_another_kind_is_no_measurement():
    source = _sources(_schedule())[0, 0]
    source.recorder.event(Kind.UPDATE, 0, 0, 0, 0, 0, 10**9)
    assert source.row(0, TIMES) == [0.0] * source.entries
    assert Task(Kind.UPDATE, 0).kind > Kind.W
