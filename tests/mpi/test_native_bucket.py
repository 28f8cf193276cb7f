"""Buckets against MPI's own Allreduce and against sums that are exact, whatever their order."""

import gc
import time

import numpy as np
import pytest
import torch

from hpcpipe import _native
from hpcpipe.collective import CollectiveBucket, MpiError, padded_length

pytestmark = pytest.mark.mpi

MIB = 1 << 18  # float32 elements of 1 MiB
SIZES = [0, 1, 7, 1000, MIB, MIB + 1, 3 * MIB + 5]


def padded(comm, length, seed=0):
    """Random values of this rank, padded with zeros to a multiple of the ranks."""
    values = np.zeros(padded_length(length, comm.size), dtype=np.float32)
    values[:length] = np.random.default_rng([seed, comm.rank]).standard_normal(length)
    return values


def whole_numbers(comm, length, seed=0):
    """Like `padded`, but small integers: their sums are exact, so any order gives the same bits."""
    return np.rint(4 * padded(comm, length, seed))


def allreduce(comm, values):
    total = np.empty_like(values)
    comm.Allreduce(values, total)
    return total


@pytest.mark.parametrize("length", SIZES)
def test_reduce_scatter_gives_every_rank_its_part_of_what_allreduce_gives(comm, length):
    flat = whole_numbers(comm, length)
    expected = allreduce(comm, flat)
    bucket = CollectiveBucket(comm, flat)
    bucket.start_reduce_scatter()
    bucket.wait()
    np.testing.assert_array_equal(flat[bucket.shard], expected[bucket.shard])
    bucket.free()


@pytest.mark.parametrize("length", SIZES)
def test_reduce_scatter_and_all_gather_together_are_an_allreduce(comm, length):
    flat = torch.from_numpy(padded(comm, length))
    magnitude = allreduce(comm, np.abs(flat.numpy()))
    expected = allreduce(comm, flat.numpy().astype(np.float64))
    bucket = CollectiveBucket(comm, flat)
    bucket.start_reduce_scatter()
    bucket.wait("sleep")
    bucket.start_all_gather()
    bucket.wait("spin" if comm.size == 2 else "sleep")
    # Higham, Accuracy and Stability, eq. 4.4: |error| <= (n - 1) u sum |x_i| to first order, u = 2^-24.
    assert np.all(np.abs(flat.numpy() - expected) <= comm.size * 2.0**-24 * magnitude)
    bucket.free()


def test_the_shards_cover_the_bucket_in_the_order_of_the_ranks(comm):
    bucket = CollectiveBucket(comm, np.zeros(3 * comm.size, dtype=np.float32))
    assert bucket.shard == slice(3 * comm.rank, 3 * comm.rank + 3)
    bucket.free()


@pytest.mark.parametrize("length", [7, MIB + 1])
def test_all_ranks_hold_the_same_bits_after_the_all_gather(comm, length):
    flat = padded(comm, length)
    bucket = CollectiveBucket(comm, flat)
    bucket.start_reduce_scatter()
    bucket.wait()
    bucket.start_all_gather()
    bucket.wait()
    assert len(set(comm.allgather(flat.tobytes()))) == 1
    bucket.free()


@pytest.mark.parametrize("length", [1, 1000, MIB + 1])
def test_repeats_give_the_same_bits_although_ranks_start_at_other_times(comm, length):
    given = padded(comm, length)
    flat = np.empty_like(given)
    bucket = CollectiveBucket(comm, flat)
    seen = set()
    for repeat in range(6):
        flat[:] = given
        late = time.monotonic() + 0.002 * ((comm.rank + repeat) % comm.size)
        while time.monotonic() < late:
            pass
        bucket.start_reduce_scatter()
        bucket.wait()
        seen.add(flat[bucket.shard].tobytes())
    assert len(seen) == 1
    bucket.free()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_the_sum_is_made_in_the_order_of_the_ring(comm, algorithm, dtype):
    """Part b is ((x[b+1] + x[b+2]) + ...) + x[b], so numpy can make the same bits."""
    flat = padded(comm, 5000 * comm.size).astype(dtype) / 3
    given = comm.allgather(flat.copy())
    bucket = CollectiveBucket(comm, flat, reduce_scatter=algorithm)
    bucket.start_reduce_scatter()
    bucket.wait()
    expected = given[(comm.rank + 1) % comm.size][bucket.shard].copy()
    for distance in range(2, comm.size + 1):
        expected = expected + given[(comm.rank + distance) % comm.size][bucket.shard]
    np.testing.assert_array_equal(flat[bucket.shard], expected)
    bucket.free()


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 8, 1 << 20])
@pytest.mark.parametrize("algorithm", ["ring", "recursive", "direct"])
def test_every_algorithm_and_cut_into_chunks_gives_the_same_sum(comm, algorithm, chunk):
    flat = whole_numbers(comm, 7 * comm.size)
    expected = allreduce(comm, flat)
    bucket = CollectiveBucket(comm, flat, reduce_scatter=algorithm, all_gather=algorithm, chunk_bytes=4 * chunk)
    bucket.start_all_reduce()
    bucket.wait()
    np.testing.assert_array_equal(flat, expected)
    bucket.free()


