"""The compiled simulator against the Python one: the same rows, causes, peaks and draws to the nanosecond."""

import subprocess
import sys
from dataclasses import dataclass, fields, replace
from math import exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpipe.plan import RULES, Kind, Limits, Order, Placement, Schedule, Task, TimeClass, chunk_profile, in_flight_caps
from hpcpipe.plan import hints as plan_hints
from hpcpipe.plan.delays import Bursts, LognormalDelay
from hpcpipe.plan.draws import normal, uniform
from hpcpipe.plan.hints import FAMILIES, make_hint, placement_of
from hpcpipe.simulate import (
    CompiledSchedule,
    HeavyTail,
    Jitter,
    Link,
    Lognormal,
    MicrobatchCost,
    Network,
    Steady,
    Straggler,
    simulate_compiled,
    simulate_step,
    vary_durations,
)
from hpcpipe.simulate import compiled as module

CAPS = st.none() | st.integers(1, 3) | st.integers(1, 30)
BY_CHUNK = st.tuples(*[st.integers(1, 2) | st.integers(1, 20)] * 4)
DURATIONS = {  # coarse ones make ties in time
    "equal": lambda *_: 10,
    "few": lambda seed, *where: int(3 * uniform(seed, *where)),
    "many": lambda seed, *where: int(1000 * uniform(seed, *where) ** 3),
}


@st.composite
def schedules(draw):
    """Any schedule that can be written down, sensible or not; those that dead-lock must do so in both."""
    stages, microbatches = draw(st.integers(1, 9)), draw(st.integers(1, 24))
    hint = draw(st.sampled_from([*FAMILIES, *RULES]))
    most = (FAMILIES[hint].most_chunks if hint in FAMILIES else None) or 4
    dispatch = "ready" if hint in RULES else draw(st.sampled_from(["ready", "fixed"]))
    chunks = draw(st.integers(1, most))
    if hint in FAMILIES and FAMILIES[hint].chunks is not None:
        chunks = FAMILIES[hint].chunks
    natural = FAMILIES[hint].shape if hint in FAMILIES else "round-robin"
    shape = draw(st.sampled_from([natural, natural, natural, "v", "round-robin"]))
    split = draw(st.booleans())
    if hint in FAMILIES and FAMILIES[hint].split:
        split = split or draw(st.booleans())
    cap_style = draw(st.sampled_from(["none", "same", "each", "by chunk", "both"]))
    limits, same = [], (draw(CAPS), draw(CAPS))
    for stage in range(stages):
        flat, by_chunk = (None, None), (None, None)
        if cap_style in ("each", "both"):
            flat = draw(CAPS), draw(CAPS)
        elif cap_style == "same":
            flat = same
        if cap_style in ("by chunk", "both"):
            profile = draw(BY_CHUNK)[:chunks]
            if chunks == 2 and draw(st.booleans()):
                profile = chunk_profile(stage=stage, stages=stages)
            by_chunk = draw(st.permutations([profile, draw(st.none() | BY_CHUNK.map(lambda caps: caps[:chunks]))]))
        limits.append(Limits(*flat, *by_chunk))
    return Schedule(
        hint,
        dispatch,
        Placement(stages, chunks, shape),
        microbatches,
        tuple(limits),
        split,
        ordered=draw(st.booleans()),
        k=draw(st.integers(1, 6)) if hint == "kfkb" else None,
    )


@dataclass(frozen=True, slots=True)
class OwnDelay:
    """A model of delays that only Python knows."""

    overtaking: bool

    def of(self, sent, *, seed, step, source, target, task):
        return sent % 7 * task.microbatch + seed % 5 + step + source + target


DELAYS = (
    st.builds(LognormalDelay, st.sampled_from([0.0, 3.5, 90.0]), st.sampled_from([0.0, 1.0]), st.booleans())
    | st.builds(
        Bursts,
        st.sampled_from([2.0, 40.0]),
        st.sampled_from([0.7, 90.0]),
        st.sampled_from([0.0, 30.0]),
        st.just(9.5),
        st.booleans(),
    )
    | st.builds(OwnDelay, st.booleans())
)
LINKS = st.builds(
    Link,
    latency_ns=st.sampled_from([0.0, 1.0, 2.5, 10.0, 400.0]),
    sigma=st.sampled_from([0.0, 0.0, 0.7, 2.0]),
    overtaking=st.booleans(),
    num_bytes=st.integers(0, 3),
    ns_per_byte=st.sampled_from([0.0, 1.0, 33.0]),
    duplex=st.booleans(),
    delay=st.none() | st.none() | DELAYS,
)


