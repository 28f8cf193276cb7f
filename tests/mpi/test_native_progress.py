"""Progress while nobody asks: by a thread where MPI_THREAD_MULTIPLE is given, by polling elsewhere."""

import gc
import time
from contextlib import suppress

import numpy as np
import pytest

from hpcpipe import _native
from hpcpipe.collective import CollectiveBucket, MpiError

pytestmark = pytest.mark.mpi

MIB = 1 << 18  # float32 elements of 1 MiB


def has_threads():
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


threaded = pytest.mark.skipif("not has_threads()", reason="MPI was started without MPI_THREAD_MULTIPLE")
polled = pytest.mark.skipif("has_threads()", reason="MPI was started with MPI_THREAD_MULTIPLE")


def ones(comm, length):
    return np.full(length * comm.size, comm.rank + 1, dtype=np.float32)


def the_sum(comm):
    return comm.size * (comm.size + 1) // 2


def test_auto_is_the_thread_where_mpi_gives_it_and_polling_elsewhere(comm):
    flat = ones(comm, 3 * MIB + 5)
    bucket = CollectiveBucket(comm, flat, progress="auto")
    assert bucket.threaded == has_threads()
    for _ in range(3):
        flat[:] = comm.rank + 1
        bucket.start_reduce_scatter()
        bucket.wait()
        assert np.all(flat[bucket.shard] == the_sum(comm))
        bucket.start_all_gather()
        bucket.wait("sleep")
        assert np.all(flat == the_sum(comm))
    bucket.free()


@polled
def test_the_thread_is_refused_where_mpi_would_not_allow_it(comm):
    with pytest.raises(ValueError, match="needs MPI_THREAD_MULTIPLE"):
        CollectiveBucket(comm, ones(comm, 10), progress="thread")


@threaded
@pytest.mark.mpi(min_size=2)
def test_the_thread_serves_the_others_while_its_rank_never_calls_mpi(comm):
    flat = ones(comm, MIB)
    bucket = CollectiveBucket(comm, flat, progress="thread")
    bucket.start_all_reduce()
    if comm.rank == 0:
        while not bucket.test():  # only looks: no call of MPI
            time.sleep(0.001)
    else:
        bucket.wait("sleep")
    assert np.all(flat == the_sum(comm))
    bucket.free()


@threaded
def test_many_buckets_on_one_thread_started_in_other_orders_and_late(comm):
    flats = [ones(comm, length) for length in (1, 1000, MIB + 1, 7)]
    buckets = [CollectiveBucket(comm, flat, progress="thread") for flat in flats]
    for step in range(5):
        for flat in flats:
            flat[:] = comm.rank + 1 + step
        time.sleep(0.002 * ((comm.rank + step) % comm.size))
        for index in np.roll(range(4), comm.rank):
            buckets[index].start_all_reduce()
        for bucket in buckets:
            bucket.wait()
        for flat in flats:
            assert np.all(flat == the_sum(comm) + step * comm.size)
    for bucket in buckets:
        bucket.free()


@threaded
@pytest.mark.mpi(min_size=2)
def test_what_is_under_way_can_be_neither_started_again_nor_freed(comm):
    bucket = CollectiveBucket(comm, ones(comm, MIB), progress="thread")
    if comm.rank == 0:
        bucket.start_all_reduce()  # cannot be done: the others have not started
        assert not bucket.test()
        for refused in (bucket.start_all_reduce, bucket.free):
            with pytest.raises(RuntimeError, match="the all-reduce of this bucket is still under way"):
                refused()
    comm.Barrier()
    if comm.rank > 0:
        bucket.start_all_reduce()
    bucket.wait()
    bucket.free()


@threaded
@pytest.mark.mpi(min_size=2)
def test_a_bucket_that_is_forgotten_is_finished_by_the_thread(comm):
    bucket = CollectiveBucket(comm, ones(comm, MIB), progress="thread")
    bucket.start_all_reduce()
    del bucket
    gc.collect()
    comm.Barrier()
    flat = ones(comm, 5)
    bucket = CollectiveBucket(comm, flat, progress="thread")
    bucket.start_all_reduce()
    bucket.wait()
    assert np.all(flat == the_sum(comm))
    bucket.free()


@threaded
@pytest.mark.mpi(min_size=2)
def test_an_error_of_the_thread_is_told_to_whoever_asks_first(comm):
    """Rank 0 sends blocks twice as long as rank 1 expects, which MPI reports as truncation on rank 1."""
    from mpi4py import MPI

    flat = np.zeros(comm.size * (2000 if comm.rank == 0 else 1000), dtype=np.float32)
    bucket = _native.Bucket(_native.Group(MPI._addressof(comm)), flat, threaded=True)
    if comm.rank == 0:
        comm.recv(source=1)  # rank 1 has posted its receives, so the error comes to its thread and not at the start
        with suppress(MpiError):  # on two ranks it meets the same mistake from the other side
            bucket.start_reduce_scatter()
        comm.recv(source=1)
    elif comm.rank == 1:
        bucket.start_reduce_scatter()
        comm.send(None, 0)
        with pytest.raises(MpiError, match=r"^rank 1: a receive of the reduce-scatter with rank 0 failed: .*truncated"):
            bucket.wait("sleep")
        comm.send(None, 0)
        with pytest.raises(RuntimeError, match="an earlier operation on this bucket failed: make a new one"):
            bucket.test()
