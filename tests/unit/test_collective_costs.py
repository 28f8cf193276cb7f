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


def table(**times):
    """Times at 1 KB and 100 KB; 50 us where none are given."""
    every = {(o, a): (50.0, 50.0) for o in OPERATIONS for a in ALGORITHMS}
    return CostTable((1000, 100_000), every | {(o, a): t for a, t in times.items() for o in OPERATIONS})


def test_a_table_survives_json_and_refuses_one_that_is_not_whole():
    document = table(ring=(1.0, 2.0)).to_json()
    assert CostTable.from_json(document) == table(ring=(1.0, 2.0))
    for broken in ({**document, "times": document["times"][1:]}, {**document, "bytes": [1000]}):
        with pytest.raises(ValueError, match="every operation, algorithm and size"):
            CostTable.from_json(broken)


def test_between_measured_sizes_the_line_decides_and_beyond_them_the_fit():
    costs = table(ring=(40.0, 60.0), direct=(20.0, 100.0))  # equal where 20 + 20 x = 80 x, with x over the 99 KB
    crossing = 1000 + 99_000 // 3
    assert costs.cheapest("reduce_scatter", crossing - 500) == "direct"
    assert costs.cheapest("reduce_scatter", crossing + 500) == "ring"
    assert costs.cheapest("reduce_scatter", 8) == "direct"
    assert costs.cheapest("reduce_scatter", 1 << 30) == "ring"


def test_recursive_halving_is_never_chosen_because_it_adds_in_another_order():
    costs = table(recursive=(1.0, 1.0))
    assert costs.cheapest("reduce_scatter", 5000) in {"ring", "direct"}
    assert costs.cheapest("all_gather", 5000) == "recursive"


def test_without_a_table_small_buffers_go_directly_and_large_ones_around_the_ring():
    assert [default_algorithm(size) for size in (4096, 64 << 20)] == ["direct", "ring"]
