"""Which samples a step gets: a function of seed and step, dealt out so that a layout changes who reads, not what."""

import numpy as np
import pytest

from hpcpipe.data import Deal, Order, evaluation_deal, held_out


def _deal(*, microbatches, size, replica=0, replicas=1, samples=23, seed=5):
    return Deal(Order(samples, seed=seed), microbatches=microbatches, size=size, replica=replica, replicas=replicas)


def test_every_epoch_holds_each_sample_once_in_another_order():
    order = Order(50, seed=3)
    epochs = [order.take(50 * epoch, 50).tolist() for epoch in range(4)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert epochs[0] != Order(50, seed=4).take(0, 50).tolist()


def test_a_piece_of_the_row_is_the_same_wherever_it_begins_and_however_often_epochs_are_crossed():
    whole = Order(7, seed=1).take(0, 40)
    order = Order(7, seed=1)
    for first, count in ((33, 7), (0, 3), (5, 20), (6, 1), (13, 0)):  # backwards too
        assert order.take(first, count).tolist() == whole[first : first + count].tolist()


@pytest.mark.parametrize(
    ("microbatches", "size", "replicas"), [(6, 2, 1), (3, 2, 2), (2, 3, 2), (1, 1, 12), (12, 1, 1)]
)
def test_layouts_of_one_global_batch_see_the_same_samples_in_the_same_step(microbatches, size, replicas):
    row = Order(23, seed=5).take(0, 60)
    for step in (0, 1, 4, 2):
        parts = [
            _deal(microbatches=microbatches, size=size, replica=replica, replicas=replicas).mine(step)
            for replica in range(replicas)
        ]
        assert all(part.shape == (microbatches, size) for part in parts)
        assert np.concatenate(parts).reshape(-1).tolist() == row[12 * step : 12 * step + 12].tolist()


def test_the_other_replicas_samples_are_the_rest_of_the_step():
    deal = _deal(microbatches=2, size=3, replica=1, replicas=3)
    both = np.concatenate([deal.mine(3), deal.others(3)]).reshape(-1)
    assert sorted(both.tolist()) == sorted(Order(23, seed=5).take(54, 18).tolist())
    assert _deal(microbatches=2, size=3).others(0).shape == (0, 3)


@pytest.mark.parametrize(("count", "size", "replicas"), [(10, 4, 1), (10, 4, 2), (3, 8, 4), (9, 1, 4)])
def test_an_evaluation_has_every_held_out_sample_once_in_micro_batches_that_no_layout_changes(count, size, replicas):
    alone = evaluation_deal(100, count, size=size, replica=0, replicas=1)
    assert np.concatenate(alone).tolist() == list(range(100, 100 + count))
    assert [len(part) for part in alone[:-1]] == [size] * (len(alone) - 1)
    dealt = [evaluation_deal(100, count, size=size, replica=r, replicas=replicas) for r in range(replicas)]
    assert sorted(tuple(part) for mine in dealt for part in mine) == [tuple(part) for part in alone]


def test_at_least_one_sample_is_held_out_and_one_stays():
    assert held_out(1000, 0.0) == 0
    assert held_out(1000, 0.1) == 100
    assert held_out(1000, 0.0001) == 1
    assert held_out(2, 0.99) == 1
    with pytest.raises(ValueError, match=r"of 1 samples none can be held out"):
        held_out(1, 0.5)


@pytest.mark.parametrize(("microbatches", "size"), [(12, 1), (4, 3), (1, 12), (2, 6)])
def test_other_micro_batches_of_one_batch_hold_the_same_samples_in_one_order(microbatches, size):
    for replica in range(3):
        usual = _deal(microbatches=6, size=2, replica=replica, replicas=3)
        cut = usual.cut(microbatches=microbatches, size=size)
        for step in range(5):
            assert cut.mine(step).shape == (microbatches, size)
            assert cut.mine(step).ravel().tolist() == usual.mine(step).ravel().tolist()
            assert cut.others(step).ravel().tolist() == usual.others(step).ravel().tolist()


def test_micro_batches_that_do_not_keep_the_batch_are_refused():
    with pytest.raises(ValueError, match="5 micro-batches of 2 are 10 samples, a replica has 12"):
        _deal(microbatches=6, size=2).cut(microbatches=5, size=2)
