"""The parts of the runtime that need no ranks: places in the mesh, message headers, waiting, gradient order."""

import collections
import itertools
import math
import time

import pytest
import torch

from hpcpipe.device.cpu import Cpu
from hpcpipe.plan.by_step import ByStep
from hpcpipe.runtime.header import NOTICE_BYTES, ROOM_FOR_ONE, Content, Described, Header, Notice, read
from hpcpipe.runtime.mesh import Place
from hpcpipe.runtime.reserve import Reserve
from hpcpipe.runtime.structure import ONE_TENSOR, put_together, take_apart
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


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (1, 2, 3, 4, 5, 6, 7, 8, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_a_header_survives_the_journey(shape, dtype):
    described = Described(*Cpu(sharing_ranks=1).describe(torch.empty(shape, dtype=dtype)))
    assert described.shape == shape
    content = Content.of(ONE_TENSOR, [described])
    header = Header(step=2**30, microbatch=7, chunk=3, sent=2**60, content=content)
    buffer = memoryview(bytearray(ROOM_FOR_ONE))
    header.pack_into(buffer)
    assert read(buffer) == header
    assert header.payload_bytes == torch.empty(shape, dtype=dtype).nbytes
    assert content.size <= ROOM_FOR_ONE + header.payload_bytes


def test_a_header_tells_several_tensors_that_do_not_overlap_and_who_wants_a_gradient():
    tensors = [
        Described("float32", (3, 5), True),
        Described("bool", (7,)),
        Described("int64", (2, 0)),
        Described("float64", ()),
    ]
    content = Content.of("anything", tensors)
    header = Header(0, 1, 2, 3, content)
    buffer = memoryview(bytearray(content.size))
    header.pack_into(buffer)
    assert read(buffer).content.tensors == tuple(tensors)
    assert header.payload_bytes == 60 + 7 + 0 + 8
    ends = [at + size for at, size in zip(content.offsets, (60, 7, 0, 8), strict=True)]
    assert all(at % 64 == 0 for at in content.offsets)
    assert all(end <= at for end, at in zip(ends, (*content.offsets[1:], content.size), strict=True))


def test_a_notice_fits_the_smallest_slot_and_says_where_the_message_comes():
    content = Content.of(ONE_TENSOR, [Described("float32", (1 << 33, 3))])
    buffer = memoryview(bytearray(NOTICE_BYTES))
    Header(5, 6, 7, 8, content).pack_notice(buffer, 20_000)
    assert read(buffer) == Notice(step=5, chunk=7, size=content.size, tag=20_000)
    assert content.payload_bytes == 12 * 2**33


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 1), (2, 0, 4)])
def test_a_tensor_keeps_its_layout_on_its_way_and_one_with_gaps_its_values(order, shape):
    cpu = Cpu(sharing_ranks=1)
    dense = torch.arange(float(math.prod(shape))).view(shape).permute(order)
    gaps = torch.arange(float(2 * math.prod(shape))).view(2, *shape)[:, :, :, ::2].permute(1, 0, 2, 3)
    for tensor in (dense, gaps, torch.ones(1).expand(3)):
        described = Described(*cpu.describe(tensor))
        content = Content.of(ONE_TENSOR, [described])
        buffer = cpu.buffer(content.size)
        Header(0, 0, 0, 0, content).pack_into(cpu.view(buffer))
        cpu.store(tensor, buffer, content.offsets[0])
        again = cpu.load(buffer, content.offsets[0], read(cpu.view(buffer)).content.tensors[0])
        assert torch.equal(again, tensor)
        assert tensor is not dense or again.stride() == tensor.stride() or tensor.is_contiguous()


def test_bytes_that_are_no_header_are_refused():
    with pytest.raises(ValueError, match="does not start with a header"):
        read(memoryview(bytearray(NOTICE_BYTES)))


