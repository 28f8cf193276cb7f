"""Messages of a GPU between real ranks: its streams are played, late and in any order that CUDA allows."""

import random
import zlib

import pytest
import torch
from late_gpu import REAL, make_gpu

from hpcpipe.device.cpu import Cpu
from hpcpipe.device.messages import Direct, Staged
from hpcpipe.plan import Kind, Placement, Task
from hpcpipe.runtime import Inlet, Mailbox, Mesh
from hpcpipe.runtime.forward import ForwardPass

STEPS, MICROBATCHES = 12, 3
KINDS = {
    "staged": (Staged,),
    "direct": (Direct,),
    "both": (Staged, Direct),
    "beside a cpu": (Direct, None, Staged),
}


if REAL != "direct":  # memory of a real GPU can be given only to an MPI that takes it
    KINDS = {name: makes for name, makes in KINDS.items() if not (REAL and Direct in makes)}
GPUS = [name for name in KINDS if name != "beside a cpu"]


class Node:
    """One rank's memory for messages, and how it makes and reads values."""

    def __init__(self, kind, rank):
        self.gpu = make_gpu(rank)
        make = KINDS[kind][rank % len(KINDS[kind])]
        if make is None:
            self.memory = Cpu(sharing_ranks=4)
        else:
            self.memory = make(self.gpu, compute=self.gpu.compute, inward=self.gpu.inward, outward=self.gpu.outward)
        self.late = make is not None

    def computed(self, value):
        """Return a tensor that a kernel fills, later."""
        if not self.late:
            return value
        value = value.to(self.gpu.device)
        tensor = torch.full_like(value, 77)
        self.gpu.launch(lambda: tensor.copy_(value))
        return tensor


class NoWaiting:
    def idle(self, due=None):
        pass

    def busy(self):
        pass


def _value(stage, step, kind, microbatch, longest):
    draw = torch.Generator().manual_seed(hash((stage, step, int(kind), microbatch)) % 2**31)
    rows = int(torch.randint(1, longest, (), generator=draw))
    value = torch.randn(rows, 7, generator=draw)
    return value.t() if microbatch == 1 else value


def _checksum(tensor):
    return zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _mailbox(mesh, memory, payload_bytes):
    stage = mesh.place.stage
    inlets = [] if mesh.place.first else [Inlet(Kind.F, 0, stage - 1, MICROBATCHES)]
    inlets += [] if mesh.place.last else [Inlet(Kind.B, 0, stage + 1, MICROBATCHES)]
    return Mailbox(mesh, inlets=inlets, payload_bytes=payload_bytes, memory=memory)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("longest", [40, 4000])
def test_what_a_gpu_sends_arrives_unchanged_however_late_its_copies_are(comm, kind, longest):
    """Up and down a pipeline at once; at first messages are larger than their slots and come apart from them."""
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    node, stage = Node(kind, comm.rank), mesh.place.stage
    mailbox = _mailbox(mesh, node.memory, payload_bytes=256)
    neighbours = [(Kind.F, stage - 1)] * (not mesh.place.first) + [(Kind.B, stage + 1)] * (not mesh.place.last)
    outs = [(Kind.F, stage + 1)] * (not mesh.place.last) + [(Kind.B, stage - 1)] * (not mesh.place.first)
    draw = random.Random(comm.rank)
    for step in range(STEPS):
        mailbox.begin(step)
        todo = [(kind, to, m) for kind, to in outs for m in range(MICROBATCHES)]
        draw.shuffle(todo)
        awaited = {(kind, m): _value(source, step, kind, m, longest) for kind, source in neighbours for m in range(3)}
        while todo or awaited or mailbox.sending:
            if todo and draw.random() < 0.4:
                feeds, to, m = todo.pop()
                mailbox.send(to, Task(feeds, m), node.computed(_value(stage, step, feeds, m, longest)), step=step)
            for neighbour, arrival in mailbox.poll()[0]:
                task = Task(neighbour.feeds, arrival.header.microbatch)
                expected = awaited.pop((neighbour.feeds, task.microbatch))
                assert arrival.header.step == step
                assert arrival.value.shape == expected.shape
                assert _checksum(arrival.value) == _checksum(expected)
                mailbox.release(task, arrival.slot)
        comm.Barrier()  # as between steps, a rank is at most one step ahead
    mailbox.free()
    mesh.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", GPUS)
