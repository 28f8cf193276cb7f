"""Run a job one rank a host while a tenant takes the links in phases, and read from its log what each phase was like.

The job runs as `hpcpipe run` runs it, until the phases are over. Which jobs are compared is not known here.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcpipe.bench.host_ranks import launcher
from hpcpipe.bench.hosts import HEAD, NETWORK, Hosts
from hpcpipe.bench.ranks import CannotRunError
from hpcpipe.bench.tenant import Phase, Tenant, bounds, tenant
from hpcpipe.cluster.mpiexec import Mpiexec
from hpcpipe.cluster.verdict import read_ranks
from hpcpipe.events import RankLog, open_run
from hpcpipe.exit_code import ExitCode
from hpcpipe.plan import Kind

WARM_UP = 5
"""Steps before the first phase begins: connections, and buffers that are written for the first time."""

_METRICS = "metrics.jsonl"
_LOOK_S = 0.02
_PATIENCE_S = 120.0
_SHOWN = 20
_NAMED = 3
_TOO_LONG_S = 0.1
"""Tasks take a tenth of it; a machine that others keep busy makes them some milliseconds longer, and rarely this."""


@dataclass(frozen=True, slots=True)
class InPhase:
    """What a run did in a phase.

    `ms` is the phase's time over the steps done in it, parts of a step counted, and `settled_ms` the same of its second
    half. `in_flight` are the most samples that any stage held, `held_bytes` the most bytes of their messages.
    `groupings` are the "k x b" that steps had, the most frequent first. `stood_still_s` is for how long the machine let
    tasks that only sleep go on sleeping: what was measured meanwhile says nothing.
    """

    ms: float
    settled_ms: float
    in_flight: int
    held_bytes: int
    groupings: str
    stood_still_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of a run: their k and b, and when each began and the last ended, in s from the first phase's begin."""

    begins: NDArray[np.float64]
    k: NDArray[np.int64]
    microbatch_size: NDArray[np.int64]
    phases: tuple[InPhase, ...]


def run_in_phases(
    hosts: Hosts,
    mpiexec: Mpiexec,
    job: Path,
    folder: Path,
    *,
    phases: Sequence[Phase],
    seed: int,
    samples: int,
    sample_bytes: Sequence[float],
) -> Trace:
    """Run a job file whose steps do not end before the phases, stop it after them, and return what it did.

    `folder` must be empty; `samples` are those of a step, `sample_bytes` what one in flight holds on each stage.

    Raises
    ------
    CannotRunError
        The ranks did not start or failed; their last words are in it.
    """
    run, told = folder / "run", folder / "tenant"
    told.mkdir()
    environment = mpiexec.environment()
    start, own = launcher(mpiexec, hosts, len(hosts.names))
    command = [sys.executable, "-m", "hpcpipe", "run", str(job), "--run-dir", str(run), "--quiet"]
    with (
        (folder / "output").open("wb") as output,
        tenant(hosts, phases, seed=seed, to=f"{NETWORK}.1", folder=told, environment=environment) as other,
    ):
        process = hosts.start(HEAD, [*start, *command], environment | own, output=output)
        try:
            began = _attend(process, run, other, sum(phase.seconds for phase in phases))
        except TimeoutError as error:
            raise CannotRunError(f"{error}\n{_last_words(folder / 'output')}", ExitCode.RANK_FAILED) from None
        finally:
            process.kill()
            process.wait()
    if process.returncode != ExitCode.REQUEUE:
        ended = f"the ranks on the emulated hosts ended with exit code {process.returncode}"
        raise CannotRunError(f"{ended}\n{_last_words(folder / 'output')}", ExitCode.RANK_FAILED)
    return read_trace(run, began, phases, samples=samples, sample_bytes=sample_bytes)


def _attend(process: "subprocess.Popen[bytes]", run: Path, other: Tenant, seconds: float) -> int:
    """Begin the phases once the ranks have warmed up, stop the ranks after them, and return when the phases began (ns).

    Raises
    ------
    TimeoutError
        The ranks made no step, or did not stop.
    """
    give_up = time.monotonic() + _PATIENCE_S
    while _steps_done(run) < WARM_UP and process.poll() is None:
        if time.monotonic() > give_up:
            raise TimeoutError(f"the ranks on the emulated hosts made no {WARM_UP} steps in {_PATIENCE_S:.0f} s")
        time.sleep(_LOOK_S)
    if process.poll() is not None:
        return 0
    began = other.begin()
    with suppress(subprocess.TimeoutExpired):
        process.wait(began * 1e-9 + seconds + 0.5 - time.monotonic())
    if process.poll() is None:
        for entry in read_ranks(run)[:1]:
            os.kill(int(str(entry["pid"])), signal.SIGTERM)  # one rank tells the others
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the ranks on the emulated hosts did not stop in {_PATIENCE_S:.0f} s") from None
    return began


