"""Steps with buckets of several sizes between emulated hosts, beside the size that `[comm] bucket_mb = "auto"` takes.

`python benchmarks/bucket_sizes.py` (root: hosts are namespaces of Linux) takes twelve layers whose tensors are
`--factor` times smaller than those of `hpcpipe bench dataparallel`, and so are their times.
"""

import argparse
import os
import sys
from statistics import median

from hpcpipe.bench.dataparallel.measure import MB, OURS, Setting, make_way, step_times
from hpcpipe.bench.dataparallel.models import twelve_layers
from hpcpipe.bench.host_ranks import launcher
from hpcpipe.bench.hosts import HEAD, HostLink, emulated_hosts, missing
from hpcpipe.cluster.mpiexec import MISSING, find_mpiexec
from hpcpipe.plan import usual_bucket_bytes
from hpcpipe.runtime import World

INSIDE = "BUCKET_SIZES_INSIDE"
ROUNDS = 3
STEPS = 4


def main() -> None:
    """Start the ranks on hosts, or be one of them."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", default="1gbit", help="of each host's link")
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--factor", type=int, default=4, help="how many times smaller tensors are")
    options.add_argument("--parts", default="1,4,8,16,32,64", help="parts of all gradients to take as sizes")
    asked = options.parse_args()
    if INSIDE in os.environ:
        return measure([int(part) for part in asked.parts.split(",")], asked.factor)
    if (reason := missing()) is not None:
        sys.exit(f"hosts cannot be emulated here: {reason}")
    if (mpiexec := find_mpiexec()) is None:
        sys.exit(MISSING)
    with emulated_hosts(asked.ranks, HostLink(asked.rate)) as hosts:
        start, network = launcher(mpiexec, hosts, asked.ranks)
        environment = mpiexec.environment() | network | {INSIDE: "1", "OMP_NUM_THREADS": "1"}
        print(f"{asked.ranks} replicas, links of {asked.rate}", flush=True)
        sys.exit(hosts.run(HEAD, [*start, sys.executable, *sys.argv], environment))


def measure(parts: list[int], factor: int) -> None:
    """Run all sizes in turns and print their median steps on rank 0 (collective)."""
    world, model = World(), twelve_layers().scaled(factor)
    sizes = [model.num_bytes // part for part in parts]
    ways = [make_way(world, model, Setting(OURS, size)) for size in sizes]
    took: list[list[float]] = [[] for _ in sizes]
    for number in range(ROUNDS):
        for index in range(len(sizes)):
            turn = (index + number) % len(sizes)
            took[turn] += step_times(world, ways[turn], STEPS)
    for way in ways:
        way.free()
    if world.rank == 0:
        usual = usual_bucket_bytes(model.num_bytes, world.size) / MB
        print(f"{model.num_bytes / MB:.2f} MB of gradients, {model.compute_ms:.1f} ms of work; auto is {usual:.2f} MB")
        best = min(map(median, took))
        for part, size, times in zip(parts, sizes, took, strict=True):
            print(f"1/{part:<3} {size / MB:6.2f} MB  {median(times):7.1f} ms  {median(times) / best:.2f}")


if __name__ == "__main__":
    main()
