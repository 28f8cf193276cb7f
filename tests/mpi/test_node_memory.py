"""Memory that the ranks of a node share, and a log that they write into one file through it."""

from pathlib import Path

import numpy as np
import pytest
from training import rest

from hpcpipe.events import EventWriter, LogHeader, open_run, ring_bytes
from hpcpipe.plan import Kind
from hpcpipe.runtime import NodeMemory, World


@pytest.mark.mpi(min_size=2)
def test_every_rank_of_the_node_sees_what_each_has_written(comm):
    memory = NodeMemory(comm, 1000)
    assert [len(piece) for piece in memory.memories] == [1000] * comm.size
    assert memory.own == comm.rank
    assert not np.frombuffer(memory.memories[memory.own], dtype=np.uint8).any()
    np.frombuffer(memory.memories[memory.own], dtype=np.uint8)[:] = comm.rank + 1
    memory.fence()
    comm.Barrier()
    memory.fence()
    for rank, piece in enumerate(memory.memories):
        assert set(np.frombuffer(piece, dtype=np.uint8).tolist()) == {rank + 1}
    comm.Barrier()
    memory.free()


@pytest.mark.mpi(min_size=2)
def test_ranks_that_fill_small_rings_at_once_lose_nothing(comm, tmp_path):
    """The rings turn round many times, and whoever is faster than the file waits."""
    rows, count = 1024, 20_000
    folder = World(comm).share(str(tmp_path))
    memory = NodeMemory(comm, ring_bytes(rows))
    headers = [
        LogHeader("", "0" * 64, comm.size, (comm.size, 1, 1), rank, (rank, 0, 0), "node", "cpu", "")
        for rank in range(comm.size)
    ]
    path = f"{folder}/node_00000.h5"
    writer = EventWriter.on_node(path, headers, memory.memories, own=memory.own, event_rows=rows, fence=memory.fence)
    for i in range(count):
        writer.event(Kind.F, i // 100, i, 0, 0, comm.rank * count + i, 0)
        if i % 1000 == 999:
            writer.step(i // 1000, 0, i)
    if memory.own:
        writer.close()
    rest(comm)
    writer.close()
    rest(comm)
    if comm.rank == 0:
        for rank, log in enumerate(open_run(Path(path)).ranks):
            assert log.complete
            assert log.lost == 0
            assert np.array_equal(log.events.t_start, rank * count + np.arange(count))
            assert log.steps.step.tolist() == list(range(20))
    rest(comm)
    memory.free()
