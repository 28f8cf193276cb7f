"""The alpha-beta fit and the choice that follows from it."""

import pytest

from hpcpipe.collective.costs import ALGORITHMS, OPERATIONS, Cost, CostTable, default_algorithm, fit


def test_a_fit_recovers_the_latency_and_the_bandwidth_that_made_the_times():
    sizes = [1 << 14, 1 << 18, 1 << 22]
    found = fit(sizes, [Cost(7.0, 0.25).microseconds(size) for size in sizes])
    assert found.alpha_us == pytest.approx(7.0)
    assert found.beta_ns == pytest.approx(0.25)


def test_a_fit_never_promises_a_negative_latency_or_bandwidth():
    assert fit([1000, 2000, 4000], [1.0, 4.0, 16.0]).alpha_us == 0.0
    falling = fit([1000, 2000, 4000], [9.0, 4.0, 1.0])
    assert falling.beta_ns == 0.0
    assert 1.0 < falling.alpha_us < 9.0
    assert fit([1000], [5.0]) == Cost(0.0, 5.0)


def test_a_table_survives_json_and_refuses_one_that_is_not_whole():
    table = CostTable({(o, a): Cost(1.5, 2.5) for o in OPERATIONS for a in ALGORITHMS})
    assert CostTable.from_json(table.to_json()) == table
    with pytest.raises(ValueError, match="every operation and algorithm once"):
        CostTable.from_json(table.to_json()[1:])


def test_recursive_halving_is_never_chosen_because_it_adds_in_another_order():
    costs = {(o, a): Cost(10.0, 1.0) for o in OPERATIONS for a in ALGORITHMS}
    for operation in OPERATIONS:
        costs[operation, "recursive"] = Cost(0.0, 0.0)
    table = CostTable(costs)
    assert table.cheapest("reduce_scatter", 1 << 20) in {"ring", "direct"}
    assert table.cheapest("all_gather", 1 << 20) == "recursive"


def test_without_a_table_small_buffers_go_directly_and_large_ones_around_the_ring():
    assert [default_algorithm(size) for size in (4096, 64 << 20)] == ["direct", "ring"]
