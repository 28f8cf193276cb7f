"""Element types, choices and sub-communicators: what every algorithm must give, by torch, numpy and exact sums."""

import json

import numpy as np
import pytest
import torch

from hpcpipe import _native
from hpcpipe.collective import CollectiveBucket, Group, measured_costs
from hpcpipe.collective.costs import ALGORITHMS, OPERATIONS, CostTable
from hpcpipe.collective.measure import cache_path

pytestmark = pytest.mark.mpi

HALVES = [torch.float16, torch.bfloat16]
TYPES = [torch.float32, torch.float64, *HALVES]


def drawn(comm, length, dtype):
    generator = torch.Generator().manual_seed(comm.rank)
    return torch.randn(length * comm.size, generator=generator, dtype=torch.float64).to(dtype)


def of_all(comm, flat):
    """Every rank's values as float64, by rank."""
    return [torch.from_numpy(values) for values in comm.allgather(flat.double().numpy())]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_whole_numbers_are_summed_exactly_in_every_type(comm, algorithm, dtype):
    flat = (drawn(comm, 1001, torch.float64) * 2).round().to(dtype)
    expected = sum(of_all(comm, flat))
    bucket = CollectiveBucket(comm, flat, reduce_scatter=algorithm, all_gather=algorithm, chunk_bytes=512)
    bucket.start_reduce_scatter()
    bucket.wait()
    bucket.start_all_gather()
    bucket.wait()
    assert torch.equal(flat.double(), expected)
    bucket.free()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_summed_in_fp32_in_the_order_of_the_ring_and_rounded_once(comm, dtype):
    flat = drawn(comm, 1001, dtype)
    given = [values.float() for values in of_all(comm, flat)]
    bucket = CollectiveBucket(comm, flat)
    assert bucket.reduce_scatter == "direct"
    bucket.start_reduce_scatter()
    bucket.wait()
    expected = given[(comm.rank + 1) % comm.size]
    for distance in range(2, comm.size + 1):
        expected = expected + given[(comm.rank + distance) % comm.size]
    assert torch.equal(flat[bucket.shard], expected.to(dtype)[bucket.shard])
    bucket.free()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_around_the_ring_are_added_in_fp32_and_rounded_at_every_rank(comm, dtype):
    flat = drawn(comm, 1001, dtype)
    given = [values.float() for values in of_all(comm, flat)]
    bucket = CollectiveBucket(comm, flat, reduce_scatter="ring")
    bucket.start_reduce_scatter()
    bucket.wait()
    expected = given[(comm.rank + 1) % comm.size].to(dtype)
    for distance in range(2, comm.size + 1):
        expected = (expected.float() + given[(comm.rank + distance) % comm.size]).to(dtype)
    assert torch.equal(flat[bucket.shard], expected[bucket.shard])
    bucket.free()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_neither_the_chunks_nor_when_ranks_start_change_the_bits(comm, algorithm):
    given = drawn(comm, 5003, torch.float32)
    results = set()
    for chunk_bytes in (64, 4096, 0):
        flat = given.clone()
        bucket = CollectiveBucket(comm, flat, reduce_scatter=algorithm, chunk_bytes=chunk_bytes)
        if comm.rank == chunk_bytes % comm.size:
            for _ in range(200_000):
                pass
        bucket.start_all_reduce()
        bucket.wait()
        results.add(flat.numpy().tobytes())
        bucket.free()
    assert len(results) == 1
    assert comm.allgather(results) == [results] * comm.size


def test_the_all_reduce_has_the_bits_of_its_two_halves(comm):
    whole, split = drawn(comm, 5003, torch.float32), drawn(comm, 5003, torch.float32)
    group = Group(comm)
    one, two = CollectiveBucket(group, whole), CollectiveBucket(group, split)
    two.start_reduce_scatter()
    one.start_all_reduce()
    two.wait()
    two.start_all_gather()
    one.wait()
    two.wait()
    assert torch.equal(whole, split)
    one.free()
    two.free()
    group.free()


