"""Print the memory and time of a GPT stage whose blocks are computed again in the backward, beside one that keeps all.

Every row is a process of its own: forwards of all micro-batches, then their backwards, as GPipe has them. Memory is the
most that the process held beyond what it held before the first forward; time is the CPU's.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from rich.console import Console
from rich.table import Table

from hpcpipe.models import build, gpt_layers, recomputed
from hpcpipe.models.recompute import run_layers

SETTINGS = {
    "none": "none",
    "each block": "all",
    "pairs of blocks": [[0, 1], [2, 3], [4, 5], [6, 7]],
    "one range": [[0, 7]],
}
BLOCKS = 8


def measure(setting: str | list[list[int]], *, microbatches: int, dim: int, seq_len: int) -> tuple[int, float]:
    """Return bytes and seconds."""
    torch.set_num_threads(1)
    layers = gpt_layers(layers=BLOCKS, dim=dim, heads=8, context=seq_len, vocab_size=256, dropout=0.0, seq_len=seq_len)
    piece = range(1, BLOCKS + 1)
    modules = build(layers, piece, seed=0)
    ranges = recomputed(layers, piece, setting)
    parameters = [p for module in modules for p in module.parameters()]
    entries = [torch.randn(1, seq_len, dim).requires_grad_() for _ in range(microbatches)]
    gradient = torch.randn(1, seq_len, dim)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    began = time.process_time()
    outputs = [run_layers(modules, entry, recompute=ranges) for entry in entries]
    while outputs:
        torch.autograd.grad(outputs.pop(), [entries.pop(), *parameters], gradient)
    spent = time.process_time() - began
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before, spent


def main() -> None:
    """Start a process for every setting and print what they measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = {"microbatches": given.microbatches, "dim": given.dim, "seq_len": given.seq_len}
    if given.only:
        print(json.dumps(measure(json.loads(given.only), **sizes)))
        return
    table = Table(title=f"{BLOCKS} blocks of width {given.dim}, {given.microbatches} x {given.seq_len} tokens")
    for title in ("recomputed", "memory MiB", "CPU s"):
        table.add_column(title, justify="left" if title == "recomputed" else "right")
    for name, setting in SETTINGS.items():
        command = [sys.executable, __file__, "--only", json.dumps(setting)]
        command += [word for key, value in sizes.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        held, spent = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        table.add_row(name, f"{held / 2**20:,.0f}", f"{spent:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