def test_once_all_slots_have_been_used_no_memory_is_made(comm, kind):
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    node, stage = Node(kind, comm.rank), mesh.place.stage
    mailbox = _mailbox(mesh, node.memory, payload_bytes=4 * 7 * 500)
    made = []
    for step in range(10):
        mailbox.begin(step)
        if not mesh.place.last:
            for m in range(MICROBATCHES):
                mailbox.send(stage + 1, Task(Kind.F, m), node.computed(torch.full((500, 7), float(m))), step=step)
        seen = 0
        while seen < MICROBATCHES * (not mesh.place.first) or mailbox.sending:
            for _, arrival in mailbox.poll()[0]:
                assert torch.all(arrival.value == arrival.header.microbatch)
                mailbox.release(Task(Kind.F, arrival.header.microbatch), arrival.slot)
                seen += 1
        comm.Barrier()
        made.append((node.memory.pool.allocations, node.gpu.allocated))
    assert made[2:] == [made[-1]] * 8
    mailbox.free()
    mesh.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", GPUS)
def test_a_header_of_many_tensors_is_longer_than_what_is_copied_at_first(comm, kind):
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    node, stage = Node(kind, comm.rank), mesh.place.stage
    mailbox = _mailbox(mesh, node.memory, payload_bytes=1 << 16)
    values = [tuple(torch.full((n % 5, 2, 1), float(n + again)) for n in range(300)) for again in range(4)]
    for step, value in enumerate(values):
        mailbox.begin(step)
        if not mesh.place.last:
            mailbox.send(stage + 1, Task(Kind.F, 0), tuple(map(node.computed, value)), step=step)
        arrived = mesh.place.first
        while not arrived or mailbox.sending:
            for _, arrival in mailbox.poll()[0]:
                assert all(torch.equal(each.cpu(), sent) for each, sent in zip(arrival.value, value, strict=True))
                mailbox.release(Task(Kind.F, 0), arrival.slot)
                arrived = True
        comm.Barrier()
    mailbox.free()
    mesh.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(bool(REAL), reason="a real GPU cannot be stopped")
@pytest.mark.parametrize("kind", ["staged", "direct"])
def test_while_copies_take_their_time_nothing_is_sent_or_handed_out_and_nobody_waits(comm, kind):
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    node, stage = Node(kind, comm.rank), mesh.place.stage
    mailbox = _mailbox(mesh, node.memory, payload_bytes=1 << 12)
    if stage == 0:
        node.gpu.stopped = True
        mailbox.send(1, Task(Kind.F, 0), node.computed(torch.ones(100)), step=0)
        for _ in range(100):
            assert mailbox.poll() == ([], [])
        assert [sent["microbatch"] for sent in mailbox.pending()["sends"]] == [0]
        assert mailbox.sending
        comm.Barrier()
        node.gpu.stopped = False
        while mailbox.sending:
            mailbox.poll()
        comm.Barrier()
    else:
        for _ in range(100):
            assert mailbox.poll() == ([], [])
        node.gpu.stopped = True
        comm.Barrier()
        comm.Barrier()  # rank 0 has sent
        if stage == 1:
            for _ in range(100):
                assert mailbox.poll() == ([], [])
            node.gpu.stopped = False
            while not (arrivals := mailbox.poll()[0]):
                pass
            assert torch.equal(arrivals[0][1].value, torch.ones(100))
    mailbox.free()
    mesh.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_passes_values_between_gpus(comm, kind):
    """Every stage adds its number and one."""
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    node = Node(kind, comm.rank)
    forwards = ForwardPass(mesh, Placement(comm.size, 1), memory=node.memory)
    seen = {}

    def run(chunk, microbatch, value):
        if value is None:
            value = torch.arange(50.0, device=node.gpu.device if node.late else "cpu") * microbatch
        result = value + mesh.place.stage + 1
        if mesh.place.last:
            seen[microbatch] = result
            return None
        return node.computed(result)

    forwards.run(5, run, waiting=NoWaiting(), moved=lambda: None)
    if mesh.place.last:
        added = comm.size * (comm.size + 1) / 2
        assert sorted(seen) == list(range(5))
        assert all(torch.equal(value.cpu(), torch.arange(50.0) * m + added) for m, value in seen.items())
    forwards.free()
    mesh.free()
