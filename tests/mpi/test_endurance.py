"""Very long runs: tags and slots are used again, what MPI holds is freed, and memory stays flat."""

import resource
from pathlib import Path

import pytest
import torch
from mpi4py import MPI
from training import needs, on_two, train_on

from hpcpipe.device.cpu import Cpu
from hpcpipe.plan import Kind, Task
from hpcpipe.runtime import Inlet, Mailbox, Mesh
from hpcpipe.runtime.outbox import FIRST_TAG_APART, TAGS_APART

LARGEST_TAG = 32_767
"""All that the standard promises."""

JOB = """
[job]
name = "endurance"
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 0.001
backward_ms = 0.002
weight_ms = 0.001
[batch]
microbatches = 2
[events]
flush_every = 100
"""


class _Counted(MPI.Prequest):
    """A persistent request that counts how often one of its kind was freed."""

    made = freed = 0

    def Free(self):  # noqa: N802 - mpi4py's name
        _Counted.freed += 1
        super().Free()


class _Counting(MPI.Intracomm):
    """A communicator that counts the persistent receives made on it."""

    def Recv_init(self, *arguments):  # noqa: N802
        _Counted.made += 1
        return _Counted(super().Recv_init(*arguments))


def _pair_of(comm):
    """Return the mesh of two stages and this rank's mailbox with few slots; None on the ranks beyond."""
    pair = comm.Split(comm.rank // 2)
    if pair.size < 2:
        pair.Free()
        return None
    mesh = Mesh(pair, pipeline=2, data=1, tensor=1)
    pair.Free()
    return mesh


def _mailbox(mesh, *, slots, payload_bytes):
    inlets = [Inlet(Kind.F, 0, 0, slots)] if mesh.place.stage == 1 else [Inlet(Kind.B, 0, 1, slots)]
    return Mailbox(mesh, inlets=inlets, payload_bytes=payload_bytes, memory=Cpu(sharing_ranks=4))


def _exchange(mailbox, mesh, *, microbatches, numbers, step=0, look=lambda: None):
    """Send forward, send each back when it has come, so that no more than two are under way; check every value."""
    first = mesh.place.stage == 0
    mine, theirs = (Kind.F, Kind.B) if first else (Kind.B, Kind.F)
    sent = came = 0
    while came < microbatches or mailbox.sending:
        while first and sent < min(microbatches, came + 2):
            mailbox.send(1, Task(mine, sent), torch.full((numbers,), float(sent)), step=step)
            sent += 1
        look()
        for _, arrival in mailbox.poll()[0]:
            microbatch = arrival.header.microbatch
            assert arrival.value[0].item() == arrival.value[-1].item() == float(microbatch)
            if not first:
                mailbox.send(0, Task(mine, microbatch), arrival.value, step=step)
            mailbox.release(Task(theirs, microbatch), arrival.slot)
            came += 1


@pytest.mark.mpi(min_size=2)
def test_the_tags_of_large_messages_begin_again_before_they_pass_what_mpi_promises(comm):
    """As after a million of them: the count stands just below a multiple of the tags there are."""
    needs(comm, 2)
    mesh = _pair_of(comm)
    if mesh is None:
        return
    assert mesh.world.Get_attr(MPI.TAG_UB) >= LARGEST_TAG
    mailbox = _mailbox(mesh, slots=2, payload_bytes=64)
    mailbox._outbox._sent_apart = 61 * TAGS_APART - 5
    tags = set()

    def look():
        tags.update(send["tag"] for send in mailbox.pending()["sends"])

    _exchange(mailbox, mesh, microbatches=12, numbers=200, look=look)
    assert mailbox._outbox._sent_apart == 61 * TAGS_APART + 7
    assert max(tags) == LARGEST_TAG == FIRST_TAG_APART + TAGS_APART - 1
    assert min(tags) == FIRST_TAG_APART
    mailbox.free()
    mesh.free()


@pytest.mark.mpi(min_size=2)
def test_every_persistent_receive_is_freed_those_of_slots_that_grew_too(comm):
    needs(comm, 2)
    mesh = _pair_of(comm)
    if mesh is None:
        return
    _Counted.made = _Counted.freed = 0
    mesh.forward, mesh.backward = _Counting(mesh.forward), _Counting(mesh.backward)
    mailbox = _mailbox(mesh, slots=3, payload_bytes=64)
    assert (_Counted.made, _Counted.freed) == (3, 0)
    for step in range(6):
        mailbox.begin(step)
        _exchange(mailbox, mesh, microbatches=7, numbers=100 + 300 * step, step=step)
        mesh.world.Barrier()
    assert _Counted.made > 3, "larger messages must have made slots grow"
    assert _Counted.made - _Counted.freed == 3
    mailbox.free()
    assert _Counted.made == _Counted.freed
    mesh.free()


@pytest.mark.mpi(min_size=2)
def test_communicators_are_freed_so_that_more_runs_than_mpi_has_of_them_follow_each_other(comm):
    """MPICH has 2,048 contexts for all communicators of a process at a time; a mesh duplicates and splits five."""
    needs(comm, 2)
    for _ in range(700):
        Mesh(comm, pipeline=comm.size, data=1, tensor=1).free()


def _rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _grown(comm, folder, *, steps, since):
    """Return by which part the memory of this rank has grown between a step and the end of a run."""
    seen = {}

    def look(step, _rank):
        if step in (since, steps - 1):
            seen[step] = _rss()

    stages = min(comm.size, 3)  # then one has neighbours on both sides
    train_on(comm, folder, f"parallel.pipeline={stages}", f"job.steps={steps}", before_step=look, text=JOB)
    return seen[steps - 1] / seen[since] - 1.0 if comm.rank < stages else 0.0


@pytest.mark.mpi(min_size=2)
def test_memory_stays_flat_over_a_thousand_steps(comm, tmp_path):
    on_two(comm)
    assert _grown(comm, tmp_path, steps=1_200, since=200) < 0.01


@pytest.mark.long
@pytest.mark.mpi(min_size=2)
def test_memory_stays_flat_over_ten_thousand_steps(comm, tmp_path):
    assert _grown(comm, tmp_path, steps=13_000, since=3_000) < 0.01  # until then the caches of HDF5 fill


@pytest.mark.long
@pytest.mark.mpi(min_size=2)
def test_a_million_micro_batches_use_the_slots_and_buffers_that_there_are(comm):
    mesh = _pair_of(comm)
    if mesh is None:
        return
    mailbox = _mailbox(mesh, slots=2, payload_bytes=64)
    _exchange(mailbox, mesh, microbatches=10_000, numbers=8)
    before, requests = _rss(), [request.handle for request in mailbox._receive_requests]
    _exchange(mailbox, mesh, microbatches=1_000_000, numbers=8)
    assert [request.handle for request in mailbox._receive_requests] == requests
    assert sum(map(len, mailbox._outbox._idle.values())) <= 2 + 1
    assert _rss() < 1.01 * before
    mailbox.free()
    mesh.free()