@st.composite
def settings_of_a_step(draw):
    """The keywords that both simulators take beside the schedule."""
    link, seed, style = draw(LINKS), draw(st.integers(0, 2**64)), draw(st.sampled_from(list(DURATIONS)))
    begin = draw(st.none() | st.lists(st.integers(0, 500), min_size=9, max_size=9))
    buckets = draw(st.none() | st.lists(st.integers(0, 4), min_size=9, max_size=9))
    gathered = buckets and draw(st.none() | st.lists(st.integers(0, 900), min_size=4, max_size=4))
    norm_ns = draw(st.none() | st.sampled_from([0, 1, 300]))
    after = buckets, draw(st.booleans()), gathered, draw(st.booleans()), norm_ns
    return link, seed, style, begin, draw(st.sampled_from([0, 0, 1, 25])), *after


def _outcome(simulate, schedule, **more):
    try:
        return simulate(schedule, **more)
    except RuntimeError as error:
        return str(error)


def _same_both_ways(schedule, link, seed, style, begin=None, agreement_ns=0, *after):
    buckets, replicated, gathered, phased, norm_ns = after or (None, False, None, False, None)

    def duration(stage, task):
        return DURATIONS[style](seed, stage, *task)

    stages = schedule.placement.stages
    expected, compiled = (
        _outcome(
            simulate,
            schedule,
            duration=duration,
            arrival=Network(link, seed, 3).arrival,
            begin=begin and begin[:stages],
            agreement_ns=agreement_ns,
            buckets=buckets and buckets[:stages],
            replicated=replicated,
            phased=phased,
            norm_ns=norm_ns,
            gathered=gathered
            and [[time + stage for time in gathered[:count]] for stage, count in enumerate(buckets[:stages])],
        )
        for simulate in (simulate_step, simulate_compiled)
    )
    assert compiled == expected
    return expected


@settings(max_examples=500)
@given(schedules(), settings_of_a_step())
def test_rows_causes_and_peaks_are_those_of_the_python_simulator(schedule, settings):
    _same_both_ways(schedule, *settings)


@pytest.mark.nightly
@settings(max_examples=20_000)
@given(schedules(), settings_of_a_step())
def test_rows_causes_and_peaks_are_those_of_the_python_simulator_in_many_cases(schedule, settings):
    _same_both_ways(schedule, *settings)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("microbatches", [63, 64, 65, 200])
def test_more_microbatches_than_a_word_has_bits_change_nothing(microbatches, ordered):
    limits = tuple(Limits(stash_by_chunk=chunk_profile(stage=s, stages=5)) for s in range(5))
    for hint in ("zbv", "bfw"):
        schedule = Schedule(hint, "ready", Placement(5, 2, "v"), microbatches, limits, split=True, ordered=ordered)
        step = _same_both_ways(schedule, Link(300.0, 2.0), seed=microbatches, style="many")
        assert not isinstance(step, str)


@pytest.mark.parametrize("dispatch", ["ready", "fixed"])
@given(seed=st.integers(0, 2**32), microbatches=st.integers(1, 90), split=st.booleans())
@settings(max_examples=40)
def test_an_order_that_takes_microbatches_in_any_sequence_is_followed(dispatch, seed, microbatches, split):
    """No bundled order does; one that another tool wrote may."""

    def shuffled(stage):
        kinds = (Kind.F, Kind.B, Kind.W) if split else (Kind.F, Kind.B)
        where = (0 if dispatch == "fixed" else stage,)  # the same on all stages can be executed
        tasks = [Task(kind, m) for m in range(microbatches) for kind in kinds]
        return tuple(sorted(tasks, key=lambda t: (uniform(seed, *where, t.microbatch), t.kind)))

    limits = (Limits(), Limits(2, 3), Limits(5, None))
    orders = tuple(map(shuffled, range(3)))
    schedule = Schedule("file:x", dispatch, Placement(3), microbatches, limits, split, ordered=False, orders=orders)
    step = _same_both_ways(schedule, Link(50.0, 1.0), seed, "many")
    assert not isinstance(step, str)


@given(
    st.sampled_from([name for name in FAMILIES if not FAMILIES[name].profiled]),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(1, 50),
)
@settings(max_examples=300)
def test_native_orders_are_those_of_plan(family, stages, microbatches, chunks, k):
    chunks = placement_of(family, stages=stages, chunks=FAMILIES[family].chunks or chunks).chunks
    native = module._simulate.family_orders(family, stages=stages, chunks=chunks, microbatches=microbatches, k=k)
    assert len(native) == stages
    for stage, codes in enumerate(native):
        hint = make_hint(
            family,
            stage=stage,
            stages=stages,
            microbatches=microbatches,
            chunks=chunks,
            k=k if FAMILIES[family].takes_k else None,
        )
        assert codes.tolist() == [(t.kind * chunks + t.chunk) * microbatches + t.microbatch for t in hint.tasks]


def test_every_bundled_order_has_a_native_one():
    assert set(module._simulate.families()) == {name for name in FAMILIES if not FAMILIES[name].profiled}


