"""Measure the ways to sum gradients on the ranks that are there: bucket sizes first, then the best of them in turns."""

import ctypes
import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Protocol

import numpy as np

from hpcpipe.bench.dataparallel.models import Model
from hpcpipe.bench.emulated import meet
from hpcpipe.plan import usual_bucket_bytes

if TYPE_CHECKING:
    from hpcpipe.runtime import World

MB = 10**6
WARM_UP = 2
"""Steps of a turn that are not counted: the first has nothing of a step before beside it."""
SWEEP_STEPS = 3
TRIAL_STEPS = 5
"""Of a size that a search tries, besides one that is not counted."""
UNFUSED = 0

OURS, DDP, MPI, AFTER, ALONE = "ours", "torch DDP", "MPI in backward", "MPI after", "no exchange"
OWN_METHODS = (MPI, OURS)
"""The ways with buckets that need nothing but this package; in the order of the table, after DDP."""
DDP_BYTES = 25 << 20
"""Of a bucket of DDP where nobody says otherwise."""


class Way(Protocol):
    """One way to sum gradients, on all ranks."""

    def run(self, steps: int) -> list[int]:
        """Run so many steps and return when each ended, in ns."""

    def free(self) -> None:
        """Free what it holds (collective)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A way and its bucket size: bytes, `UNFUSED`, or None for what has none. `label` says why it is measured."""

    method: str
    bucket_bytes: int | None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """The median step of a setting (ms) and by how many bytes a rank's process grew for it."""

    setting: Setting
    step_ms: float
    grown_bytes: int


def measure(
    world: "World",
    model: Model | None,
    methods: Sequence[str],
    *,
    steps: int,
    rounds: int,
    sweep: Sequence[float],
    tunes: bool,
    progress: Callable[[], object],
) -> list[Measured]:
    """Return what each setting took; the same on all ranks (collective).

    `methods` are the ways with buckets. Without a model it is the GPT that computes, which is also measured without any
    exchange. `sweep` are bucket sizes in MB to try for the best of each way, beside its default. DDP's default is as
    many times smaller as the model is. With `tunes` ours is also looked for as `[tune] fusion = "on"` does.
    """
    settings = [Setting(AFTER, None), Setting(OURS, UNFUSED, "tensor by tensor")]
    settings = [Setting(ALONE, None), *settings] if model is None else settings
    for method in methods:
        if method == MPI and model is None:
            continue
        default = _default_bytes(method, model, world.size)
        tried = {size: Setting(method, size) for size in (default, *(round(size * MB) for size in sweep))}
        took = {size: _alone(world, model, setting) for size, setting in tried.items()}
        progress()
        best = min(took, key=lambda size: took[size])
        settings += [] if method == MPI else [Setting(method, default, "default")]
        settings.append(Setting(method, best, "best"))
        if method == OURS and model is not None and tunes and find_spec("sklearn") is not None:
            settings.append(Setting(OURS, _tuned(world, model, default), "tuned"))
            progress()
    return _in_turns(world, model, settings, steps=steps, rounds=rounds, progress=progress)


def _default_bytes(method: str, model: Model | None, ranks: int) -> int:
    if method == DDP:
        return DDP_BYTES // (1 if model is None else model.factor)
    if model is not None:
        return usual_bucket_bytes(model.num_bytes, ranks)
    from hpcpipe.bench.dataparallel.real import layer_bytes

    return usual_bucket_bytes(sum(layer_bytes()), ranks)


def _alone(world: "World", model: Model | None, setting: Setting) -> float:
    way = make_way(world, model, setting)
    took = median(step_times(world, way, SWEEP_STEPS))
    way.free()
    return took


def _tuned(world: "World", model: Model, default: int) -> int:
    """Return the bucket size that the search of a training finds, from the default on; rank 0 decides (collective)."""
    from hpcpipe.bench.dataparallel.ours import Ours
    from hpcpipe.collective.tuner import FusionTuner

    way = Ours(world, model, bucket_bytes=default)
    largest = way.fused_bytes / MB
    tuner = FusionTuner(
        start_mb=min(default / MB, largest), smallest_mb=largest / 256, largest_mb=largest, steps=TRIAL_STEPS
    )
    while True:
        for took in step_times(world, way, TRIAL_STEPS + 1):
            tuner.observe(took * 1e-3)
        bucket_mb, done = world.share([tuner.bucket_mb, tuner.done])
        size = max(1, int(bucket_mb * MB))
        if done:
            way.free()
            return size
        way.rebucket(size)


def _in_turns(
    world: "World",
    model: Model | None,
    settings: Sequence[Setting],
    *,
    steps: int,
    rounds: int,
    progress: Callable[[], object],
) -> list[Measured]:
    """Run all settings one after the other, several times, in another order each time."""
    ways: list[Way] = []
    grown: list[int] = []
    for setting in settings:
        before = _resident()
        ways.append(make_way(world, model, setting))
        ways[-1].run(1)
        grown.append(_resident() - before)
    took: list[list[float]] = [[] for _ in settings]
    for number in range(rounds):
        for index in range(len(settings)):
            turn = (index + number) % len(settings)
            took[turn] += step_times(world, ways[turn], steps)
        progress()
    for way in ways:
        way.free()
    return [Measured(*each) for each in zip(settings, map(median, took), grown, strict=True)]


def make_way(world: "World", model: Model | None, setting: Setting) -> Way:
    """Return a way of a setting on this rank (collective); without a model that of the GPT that computes."""
    method, size = setting.method, setting.bucket_bytes
    if model is None:
        return _make_real_way(world, method, size)
    if method == OURS:
        from hpcpipe.bench.dataparallel.ours import Ours

        return Ours(world, model, bucket_bytes=size or 0)
    if method == DDP:
        from hpcpipe.bench.dataparallel.ddp import MEGABYTE, Ddp

        assert size is not None
        return Ddp(model, bucket_mb=size / MEGABYTE)
    from hpcpipe.bench.dataparallel.mpi import MpiSums

    return MpiSums(world, model, bucket_bytes=size)


def _make_real_way(world: "World", method: str, size: int | None) -> Way:
    from hpcpipe.bench.dataparallel import real

    if method == OURS:
        return real.RealOurs(world, bucket_bytes=size or 0)
    if method == DDP:
        return real.RealDdp(world, bucket_bytes=size or 0)
    return real.RealMpi(world) if method == AFTER else real.Replica(world)


def step_times(world: "World", way: Way, steps: int) -> list[float]:
    """Return the ms of each counted step, from its predecessor's end to its own on the slowest rank."""
    from mpi4py import MPI

    meet(world.comm)
    ends = np.array(way.run(WARM_UP + steps), dtype=np.int64)
    between = np.diff(ends)[WARM_UP - 1 :]
    world.comm.Allreduce(MPI.IN_PLACE, between, op=MPI.MAX)
    return (between * 1e-6).tolist()


def _resident() -> int:
    """Return the bytes of this process in memory, without what it has freed."""
    gc.collect()  # a reducer of torch's is part of a cycle
    with suppress(AttributeError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
