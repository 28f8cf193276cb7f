"""Write the event log of a simulated run, large if wanted: fixed 1F1B on pipeline x data ranks with variable tasks.

Durations are lognormal, one stage is slower, messages take time; replicas meet in reduce-scatter and all-gather, and
every step begins when the last rank has ended the one before. Whole arrays are computed and written, no single rows.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from hpcpipe.events import LogHeader
from hpcpipe.events.layout import LIBVER, create_layout
from hpcpipe.events.schema import CLOCK, EVENTS, FLUSHED, STEPS, row_dtype
from hpcpipe.plan import FLAG_BACKWARD, Kind, Task, TimeClass
from hpcpipe.plan.hints.one_f_one_b import one_f_one_b

Ints = NDArray[np.int64]

FORWARD_NS, BACKWARD_NS, MESSAGE_NS = 1_000_000, 2_000_000, 60_000
OVERHEAD_NS, SCATTER_NS, UPDATE_NS, DATA_NS = 4_000, 3_000_000, 1_500_000, 200_000
SIGMA, SLOW_FACTOR = 0.25, 1.2
ORIGIN = 10**12
_STEPS_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Size:
    """How large a log: `tasks` are the forwards and backwards of a rank in a step, two a micro-batch."""

    pipeline: int
    data: int
    steps: int
    tasks: int

    @property
    def ranks(self) -> int:
        """World size."""
        return self.pipeline * self.data

    @property
    def microbatches(self) -> int:
        """Micro-batches of a step on a replica."""
        return self.tasks // 2


@dataclass(frozen=True, slots=True)
class _Times:
    """One task on one stage in all steps and replicas of a block: shape (steps, replicas), ns from the step's begin."""

    free: Ints
    sent: Ints | None
    arrived: Ints | None
    start: Ints
    end: Ints


def make_log(folder: Path, size: Size, *, seed: int = 0, compression: str = "gzip") -> int:
    """Write `folder/events/rank_*.h5` and return the number of rows."""
    events = folder / "events"
    events.mkdir(parents=True)
    chance = np.random.default_rng(seed)
    files = [_create(events, rank, size, compression) for rank in range(size.ranks)]
    orders = [one_f_one_b(stage=s, stages=size.pipeline, microbatches=size.microbatches) for s in range(size.pipeline)]
    rows, begin = 0, ORIGIN
    last_ends: dict[int, int] = {}
    blocks = range(0, size.steps, _STEPS_AT_ONCE)
    for first in track(blocks, description=f"{size.ranks} ranks", disable=len(blocks) < 4):
        count = min(_STEPS_AT_ONCE, size.steps - first)
        block = _simulate(size, orders, count, chance)
        ends = [_finish(size, times) for times in block]
        lengths = np.maximum.reduce([end.gathered.max(axis=1) for end in ends]) + OVERHEAD_NS
        begins = begin + np.concatenate([[0], np.cumsum(lengths[:-1])])
        for rank, file in enumerate(files):
            stage, replica = rank % size.pipeline, rank // size.pipeline
            own = begins + ends[stage].gathered[:, replica]
            came = np.concatenate([[last_ends.get(rank, begin)], own[:-1]])
            last_ends[rank] = int(own[-1])
            table = _rank_rows(size, stage, replica, orders[stage], block[stage], ends[stage], first, begins, came)
            rows += len(table)
            _append(file, "events", table)
            _append(file, "steps", _step_rows(size, first, came, own))
        begin = int(begins[-1] + lengths[-1])
    for rank, file in enumerate(files):
        samples = np.array([(ORIGIN, 0, 2 * (rank > 0)), (begin, 0, 2 * (rank > 0))], dtype=row_dtype(CLOCK))
        _append(file, "clock", samples)
        file[FLUSHED][...] = [file["events/step"].shape[0], size.steps, 2, 0]
        file.close()
    return rows


