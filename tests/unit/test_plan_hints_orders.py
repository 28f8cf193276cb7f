"""Every bundled order against the closed forms of its paper, and complete and executable for all sizes."""

from fractions import Fraction
from math import lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_clock import clock

from hpcpipe.plan import check_order
from hpcpipe.plan.hints import FAMILIES, ORDERS, placement_of


def build(name, stages, microbatches, **more):
    orders = [ORDERS[name](stage=s, stages=stages, microbatches=microbatches, **more) for s in range(stages)]
    placement = placement_of(name, stages=stages, chunks=more.get("chunks"))
    peaks = check_order(orders, placement=placement, microbatches=microbatches, split=FAMILIES[name].split)
    return orders, placement, peaks


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(FAMILIES)),
    stages=st.integers(1, 9),
    microbatches=st.integers(1, 24),
    chunks=st.integers(1, 4),
    k=st.integers(1, 30),
)
def test_every_order_is_complete_and_executable(name, stages, microbatches, chunks, k):
    more = {"k": k} if name == "kfkb" else {"chunks": chunks} if name == "interleaved" else {}
    _, _, peaks = build(name, stages, microbatches, **more)
    bound = {"zb-h1": stages, "zb-h2": 2 * stages - 1, "zbv": 2 * stages}.get(name)
    assert bound is None or max(peaks.stash) <= bound


@pytest.mark.parametrize("k", [1, 2, 3, 5, 16])
def test_kfkb_without_latency_has_the_makespan_and_k_times_the_memory_of_1f1b(k):
    orders, placement, peaks = build("kfkb", 4, 16, k=k)
    assert peaks.in_flight == tuple(min(16, k * (4 - s)) for s in range(4))
    if 16 % k == 0:
        assert clock(orders, placement, times=(5, 10)).makespan == (16 + 3) * 15


@pytest.mark.parametrize("latency", [0, 1, 4, 15, 16, 40])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_constant_latency_costs_kfkb_its_period(stages, k, latency):
    """With t = F + B and c for each message, the steady period of a micro-batch is the longest of t and of the circles
    that go d stages down and back: ((d + k)t + 2dc) / (k(d + 1)) for d = 1 .. S - 1; for k = 1 that is t + 2c(S - 1)/S.
    """
    forward, backward = 10, 20
    whole = forward + backward
    circles = (Fraction((d + k) * whole + 2 * d * latency, k * (d + 1)) for d in range(1, stages))
    period = max([Fraction(whole), *circles])
    cycle = k * lcm(*range(1, stages + 1))  # each circle closes in it

    def makespan(microbatches):
        orders, placement, _ = build("kfkb", stages, microbatches, k=k)
        return clock(orders, placement, times=(forward, backward), latency=latency).makespan

    start = 4 * k * stages
    assert makespan(start + cycle) - makespan(start) == cycle * period
    if 2 * latency <= (k - 1) * whole:  # the group hides its messages
        assert period == whole
        assert makespan(start) == (stages - 1) * (whole + 2 * latency) + start * whole
    else:
        assert period > whole


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_interleaving_divides_the_bubble_by_the_chunks(stages, chunks):
    orders, placement, _ = build("interleaved", stages, 3 * stages, chunks=chunks)
    assert clock(orders, placement, times=(1, 2)).makespan == 3 * (3 * stages * chunks + stages - 1)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 6), (4, 16), (8, 32)])
@pytest.mark.parametrize("times", [(5, 5, 5), (4, 6, 3)])
def test_zb_h1_and_zb_h2_take_what_their_paper_says(stages, microbatches, times):
    f, b, w = times
    orders, placement, peaks = build("zb-h1", stages, microbatches)
    assert clock(orders, placement, times=times).makespan == microbatches * (f + b + w) + (stages - 1) * (f + b - w)
    assert peaks.stash == (stages,) * stages
    orders, placement, peaks = build("zb-h2", stages, microbatches)
    span = microbatches * (f + b + w) + (stages - 1) * (f + b - 2 * w)
    assert max(clock(orders, placement, times=times).spans) == span
    assert peaks.stash == (2 * stages - 1,) * stages


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 3), (3, 9), (4, 7), (4, 16), (8, 32)])
def test_zbv_idles_only_while_it_fills(stages, microbatches):
    orders, placement, peaks = build("zbv", stages, microbatches)
    assert clock(orders, placement, times=(1, 1, 1)).makespan == 6 * microbatches + stages - 1
    assert peaks.stash == (2 * stages,) * stages if microbatches > 2 * stages else max(peaks.stash) <= 2 * stages
