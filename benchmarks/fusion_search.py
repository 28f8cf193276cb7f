"""A search for the bucket size between hosts joined by a slow link: every trial, and steps with fixed sizes beside it.

`python benchmarks/fusion_search.py` (root and MPICH: hosts are namespaces of Linux) trains a GPT on two replicas.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from hpcpipe.analyze import summarize
from hpcpipe.bench.hosts import HEAD, Hosts, emulated_hosts, missing
from hpcpipe.cluster.mpiexec import find_mpiexec
from hpcpipe.events import open_run

JOB = """
[job]
name = "fusion-search"
[model]
kind = "gpt"
layers = {layers}
dim = 256
heads = 4
context = 64
[data]
kind = "text"
path = "package:pydoc_data/topics.py"
[parallel]
data = 2
[batch]
microbatches = 2
microbatch_size = {size}
"""
WARM_UP = 4


def main() -> None:
    """Search, then run the fixed sizes, and print both."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", default="1gbit", help="of each host's link")
    options.add_argument("--layers", type=int, default=8)
    options.add_argument("--size", type=int, default=4, help="sequences of a micro-batch")
    options.add_argument("--steps", type=int, default=110, help="at most, of the search")
    options.add_argument("--fixed", default="0.25,1,4,25", help="sizes to run beside it, MB")
    asked = options.parse_args()
    if (reason := missing()) is not None:
        sys.exit(f"hosts cannot be emulated here: {reason}")
    with tempfile.TemporaryDirectory(prefix="hpcpipe-bench-") as own, emulated_hosts(2, rate=asked.rate) as hosts:
        folder = Path(own)
        (folder / "job.toml").write_text(JOB.format(layers=asked.layers, size=asked.size))
        print(f"{asked.rate}, {asked.layers} layers, micro-batches of {asked.size}\n", flush=True)
        run(hosts, folder, "tuned", ["tune.fusion=on", f"job.steps={asked.steps}"])
        print("| from step | | |\n|---:|---|---|")
        for step, what, why in summarize(open_run(folder / "tuned")).decisions:
            print(f"| {step} | {what} | {why} |")
        print(flush=True)
        for size in asked.fixed.split(","):
            run(hosts, folder, size, [f"comm.bucket_mb={size}", f"job.steps={WARM_UP + 8}"])
            lines = (folder / size / "metrics.jsonl").read_text().splitlines()
            times = [json.loads(line)["step_ns"] / 1e6 for line in lines][WARM_UP:]
            print(f"fixed {size:>5} MB: {median(times):.1f} ms a step (median of {len(times)})", flush=True)


def run(hosts: Hosts, folder: Path, name: str, settings: list[str]) -> None:
    """Train on a rank a host, over the hosts' network."""
    mpiexec = find_mpiexec()
    if mpiexec is None or mpiexec.vendor != "mpich":
        sys.exit("this needs MPICH's mpiexec")
    words = ["-launcher", "ssh", "-launcher-exec", str(hosts.ssh), "-iface", "eth0", "-hosts", ",".join(hosts.names)]
    command = [str(mpiexec.path), *words, "-n", "2", sys.executable, "-m", "hpcpipe", "run", str(folder / "job.toml")]
    command += ["--run-dir", str(folder / name), "--quiet"]
    command += [word for setting in settings for word in ("--set", setting)]
    network = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0", "OMP_NUM_THREADS": "1"}
    code = hosts.run(HEAD, command, mpiexec.environment() | network)
    if code != 0:
        sys.exit(f"the run {name} ended with exit code {code}")


if __name__ == "__main__":
    main()
