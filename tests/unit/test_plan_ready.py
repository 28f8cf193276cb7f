"""The ready-set, policies and helpers of plan/ by themselves."""

import itertools

import pytest

from hpcpipe.plan import Kind, Order, Placement, Task, balanced_split, derive_seed, even_stages, make_hint, make_policy
from hpcpipe.plan.ready import ReadySet


class _Counting:
    """A hint whose comparisons are counted through its keys."""

    name = "counting"

    def __init__(self):
        self.calls = 0

    def key(self, task):
        self.calls += 1
        return task.microbatch


def test_choosing_does_not_look_at_every_ready_task():
    def keys_and_tops(count):
        hint = _Counting()
        ready = ReadySet(hint)
        for m in range(count):
            ready.add(Task(Kind.F, m))
        added = hint.calls
        for m in range(count):
            assert ready.tops() == [Task(Kind.F, m)]
            ready.remove(Task(Kind.F, m))
        return added, hint.calls - added

    assert keys_and_tops(1000) == (1000, 0)  # one key a task when it is added, none when looking


def test_lanes_give_the_best_of_each_kind_whatever_the_order_of_arrival():
    order = Order("test", [Task(Kind.F, 2), Task(Kind.F, 0), Task(Kind.F, 1)])
    for arrival in itertools.permutations(order.tasks):
        ready = ReadySet(order)
        for task in arrival:
            ready.add(task)
        assert ready.tops() == [Task(Kind.F, 2)]
        assert ready.tops(closed=[0]) == []


def test_a_task_cannot_become_ready_twice():
    ready = ReadySet(Order("test", []))
    ready.add(Task(Kind.F, 0))
    with pytest.raises(AssertionError, match="F0 became ready twice"):
        ready.add(Task(Kind.F, 0))


def test_fixed_refuses_a_rule_that_is_no_order():
    hint = make_hint("bf", stage=0, stages=2, microbatches=4)
    with pytest.raises(ValueError, match="needs an order"):
        make_policy("fixed", hint)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match=r"gpipe, 1f1b, kfkb, .*zbv, critical, bf"):
        make_hint("1f2b", stage=0, stages=1, microbatches=1)
    with pytest.raises(ValueError, match='"ready" and "fixed"'):
        make_policy("eager", make_hint("1f1b", stage=0, stages=1, microbatches=1))


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("layers", [8, 12, 30])
def test_split_is_as_good_as_the_best_of_all_cuts(layers, stages):
    costs = [1.0 + (7 * i % 5) for i in range(layers)]
    before, after = 2.5, 4.0
    sizes = balanced_split(costs, stages, before=before, after=after)
    assert sum(sizes) == layers
    assert min(sizes) >= 1

    def dearest(cuts):
        edges = [0, *cuts, layers]
        sums = [sum(costs[a:b]) for a, b in itertools.pairwise(edges)]
        sums[0] += before
        sums[-1] += after
        return max(sums)

    if layers <= 12:
        best = min(dearest(cuts) for cuts in itertools.combinations(range(1, layers), stages - 1))
        assert dearest(list(itertools.accumulate(sizes))[:-1]) == best


def test_thirty_equal_layers_on_four_stages_are_all_there_and_even():
    assert sorted(balanced_split([1.0] * 30, 4)) == [7, 7, 8, 8]


@pytest.mark.parametrize(("stages", "chunks", "shape"), [(2, 2, "v"), (3, 2, "v"), (3, 2, "round-robin"), (2, 4, "v")])
@pytest.mark.parametrize("layers", [8, 9, 10, 11])
@pytest.mark.parametrize("head", [0.0, 0.5, 2.0])
def test_stages_of_several_chunks_are_as_even_as_any_cut_makes_them(stages, chunks, shape, layers, head):
    placement = Placement(stages, chunks, shape)
    owners = [placement.owner(piece)[0] for piece in range(stages * chunks)]

    def dearest(sizes):
        cost = [0.0] * stages
        for owner, size in zip(owners, sizes, strict=True):
            cost[owner] += size
        cost[owners[-1]] += head
        return max(cost)

    costs = [1.0] * layers
    sizes = even_stages(balanced_split(costs, len(owners), after=head), costs, owners, after=head)
    assert sum(sizes) == layers
    assert min(sizes) >= 1
    cuts = itertools.combinations(range(1, layers), len(owners) - 1)
    assert dearest(sizes) == min(dearest([b - a for a, b in itertools.pairwise([0, *cut, layers])]) for cut in cuts)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="5 stages"):
        balanced_split([1.0] * 4, 5)


def test_seeds_depend_on_where_and_not_on_when():
    places = [(step, layer, microbatch) for step in range(5) for layer in range(5) for microbatch in range(5)]
    first = {place: derive_seed(7, "dropout", *place) for place in places}
    assert len(set(first.values())) == len(places)
    assert all(derive_seed(7, "dropout", *place) == seed for place, seed in reversed(first.items()))
    assert all(0 <= seed < 2**63 for seed in first.values())
    assert derive_seed(8, "dropout", 0, 0, 0) != first[0, 0, 0]
