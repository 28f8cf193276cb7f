"""A search for the bucket size between hosts joined by a slow link: every trial, and steps with fixed sizes beside it.

`python benchmarks/fusion_search.py` (root: hosts are namespaces of Linux) trains on two replicas layers that
have real parameters and gradients but only take their time, so that the cores are left to what is exchanged.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import nn

from hpcpipe.analyze import summarize
from hpcpipe.bench.host_ranks import launcher
from hpcpipe.bench.hosts import HEAD, HostLink, Hosts, emulated_hosts, missing
from hpcpipe.cluster.mpiexec import MISSING, find_mpiexec
from hpcpipe.events import open_run

JOB = """
[job]
name = "fusion-search"
[model]
kind = "fusion_search:model"
options = {{ layers = {layers}, width = {width}, forward_ms = {forward_ms} }}
[data]
kind = "fusion_search:data"
[parallel]
data = 2
chunks = 8
[schedule]
hint = "interleaved"
[batch]
microbatches = 2
[optimizer]
name = "sgd"
momentum = 0.9
"""
WARM_UP = 4


class Slow(torch.autograd.Function):
    """Hands its input on after a while; the backward takes twice as long and has gradients of full size."""

    @staticmethod
    def forward(ctx, value, weight, bias, seconds):  # noqa: D102
        ctx.seconds = seconds
        ctx.save_for_backward(weight, bias)
        time.sleep(seconds)
        return value + 1e-3 * bias[:1]

    @staticmethod
    def backward(ctx, gradient):  # noqa: D102
        weight, bias = ctx.saved_tensors
        time.sleep(2 * ctx.seconds)
        return gradient, torch.full_like(weight, 1e-3), torch.full_like(bias, 1e-3), None


class Layer(nn.Module):
    """A matrix and a bias that are trained, and a time."""

    def __init__(self, width, seconds):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(width, width)), nn.Parameter(torch.zeros(width))
        self.seconds = seconds

    def forward(self, value):
        """Take the time."""
        return Slow.apply(value, self.weight, self.bias, self.seconds)


def model(layers, width, forward_ms):
    """Return the chain and its loss, for the job."""
    return [partial(Layer, width, forward_ms * 1e-3)] * layers, lambda value, target: ((value - target) ** 2).mean()


def data():
    """Return samples that nobody learns from."""
    return torch.utils.data.TensorDataset(torch.zeros(64, 4), torch.zeros(64, 4))


def main() -> None:
    """Search, then run the fixed sizes, and print both."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", default="1gbit", help="of each host's link")
    options.add_argument("--layers", type=int, default=24)
    options.add_argument("--width", type=int, default=512, help="a layer has width x width parameters")
    options.add_argument("--forward-ms", type=float, default=2.0, help="of a layer and micro-batch")
    options.add_argument("--steps", type=int, default=110, help="at most, of the search")
    options.add_argument("--start", type=float, default=25.0, help="what the search begins with, MB")
    options.add_argument("--fixed", default="0.25,1,4,25", help="sizes to run beside it, MB")
    asked = options.parse_args()
    if (reason := missing()) is not None:
        sys.exit(f"hosts cannot be emulated here: {reason}")
    with tempfile.TemporaryDirectory(prefix="hpcpipe-bench-") as own, emulated_hosts(2, HostLink(asked.rate)) as hosts:
        folder = Path(own)
        shutil.copy(__file__, folder / "fusion_search.py")
        sizes = {"layers": asked.layers, "width": asked.width, "forward_ms": asked.forward_ms}
        (folder / "job.toml").write_text(JOB.format(**sizes))
        work, sent = 6 * asked.layers * asked.forward_ms, 4e-6 * asked.layers * asked.width**2
        print(f"{asked.rate} a host, {sizes}: {work:g} ms of work, {sent:.1f} MB of gradients\n", flush=True)
        run(hosts, folder, "tuned", ["tune.fusion=on", f"comm.bucket_mb={asked.start}", f"job.steps={asked.steps}"])
        print("| from step | |\n|---:|---|")
        for decided in summarize(open_run(folder / "tuned")).decisions:
            print(f"| {decided.step} | {decided.why} |")
        print(flush=True)
        for size in asked.fixed.split(","):
            run(hosts, folder, size, [f"comm.bucket_mb={size}", f"job.steps={WARM_UP + 8}"])
            lines = (folder / size / "metrics.jsonl").read_text().splitlines()
            times = [json.loads(line)["step_ns"] / 1e6 for line in lines][WARM_UP:]
            print(f"fixed {size:>5} MB: {median(times):.1f} ms a step (median of {len(times)})", flush=True)


def run(hosts: Hosts, folder: Path, name: str, settings: list[str]) -> None:
    """Train on a rank a host, over the hosts' network."""
    mpiexec = find_mpiexec()
    if mpiexec is None:
        sys.exit(MISSING)
    start, network = launcher(mpiexec, hosts, 2)
    words = ["run", str(folder / "job.toml"), "--run-dir", str(folder / name), "--quiet"]
    words += [word for setting in settings for word in ("--set", setting)]
    environment = mpiexec.environment() | network | {"OMP_NUM_THREADS": "1"}
    code = hosts.run(HEAD, [*start, sys.executable, "-m", "hpcpipe", *words], environment)
    if code != 0:
        sys.exit(f"the run {name} ended with exit code {code}")


if __name__ == "__main__":
    main()