def _steps_done(run: Path) -> int:
    try:
        return (run / _METRICS).read_bytes().count(b"\n")
    except OSError:
        return 0


def _last_words(output: Path) -> str:
    return "\n".join(output.read_text(errors="replace").splitlines()[-_SHOWN:])


def read_trace(run: Path, began: int, phases: Sequence[Phase], *, samples: int, sample_bytes: Sequence[float]) -> Trace:
    """Read a run's log; `began` is when the first phase did, ns of its rank 0's clock."""
    ranks = open_run(run).ranks
    steps = ranks[0].steps  # of the first stage, where micro-batches enter and leave last
    times = (np.append(steps.t_begin, steps.t_end[-1]) - began) * 1e-9
    k, held = np.asarray(steps.k), [_held(log, began, samples) for log in ranks]
    sizes = microbatch_sizes(ranks[0].rows.read(("kind", "step")), samples)[: len(steps)]
    too_long = [_too_long(log, began) for log in ranks]
    found = []
    for begin, stop in bounds(phases):
        most = [_most(*each, begin, stop) for each in held]
        inside = (times[1:] > begin) & (times[:-1] < stop)
        common = Counter(zip(k[inside].tolist(), sizes[inside].tolist(), strict=True)).most_common(_NAMED)
        found.append(
            InPhase(
                ms=ms_a_step(times, begin, stop),
                settled_ms=ms_a_step(times, (begin + stop) / 2, stop),
                in_flight=max(most),
                held_bytes=round(max(count * size for count, size in zip(most, sample_bytes, strict=True))),
                groupings=", ".join(f"{group or ''} x {size}".strip() for (group, size), _ in common),
                stood_still_s=max(float(lasted[(at >= begin) & (at < stop)].sum()) for at, lasted in too_long),
            )
        )
    return Trace(times, k, sizes, tuple(found))


def ms_a_step(begins: NDArray[np.float64], begin: float, end: float) -> float:
    """Return a stretch of time over the steps done in it, ms; a step that is cut counts in part.

    `begins` are when steps began (s), and when the last one ended.

    Raises
    ------
    ValueError
        The steps do not span the stretch.
    """
    if not begins[0] <= begin < end <= begins[-1]:
        raise ValueError(f"steps from {begins[0]:.2f} to {begins[-1]:.2f} s do not span {begin:.2f} to {end:.2f} s")
    first, last = np.interp([begin, end], begins, np.arange(len(begins)))
    return float((end - begin) / (last - first) * 1e3)


def microbatch_sizes(rows: Mapping[str, NDArray], samples: int) -> NDArray[np.int64]:
    """Return how many of a step's samples each of its micro-batches has, by step, from how many forwards it ran."""
    return samples // np.maximum(1, np.bincount(rows["step"][rows["kind"] == Kind.F]))


def _held(log: RankLog, began: int, samples: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return when the number of samples with a begun forward and no ended backward changed, and to what."""
    rows = log.rows.read(("kind", "step", "t_start", "t_end"))
    sizes = microbatch_sizes(rows, samples)
    forward, backward = rows["kind"] == Kind.F, rows["kind"] == Kind.B
    times = np.concatenate([rows["t_end"][backward], rows["t_start"][forward]])
    changes = np.concatenate([-sizes[rows["step"][backward]], sizes[rows["step"][forward]]])
    order = np.argsort(times, kind="stable")
    return (times[order] - began) * 1e-9, np.cumsum(changes[order])


def _too_long(log: RankLog, began: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return when forwards and backwards began that went on far too long, and how long they lasted, s."""
    rows = log.rows.read(("kind", "t_start", "t_end"))
    lasted = (rows["t_end"] - rows["t_start"]) * 1e-9
    which = np.isin(rows["kind"], (Kind.F, Kind.B)) & (lasted > _TOO_LONG_S)
    return (rows["t_start"][which] - began) * 1e-9, lasted[which]


def _most(times: NDArray[np.float64], held: NDArray[np.int64], begin: float, end: float) -> int:
    """Return the most that is held between two times, what is held at the begin included."""
    first, last = np.searchsorted(times, [begin, end])
    return int(np.max(held[max(0, first - 1) : last], initial=0))
