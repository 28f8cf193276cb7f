"""How exact a reduce-scatter is by type and algorithm: `mpiexec -n RANKS python benchmarks/reduce_precision.py`.

Every rank has normal numbers in fp32; the sum of their fp64 values is what is wanted. Errors are relative to the root
mean square of the sum, over all ranks' shards. The figures are the same on any machine.
"""

import numpy as np
import torch
from mpi4py import MPI

from hpcpipe.collective import CollectiveBucket, Group

LENGTH = 1 << 20
CASES = [
    ("fp32", torch.float32, "direct"),
    ("fp16", torch.float16, "direct"),
    ("bf16", torch.bfloat16, "direct"),
    ("bf16", torch.bfloat16, "ring"),
    ("bf16", torch.bfloat16, "recursive"),
]


def main() -> None:
    """Print a row a case: the error of the whole, and what rounding the contributions alone makes of it."""
    comm = MPI.COMM_WORLD
    length = LENGTH // comm.size * comm.size
    mine = torch.from_numpy(np.random.default_rng(comm.rank).standard_normal(length).astype(np.float32))
    wanted = comm.allreduce(mine.double().numpy())
    group = Group(comm)
    if comm.rank == 0:
        print(f"{comm.size} ranks, {length} elements; error relative to the sum's root mean square")
        print("| type | algorithm | root mean square | largest | of it by rounding what is sent |")
        print("|---|---|---:|---:|---:|")
    for name, dtype, algorithm in CASES:
        flat = mine.to(dtype, copy=True)
        sent = comm.allreduce(flat.double().numpy())
        bucket = CollectiveBucket(group, flat, reduce_scatter=algorithm)
        bucket.start_reduce_scatter()
        bucket.wait()
        found = np.zeros(length)
        found[bucket.shard] = flat[bucket.shard].double().numpy()
        found = comm.allreduce(found)
        bucket.free()
        scale = float(np.sqrt(np.mean(wanted**2)))
        error, by_sending = (np.abs(each - wanted) / scale for each in (found, sent))
        if comm.rank == 0:
            root_mean_square, rounded = (float(np.sqrt(np.mean(each**2))) for each in (error, by_sending))
            print(f"| {name} | {algorithm} | {root_mean_square:.2e} | {error.max():.2e} | {rounded:.2e} |")
    group.free()


if __name__ == "__main__":
    main()
