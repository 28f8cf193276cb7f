"""Virtual stages on stages, and what an order of chunks must satisfy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpipe.plan import Kind, Placement, Task, check_order


def test_chunks_go_round_the_stages():
    placement = Placement(stages=4, chunks=2)  # Megatron, arXiv 2104.04473: device 1 of 4 has layers 1, 2, 9, 10 of 16
    assert [placement.virtual(s, c) for s in range(4) for c in range(2)] == [0, 4, 1, 5, 2, 6, 3, 7]


def test_chunks_in_a_v_turn_at_the_last_stage():
    placement = Placement(stages=4, chunks=2, shape="v")
    assert [placement.virtual(s, c) for s in range(4) for c in range(2)] == [0, 7, 1, 6, 2, 5, 3, 4]


@pytest.mark.parametrize("style", ["loop", "v"])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_virtual_stages_lie_where_torch_puts_them(style, stages):
    from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

    placement = Placement(stages, 2, "v" if style == "v" else "round-robin")
    mapping = generate_stage_to_rank_mapping(stages, 2 * stages, style=style)
    assert {v: placement.owner(v)[0] for v in range(2 * stages)} == mapping


@given(stages=st.integers(1, 9), chunks=st.integers(1, 4), shape=st.sampled_from(["round-robin", "v"]))
def test_every_virtual_stage_has_one_owner(stages, chunks, shape):
    placement = Placement(stages, chunks, shape)
    places = [(s, c) for s in range(stages) for c in range(chunks)]
    assert sorted(placement.virtual(s, c) for s, c in places) == list(range(placement.virtual_stages))
    assert all(placement.owner(placement.virtual(s, c)) == (s, c) for s, c in places)


def test_a_placement_of_nothing_is_refused():
    with pytest.raises(ValueError, match="0 stages of 1 chunks"):
        Placement(0)
    with pytest.raises(ValueError, match="unknown shape 'w'"):
        Placement(2, 2, "w")


def tasks(text):
    """`F0.1` is the forward of micro-batch 0 in chunk 1."""
    parts = [word.partition(".") for word in text.split()]
    return [Task(Kind[name[0]], int(name[1:]), int(chunk or 0)) for name, _, chunk in parts]


def test_a_split_order_has_a_weight_gradient_for_every_backward_and_its_stash_counts_them():
    order = tasks("F0 B0 F1 B1 W0 W1")
    peaks = check_order([order], placement=Placement(1), microbatches=2, split=True)
    assert peaks.in_flight == (1,)
    assert peaks.stash == (2,)
    with pytest.raises(ValueError, match="missing W1, unknown none"):
        check_order([order[:-1]], placement=Placement(1), microbatches=2, split=True)
    with pytest.raises(ValueError, match="unknown W0, W1"):
        check_order([order], placement=Placement(1), microbatches=2, split=False)


def test_a_weight_gradient_before_its_backward_is_refused():
    with pytest.raises(ValueError, match=r"stage 0 at W0 \(needs B0 of stage 0\)"):
        check_order([tasks("F0 W0 B0")], placement=Placement(1), microbatches=1, split=True)


def test_the_chain_of_a_v_comes_back_through_the_same_stages():
    v = Placement(2, 2, "v")
    first, last = tasks("F0 F0.1 B0.1 B0"), tasks("F0 F0.1 B0.1 B0")
    assert check_order([first, last], placement=v, microbatches=1, split=False).in_flight == (2, 2)
    round_robin = Placement(2, 2)  # here chunk 1 of stage 1 needs chunk 1 of stage 0: the other way round
    with pytest.raises(ValueError, match="wait for each other"):
        check_order([tasks("F0 B0 F0.1 B0.1"), last], placement=round_robin, microbatches=1, split=False)


def test_only_the_stages_of_the_circle_are_named():
    """Stages 2 and 3 are stuck too, but they only wait for the circle."""
    good, bad = tasks("F0 B0 F1 B1"), tasks("F1 F0 B0 B1")
    with pytest.raises(ValueError, match="stage 0 at B0") as error:
        check_order([good, bad, good, good], placement=Placement(4), microbatches=2, split=False)
    assert "stage 3" not in str(error.value)


def test_as_many_orders_as_stages_are_needed():
    with pytest.raises(ValueError, match="1 orders for 2 stages"):
        check_order([tasks("F0 B0")], placement=Placement(2), microbatches=1, split=False)
