"""Admission orders and flow-shop rules against drawings, brute force and what was published about them."""

from itertools import permutations, product

import pytest
from flow_shop import johnson_order, makespan, neh_order
from hypothesis import given
from hypothesis import strategies as st

from hpcpipe.plan.admission import ADMISSIONS, admission_order, peaked_order

COSTS = st.lists(st.sampled_from([0.5, 1.0, 1.0, 2.0, 7.25]), max_size=40)


@given(rule=st.sampled_from(ADMISSIONS), costs=COSTS)
def test_every_rule_admits_every_microbatch_once(rule, costs):
    assert sorted(admission_order(rule, costs)) == list(range(len(costs)))


@given(costs=COSTS, early=st.floats(0.0, 1.0))
def test_a_peaked_order_rises_to_the_dearest_and_falls_with_the_share_of_its_slopes(costs, early):
    order = peaked_order(costs, early=early)
    assert sorted(order) == list(range(len(costs)))
    along = [costs[index] for index in order]
    assert any(
        along == sorted(along[:cut]) + sorted(along[cut:], reverse=True) and abs(cut - early * len(costs)) <= 1.0
        for cut in range(len(costs) + 1)
    )


def test_the_pyramid_of_a_drawing():
    """Costs 5 1 4 2 3 6: the cheapest, 1, first, then 2 last, 3 second, 4 last but one, and so on."""
    order = admission_order("pyramid", [5, 1, 4, 2, 3, 6])
    assert [[5, 1, 4, 2, 3, 6][index] for index in order] == [1, 3, 5, 6, 4, 2]


def test_equal_costs_are_ordered_by_index():
    assert admission_order("ascending", [1, 0, 1, 0]) == (1, 3, 0, 2)
    assert admission_order("descending", [1, 0, 1, 0]) == (0, 2, 1, 3)
    assert admission_order("as-given", [1, 0, 1, 0]) == (0, 1, 2, 3)
    assert admission_order("pyramid", [1, 1, 1, 1]) == (0, 2, 3, 1)


@given(costs=COSTS)
def test_a_peak_at_an_end_is_a_sorted_order(costs):
    assert peaked_order(costs, early=1.0) == admission_order("ascending", costs)
    falling = peaked_order(costs, early=0.0)
    assert [costs[index] for index in falling] == sorted(costs, reverse=True)


def test_bad_rules_and_shares_name_what_is_known():
    with pytest.raises(
        ValueError, match=r"unknown admission 'random'; known are as-given, ascending, descending, pyramid"
    ):
        admission_order("random", [1.0])
    with pytest.raises(ValueError, match=r"1\.5 of the micro-batches before the dearest: it is a share"):
        peaked_order([1.0], early=1.5)


def test_the_makespan_of_a_drawn_flow_shop():
    """Two machines, jobs (3, 6), (5, 2), (1, 2), in order 2 0 1: machine 2 works 1-3, 4-10 and 10-12."""
    assert makespan([(3, 6), (5, 2), (1, 2)], (2, 0, 1)) == 12
    assert makespan([], ()) == 0


@given(
    costs=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    machines=st.integers(1, 6),
    rule=st.sampled_from(ADMISSIONS),
)
def test_proportional_jobs_take_as_long_in_any_order(costs, machines, rule):
    """A known closed form: with the same cost on all machines it is the sum and the dearest once more a machine."""
    jobs = [[cost] * machines for cost in costs]
    assert makespan(jobs, admission_order(rule, costs)) == sum(costs) + (machines - 1) * max(costs)


@given(jobs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6))
def test_johnson_is_optimal_on_two_machines(jobs):
    order = johnson_order([first for first, _ in jobs], [second for _, second in jobs])
    assert sorted(order) == list(range(len(jobs)))
    assert makespan(jobs, order) == min(makespan(jobs, other) for other in permutations(range(len(jobs))))


def _neh_by_definition(jobs):
    order = []
    for job in sorted(range(len(jobs)), key=lambda job: (-sum(jobs[job]), job)):
        tries = [[*order[:place], job, *order[place:]] for place in range(len(order) + 1)]
        order = min(tries, key=lambda order: makespan(jobs, order))
    return tuple(order)


@given(
    jobs=st.integers(1, 4).flatmap(
        lambda machines: st.lists(st.tuples(*[st.integers(1, 20)] * machines), min_size=1, max_size=8)
    )
)
def test_neh_inserts_as_it_was_published(jobs):
    """The acceleration by heads and tails changes no choice: the definition tries every place with a whole makespan."""
    assert neh_order(jobs) == _neh_by_definition(jobs)


def test_neh_is_optimal_for_two_jobs_on_any_machines():
    """With two jobs the rule tries both orders."""
    for first, second in product(product((1, 4, 6), repeat=3), repeat=2):
        jobs = [first, second]
        assert makespan(jobs, neh_order(jobs)) == min(makespan(jobs, order) for order in ((0, 1), (1, 0)))
