"""The choice over whole trainings in virtual time: right values from the best grouping in hindsight, step by step."""

import random
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_training import Training

from hpcpipe.tune import Chooser, Grouping, Settings, StageMemory, make_space


def preempted(begin: int, end: int, *, slow: float, quick: float = 0.01):
    return lambda step, *_: slow if begin <= step < end else quick


@pytest.mark.parametrize("delay", [3.0, 4.5, 6.0, 9.0])
def test_the_group_rises_to_the_smallest_that_does_not_stall_and_falls_when_the_delay_ends(delay: float) -> None:
    training = Training(stages=4, batch=16, forward_ms=5.0, delay=preempted(30, 80, slow=delay))
    training.run(120)
    smallest = 1 + ceil(2 * delay / 15.0)
    fitting = min(k for k in (1, 2, 4, 8, 16) if k >= smallest)
    ks = [grouping.k for grouping in training.ran]
    assert set(ks[:30]) == set(ks[90:]) == {1}
    assert set(ks[40:80]) == {fitting}
    assert {d.what for d in training.decisions} >= {"try", "keep", "stay"}


@pytest.mark.parametrize("dispatch", ["fixed", "ready"])
@pytest.mark.parametrize("phases", [(0.01, 6.0, 0.01), (6.0, 0.01, 12.0), (0.01, 3.0, 12.0, 0.01)])
def test_in_every_phase_steps_soon_come_within_five_percent_of_the_best_group_in_hindsight(
    dispatch: str, phases: tuple[float, ...]
) -> None:
    length, soon = 40, 25
    training = Training(
        stages=4, batch=16, dispatch=dispatch, forward_ms=5.0, delay=lambda step, *_: phases[step // length]
    )
    training.run(length * len(phases))
    for phase in range(len(phases)):
        best, _ = training.best(phase * length)
        for step in range(phase * length + soon, (phase + 1) * length):
            assert training.step_ms[step] <= 1.05 * best


def test_with_readiness_the_caps_are_chosen_too() -> None:
    training = Training(stages=4, batch=16, dispatch="ready", forward_ms=5.0, delay=preempted(20, 60, slow=9.0))
    training.run(60)
    caps = {grouping.caps for grouping in training.ran}
    assert (4, 3, 2, 1) in caps
    assert max(map(sum, caps)) > 2 * (4 + 3 + 2 + 1)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_micro_batch_size_that_costs_less_is_found(size: int) -> None:
    # Half of a sample's time does not grow with the micro-batch, so larger ones save work but have longer bubbles.
    training = Training(stages=2, batch=16, forward_ms=2.0, fixed_ms=2.0, sizes=None, start=Grouping(1, size))
    training.run(200)
    best, _ = training.best(0)
    assert training.step_ms[-1] <= 1.05 * best


def test_a_try_that_measures_worse_is_rolled_back_and_not_repeated_at_once() -> None:
    # Links that every larger group makes slower, which no prediction from what was measured with k = 1 can know.
    training = Training(stages=4, batch=16, forward_ms=5.0)

    training.delay = lambda *_: 6.0 if training.ran[-1].k == 1 else 40.0
    training.run(100)
    tries = [d for d in training.decisions if d.what == "try"]
    rolled = [d for d in training.decisions if d.what == "roll back"]
    assert len(rolled) == len(tries) > 0
    assert all(d.grouping.k == 1 for d in rolled)
    assert all(later.step > 2 * Settings().trial + earlier.step for earlier, later in pairwise(tries))
    assert sum(grouping.k == 1 for grouping in training.ran) > 60


def test_steps_of_noise_alone_are_no_reason_to_change_anything() -> None:
    draw = random.Random(7)
    noise = [[draw.lognormvariate(0, 0.4) * 0.1 for _ in range(64)] for _ in range(200)]
    training = Training(
        stages=4, batch=16, forward_ms=5.0, delay=lambda step, source, _, m: noise[step][source * 16 + m]
    )
    training.run(200)
    assert {grouping.k for grouping in training.ran} == {1}
    assert {d.what for d in training.decisions} <= {"stay", "network"}


def test_in_a_quiet_network_nothing_is_lost() -> None:
    training = Training(stages=8, batch=32, forward_ms=5.0, delay=lambda *_: 0.05)
    training.run(100)
    best = training.best(0)[0]
    assert sum(training.step_ms) < 1.01 * 100 * best


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    dispatch=st.sampled_from(["fixed", "ready"]),
    limit=st.sampled_from([None, 5, 9, 20]),
    sizes=st.sampled_from([(1,), None]),
    interval=st.integers(3, 12),
)
def test_all_ranks_decide_alike_whatever_the_network_does_and_never_leave_the_memory_limit(
    seed: int, dispatch: str, limit: int | None, sizes: tuple[int, ...] | None, interval: int
) -> None:
    draw = random.Random(seed)
    levels = [draw.choice([0.01, 0.5, 4.0, 20.0]) for _ in range(20)]
    rates = [[draw.random() for _ in range(200)] for _ in range(3)]
    training = Training(
        stages=4,
        batch=8,
        dispatch=dispatch,
        forward_ms=2.0,
        fixed_ms=0.5,
        limit=limit,
        sizes=sizes,
        settings=Settings(interval=interval, trial=3),
        delay=lambda step, source, to, m: levels[step // 6] * (0.5 + rates[min(source, to)][(step * 7 + m) % 200]),
    )
    other = Chooser(
        training.space,
        base=training.base,
        batch=8,
        start=training.space.candidates[0].grouping,
        settings=Settings(interval=interval, trial=3),
    )
    theirs = []
    told = training.chooser.take

    def take(step: int, sums: list[float]):
        theirs.append(other.take(step, list(sums)))
        mine = told(step, sums)
        assert mine == theirs[-1]
        return mine

    training.chooser.take = take  # type: ignore[method-assign]
    training.run(90)
    assert [other.grouping(n) for n in range(89, 95)] == [training.chooser.grouping(n) for n in range(89, 95)]
    fitting = {c.grouping for c in training.space.candidates}
    assert set(training.ran) <= fitting
    for grouping in set(training.ran):
        peak = max(training.truth(0, grouping)[1].peak_in_flight) * grouping.microbatch_size
        assert limit is None or peak <= limit


def test_a_switch_is_for_a_step_that_no_rank_has_begun() -> None:
    training = Training(stages=4, batch=16, forward_ms=5.0, delay=preempted(10, 40, slow=9.0))
    training.run(60)
    switched = [step for step in range(1, 60) if training.ran[step] != training.ran[step - 1]]
    assert switched == [d.step for d in training.decisions if d.what in ("try", "roll back")]


def test_every_decision_says_why_in_a_line_that_the_log_keeps() -> None:
    training = Training(stages=4, batch=16, dispatch="ready", forward_ms=5.0, delay=preempted(10, 40, slow=9.0))
    training.run(80)
    assert training.decisions
    for decision in training.decisions:
        assert "ms" in decision.why
        assert len(decision.why) <= 256
    tried = next(d for d in training.decisions if d.what == "try")
    assert "messages 0-1 take 9 ms (p90 9), up from 0.01" in tried.why
    assert "of a step to gain" in tried.why


def test_a_start_that_does_not_fit_is_refused() -> None:
    space = make_space(batch=4, stages=2, memory=[StageMemory(0, 1)] * 2, limit=2, dispatch="fixed", sizes=[1])
    with pytest.raises(KeyError, match="k = 2, b = 1 is not among the groupings that fit"):
        Training(stages=2, batch=4, limit=2, start=Grouping(2, 1))
    assert [c.grouping for c in space.candidates] == [Grouping(1, 1)]


def test_looks_cost_less_than_a_quarter_percent_of_the_steps() -> None:
    # What simulating costs is counted in tasks and messages, so that all ranks reckon alike; steps are short here.
    training = Training(stages=8, batch=64, forward_ms=0.02, settings=Settings(interval=1, trial=1))
    looks = []
    predict = training.chooser._predict  # type: ignore[attr-defined]

    def counted(step: int, *rest):
        predicted = predict(step, *rest)
        looks.append((step, sum((4 * 8 - 2) * 64 for _ in predicted) * 500))
        return predicted

    training.chooser._predict = counted  # type: ignore[attr-defined]
    training.run(60)
    for (step, cost), (later, _) in pairwise(looks):
        assert cost <= 0.0025 * 1.05e6 * training.step_ms[0] * max(1, later - step + 1)
