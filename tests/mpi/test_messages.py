"""Channels between real ranks: directions never mix, order of arrival is free, slots and requests are reused."""

from collections import OrderedDict

import pytest
import torch

from hpcpipe.device.cpu import Cpu
from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task
from hpcpipe.plan.slots import sources
from hpcpipe.runtime import Inlet, Mailbox, Mesh, World

STEPS = 50


@pytest.fixture
def device():
    return Cpu(sharing_ranks=4)


def _mailbox(mesh, device, *, slots, payload_bytes):
    """Return the mailbox of a plain pipeline of one chunk a stage."""
    stage = mesh.place.stage
    inlets = [] if mesh.place.first else [Inlet(Kind.F, 0, stage - 1, slots)]
    inlets += [] if mesh.place.last else [Inlet(Kind.B, 0, stage + 1, slots)]
    return Mailbox(mesh, inlets=inlets, payload_bytes=payload_bytes, memory=device)


def _send(mailbox, mesh, feeds, tensor, *, step, microbatch):
    stage = mesh.place.stage + (1 if feeds is Kind.F else -1)
    mailbox.send(stage, Task(feeds, microbatch), tensor, step=step)


def _poll_until(mailbox, count, seen):
    while len(seen) < count:
        arrivals, _ = mailbox.poll()
        for neighbour, arrival in arrivals:
            task = Task(neighbour.feeds, arrival.header.microbatch, neighbour.chunk)
            seen.append((neighbour.feeds, task.microbatch, arrival.value.clone()))
            mailbox.release(task, arrival.slot)


def _drain(mailbox):
    while mailbox.sending:
        mailbox.poll()


