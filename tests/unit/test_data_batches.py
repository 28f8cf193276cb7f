"""Micro-batches: read ahead by a thread without waiting for it, and divided by what the whole step counts."""

import threading

import numpy as np
import pytest
import torch

from hpcpipe.data import Batches, Deal, Evaluation, Order, OwnSource, counted_tokens
from hpcpipe.data.prefetch import Prefetched

LIMIT_S = 30  # only ever waited for by a test that fails


class Reads:
    """A function of the step that notes who called it, and that stops at closed gates."""

    def __init__(self):
        self.calls = []
        self.gates = {}
        self.done = {step: threading.Event() for step in range(10)}

    def __call__(self, step):
        if step in self.gates:
            assert self.gates[step].wait(LIMIT_S)
        self.calls.append((step, threading.current_thread() is threading.main_thread()))
        self.done[step].set()
        return f"data of {step}"


def test_what_was_read_ahead_is_not_read_again_and_nothing_is_waited_for():
    read = Reads()
    read.gates[2] = threading.Event()
    ahead = Prefetched(read, steps=10)
    assert ahead.take(0) == "data of 0"
    assert read.done[1].wait(LIMIT_S)  # the thread has read step 1 while the caller did something else
    assert ahead.take(1) == "data of 1"  # returns although reading step 2 cannot go on
    assert not read.done[2].is_set()
    read.gates[2].set()
    assert ahead.take(2) == "data of 2"
    assert read.done[3].wait(LIMIT_S)
    assert [step for step, _ in read.calls] == [0, 1, 2, 3]
    assert not any(in_main for _, in_main in read.calls)


def test_any_step_can_be_taken_next_and_nothing_is_read_past_the_last():
    read = Reads()
    ahead = Prefetched(read, steps=8)
    assert [ahead.take(step) for step in (5, 2, 7)] == ["data of 5", "data of 2", "data of 7"]
    assert ahead.take(7) == "data of 7"
    assert max(step for step, _ in read.calls) == 7


def test_an_error_while_reading_ahead_comes_when_its_step_is_taken():
    def read(step):
        if step == 1:
            raise ValueError("the file ends here")
        return step

    ahead = Prefetched(read, steps=3)
    assert ahead.take(0) == 0
    with pytest.raises(ValueError, match="the file ends here"):
        ahead.take(1)


class Padded:
    """Sequences whose number of counted targets differs from sample to sample."""

    def __len__(self):
        return 17

    def __getitem__(self, index):
        targets = torch.full((6,), -100)
        targets[: index % 4] = index
        return torch.full((6,), index), targets


def _batches(*, microbatches, size, replica=0, replicas=1, **how):
    deal = Deal(Order(17, seed=2), microbatches=microbatches, size=size, replica=replica, replicas=replicas)
    return Batches(OwnSource("test", Padded()), deal, steps=9, **how)


@pytest.mark.parametrize(("microbatches", "size", "replicas"), [(8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 2, 4)])
def test_every_replica_divides_by_what_the_whole_step_counts(microbatches, size, replicas):
    for step in (0, 3):
        samples = Order(17, seed=2).take(8 * step, 8)
        for replica in range(replicas):
            how = {"replica": replica, "replicas": replicas, "count": counted_tokens}
            batches = _batches(microbatches=microbatches, size=size, **how)
            batches.load(step)
            targets = [batches.targets(m) for m in range(microbatches)]
            assert {each.total for each in targets} == {float(sum(s % 4 for s in samples.tolist()))}
            assert torch.equal(
                batches.inputs(0)[:, 0], torch.from_numpy(samples[replica * microbatches * size :][:size])
            )


def test_a_total_that_is_known_is_not_counted_and_without_a_count_targets_come_as_they_are():
    known = _batches(microbatches=2, size=2, count=lambda _: 1 / 0, total=lambda _step: 4.0)
    known.load(0)
    assert known.targets(1).total == 4.0
    plain = _batches(microbatches=2, size=2)
    plain.load(0)
    assert isinstance(plain.targets(0), torch.Tensor)


def test_a_step_in_which_nothing_counts_is_an_error_and_no_division_by_zero():
    batches = _batches(microbatches=1, size=1, count=lambda _: 0.0)
    with pytest.raises(ValueError, match="no target of step 0 counts"):
        batches.load(0)


def test_an_evaluation_reads_each_micro_batch_once():
    read = []

    class Noting(OwnSource):
        def read(self, samples):
            read.append(samples.tolist())
            return super().read(samples)

    deal = [np.array([3, 4]), np.array([5])]
    evaluation = Evaluation(Noting("test", Padded()), deal, count=counted_tokens)
    for number in range(len(evaluation)):
        evaluation.inputs(number), evaluation.targets(number)
        assert evaluation.count(number) == sum(sample % 4 for sample in deal[number].tolist())
    assert read == [[3, 4], [5]]


class Bad:
    """Data sets with one fault each."""

    class Broken(Padded):
        def __getitem__(self, index):
            return [][index]

    class Single(Padded):
        def __getitem__(self, index):
            return torch.zeros(3)

    class Ragged(Padded):
        def __getitem__(self, index):
            return torch.zeros(index + 1), 0

    class Empty(Padded):
        def __len__(self):
            return 0

    class Together(Padded):
        def collate(self, samples):
            return samples[0][0]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Bad.Broken, r"mine: sample 2 cannot be read: IndexError: list index out of range \(.*test_data_batches"),
        (Bad.Single, r"mine: sample 2 is a Tensor, not a pair"),
        (Bad.Ragged, r"mine: samples \[2, 3\] cannot be put together: RuntimeError.*collate\(samples\)"),
        (Bad.Empty, r"mine: the data set is empty"),
        (Bad.Together, r"mine: collate returned a Tensor, not a pair"),
        (lambda: iter(()), r"mine: returned a tuple_iterator, which cannot be asked for its length"),
    ],
)
def test_faults_of_an_own_data_set_name_the_sample_and_the_way_out(dataset, message):
    with pytest.raises((ValueError, TypeError), match=message):
        OwnSource("mine", dataset()).read(np.array([2, 3]))


def test_an_own_data_set_may_put_its_samples_together_itself():
    class Lengths(Bad.Ragged):
        def collate(self, samples):
            return torch.nn.utils.rnn.pad_sequence([each for each, _ in samples], batch_first=True), torch.zeros(2)

    inputs, _ = OwnSource("mine", Lengths()).read(np.array([0, 4]))
    assert inputs.shape == (2, 5)
