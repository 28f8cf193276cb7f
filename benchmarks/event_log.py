"""Measure what the event log costs: a dispatching thread of 1 ms tasks with the log on and off, in turns, in one run.

Then what a file needs: bytes an event and time to write, by chunk size and compression. Nothing is asserted; figures
that the documentation quotes come from here.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hpcpipe.events import EventWriter, LogHeader
from hpcpipe.events.layout import LIBVER, pack
from hpcpipe.plan import Kind
from hpcpipe.train.rank import NoLog

TASKS = 64
"""Tasks of a step; each leaves three events: itself, a message and a wait."""


def header() -> LogHeader:
    """Return the header of a run with one rank."""
    return LogHeader("", "0" * 64, 1, (1, 1, 1), 0, (0, 0, 0), "host", "cpu", "2026-01-01T00:00:00+00:00")


def run_step(recorder: EventWriter | NoLog, step: int, task_ns: int, spent: list[int]) -> int:
    """Run a step of tasks that keep the core busy for `task_ns` each and return how long it took (ns).

    What recording a task's three events took is added to `spent`.
    """
    now = time.perf_counter_ns
    begin = now()
    for microbatch in range(TASKS):
        began = now()
        until = began + task_ns
        while now() < until:
            pass
        ended = now()
        recorder.event(Kind.F, step, microbatch, 0, began, began, ended, rank_in_hint=microbatch, ready_count=3)
        recorder.event(Kind.RECV, step, microbatch, 0, began, began, ended, peer=1, nbytes=1 << 20)
        recorder.event(Kind.WAIT, step, microbatch, 0, began, began, ended, wait_class=7, peer=1)
        spent.append(now() - ended)
    if isinstance(recorder, EventWriter):
        recorder.step(step, begin, now(), loss=1.0, tokens=1)
        recorder.flush(wait=False)
    return now() - begin


def measure_cost(folder: Path, *, steps: int, task_us: float) -> Table:
    """Return the cost of recording: steps with and without a log in turns, so that both meet the same machine."""
    writer = EventWriter(folder / "rank_00000.h5", header())
    times: tuple[list[int], list[int]] = ([], [])
    spent: tuple[list[int], list[int]] = ([], [])
    for step in track(range(steps), description="steps", transient=True):
        for on in (step % 2, 1 - step % 2):
            times[on].append(run_step(writer if on else NoLog(), step, round(task_us * 1000), spent[on]))
    writer.close()
    off, on = (statistics.median(each) for each in times)
    pairs = sorted(b - a for a, b in zip(*times, strict=True))
    spread = pairs[len(pairs) // 10], pairs[-1 - len(pairs) // 10]
    table = Table(
        title=f"{steps} steps of {TASKS} tasks of {task_us:g} µs and {3 * TASKS} events, log off and on in turns"
    )
    for name in ("", "off", "on"):
        table.add_column(name, justify="right")
    table.add_row("step, median", f"{off / 1e6:.3f} ms", f"{on / 1e6:.3f} ms")
    table.add_row("step, shortest", *(f"{min(each) / 1e6:.3f} ms" for each in times))
    table.add_row("step, p99", *(f"{np.percentile(each, 99) / 1e6:.3f} ms" for each in times))
    table.add_row("median longer by", "", f"{(on - off) / off:.2%}")
    least, most = (min(each) for each in times)
    table.add_row("shortest longer by", "", f"{(most - least) / least:.2%}")
    recording = [statistics.median(each) / 1e3 for each in spent]
    table.add_row("recording a task, median", *(f"{each:.2f} µs" for each in recording))
    table.add_row("share of the task", "", f"{(recording[1] - recording[0]) / task_us:.2%}")
    table.add_row("p10 to p90 of the pairs", "", f"{spread[0] / 1e3:.0f} to {spread[1] / 1e3:.0f} µs a step")
    return table


def measure_call(folder: Path) -> str:
    """Return the bare cost of one call."""
    writer = EventWriter(folder / "call.h5", header())
    costs = []
    for _ in range(20):
        begin = time.perf_counter_ns()
        for i in range(10_000):
            writer.event(Kind.F, 1, i, 0, begin, begin, begin, rank_in_hint=4, ready_count=3)
        costs.append((time.perf_counter_ns() - begin) / 10_000)
        writer.flush()
    writer.close()
    return (
        f"one call of event(): {min(costs) / 1e3:.2f} µs at best, {statistics.median(costs) / 1e3:.2f} µs in the median"
    )


def measure_pauses(folder: Path) -> str:
    """Return how long the interpreter is taken from a thread that gives it away all the time, as MPI calls do."""
    pauses: dict[bool, list[int]] = {False: [], True: []}
    writer = EventWriter(folder / "pauses.h5", header())
    for _ in range(10):
        for on in (False, True):
            until = time.perf_counter_ns() + 200_000_000
            last = time.perf_counter_ns()
            while last < until:
                if on:
                    for i in range(20):
                        writer.event(Kind.F, 1, i, 0, last, last, last)
                    writer.flush(wait=False)
                time.sleep(0.0005)
                now = time.perf_counter_ns()
                pauses[on].append(now - last)
                last = now
    writer.close()
    words = []
    for name, on in (("off", False), ("on", True)):
        p50, p99, p999 = np.percentile(pauses[on], (50, 99, 99.9)) / 1e3
        words.append(f"{name}: p50 {p50:.0f}, p99 {p99:.0f}, p99.9 {p999:.0f} µs")
    return "a loop that sleeps 500 µs takes, with the log " + "; ".join(words)


def write_log(path: Path, events: int) -> None:
    """Write a log like that of a stage: times that grow, few different values elsewhere."""
    draws = np.random.default_rng(0)
    lengths = draws.lognormal(13.8, 0.3, events).astype(np.int64)
    ends = np.cumsum(lengths) + 10**15
    with EventWriter(path, header(), "none") as writer:
        for i, (end, length) in enumerate(zip(ends.tolist(), lengths.tolist(), strict=True)):
            kind, step, microbatch = (Kind.F, Kind.B, Kind.RECV, Kind.WAIT)[i % 4], i // 200, i // 4 % 50
            start = end - length
            writer.event(
                kind, step, microbatch, 0, start - length // 3, start, end,
                wait_class=6 if kind is Kind.WAIT else 0, peer=i % 2 if i % 4 > 1 else -1,
                nbytes=1 << 22 if kind is Kind.RECV else 0, rank_in_hint=i % 100, ready_count=i % 5,
            )  # fmt: skip


def measure_files(folder: Path, events: int) -> Table:
    """Return size and time by chunk size and compression."""
    source = folder / "source.h5"
    write_log(source, events)
    table = Table(title=f"packing {events:,} events, by rows in a chunk")
    for name in ("compression", "chunk rows", "bytes an event", "write ms", "read ms"):
        table.add_column(name, justify="right")
    with h5py.File(source, "r") as log:
        for compression in track(("none", "lzf", "gzip"), description="files", transient=True):
            for rows in (1024, 8192, 65536):
                path = folder / f"{compression}-{rows}.h5"
                begin = time.perf_counter()
                with h5py.File(path, "w", libver=LIBVER) as target:
                    pack(log, target, [header()], node=False, compression=compression, chunk_rows=rows)
                written = time.perf_counter() - begin
                begin = time.perf_counter()
                with h5py.File(path, "r") as target:
                    for column in target["events"].values():
                        column[()]
                read = time.perf_counter() - begin
                size = path.stat().st_size / events
                table.add_row(compression, str(rows), f"{size:.1f}", f"{written * 1e3:.0f}", f"{read * 1e3:.0f}")
    return table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--task-us", type=float, default=1000.0)
    parser.add_argument("--events", type=int, default=200_000)
    options = parser.parse_args()
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        console.print(measure_call(folder))
        console.print(measure_pauses(folder))
        console.print(measure_cost(folder, steps=options.steps, task_us=options.task_us))
        console.print(measure_files(folder, options.events))


if __name__ == "__main__":
    main()