@pytest.mark.mpi(min_size=2)
def test_with_two_stages_activations_and_gradients_never_swap(comm, device):
    """The next and the previous neighbour are the same rank (Megatron-LM 1450, 5271)."""
    pair = comm.Split(comm.rank // 2)
    if pair.size == 2:
        mesh = Mesh(pair, pipeline=2, data=1, tensor=1)
        shape = (3, 1000)
        mailbox = _mailbox(mesh, device, slots=4, payload_bytes=4 * 3000)
        mine, theirs = (Kind.F, Kind.B) if pair.rank == 0 else (Kind.B, Kind.F)
        for step in range(STEPS):
            for m in range(4):
                value = 1000.0 * step + 10 * m + float(mine)
                _send(mailbox, mesh, mine, torch.full(shape, value), step=step, microbatch=m)
            seen = []
            _poll_until(mailbox, 4, seen)
            for feeds, m, tensor in seen:
                assert feeds is theirs
                assert torch.equal(tensor, torch.full(shape, 1000.0 * step + 10 * m + float(theirs)))
            _drain(mailbox)
        mailbox.free()
        mesh.free()
    pair.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("shape", ["round-robin", "v"])
def test_with_two_stages_of_chunks_no_message_takes_the_place_of_another(comm, device, shape):
    """The same rank is both neighbours in both directions, and the same micro-batches go all ways at once."""
    pair = comm.Split(comm.rank // 2)
    if pair.size == 2:
        mesh = Mesh(pair, pipeline=2, data=1, tensor=1)
        schedule = Schedule("bf", "ready", Placement(2, 4, shape), 3, (Limits(),) * 2)
        inlets = [Inlet(*source) for source in sources(schedule, pair.rank)]
        mailbox = Mailbox(mesh, inlets=inlets, payload_bytes=64, memory=device)
        plan = schedule.stage_plan(pair.rank)

        def value(step, task):
            return float(1000 * step + 100 * task.kind + 10 * task.chunk + task.microbatch)

        for step in range(STEPS):
            for task in [Task(kind, m, chunk) for m in range(3) for chunk in range(4) for kind in (Kind.F, Kind.B)]:
                follower = plan.follower(task)
                if follower is not None and follower[0] != pair.rank:
                    mailbox.send(*follower, torch.tensor(value(step, follower[1])), step=step)
            seen = set()
            while len(seen) < 3 * len(inlets) or mailbox.sending:
                for neighbour, arrival in mailbox.poll()[0]:
                    task = Task(neighbour.feeds, arrival.header.microbatch, neighbour.chunk)
                    assert arrival.header.step == step
                    assert arrival.value.item() == value(step, task)
                    seen.add(task)
                    mailbox.release(task, arrival.slot)
            assert {(task.kind, task.chunk) for task in seen} == {(inlet.feeds, inlet.chunk) for inlet in inlets}
            pair.Barrier()
        mailbox.free()
        mesh.free()
    pair.Free()


@pytest.mark.mpi(min_size=2)
def test_a_message_for_one_chunk_passes_those_that_wait_for_the_slots_of_another(comm, device):
    """However large: chunk 0's two slots stay full, three more of its messages wait, and chunk 1's comes through."""
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    numbers = 1 << 17
    stage = mesh.place.stage
    inlets = [Inlet(Kind.F, chunk, stage - 1, 2) for chunk in range(2)] if stage == 1 else []
    mailbox = Mailbox(mesh, inlets=inlets, payload_bytes=4 * numbers, memory=device)
    if stage == 0:
        for m in range(5):
            mailbox.send(1, Task(Kind.F, m, 0), torch.full((numbers,), float(m)), step=0)
        mailbox.send(1, Task(Kind.F, 0, 1), torch.full((numbers,), 9.0), step=0)
        _drain(mailbox)
    if stage == 1:
        held, passed = [], []
        while not passed:
            for neighbour, arrival in mailbox.poll()[0]:
                (passed if neighbour.chunk else held).append(arrival)
        assert passed[0].value[-1] == 9.0
        seen = 0
        while seen < 5:
            for arrival in held:
                assert arrival.value[-1] == arrival.header.microbatch == seen
                mailbox.release(Task(Kind.F, seen, 0), arrival.slot)
                seen += 1
            held = [arrival for _, arrival in mailbox.poll()[0]]
    mailbox.free()
    mesh.free()


@pytest.mark.mpi(min_size=2)
def test_a_message_says_what_it_is_so_shapes_types_and_order_are_free(comm, device):
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    mailbox = _mailbox(mesh, device, slots=3, payload_bytes=4096)
    tensors = {
        5: torch.arange(12, dtype=torch.int64).view(3, 4),
        2: torch.tensor([True, False, True]),
        9: torch.zeros(0, 7),
        1: torch.randn(2, 3, generator=torch.Generator().manual_seed(1)).bfloat16(),
        7: torch.arange(24.0).view(4, 6).t(),  # not contiguous
    }
    if not mesh.place.last:
        for m, tensor in tensors.items():
            _send(mailbox, mesh, Kind.F, tensor, step=0, microbatch=m)
    if not mesh.place.first:
        seen = []
        _poll_until(mailbox, len(tensors), seen)
        for _, m, tensor in seen:
            assert tensor.dtype is tensors[m].dtype
            assert torch.equal(tensor, tensors[m])
    _drain(mailbox)
    mailbox.free()
    mesh.free()


@pytest.mark.mpi(min_size=2)
def test_few_slots_carry_many_messages_and_none_is_seen_twice(comm, device):
    """A completed persistent request tests as complete for ever; the channel must not believe it."""
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    mailbox = _mailbox(mesh, device, slots=2, payload_bytes=64)
    total = 2000
    expected = (0 if mesh.place.first else total) + (0 if mesh.place.last else total)
    seen, sent, under_way = [], 0, 8
    while len(seen) < expected or sent < total or mailbox.sending:
        for feeds, skip in ((Kind.F, mesh.place.last), (Kind.B, mesh.place.first)):
            if not skip and sent < total:
                _send(mailbox, mesh, feeds, torch.tensor([float(sent)]), step=0, microbatch=sent)
        sent = min(total, sent + 1)
        while True:
            arrivals, _ = mailbox.poll()
            for neighbour, arrival in arrivals:
                task = Task(neighbour.feeds, arrival.header.microbatch)
                assert arrival.value.item() == task.microbatch
                seen.append((task.kind, task.microbatch))
                mailbox.release(task, arrival.slot)
            if sent - len(seen) / max(1, expected / total) < under_way or len(seen) >= expected:
                break
    assert len(seen) == len(set(seen)) == expected
    comm.Barrier()
    assert mailbox.poll() == ([], [])
    mailbox.free()
    mesh.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("most", [None, 1000])
def test_messages_larger_than_their_slots_come_whole_and_later_fit(comm, device, most, monkeypatch):
    """Sizes that nobody knew beforehand, beside small ones (DeepSpeed 5696); counted in units too (mpi4py 119, 575)."""
    if most is not None:
        monkeypatch.setattr("hpcpipe.runtime.counts.MOST", most)
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    mailbox = _mailbox(mesh, device, slots=2, payload_bytes=16)
    feeds = [(Kind.F, mesh.place.last, mesh.place.first), (Kind.B, mesh.place.first, mesh.place.last)]
    sizes = [3, 100_000, 7, 0, 99_999, 30_000]
    apart = []
    for step in range(6):
        mailbox.begin(step)
        before = mailbox._outbox._sent_apart
        for m, size in enumerate(sizes):
            for kind, nobody, _ in feeds:
                if not nobody:
                    tensor = torch.arange(float(size)) + 10 * step + float(kind)
                    _send(mailbox, mesh, kind, tensor, step=step, microbatch=m)
        seen = []
        _poll_until(mailbox, len(sizes) * sum(not nobody for _, _, nobody in feeds), seen)
        for kind, m, tensor in seen:
            assert torch.equal(tensor, torch.arange(float(sizes[m])) + 10 * step + float(kind))
        _drain(mailbox)
        comm.Barrier()  # as the pipeline's own messages do: nobody is a whole step ahead
        apart.append((mailbox._outbox._sent_apart - before) / sum(not nobody for _, nobody, _ in feeds))
    assert apart == [3, 3, 0, 0, 0, 0]
    mailbox.free()
    mesh.free()


@pytest.mark.mpi(min_size=2)
def test_one_message_carries_a_whole_structure_and_changes_in_place_stay_with_their_tensor(comm, device):
    """Several types, no tensor, plain values (pytorch 130055); whole numbers want no gradient (PiPPy 941)."""
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    mailbox = _mailbox(mesh, device, slots=1, payload_bytes=4096)
    value = {
        "hidden": torch.arange(24.0).view(4, 6).t().requires_grad_(),
        "side": (torch.tensor([1, 2, 3]), torch.tensor([True, False]), torch.zeros(0, 5)),
        "wave": torch.tensor([1 + 2j]),
        "none": None,
        "scale": 0.5,
    }
    mailbox.begin(0)
    if not mesh.place.last:
        _send(mailbox, mesh, Kind.F, value, step=0, microbatch=3)
    arrived = None
    while not mesh.place.first and arrived is None:
        for _, arrival in mailbox.poll()[0]:
            arrived = arrival.value
            assert arrived.keys() == value.keys()
            assert torch.equal(arrived["hidden"], value["hidden"].detach())
            assert arrived["hidden"].requires_grad
            assert arrived["hidden"].is_leaf
            assert [torch.equal(a, b) for a, b in zip(arrived["side"], value["side"], strict=True)] == [True] * 3
            assert not any(tensor.requires_grad for tensor in (*arrived["side"], arrived["wave"]))
            assert torch.equal(arrived["wave"], value["wave"])
            assert (arrived["none"], arrived["scale"]) == (None, 0.5)
            loss = arrived["hidden"].square().sum()
            arrived["side"][0].add_(1)
            loss.backward()
            assert torch.equal(arrived["hidden"].grad, 2 * value["hidden"].detach())
            mailbox.release(Task(Kind.F, 3), arrival.slot)
    _drain(mailbox)
    mailbox.free()
    mesh.free()


@pytest.mark.mpi(min_size=2)
def test_what_cannot_be_sent_is_refused_with_its_place_and_where_it_was_to_go(comm, device):
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    mailbox = _mailbox(mesh, device, slots=1, payload_bytes=64)
    if not mesh.place.last:
        where = f"the output of micro-batch 4 cannot go to stage {mesh.place.stage + 1}: "
        with pytest.raises(ValueError, match=rf"{where}it holds a set"):
            _send(mailbox, mesh, Kind.F, {"x": torch.zeros(1), "y": {1}}, step=0, microbatch=4)
        with pytest.raises(ValueError, match=rf"{where}the value\['y'\] is a OrderedDict"):
            _send(mailbox, mesh, Kind.F, {"y": OrderedDict()}, step=0, microbatch=4)
    mailbox.free()
    mesh.free()


@pytest.mark.long
@pytest.mark.mpi(min_size=2)
def test_a_message_of_more_than_2_gib_arrives_whole(comm, device):
    """A length beyond 32 bits (mpi4py 575). It needs 5 GB of memory."""
    pair = comm.Split(comm.rank // 2)
    if pair.size == 2 and comm.rank < 2:
        mesh = Mesh(pair, pipeline=2, data=1, tensor=1)
        size = 2**31 + 4099
        mailbox = _mailbox(mesh, device, slots=1, payload_bytes=0)
        if pair.rank == 0:
            tensor = torch.zeros(size, dtype=torch.uint8)
            tensor[:: 2**20 + 7] = 5
            tensor[-1] = 7
            _send(mailbox, mesh, Kind.F, tensor, step=0, microbatch=0)
            del tensor
            _drain(mailbox)
        else:
            arrivals = []
            while not arrivals:
                arrivals = mailbox.poll()[0]
            value = arrivals[0][1].value
            assert value.shape == (size,)
            assert value[-1] == 7
            assert (value[:: 2**20 + 7] == 5).all()
            nonzero = sum(int(part.count_nonzero()) for part in value.split(2**26))
            assert nonzero == -(-size // (2**20 + 7)) + 1
        mailbox.free()
        mesh.free()
    pair.Free()


@pytest.mark.mpi(min_size=2)
def test_facts_are_shared_and_collected_without_pickles(comm):
    world = World(comm)
    assert world.share({"dir": "a b/ü", "n": [1, 2]} if comm.rank == 0 else None) == {"dir": "a b/ü", "n": [1, 2]}
    everybody = [{"rank": r, "text": "x" * r} for r in range(comm.size)]
    assert world.collect(everybody[comm.rank]) == everybody
    assert world.gather(everybody[comm.rank]) == (everybody if comm.rank == 0 else [])
    assert world.first("" if comm.rank == 0 else f"é {comm.rank}") == "é 1"
    assert world.first(None) is None


@pytest.mark.mpi(min_size=2)
def test_an_mpi_error_raises_instead_of_ending_the_process(comm):
    from mpi4py import MPI

    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    for communicator in (mesh.world, mesh.forward, mesh.backward, mesh.replicas):
        with pytest.raises(MPI.Exception):
            communicator.Send([bytearray(1), MPI.BYTE], dest=10_000)
    mesh.free()