def test_many_steps_on_one_bucket_never_mix(comm):
    flat = np.empty(11 * comm.size, dtype=np.float32)
    bucket = CollectiveBucket(comm, flat)
    for step in range(50):
        flat[:] = whole_numbers(comm, len(flat), seed=step)
        expected = allreduce(comm, flat)
        bucket.start_reduce_scatter()
        bucket.wait()
        bucket.start_all_gather()
        bucket.wait()
        np.testing.assert_array_equal(flat, expected)
    bucket.free()


def test_buckets_under_way_together_do_not_disturb_each_other_or_other_traffic(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    flats = [whole_numbers(comm, length, seed=length) for length in (7, 1000, MIB + 1)]
    expected = [allreduce(comm, flat) for flat in flats]
    buckets = [CollectiveBucket(comm, flat) for flat in flats]
    for start in ("start_reduce_scatter", "start_all_gather"):
        # The ranks start them in different orders, as their gradients become ready.
        for index in np.roll(range(3), comm.rank):
            getattr(buckets[index], start)()
        for number in range(20):
            got = np.empty(3000, dtype=np.float32)
            comm.Sendrecv(np.full(3000, 100 * comm.rank + number, dtype=np.float32), right, number, got, left, number)
            assert np.all(got == 100 * left + number)
            for bucket in buckets:
                bucket.test()
        for bucket in buckets:
            bucket.wait()
    for flat, sums in zip(flats, expected, strict=True):
        np.testing.assert_array_equal(flat, sums)
    for bucket in buckets:
        bucket.free()


@pytest.mark.mpi(min_size=2)
def test_test_returns_at_once_while_a_peer_has_not_started(comm):
    flat = whole_numbers(comm, 1000)
    expected = allreduce(comm, flat)
    bucket = CollectiveBucket(comm, flat)
    if comm.rank > 0:
        bucket.start_reduce_scatter()
        if comm.rank == 1:  # waits for rank 0, which starts when this message has arrived
            assert not any(bucket.test() for _ in range(100))
            comm.send(None, 0)
    else:
        comm.recv(source=1)
        bucket.start_reduce_scatter()
    while not bucket.test():
        pass
    np.testing.assert_array_equal(flat[bucket.shard], expected[bucket.shard])
    bucket.free()


def test_nothing_under_way_tests_as_done(comm):
    bucket = CollectiveBucket(comm, np.zeros(comm.size, dtype=np.float32))
    assert bucket.test()
    bucket.wait()
    bucket.free()
    bucket.free()


@pytest.mark.mpi(min_size=2)
def test_a_second_start_and_a_free_are_refused_while_one_is_under_way(comm):
    bucket = CollectiveBucket(comm, np.zeros(MIB * comm.size, dtype=np.float32))
    if comm.rank == 0:
        bucket.start_reduce_scatter()  # cannot be done: the others have not started
        for refused in (bucket.start_reduce_scatter, bucket.start_all_gather, bucket.free):
            with pytest.raises(RuntimeError, match="the reduce-scatter of this bucket is still under way"):
                refused()
    comm.Barrier()
    if comm.rank > 0:
        bucket.start_reduce_scatter()
    bucket.wait()
    bucket.free()
    with pytest.raises(RuntimeError, match="freed"):
        bucket.start_reduce_scatter()


@pytest.mark.mpi(min_size=2)
def test_a_bucket_that_is_forgotten_while_under_way_leaves_its_memory_to_mpi(comm):
    bucket = CollectiveBucket(comm, np.ones(MIB * comm.size, dtype=np.float32))
    bucket.start_all_gather()
    del bucket
    gc.collect()
    comm.Barrier()
    flat = np.ones(comm.size, dtype=np.float32)
    bucket = CollectiveBucket(comm, flat)
    bucket.start_reduce_scatter()
    bucket.wait()
    assert flat[bucket.shard] == comm.size
    bucket.free()


@pytest.mark.mpi(min_size=2)
def test_a_length_that_does_not_divide_is_refused(comm):
    with pytest.raises(ValueError, match=rf"{comm.size + 1} elements does not divide by {comm.size} ranks"):
        CollectiveBucket(comm, np.zeros(comm.size + 1, dtype=np.float32))


@pytest.mark.mpi(min_size=2)
def test_lengths_that_differ_between_ranks_are_refused_on_every_rank(comm):
    length = comm.size * (2 if comm.rank == 0 else 1)
    expected = f"rank {comm.rank}: this bucket has {length} elements, .* {comm.size} to {2 * comm.size}"
    with pytest.raises(ValueError, match=expected):
        CollectiveBucket(comm, np.zeros(length, dtype=np.float32))


@pytest.mark.mpi(min_size=2)
def test_an_mpi_error_names_this_rank_and_its_peer(comm):
    """Rank 0 sends blocks twice as long as rank 1 expects, which MPI reports as truncation on rank 1."""
    from mpi4py import MPI

    flat = np.zeros(comm.size * (2000 if comm.rank == 0 else 1000), dtype=np.float32)
    ring = _native.Bucket(_native.Group(MPI._addressof(comm)), flat, reduce_scatter="ring")
    if comm.rank == 0:
        ring.start_reduce_scatter()
        while not comm.Iprobe(source=1):  # MPI may deliver only while rank 0 is inside it
            pass
        comm.recv(source=1)
    elif comm.rank == 1:
        with pytest.raises(MpiError, match=r"^rank 1: a receive of the reduce-scatter with rank 0 failed: .*truncated"):
            ring.start_reduce_scatter()
            ring.wait("yield")
        comm.send(None, 0)
        with pytest.raises(RuntimeError, match="an earlier operation on this bucket failed: make a new one"):
            ring.start_all_gather()


@pytest.mark.parametrize(
    ("flat", "error", "sentence"),
    [
        (np.zeros(12, dtype=np.int32), TypeError, "must be float32, float64, float16 or bfloat16"),
        (np.zeros(12, dtype=np.complex64), TypeError, "must be float32"),
        (np.zeros(12, dtype=np.int16), TypeError, "must be float32"),
        (np.zeros(24, dtype=np.float32)[::2], ValueError, "not contiguous"),
        (torch.zeros(24)[::2], ValueError, "not contiguous"),
        (torch.zeros(12, 2), ValueError, "2 dimensions"),
        ([0.0] * 12, TypeError, "not a writable numpy array or torch tensor"),
        (np.frombuffer(bytes(48), dtype=np.float32), TypeError, "not a writable"),
        (torch.zeros(12, device="meta"), (TypeError, ValueError), "is not"),
    ],
)
def test_a_buffer_that_mpi_must_not_write_to_is_refused(comm, flat, error, sentence):
    with pytest.raises(error, match=sentence):
        CollectiveBucket(comm, flat)


def test_a_wrong_communicator_or_poll_is_refused_by_name(comm):
    from mpi4py import MPI

    with pytest.raises(TypeError, match=r"MPI\.Intracomm"):
        CollectiveBucket(MPI.COMM_NULL, np.zeros(12, dtype=np.float32))
    bucket = CollectiveBucket(comm, np.zeros(12 * comm.size, dtype=np.float32))
    with pytest.raises(ValueError, match="spin, yield or sleep"):
        bucket.wait("never")
    with pytest.raises(ValueError, match="must be auto, ring, recursive, direct"):
        CollectiveBucket(comm, bucket.flat, all_gather="tree")
    with pytest.raises(ValueError, match="must be one of poll, thread, auto"):
        CollectiveBucket(comm, bucket.flat, progress="never")
    bucket.free()