def test_tensors_that_cannot_be_described_are_refused():
    cpu = Cpu(sharing_ranks=1)
    for tensor in (torch.zeros(1, dtype=torch.float8_e5m2), torch.zeros((1,) * 65)):
        with pytest.raises(ValueError, match="cannot send"):
            Content.of(ONE_TENSOR, [Described(*cpu.describe(tensor))])
    with pytest.raises(ValueError, match="make it dense"):
        cpu.describe(torch.zeros(2, 2).to_sparse())
    with pytest.raises(ValueError, match="holds a Place, which is neither a tensor"):
        cpu.describe(Place.of(0, pipeline=1, data=1, tensor=1))


VALUES = [
    3.5,
    [],
    (),
    {},
    None,
    ("x", ["y", ("z",)]),
    {"hidden": "x", "scale": 2, "name": "t", "flag": True, "rest": [None, {"deep": "y"}, -1.5]},
]


@pytest.mark.parametrize("value", VALUES)
def test_a_structure_is_put_together_as_it_was_with_the_types_of_its_containers(value):
    def with_tensors(node):
        if node in ("x", "y", "z"):
            return torch.full((1,), float(ord(node)))
        if type(node) is dict:
            return {key: with_tensors(each) for key, each in node.items()}
        return type(node)(map(with_tensors, node)) if type(node) in (list, tuple) else node

    given = with_tensors(value)
    structure, tensors = take_apart(given)
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors)
    again = put_together(structure, tensors)
    assert type(again) is type(given)
    assert str(again) == str(given)


def test_a_structure_that_the_other_side_could_not_make_is_refused_with_its_place():
    with pytest.raises(ValueError, match=r"the value\['a'\]\[1\] is a Place"):
        take_apart({"a": [1, collections.namedtuple("Place", "x")(2)]})
    with pytest.raises(ValueError, match=r"the value\[0\] has keys that are no strings: \[3\]"):
        take_apart(({3: 4},))


def test_both_ends_of_an_edge_agree_on_its_slots_from_the_second_step_after_on():
    sender, receiver = Reserve(ByStep(100)), Reserve(ByStep(100))
    for end in (sender, receiver):
        end.note(3, 5000)
        end.note(3, 4000)
    assert [sender.at(step) for step in (3, 4)] == [100, 100]
    assert sender.at(5) == receiver.at(9) >= 5000
    assert sender.at(5) <= 5000 * 9 / 8
    sender.note(5, sender.at(5) + 1)
    assert sender.at(6) < sender.at(7)


def test_an_edge_forgets_what_it_saw_when_other_micro_batches_come():
    planned = ByStep(1000)
    edge = Reserve(planned)
    edge.note(3, 5000)
    assert edge.at(5) >= 5000
    planned.change(7, 500)
    edge.note(6, 9000)  # of the last step before the change
    assert edge.at(6) >= 5000
    assert [edge.at(step) for step in (7, 8, 9)] == [500, 500, 500]
    edge.note(9, 700)
    assert edge.at(10) == 500
    assert edge.at(11) >= 700


def test_a_value_by_step_is_known_for_the_last_two_steps_and_all_later_ones():
    value = ByStep("a")
    assert (value.at(0), value.since(0)) == ("a", -1)
    for step in range(1, 50):  # a change every step, as in a run that is told of it one step before
        value.change(step + 1, f"{step + 1}")
        if step > 2:
            assert [value.at(each) for each in (step - 1, step, step + 1, step + 99)] == [
                f"{step - 1}",
                f"{step}",
                f"{step + 1}",
                f"{step + 1}",
            ]
            assert value.since(step) == step
    assert len(value._changes) <= 4
    value.change(50, "another")
    value.change(50, "the last word")
    assert value.at(50) == "the last word"


def test_long_messages_are_counted_in_units_that_a_32_bit_count_can_hold(monkeypatch):
    from hpcpipe.runtime import counts

    assert counts.padded(2**31 - 1) == 2**31 - 1
    assert counts.padded(2**31) == 2**31
    assert counts.padded(2**33 + 1) == 2**33 + 8
    monkeypatch.setattr(counts, "MOST", 10)
    for size in (10, 11, 20, 21, 999):
        room = counts.padded(size)
        _, count, *kind = counts.counted(memoryview(bytearray(room)), size) if size > 10 else (None, size)
        assert count <= 10
        assert size <= room == count * (kind[0].Get_size() if kind else 1) < size + 128


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
