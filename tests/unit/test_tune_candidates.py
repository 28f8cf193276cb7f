"""Which groupings keep the batch and fit the memory; right values come from divisors and from the orders themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpipe.plan.hints.kfkb import kfkb
from hpcpipe.plan.slots import held_in
from hpcpipe.tune import Grouping, NoGroupingFitsError, StageMemory, make_space

LIGHT = StageMemory(0.0, 1.0)


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


@pytest.mark.parametrize("batch", [1, 6, 8, 12, 13])
def test_without_a_limit_every_size_that_divides_the_batch_comes_with_every_group_that_divides_its_micro_batches(
    batch: int,
) -> None:
    space = make_space(batch=batch, stages=3, memory=[LIGHT] * 3, limit=None, dispatch="fixed")
    assert {c.grouping for c in space.candidates} == {
        Grouping(k, size) for size in divisors(batch) for k in divisors(batch // size)
    }
    assert all(pruned.reason.startswith("does not divide") for pruned in space.pruned)
    others = batch - len(divisors(batch)) + sum(batch // b - len(divisors(batch // b)) for b in divisors(batch))
    assert len(space.pruned) == others


@given(
    batch=st.integers(1, 24),
    stages=st.integers(1, 5),
    sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=5, max_size=5),
    limit=st.integers(1, 400),
)
def test_what_fits_is_what_a_count_of_each_order_s_activations_says(
    batch: int, stages: int, sizes: list[tuple[int, int]], limit: int
) -> None:
    memory = [StageMemory(fixed, activation) for fixed, activation in sizes[:stages]]
    expected = {}
    for size in divisors(batch):
        for k in divisors(batch // size):
            orders = (kfkb(stage=s, stages=stages, microbatches=batch // size, k=k) for s in range(stages))
            held = [held_in(order, chunks=1, split=False)[0].in_flight for order in orders]
            peak = tuple(round(m.fixed + n * size * m.activation) for m, n in zip(memory, held, strict=True))
            if max(peak) <= limit:
                expected[Grouping(k, size)] = peak
    if not expected:
        with pytest.raises(NoGroupingFitsError):
            make_space(batch=batch, stages=stages, memory=memory, limit=limit, dispatch="fixed")
        return
    space = make_space(batch=batch, stages=stages, memory=memory, limit=limit, dispatch="fixed")
    assert {c.grouping: c.peak_bytes for c in space.candidates} == expected
    assert [c.memory for c in space.candidates] == sorted(c.memory for c in space.candidates)


@given(
    batch=st.sampled_from([4, 8, 12]),
    stages=st.integers(1, 4),
    activation=st.integers(1, 9),
    limit=st.one_of(st.none(), st.integers(60, 500)),
)
def test_caps_under_readiness_leave_room_for_the_own_order_and_stay_within_the_limit(
    batch: int, stages: int, activation: int, limit: int | None
) -> None:
    memory = [StageMemory(10.0, activation)] * stages
    try:
        space = make_space(batch=batch, stages=stages, memory=memory, limit=limit, dispatch="ready")
    except NoGroupingFitsError:
        return
    assert len({c.grouping for c in space.candidates}) == len(space.candidates)
    for grouping, peak in ((c.grouping, c.peak_bytes) for c in space.candidates):
        microbatches = batch // grouping.microbatch_size
        own = [min(microbatches, grouping.k * (stages - s)) for s in range(stages)]
        assert all(least <= cap <= microbatches for least, cap in zip(own, grouping.caps, strict=True))
        assert peak == tuple(10 + cap * grouping.microbatch_size * activation for cap in grouping.caps)
        assert limit is None or max(peak) <= limit


def test_a_limit_that_nothing_fits_is_refused_with_the_stage_and_what_is_missing() -> None:
    memory = [StageMemory(1000, 64), StageMemory(3000, 64)]
    with pytest.raises(NoGroupingFitsError, match=r"even k = 1, b = 1 needs 64 B more on stage 1, where 2\.93 KiB"):
        make_space(batch=4, stages=2, memory=memory, limit=3000, dispatch="fixed")


def test_what_is_over_the_limit_is_named_with_its_stage_and_by_how_much() -> None:
    memory = [StageMemory(0, 1024)] * 2
    space = make_space(batch=2, stages=2, memory=memory, limit=2048, dispatch="fixed", sizes=[1])
    assert [c.grouping for c in space.candidates] == [Grouping(1, 1), Grouping(2, 1)]
    tight = make_space(batch=4, stages=2, memory=memory, limit=2048, dispatch="fixed", sizes=[1])
    reasons = {p.grouping: p.reason for p in tight.pruned}
    assert reasons[Grouping(2, 1)] == "memory: 4.00 KiB on stage 0, 2.00 KiB over the limit"
    assert reasons[Grouping(3, 1)] == "does not divide: 4 micro-batches are no multiple of 3"


def test_send_and_receive_buffers_count_for_every_sample_in_flight() -> None:
    memory = StageMemory(fixed=100, activation=10, messages=5)
    assert memory.peak(in_flight=3, microbatch_size=2) == 100 + 3 * 2 * 15
    assert memory.room(limit=190, microbatch_size=2) == 3
    assert memory.room(limit=129, microbatch_size=2) == 0


def test_sizes_that_divide_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no micro-batch size of \[3\] divides 4 samples"):
        make_space(batch=4, stages=1, memory=[LIGHT], limit=None, dispatch="fixed", sizes=[3])