def test_an_arrival_that_is_any_function_is_asked_as_by_the_python_simulator():
    def asking(log):
        def arrival(source, target, task, now):
            log.append((source, target, task, now))
            return now + 7 * task.microbatch % 5 + source

        return arrival

    schedule = Schedule("bf", "ready", Placement(4, 2), 9, (Limits(6),) * 4)
    logs = [], []
    steps = [
        _outcome(simulate, schedule, duration=lambda stage, _: 1 + stage, arrival=asking(log))
        for simulate, log in zip((simulate_step, simulate_compiled), logs, strict=True)
    ]
    assert steps[0] == steps[1]
    assert logs[0] == logs[1]


def test_an_exception_in_an_arrival_comes_out_as_it_is():
    def arrival(source, target, task, now):
        raise LookupError("no such link")

    schedule = Schedule("bf", "ready", Placement(2), 2, (Limits(),) * 2)
    with pytest.raises(LookupError, match="no such link"):
        simulate_compiled(schedule, duration=lambda *_: 1, arrival=arrival)


def test_draws_have_the_bits_of_those_in_python():
    places = [np.array([-3, 2**62]), np.arange(200), np.arange(5)]
    places = [axis.astype(np.int64) for axis in places]
    seed, sigma = 2**64 - 5, 0.8
    uniforms = module._simulate.uniforms(seed, places, (4,))
    normals = module._simulate.lognormals(seed, places, sigma)
    for index in np.ndindex(uniforms.shape):
        where = [int(axis[i]) for axis, i in zip(places, index, strict=True)]
        assert uniforms[index] == uniform(seed, *where, 4)
        assert normals[index] == exp(sigma * normal(seed, *where) - 0.5 * sigma * sigma)


@dataclass(frozen=True, slots=True)
class _OwnModel:
    """A model that the vectorised draws do not know."""

    def vary(self, duration, *, seed, step, stage, task):
        return duration * (1 + stage) + seed % 100 + step + task.microbatch + 0.5 * task.chunk


@pytest.mark.parametrize(
    "model",
    [
        Steady(),
        Lognormal(0.6),
        HeavyTail(0.2, 10.0),
        Straggler(1, 1.5),
        Jitter(0.4, 900.0, 0.7),
        MicrobatchCost(0.8),
        MicrobatchCost(0.8, stages=2),
        _OwnModel(),
    ],
)
@pytest.mark.parametrize("seed", [0, 7, 2**63 + 11])
def test_varied_durations_are_those_of_single_tasks(model, seed):
    placement, microbatches = Placement(3, 2, "v"), 50
    usual = np.array([[1000.5, 2000.0, 500.0], [999.0, 2001.0, 777.0], [1.0, 0.0, 123456789.0]])
    varied = vary_durations(usual, model, placement=placement, microbatches=microbatches, seed=seed, step=5)
    varied = np.broadcast_to(varied, (3, 3, 2, microbatches))
    for stage, kind, chunk, m in np.ndindex(varied.shape):
        task = Task((Kind.F, Kind.B, Kind.W)[kind], m, chunk)
        alone = model.vary(float(usual[stage, kind]), seed=seed, step=5, stage=stage, task=task)
        assert varied[stage, kind, chunk, m] == round(alone)


def test_durations_may_leave_out_axes_along_which_all_are_alike():
    schedule = Schedule("zbv", "fixed", Placement(4, 2, "v"), 7, (Limits(),) * 4, split=True)
    compiled = CompiledSchedule(schedule)
    whole = np.empty((4, 3, 2, 7), dtype=np.int64)
    whole[:] = np.arange(1, 13).reshape(4, 3, 1, 1)
    for less in (whole, whole[:, :, :1], whole[:, :, 0, 0], whole[:, :, 0, 0].tolist(), np.asfortranarray(whole)):
        assert compiled.run(less).step_ns == compiled.run(whole).step_ns
    unsplit = CompiledSchedule(replace(schedule, hint="1f1b", placement=Placement(4), split=False))
    assert unsplit.run([[10, 20]]).step_ns == unsplit.run([[10, 20, 99]]).step_ns == (7 + 3) * 30


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ([[1, -1, 1]], "-1 ns"),
        ([[1.5, 1.0, 1.0]], "round them"),
        ([[1, 1]], r"shape \(1, 2\)"),
        (np.ones((5, 3), int), r"\(5, 3\).*\(4, 3, 1, 6\)"),
        (np.ones((1, 1, 1, 1, 1), int), "shape"),
        (np.ones((2, 3, 1, 6), int), "shape"),
    ],
)
def test_durations_that_do_not_fit_are_refused(durations, message):
    compiled = CompiledSchedule(Schedule("zb-h1", "fixed", Placement(4), 6, (Limits(),) * 4, split=True))
    with pytest.raises(ValueError, match=message):
        compiled.run(durations)