def _create(folder: Path, rank: int, size: Size, compression: str) -> h5py.File:
    stage, replica = rank % size.pipeline, rank // size.pipeline
    toml = (
        f'[job]\nname = "made"\n[batch]\nmicrobatches = {size.microbatches}\n'
        '[schedule]\nhint = "1f1b"\ndispatch = "fixed"\n'
        '[model]\nkind = "gpt"\nlayers = 32\ndim = 2048\nheads = 16\ncontext = 2048\nvocab_size = 32000\n'
    )
    header = LogHeader(
        job_toml=toml, job_sha256="0" * 64, world_size=size.ranks, mesh=(size.pipeline, size.data, 1), rank=rank,
        coords=(stage, replica, 0), host=f"node{rank // 8:03d}", device="simulated",
        started_utc="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    file = h5py.File(folder / f"rank_{rank:05d}.h5", "x", libver=LIBVER, rdcc_nbytes=1 << 16)
    create_layout(file, [header], compression=compression, complete=True)
    return file


def _simulate(
    size: Size, orders: list[tuple[Task, ...]], steps: int, chance: np.random.Generator
) -> list[dict[Task, _Times]]:
    """Run the orders of all stages as far as they go, again and again, until all is done."""
    shape = (steps, size.data)
    block: list[dict[Task, _Times]] = [{} for _ in orders]
    free = [np.full(shape, DATA_NS if s == 0 else 0, dtype=np.int64) for s in range(size.pipeline)]
    position = [0] * size.pipeline
    while any(at < len(order) for at, order in zip(position, orders, strict=True)):
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                task = order[position[stage]]
                source = stage - 1 if task.kind is Kind.F else stage + 1
                remote = 0 <= source < size.pipeline
                if remote and task not in block[source]:
                    break
                sent = block[source][task].end if remote else None
                arrived = None if sent is None else sent + _varied(MESSAGE_NS, 0.5, shape, chance)
                begun = free[stage] if arrived is None else np.maximum(free[stage], arrived)
                usual = FORWARD_NS if task.kind is Kind.F else BACKWARD_NS
                usual = round(usual * (SLOW_FACTOR if stage == size.pipeline // 2 else 1.0))
                end = begun + OVERHEAD_NS + _varied(usual, SIGMA, shape, chance)
                block[stage][task] = _Times(free[stage], sent, arrived, begun + OVERHEAD_NS, end)
                free[stage] = end
                position[stage] += 1
    return block


def _varied(usual: int, sigma: float, shape: tuple[int, int], chance: np.random.Generator) -> Ints:
    return np.rint(usual * np.exp(sigma * chance.standard_normal(shape) - sigma**2 / 2)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a step on one stage: shape (steps, replicas)."""

    done: Ints
    scattered: Ints
    updated: Ints
    gathered: Ints


def _finish(size: Size, times: dict[Task, _Times]) -> _End:
    """Let the replicas of a stage reduce, update and gather together."""
    done = np.maximum.reduce([each.end for each in times.values()])
    wait = SCATTER_NS if size.data > 1 else 0
    scattered = np.broadcast_to(done.max(axis=1, keepdims=True) + wait, done.shape)
    updated = scattered + UPDATE_NS
    return _End(done, scattered, updated, updated + wait)


def _rank_rows(
    size: Size, stage: int, replica: int, order: tuple[Task, ...], times: dict[Task, _Times], end: _End, first: int,
    begins: Ints, came: Ints,
) -> np.ndarray:  # fmt: skip
    steps = np.arange(first, first + len(begins))
    parts: list[np.ndarray] = []

    def add(kind: Kind, task: Task | None, start: Ints, stop: Ints, keep: Ints | None = None, **more: object) -> None:
        rows = np.zeros(len(steps), dtype=row_dtype(EVENTS))
        rows["step"], rows["kind"], rows["peer"], rows["rank_in_hint"] = steps, kind, -1, -1
        rows["microbatch"] = -1 if task is None else task.microbatch
        rows["t_start"], rows["t_end"], rows["t_ready"] = start + begins, stop + begins, -1
        for name, value in more.items():
            rows[name] = value
        parts.append(rows if keep is None else rows[keep])

    def message(kind: Kind, task: Task, peer: int, sent: Ints, posted: Ints, noticed: Ints) -> None:
        flags = FLAG_BACKWARD if task.kind is Kind.B else 0
        ready = sent + begins
        add(kind, task, posted, noticed, t_ready=ready, peer=peer, bytes=1 << 20, flags=flags)

    zero = np.zeros(len(steps), dtype=np.int64)
    add(Kind.WAIT, None, came - begins, zero, came < begins, wait_class=TimeClass.WARMUP)
    if stage == 0:
        add(Kind.DATA, None, zero, zero + DATA_NS, t_ready=begins)
    for position, task in enumerate(order):
        each = times[task]
        start, stop, free = each.start[:, replica], each.end[:, replica], each.free[:, replica]
        source = replica * size.pipeline + (stage - 1 if task.kind is Kind.F else stage + 1)
        target_stage = stage + 1 if task.kind is Kind.F else stage - 1
        if each.sent is not None and each.arrived is not None:
            sent, arrived = each.sent[:, replica], each.arrived[:, replica]
            message(Kind.RECV, task, source, sent, zero, arrived)
            waited = arrived > free
            cause = TimeClass.WARMUP if position == 0 else TimeClass.DEPENDENCY
            add(
                Kind.WAIT, task, free, arrived, waited, t_ready=sent + begins, wait_class=cause, peer=source,
                flags=FLAG_BACKWARD if task.kind is Kind.B else 0,
            )  # fmt: skip
        add(task.kind, task, start, stop, t_ready=start + begins, rank_in_hint=position, ready_count=1)
        if 0 <= target_stage < size.pipeline:
            message(Kind.SEND, task, replica * size.pipeline + target_stage, stop, stop, stop + OVERHEAD_NS)
    done, scattered, updated, gathered = (
        each[:, replica] for each in (end.done, end.scattered, end.updated, end.gathered)
    )
    bucket = Task(Kind.UPDATE, 0)
    if size.data > 1:
        add(Kind.RS, bucket, done, scattered, t_ready=done + begins, bytes=1 << 26)
        add(Kind.WAIT, None, done, scattered, wait_class=TimeClass.EXPOSED_COMM)
        add(Kind.AG, bucket, updated, gathered, t_ready=updated + begins, bytes=1 << 26)
        add(Kind.WAIT, None, updated, gathered, wait_class=TimeClass.EXPOSED_COMM)
    add(Kind.UPDATE, bucket, scattered, updated, t_ready=scattered + begins)
    table = np.concatenate(parts)
    return table[np.argsort(table["t_end"], kind="stable")]


def _step_rows(size: Size, first: int, begins: Ints, ends: Ints) -> np.ndarray:
    rows = np.zeros(len(begins), dtype=row_dtype(STEPS))
    rows["step"] = np.arange(first, first + len(begins))
    rows["t_begin"], rows["t_end"] = begins, ends
    rows["loss"], rows["grad_norm"], rows["hint"] = 1.0, 1.0, b"1f1b"
    rows["tokens"] = size.microbatches * size.data * 2048
    rows["peak_bytes"] = 1 << 30
    return rows


def _append(file: h5py.File, group: str, rows: np.ndarray) -> None:
    for name in rows.dtype.names or ():
        dataset = file[group][name]
        at = dataset.shape[0]
        dataset.resize((at + len(rows),))
        dataset[at:] = rows[name].tolist() if rows[name].dtype.kind == "S" else rows[name]


def main() -> None:
    """Write a log as asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="run directory to make")
    parser.add_argument("--pipeline", type=int, default=16)
    parser.add_argument("--data", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=200, help="forwards and backwards of a rank in a step")
    parser.add_argument("--compression", choices=["gzip", "lzf", "none"], default="gzip")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    size = Size(options.pipeline, options.data, options.steps, options.tasks)
    rows = make_log(options.folder, size, seed=options.seed, compression=options.compression)
    print(f"{options.folder}: {rows / 1e6:.1f} million rows of {size.ranks} ranks")


if __name__ == "__main__":
    main()
