"""Print what splitting the backward of a GPT block costs: B and W together against torch's unsplit backward.

Every round runs both kinds, in turn first; times are medians over the rounds and ratios medians of the rounds' ratios,
so that what else the machine does meets both alike. One thread is timed by the CPU time that it gets, several by the
wall clock. W follows its B at once, with warm caches.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from hpcpipe.models.deferred import deferrable, recording
from hpcpipe.models.gpt import Block
from hpcpipe.runtime.clock import now

WARM_UP = 3
HEAD_DIM = 64

Round = tuple[int, ...]  # ns: forward, B (or all), W (or 0)


def unsplit(block: nn.Module, entry: Tensor, gradient: Tensor, clock: Callable[[], int]) -> Callable[[], Round]:
    """Return a round of torch's own forward and backward."""
    parameters = list(block.parameters())

    def run() -> Round:
        began = clock()
        output = block(entry)
        forwarded = clock()
        torch.autograd.grad(output, [entry, *parameters], gradient)
        return forwarded - began, clock() - forwarded, 0

    return run


def split(block: nn.Module, entry: Tensor, gradient: Tensor, clock: Callable[[], int]) -> Callable[[], Round]:
    """Return a round of forward, B and W."""
    block, notices = deferrable(copy.deepcopy(block))
    assert not notices
    parameters = list(block.parameters())

    def run() -> Round:
        began = clock()
        output = block(entry)
        forwarded = clock()
        with recording() as pending:
            gradients = torch.autograd.grad(output, [entry, *parameters], gradient, allow_unused=True)
        backwarded = clock()
        pending.compute(parameters, gradients[1:])
        return forwarded - began, backwarded - forwarded, clock() - backwarded

    return run


def measure(
    dim: int, *, batch: int, seq_len: int, dtype: torch.dtype, seconds: float, clock: Callable[[], int]
) -> tuple[list[Round], list[Round]]:
    """Return the rounds of both kinds."""
    torch.manual_seed(0)
    block = Block(dim=dim, heads=dim // HEAD_DIM, depth=12, dropout=0.0).to(dtype)
    entry = torch.randn(batch, seq_len, dim, dtype=dtype, requires_grad=True)
    gradient = torch.randn_like(entry)
    kinds = [unsplit(block, entry, gradient, clock), split(block, entry, gradient, clock)]
    rounds: list[list[Round]] = [[], []]
    end = now() + int(seconds * 1e9)
    count = 0
    while now() < end or count < 2 * WARM_UP:
        for kind in (0, 1) if count % 2 else (1, 0):
            rounds[kind].append(kinds[kind]())
        count += 1
    return rounds[0][WARM_UP:], rounds[1][WARM_UP:]


def median_ms(values: Sequence[int]) -> str:
    """Return a median of ns in ms."""
    return f"{statistics.median(values) / 1e6:.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 256, 512, 1024], help=f"multiples of {HEAD_DIM}")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each size")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kind_of_time = "CPU" if options.threads == 1 else "wall"
    table = Table(
        title=f"backward of one GPT block, {options.batch} x {options.seq_len} tokens, {options.dtype}, "
        f"{options.threads} thread(s), torch {torch.__version__}; ms of {kind_of_time} time"
    )
    for column in ("dim", "rounds", "unsplit", "B", "W", "(B + W) / unsplit", "W / B", "forward / torch's"):
        table.add_column(column, justify="right")
    for dim in track(options.dims, description="measuring", transient=True):
        whole, parts = measure(
            dim,
            batch=options.batch,
            seq_len=options.seq_len,
            dtype=getattr(torch, options.dtype),
            seconds=options.seconds,
            clock=time.thread_time_ns if options.threads == 1 else now,
        )
        pairs = list(zip(whole, parts, strict=True))
        table.add_row(
            str(dim),
            str(len(pairs)),
            median_ms([one[1] for one in whole]),
            median_ms([one[1] for one in parts]),
            median_ms([one[2] for one in parts]),
            f"{statistics.median((other[1] + other[2]) / one[1] for one, other in pairs):.3f}",
            f"{statistics.median(one[2] / one[1] for one in parts):.2f}",
            f"{statistics.median(other[0] / one[0] for one, other in pairs):.3f}",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
