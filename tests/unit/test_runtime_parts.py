"""The parts of the runtime that need no ranks: places in the mesh, message headers, waiting, gradient order."""

import itertools
import time

import pytest
import torch

from hpcpipe.device.cpu import Cpu
from hpcpipe.runtime.header import HEADER_BYTES, Header
from hpcpipe.runtime.mesh import Place
from hpcpipe.runtime.waiting import Waiting, choose_poll
from hpcpipe.train.accumulate import Accumulator
from hpcpipe.train.schedule import learning_rate


@pytest.mark.parametrize(("pipeline", "data", "tensor"), [(1, 1, 1), (4, 1, 1), (4, 2, 1), (2, 3, 4), (16, 4, 2)])
def test_every_rank_has_one_place_and_finds_its_neighbours(pipeline, data, tensor):
    sizes = {"pipeline": pipeline, "data": data, "tensor": tensor}
    places = [Place.of(rank, **sizes) for rank in range(pipeline * data * tensor)]
    assert len({(p.stage, p.replica, p.slice) for p in places}) == len(places)
    for rank, place in enumerate(places):
        assert place.rank_of(place.stage) == rank
        for stage in range(pipeline):
            other = places[place.rank_of(stage)]
            assert (other.stage, other.replica, other.slice) == (stage, place.replica, place.slice)


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (1, 2, 3, 4, 5, 6, 7, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_header_survives_the_journey(shape, dtype):
    name, described = Cpu(sharing_ranks=1).describe(torch.empty(shape, dtype=dtype))
    assert described == shape
    header = Header(step=2**30, microbatch=7, chunk=3, sent=2**60, dtype=name, shape=shape)
    buffer = memoryview(bytearray(HEADER_BYTES))
    header.pack_into(buffer)
    assert Header.unpack_from(buffer) == header
    assert header.payload_bytes == torch.empty(shape, dtype=dtype).nbytes


def test_bytes_that_are_no_header_are_refused():
    with pytest.raises(ValueError, match="does not start with a header"):
        Header.unpack_from(memoryview(bytearray(HEADER_BYTES)))


def test_tensors_that_cannot_be_described_are_refused():
    buffer = memoryview(bytearray(HEADER_BYTES))
    for tensor in (torch.zeros(1, dtype=torch.complex64), torch.zeros((1,) * 9)):
        dtype, shape = Cpu(sharing_ranks=1).describe(tensor)
        with pytest.raises(ValueError, match="cannot send"):
            Header(0, 0, 0, 0, dtype, shape).pack_into(buffer)


def test_a_long_wait_sleeps_and_a_short_one_does_not(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    waiting = Waiting("sleep")
    for _ in range(20):
        waiting.idle()
    assert not slept
    for _ in range(100):
        waiting.idle()
    assert slept
    assert slept == sorted(slept)
    assert max(slept) <= 1e-3
    count = len(slept)
    waiting.busy()
    for _ in range(20):
        waiting.idle()
    assert len(slept) == count


def test_a_wait_whose_end_is_known_never_sleeps_past_it(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr("hpcpipe.runtime.waiting.now", lambda: 1_000_000)
    waiting = Waiting("sleep")
    for _ in range(60):
        waiting.idle(1_100_000)
    for _ in range(10):
        waiting.during(1_200_000)
    assert len(slept) == 30
    assert max(slept[:20]) == pytest.approx(100e-6)
    assert max(slept[20:]) <= 200e-6
    waiting.idle(999_000)
    waiting.during(999_000)
    assert slept[30:] == [0.0]


@pytest.mark.parametrize("mode", ["spin", "yield"])
def test_modes_for_clusters_never_sleep(monkeypatch, mode):
    monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("slept"))
    waiting = Waiting(mode)
    for _ in range(1000):
        waiting.idle()


def test_auto_sleeps_where_ranks_share_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(4)))
    assert choose_poll("auto", sharing_ranks=5) == "sleep"
    assert choose_poll("auto", sharing_ranks=4) == "yield"
    assert choose_poll("auto", sharing_ranks=2) == "spin"
    assert choose_poll("auto", sharing_ranks=1) == "spin"
    assert choose_poll("yield", sharing_ranks=8) == "yield"


def test_ordered_accumulation_adds_in_order_whatever_the_order_of_arrival():
    for arrival in itertools.permutations(range(5)):
        added = []
        accumulator = Accumulator(
            lambda g, first, added=added: added.append((g[0], first)), microbatches=5, ordered=True
        )
        for _ in range(2):  # a second step starts a new sum
            for microbatch in arrival:
                accumulator(microbatch, [microbatch])
        assert added == [(m, m == 0) for m in range(5)] * 2


def test_ordered_accumulation_says_how_much_it_held():
    accumulator = Accumulator(lambda _g, _first: None, microbatches=4, ordered=True)
    for microbatch in (3, 2, 1, 0):
        accumulator(microbatch, [None])
    assert accumulator.peak_held == 3
    in_order = Accumulator(lambda _g, _first: None, microbatches=4, ordered=True)
    for microbatch in range(4):
        in_order(microbatch, [None])
    assert in_order.peak_held == 0


def test_accumulation_by_arrival_holds_nothing():
    added = []
    accumulator = Accumulator(lambda g, first: added.append((g[0], first)), microbatches=3, ordered=False)
    for microbatch in (2, 0, 1, 1, 2, 0):
        accumulator(microbatch, [microbatch])
    assert added == [(2, True), (0, False), (1, False), (1, True), (2, False), (0, False)]
    assert accumulator.peak_held == 0


def test_learning_rate_follows_the_formulas():
    rates = [learning_rate(s, peak=1.0, schedule="cosine", warmup=4, steps=12) for s in range(13)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[8] == pytest.approx(0.5)  # half way down half a cosine
    assert rates[12] == pytest.approx(0.0)
    assert learning_rate(100, peak=0.3, schedule="constant", warmup=0, steps=10) == 0.3
