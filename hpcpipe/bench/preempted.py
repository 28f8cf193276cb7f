"""kFkB on links that another tenant preempts: which k is best in each phase, and how near the live choice comes to it.

Hosts and links are emulated on this machine, tenant, messages and runtime are real, stages only take their time.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcpipe.bench.emulated import emulated_job
from hpcpipe.bench.host_ranks import mpiexec_for_hosts
from hpcpipe.bench.hosts import HostLink, emulated_hosts
from hpcpipe.bench.preempted_runs import Trace, run_in_phases
from hpcpipe.bench.preempted_verdict import ADAPTIVE, ADAPTIVE_READY, BASE, FIXED, best_fixed, doubts, names, verdicts
from hpcpipe.bench.shapes import SHAPES, Shape
from hpcpipe.bench.table import BenchTable, Column, Row
from hpcpipe.bench.tenant import Phase
from hpcpipe.job import Job

RANKS = 4
SECONDS, QUICK_SECONDS = 20, 6
SEED = 1
SAMPLES = 16
"""Of a step, for each stage."""

ROOM = 4
"""Samples that every system may have in flight for each stage to the end of the pipeline: what 1F1B holds at b = 4."""

FIXED_MS, FORWARD_MS, BACKWARD_MS = 1.2, 1.0, 2.0
"""A task takes so long whatever its size, and so much more for each sample: smaller micro-batches compute less well."""

SAMPLE_BYTES = 6 << 10
LINK = HostLink("200mbit", burst="20kb", latency="200ms", mtu=9000, congestion="cubic")


@dataclass(frozen=True, slots=True)
class System:
    """What is compared: schedule settings, and samples of a micro-batch (of an adaptive one, to begin with)."""

    name: str
    hint: str
    dispatch: str
    microbatch_size: int
    more: tuple[str, ...] = ()
    adaptive: bool = False


SYSTEMS = (
    *(
        System(name, "kfkb", "fixed", ROOM // k, (f"schedule.k={k}",))
        for k, name in zip(FIXED, names(FIXED), strict=True)
    ),
    System(ADAPTIVE, "kfkb", "fixed", ROOM, adaptive=True),
    System("ready bf", "bf", "ready", ROOM),
    System("ready bf, b = 1", "bf", "ready", 1, (f'schedule.in_flight="{ROOM}x"',)),
    System(ADAPTIVE_READY, "kfkb", "ready", ROOM, adaptive=True),
)
QUICK = (*names(FIXED), ADAPTIVE, ADAPTIVE_READY)


def phases_of(seconds: float) -> tuple[Phase, ...]:
    """Return what the tenant does, each for so many seconds."""
    return (
        Phase("quiet", seconds),
        Phase("light", seconds, busy=0.4, burst_s=0.1, window=100_000),
        Phase("heavy", seconds, busy=0.7, burst_s=0.15, window=250_000),
        Phase("quiet again", seconds),
    )


def run(
    *,
    seconds: int | None = None,
    ranks: int = RANKS,
    quick: bool = False,
    seed: int = SEED,
    plot: Path | None = None,
    progress: Callable[[], object] = lambda: None,
) -> BenchTable:
    """Make the hosts, run every system on them in the same phases and return the table.

    Parameters
    ----------
    seconds
        Of a phase (default: 20, quick 5).
    seed
        Of the tenant's bursts.
    plot
        A .png or .svg file for step times and k over time.

    Raises
    ------
    CannotRunError
        No root, no tool, an MPI that is not known here, or ranks that failed.
    """
    mpiexec = mpiexec_for_hosts("preempted links")
    phases = phases_of(seconds or (QUICK_SECONDS if quick else SECONDS))
    traces: dict[tuple[str, str], Trace] = {}
    shapes = [make(ranks) for name, make in SHAPES.items() if not quick or name == "GPT"]
    with tempfile.TemporaryDirectory(prefix="hpcpipe-bench-") as own, emulated_hosts(ranks, LINK) as hosts:
        for shape in shapes:
            for system in SYSTEMS:
                if quick and system.name not in QUICK:
                    continue
                folder = Path(own) / f"{len(traces)}"
                folder.mkdir()
                job = job_of(folder, system, shape)
                path = folder / "resolved.toml"
                path.write_text(job.to_toml())
                sizes = [share * SAMPLE_BYTES for share in shape.bytes_sent]
                traces[shape.name, system.name] = run_in_phases(
                    hosts,
                    mpiexec,
                    path,
                    folder,
                    phases=phases,
                    seed=seed,
                    samples=SAMPLES * ranks,
                    sample_bytes=sizes,
                )
                progress()
    if plot is not None:
        from hpcpipe.bench.preempted_picture import draw

        draw(plot, traces, phases)
    return _table(ranks, traces, phases, seed)


def job_of(folder: Path, system: System, shape: Shape) -> Job:
    """Return the job of a system on stages of this shape; it has more steps than it will come to."""
    stages, size = len(shape.work), system.microbatch_size
    sent = [round(SAMPLE_BYTES * share * size) for share in shape.bytes_sent]
    overrides = [
        f"parallel.pipeline={stages}",
        f"batch.microbatches={SAMPLES * stages // size}",
        f"batch.microbatch_size={size}",
        "job.steps=1_000_000",
        f"device.forward_ms={[FIXED_MS + FORWARD_MS * share * size for share in shape.work]}",
        f"device.backward_ms={[FIXED_MS + BACKWARD_MS * share * size for share in shape.work]}",
        "device.weight_ms=0",
        f"device.message_bytes={sent}",
        f'schedule.hint="{system.hint}"',
        f'schedule.dispatch="{system.dispatch}"',
        *system.more,
    ]
    if system.adaptive:
        limit = max(ROOM // size * (stages - stage) * each for stage, each in enumerate(sent))
        overrides += ['tune.grouping="on"', 'tune.microbatch_size="tuned"', f'tune.memory_limit="{limit}B"']
        overrides += [f"device.fixed_ms={FIXED_MS}"]
    return emulated_job(folder, overrides)


def _table(stages: int, traces: Mapping[tuple[str, str], Trace], phases: Sequence[Phase], seed: int) -> BenchTable:
    figures = {key: trace.phases for key, trace in traces.items()}
    rows: list[Row] = []
    for model in dict.fromkeys(model for model, _ in figures):
        for number, phase in enumerate(phases):
            base = figures[model, BASE][number].ms
            best = best_fixed(figures, model, number)[1]
            for (of, system), each in figures.items():
                if of != model:
                    continue
                found = each[number]
                over = 100.0 * (found.ms / best - 1.0)
                row = (found.ms, base / found.ms, over, found.settled_ms, found.groupings, found.in_flight)
                rows.append((model, phase.name, system, *row, found.held_bytes / 1e3))
    heavy = [f"{phase.name}: {phase.busy:.0%} of the time, {phase.window // 1000} kB" for phase in phases if phase.busy]
    return BenchTable(
        name="preempted",
        title=f"{stages} hosts, links of 200 Mbit/s that another tenant takes in bursts; "
        f"{SAMPLES * stages} samples a step, at most {ROOM * stages} on a stage",
        columns=(
            Column("model"),
            Column("phase"),
            Column("system"),
            Column("step", "ms", 1),
            Column("x 1F1B", "x"),
            Column("over best k", "%", 1),
            Column("2nd half", "ms", 1),
            Column("k x b"),
            Column("in flight", "samples"),
            Column("held", "kB", 1),
        ),
        rows=rows,
        notes=(
            *doubts(figures, phases),
            *verdicts(figures, phases),
            f"phases of {phases[0].seconds:g} s, seed {seed}: every system meets the same bursts at the same times",
            f"the tenant keeps a link's queue filled: {'; '.join(heavy)}",
            f"a task takes {FIXED_MS:g} ms, and {FORWARD_MS:g} (F) or {BACKWARD_MS:g} ms (B) for each of its b samples",
            f"messages are {SAMPLE_BYTES >> 10} KiB a sample; the U-Net's stages differ as its layers say",
            "fixed kFkB has the largest b that the memory allows; adaptive ones choose k and b, beginning with 1F1B",
            "step: a phase's time over the steps done in it; over best k: against the fixed k that was fastest in it",
            "in flight, held: most samples of a stage without backward, and the bytes of their messages",
        ),
    )
