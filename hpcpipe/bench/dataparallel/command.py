"""`hpcpipe bench dataparallel`: hosts with slow links, ranks on them, every model in turn, and the table."""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hpcpipe.bench.dataparallel.bound import FLOAT_BYTES, RATES, bound_ms, chain_ms, communication_ms
from hpcpipe.bench.dataparallel.measure import ALONE, DDP, MB, OURS, OWN_METHODS, Measured, measure
from hpcpipe.bench.dataparallel.models import MODELS, Model
from hpcpipe.bench.host_ranks import mpiexec_for_hosts, run_on_hosts
from hpcpipe.bench.ranks import RESULT_VARIABLE, CannotRunError, run_on_ranks
from hpcpipe.bench.table import BenchTable, Column, Row
from hpcpipe.exit_code import ExitCode

if TYPE_CHECKING:
    from hpcpipe.runtime import World

NAME = "dataparallel"
RANKS = 2
STEPS = 6
ROUNDS = 3
SWEEP_MB = (0.5, 1.0, 2.0, 4.0)
QUICK_SWEEP_MB = (1.0,)
QUICK_MODELS = ("12-layers",)
REAL = "gpt"
"""The model that computes."""


def run(
    *,
    steps: int = STEPS,
    ranks: int = RANKS,
    rates: Sequence[str] = tuple(RATES),
    models: Sequence[str] = (),
    quick: bool = False,
    progress: Callable[[], object] = lambda: None,
) -> BenchTable | None:
    """Make hosts for every rate, run on them and return the table; started ranks return it on the first only.

    Raises
    ------
    CannotRunError
        No root, no tool, an MPI that is not known here, or a rate or model that does not exist.
    """
    names = list(models) or list(QUICK_MODELS if quick else (*MODELS, REAL))
    for given, known in ((rates, RATES), (names, (*MODELS, REAL))):
        if unknown := [name for name in given if name not in known]:
            raise CannotRunError(
                f"{', '.join(unknown)} is not known here; known are {', '.join(known)}", ExitCode.INPUT
            )
    if ranks < 2:
        raise CannotRunError("gradients are summed between two ranks at least: take --ranks 2 or more", ExitCode.INPUT)
    if RESULT_VARIABLE in os.environ:
        work = partial(_work, steps, rates[0], names, quick)
        return run_on_ranks(NAME, work, ranks=ranks, words=[], progress=progress)
    mpiexec = mpiexec_for_hosts("slow links")
    words = ["--steps", str(steps), *(word for name in names for word in ("--model", name))]
    words += ["--quick"] if quick else []
    tables = [
        run_on_hosts(NAME, mpiexec, ranks=ranks, rate=rate, words=["--rate", rate, *words], progress=progress)
        for rate in rates
    ]
    return replace(tables[0], rows=[row for table in tables for row in table.rows])


def _work(
    steps: int, rate: str, names: Sequence[str], quick: bool, progress: Callable[[], object]
) -> BenchTable | None:
    from hpcpipe.runtime import FailureGuard, World

    world = World()
    with FailureGuard(world.comm, place="the benchmark", stage=-1, host=world.host):
        return _measure(world, steps, rate, names, quick, progress)


def _measure(
    world: "World", steps: int, rate: str, names: Sequence[str], quick: bool, progress: Callable[[], object]
) -> BenchTable | None:
    import torch
    import torch.distributed as dist

    from hpcpipe.bench.torch_pipelining import process_group

    torch.set_num_threads(1)
    rows: list[Row] = []
    sweep, rounds = (QUICK_SWEEP_MB, 1) if quick else (SWEEP_MB, ROUNDS)
    methods = (DDP, *OWN_METHODS) if dist.is_available() and dist.is_gloo_available() else OWN_METHODS
    with process_group(world) if DDP in methods else nullcontext():
        for name in names:
            model = None if name == REAL else MODELS[name]()
            found = measure(
                world, model, methods, steps=steps, rounds=rounds, sweep=sweep, tunes=not quick, progress=progress
            )
            rows += _rows(model, found, ranks=world.size, rate=rate)
    return _table(world, rows, steps * rounds) if world.rank == 0 else None


def _rows(model: Model | None, found: Sequence[Measured], *, ranks: int, rate: str) -> list[Row]:
    bits, ours = RATES[rate], min(each.step_ms for each in found if each.setting.method == OURS)
    if model is None:
        from hpcpipe.bench.dataparallel.real import layer_bytes

        name, num_bytes, chain = "GPT, computing", sum(layer_bytes()), None
        compute = next(each.step_ms for each in found if each.setting.method == ALONE)
    else:
        name, num_bytes, compute = model.name, model.num_bytes, model.compute_ms
        sizes = [FLOAT_BYTES * layer.numel for layer in model.layers]
        chain = chain_ms(sizes, model.forward_ms(), ranks=ranks, rate=bits)
    bound = bound_ms(num_bytes, compute_ms=compute, ranks=ranks, rate=bits)
    rows: list[Row] = []

    def add(way: str, step: float, bucket: float | None = None, memory: float | None = None) -> None:
        rows.append((rate, name, way, bucket, step, step - compute, step / bound, step / ours, memory))

    add("computing alone", compute)
    add("network alone", communication_ms(num_bytes, ranks=ranks, rate=bits))
    if chain is not None:
        add("longest chain", chain)
    for each in found:
        method, size, label = each.setting.method, each.setting.bucket_bytes, each.setting.label
        if method != ALONE:
            way = f"{method}, {label}" if label else method
            add(way, each.step_ms, size / MB if size else None, each.grown_bytes / MB)
    return rows


def _table(world: "World", rows: list[Row], counted: int) -> BenchTable:
    library = " ".join(world.mpi_library.split())
    return BenchTable(
        name=NAME,
        title=f"data parallelism on {world.size} hosts: a step with links of limited rate",
        columns=(
            Column("link"),
            Column("model"),
            Column("way"),
            Column("bucket", "MB", 2),
            Column("step", "ms", 1),
            Column("exposed", "ms", 1),
            Column("x bound", "x"),
            Column("x ours", "x"),
            Column("memory", "MB", 1),
        ),
        rows=rows,
        notes=(
            f"median of {counted} steps, all ways in turns; {library} over TCP, {DDP} over gloo, SGD everywhere",
            "layers take their time without using the core, forward to backward 1 : 2, 28.2 ms a million parameters",
            "so that at 1 Gbit/s two ranks communicate 1.13 times as long as they compute; the last model computes",
            "ResNet-50 is 4, BERT-base and GPT-2 are 16 times smaller in every tensor, and so is DDP's default bucket",
            "x bound: of the longer of computing and network, at the nominal rate; a full frame carries 95.6 % of data",
            "longest chain: all exchanges up to some layer, and the computing from it on, which cannot overlap them",
            "exposed: beyond computing alone; x ours: how many times the step of ours at its best",
            "memory: what a process holds more after a step: parameters, gradients, buffers; best: of a few sizes",
        ),
    )