def test_a_prepared_schedule_runs_again_with_other_caps_and_links():
    microbatches, stages = 16, 4
    schedule = Schedule("bf", "ready", Placement(stages), microbatches, (Limits(),) * stages)
    compiled = CompiledSchedule(schedule)
    usual = [10, 20]
    for setting in ("1f1b", "equal-memory", 2):
        limits = tuple(map(Limits, in_flight_caps(setting, stages=stages, microbatches=microbatches)))
        for link in (Link(), Link(5.0), Link(5.0, 1.0, False, 2, 3.0)):
            step = compiled.run([usual], caps=compiled.caps(limits), link=link, seed=4, rows=True)
            again = simulate_step(
                replace(schedule, limits=limits),
                duration=lambda _, task: usual[task.kind],
                arrival=Network(link, 4).arrival,
            )
            assert step.step_ns == again.step_ns
            assert step.peak_in_flight.tolist() == again.peak_in_flight
            assert step.bubble_ratio == again.bubble_ratio
            for stage in range(stages):
                sums = {TimeClass(i): ns for i, ns in enumerate(step.classes[stage].tolist()) if ns}
                assert sums == again.classes(stage)
                assert step.classes[stage].sum() == step.step_ns
                assert step.rows[stage]["end"].tolist() == [row.end for row in again.rows[stage]]


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (4, 16), (64, 500)])
def test_closed_forms_are_met(stages, microbatches):
    def step(hint, dispatch="fixed"):
        split = hint in plan_hints.SPLIT
        schedule = Schedule(
            hint, dispatch, placement_of(hint, stages=stages), microbatches, (Limits(),) * stages, split
        )
        return CompiledSchedule(schedule).run([[1, 1, 1] if split else [1, 2]]).step_ns

    assert step("gpipe") == step("1f1b") == (microbatches + stages - 1) * 3
    assert step("zb-h1") == microbatches * 3 + (stages - 1)
    if microbatches >= 2 * stages - 1:
        assert step("zbv") == 6 * microbatches + stages - 1


def test_a_schedule_that_dead_locks_is_named_in_the_words_of_the_python_simulator():
    schedule = Schedule("zb-h1", "fixed", Placement(2), 3, (Limits(),) * 2, split=False)
    with pytest.raises(RuntimeError, match=r"the schedule dead-locks: stages \[0, 1\] have tasks left"):
        CompiledSchedule(schedule).run([[1, 1]])


def test_what_only_the_python_simulator_knows_is_refused_and_not_left_out():
    schedule = Schedule("bf", "ready", Placement(2), 2, (Limits(),) * 2)
    assert {field.name for field in fields(Schedule)} == module._KNOWN[Schedule]
    assert {field.name for field in fields(Link)} == module._KNOWN[Link]
    assert set(Limits._fields) == {"in_flight", "stash", "in_flight_by_chunk", "stash_by_chunk"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(module._KNOWN, Link, module._KNOWN[Link] - {"num_bytes"})
        CompiledSchedule(schedule).run([[1, 1]])
        with pytest.raises(ValueError, match=r"Link.num_bytes: use simulate_step"):
            CompiledSchedule(schedule).run([[1, 1]], link=Link(num_bytes=1))

    class OwnOrder(Order):
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "make_hint", lambda *_, **__: OwnOrder("own", []))
        with pytest.raises(ValueError, match="knows no hint like"):
            CompiledSchedule(schedule)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hint": "1f2b"}, "unknown hint"),
        ({"dispatch": "fixed"}, "needs an order"),
        ({"hint": "file:x", "orders": ((Task(Kind.F, 0),) * 4,) * 2, "dispatch": "eager"}, "unknown dispatch"),
        ({"hint": "file:x", "orders": ((Task(Kind.F, 2),) * 4,) * 2, "dispatch": "ready"}, "unknown task"),
        ({"hint": "kfkb"}, "needs k"),
        ({"hint": "kfkb", "k": 0}, "k = 0"),
        ({"hint": "zbv"}, "2 chunks"),
        ({"microbatches": 0}, "at least 1"),
        ({"microbatches": 2**30}, "so many tasks"),
        ({"limits": (Limits(),)}, "limits for 1 stages"),
        ({"limits": (Limits(stash_by_chunk=(1, 2)),) * 2}, "stash_by_chunk"),
    ],
)
def test_schedules_that_cannot_be_are_refused(change, message):
    schedule = Schedule("bf", "ready", Placement(2), 2, (Limits(),) * 2)
    with pytest.raises(ValueError, match=message):
        CompiledSchedule(replace(schedule, **change))


def test_it_runs_where_neither_mpi_nor_torch_may_be_touched():
    code = "import hpcpipe.simulate, sys; sys.exit(bool({'mpi4py', 'torch', 'hpcpipe._native'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
