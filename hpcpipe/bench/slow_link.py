"""Large activations over slow links between hosts: what overlapping messages with computing is worth, beside torch's.

The hosts are emulated on this machine, the links are the kernel's, and MPI goes over TCP; stages only take their time.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from hpcpipe.bench import torch_pipelining
from hpcpipe.bench.emulated import Blocking, Steps, emulated_job, measured, predicted
from hpcpipe.bench.host_ranks import mpiexec_for_hosts, run_on_hosts
from hpcpipe.bench.pipeline import TORCH, Case
from hpcpipe.bench.ranks import RESULT_VARIABLE, run_on_ranks
from hpcpipe.bench.table import BenchTable, Column, Row
from hpcpipe.job import Job
from hpcpipe.simulate import Link, LinkMessages

if TYPE_CHECKING:
    from hpcpipe.runtime import World
    from hpcpipe.train.rank import Rank

RANKS = 4
STEPS = 8
WARM_UP = 2
MICROBATCHES = 16
MESSAGE_BYTES = 1 << 20
RATE, NS_PER_BYTE = "1gbit", 8.0

CASES = (
    Case("fixed 1F1B", "1f1b", "fixed"),
    Case("fixed GPipe", "gpipe", "fixed"),
    Case("fixed ZB-H1", "zb-h1", "fixed"),
    Case("fixed ZBV", "zbv", "fixed"),
    Case("ready bf", "bf", "ready"),
    Case("ready bfw", "bfw", "ready"),
    Case("ready zb-h1", "zb-h1", "ready"),
    Case("ready bf, 2x", "bf", "ready", ('schedule.in_flight="2x"',)),
    Case("ready bfw, 2x", "bfw", "ready", ('schedule.in_flight="2x"', "schedule.stash={twice}")),
    Case("ready zb-h1, 2x", "zb-h1", "ready", ('schedule.in_flight="2x"', "schedule.stash={twice}")),
)
BUSY = (
    Case("ready bf, 2x, busy", "bf", "ready", ('schedule.in_flight="2x"',)),
    Case("the same, no pulse", "bf", "ready", ('schedule.in_flight="2x"',)),
)
"""Tasks keep the rank's thread, as computing on the CPU does; with and without the pulse that lets messages move."""

QUICK = ("fixed 1F1B", "ready bf, 2x", "ready bfw, 2x", *(case.name for case in BUSY), "torch 1F1B")


def run(
    *, steps: int = STEPS, ranks: int = RANKS, quick: bool = False, progress: Callable[[], object] = lambda: None
) -> BenchTable | None:
    """Make the hosts, run on them and return the table; ranks that have been started return it on the first only.

    Raises
    ------
    CannotRunError
        No root, no tool, or an MPI that is not known here.
    """
    words = ["--steps", str(steps), *(["--quick"] if quick else [])]
    work = partial(_work, steps, quick)
    if RESULT_VARIABLE in os.environ:
        return run_on_ranks("slow-link", work, ranks=ranks, words=words, progress=progress)
    mpiexec = mpiexec_for_hosts("slow links")
    return run_on_hosts("slow-link", mpiexec, ranks=ranks, rate=RATE, words=words, progress=progress)


def _work(steps: int, quick: bool, progress: Callable[[], object]) -> BenchTable | None:
    from hpcpipe.runtime import FailureGuard, World

    world = World()
    with FailureGuard(world.comm, place="the benchmark", stage=-1, host=world.host):
        return _measure(world, steps, quick, progress)


def _measure(world: "World", steps: int, quick: bool, progress: Callable[[], object]) -> BenchTable | None:
    warm_up = min(WARM_UP, steps - 1)
    messages = LinkMessages(Link(num_bytes=MESSAGE_BYTES, ns_per_byte=NS_PER_BYTE))
    rows: list[Row] = []

    def add(case: Case, job: Job, got: tuple[float, ...], held: Steps | None) -> None:
        like = predicted(job, messages)
        memory = held or like
        mean = fmean(got[warm_up:])
        expected = fmean(like.ms[warm_up:])
        base = rows[0][1] if rows else mean
        assert isinstance(base, float)
        rows.append((case.name, mean, min(got[warm_up:]), expected, base / mean, memory.in_flight, memory.stash))
        progress()

    with_torch = torch_pipelining.available()
    cases = [case for case in (*CASES, *BUSY, *(TORCH if with_torch else ())) if not quick or case.name in QUICK]
    with tempfile.TemporaryDirectory(prefix="hpcpipe-bench-") as own:
        shared = Path(world.share(own))
        jobs = {case: _job(Path(own), case, world.size, steps) for case in cases}
        for number, case in enumerate(case for case in cases if not case.torch):
            folder = shared / f"run-{number}"
            if world.rank == 0:
                folder.mkdir()
            world.barrier()
            held = _run(case, jobs[case], world, folder)
            if held is not None:
                add(case, jobs[case], held.ms, held)
        theirs = [case for case in cases if case.torch]
        if theirs:
            with torch_pipelining.process_group(world):
                for case in theirs:
                    got = torch_pipelining.emulated_steps(jobs[case], world)
                    if got is not None:
                        add(case, jobs[case], got, None)
    return _table(world, steps - warm_up, rows) if world.rank == 0 else None


def _run(case: Case, job: Job, world: "World", folder: Path) -> Steps | None:
    if case not in BUSY:
        return measured(job, world, folder)
    from hpcpipe.runtime import SyntheticStage, now
    from hpcpipe.runtime.pulse import Pulse

    pulse = Pulse(world.comm) if case is BUSY[0] else None

    def prepare(rank: "Rank") -> None:
        assert isinstance(rank.stage, SyntheticStage)
        rank.stage.device = Blocking(now)
        if pulse is not None:
            rank.engine.computing = pulse

    got = measured(job, world, folder, prepare=prepare)
    if pulse is not None:
        pulse.close()
    return got


def _job(folder: Path, case: Case, stages: int, steps: int) -> Job:
    overrides = [f"parallel.pipeline={stages}", f"batch.microbatches={MICROBATCHES}", f"job.steps={steps}"]
    overrides += [f"device.message_bytes={MESSAGE_BYTES}"]
    return emulated_job(folder, [*overrides, *(each.format(twice=2 * stages) for each in case.overrides())])


def _squeezed(words: str) -> str:
    return " ".join(words.split())


def _table(world: "World", counted: int, rows: list[Row]) -> BenchTable:
    return BenchTable(
        name="slow-link",
        title=f"{world.size} hosts, links of 1 Gbit/s, {MICROBATCHES} micro-batches of 5 + 10 ms, messages of 1 MiB",
        columns=(
            Column("schedule"),
            Column("mean", "ms", 1),
            Column("least", "ms", 1),
            Column("simulated", "ms", 1),
            Column("x 1F1B", "x"),
            Column("in flight", "micro-batches", 1),
            Column("stash", "micro-batches", 1),
        ),
        rows=rows,
        notes=(
            f"{counted} steps, each from a common start; {_squeezed(world.mpi_library)} over TCP, torch over gloo",
            f"links: veth with a token bucket of {RATE}, burst 512 kB, both ways at once; devices are emulated",
            "simulated: a message has its link for 8.4 ms, one at a time each way, and stages compute on",
            "busy: tasks keep the rank's thread, as computing on the CPU does, and a second thread lets messages move",
            "in flight, stash: most micro-batches of a stage without backward, and without weight gradient",
        ),
    )