@pytest.mark.mpi(min_size=2)
def test_sub_communicators_count_ranks_by_themselves(comm):
    part = comm.Split(comm.rank % 2, -comm.rank)  # in reverse
    flat = torch.full((3 * part.size,), float(comm.rank))
    bucket = CollectiveBucket(part, flat)
    assert bucket.shard == slice(3 * part.rank, 3 * part.rank + 3)
    bucket.start_all_reduce()
    bucket.wait()
    assert flat.tolist() == [float(sum(range(comm.rank % 2, comm.size, 2)))] * len(flat)
    bucket.free()
    part.Free()


def test_thousands_of_buckets_share_one_duplicate_of_the_communicator(comm):
    """MPICH has about 2,000 communicators."""
    group = Group(comm)
    flats = [np.full(comm.size, number, np.float32) for number in range(3000)]
    buckets = [_native.Bucket(group.native, flat) for flat in flats]
    for number in (0, 2999):
        buckets[number].start_all_reduce()
    for number in (0, 2999):
        buckets[number].wait("yield")
        assert np.all(flats[number] == number * comm.size)
    for bucket in buckets:
        bucket.free()
    group.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("mine", "sentence"),
    [
        (lambda rank: {"dtype": np.float64 if rank == 0 else np.float32}, "the types of the ranks differ"),
        (lambda rank: {"reduce_scatter": "ring" if rank == 0 else "direct"}, "the reduce-scatters of the ranks differ"),
        (lambda rank: {"all_gather": "ring" if rank == 0 else "direct"}, "the all-gathers of the ranks differ"),
        (lambda rank: {"chunk_bytes": rank}, "the chunks of the ranks differ"),
    ],
)
def test_ranks_that_make_different_buckets_are_told_so_before_any_message(comm, mine, sentence):
    options = mine(comm.rank)
    flat = np.zeros(4 * comm.size, dtype=options.pop("dtype", np.float32))
    with pytest.raises(ValueError, match=sentence):
        CollectiveBucket(comm, flat, **options)


def table(ring, direct):
    """A table with these times at 1 KB and 100 KB; recursive doubling is far dearer."""
    times = {"ring": ring, "direct": direct, "recursive": (1e6, 1e6)}
    return CostTable((1000, 100_000), {(o, a): times[a] for o in OPERATIONS for a in ALGORITHMS})


@pytest.mark.mpi(min_size=3)
def test_auto_takes_what_the_table_says_is_cheapest(comm):
    group = Group(comm, table(ring=(40.0, 60.0), direct=(20.0, 100.0)))
    small = CollectiveBucket(group, np.zeros(comm.size, np.float32))
    large = CollectiveBucket(group, np.zeros(comm.size * 25_000, np.float32))
    assert (small.reduce_scatter, small.all_gather) == ("direct", "direct")
    assert (large.reduce_scatter, large.all_gather) == ("ring", "ring")
    small.free()
    large.free()
    group.free()


def test_costs_are_measured_once_for_a_set_of_hosts_and_are_the_same_on_all_ranks(comm, tmp_path):
    from mpi4py import MPI

    folder = comm.bcast(tmp_path)
    costs = measured_costs(comm, folder)
    if comm.size <= 2:  # all algorithms are the same messages
        assert costs is None
        return
    assert comm.allgather(costs) == [costs] * comm.size
    path = cache_path(comm.allgather(MPI.Get_processor_name()), folder)
    assert CostTable.from_json(json.loads(path.read_text())["costs"]) == costs
    comm.Barrier()
    if comm.rank == 0:
        document = json.loads(path.read_text())
        document["costs"] = table((3.0, 4.0), (5.0, 6.0)).to_json()
        path.write_text(json.dumps(document))
    assert measured_costs(comm, folder) == table((3.0, 4.0), (5.0, 6.0))
    if comm.rank == 0:
        path.write_text("not a table")
    again = measured_costs(comm, folder)
    assert comm.allgather(again) == [again] * comm.size
