"""Event logs of pipelines whose times are known by hand: list-scheduled here, written through EventWriter.

Nothing of hpcpipe's own scheduling is used, so it can serve as a second opinion.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcpipe.events import EventWriter, LogHeader
from hpcpipe.plan import FLAG_BACKWARD, Kind, TimeClass

ORIGIN = 1_000_000_000_000


@dataclass(frozen=True)
class Pipeline:
    """What is simulated. Durations in ns; `latency` of the message that feeds task (kind, stage, microbatch)."""

    stages: int
    microbatches: int
    forward: int
    backward: int
    order: str = "1f1b"
    steps: int = 1
    update: int = 0
    latency: Callable[[Kind, int, int], int] = lambda _kind, _stage, _microbatch: 0
    offsets: Sequence[int] = ()
    """Every rank's clock minus rank 0's at ORIGIN."""
    drifts: Sequence[float] = ()
    clock_samples: bool = True
    hint: str = "1f1b"
    dispatch: str = "fixed"
    duration: Callable[[Kind, int, int, int], int] | None = None
    """Duration of (kind, step, stage, microbatch), in place of `forward` and `backward`."""

    def local(self, rank: int, time: int) -> int:
        """Return what the rank's clock shows at a true time after ORIGIN."""
        offset = self.offsets[rank] if self.offsets else 0
        drift = self.drifts[rank] if self.drifts else 0.0
        return ORIGIN + time + offset + round(drift * time)


@dataclass
class _Stage:
    free: int = 0
    ends: dict[tuple[Kind, int], int] = field(default_factory=dict)


def header(*, rank: int = 0, world_size: int = 1, toml: str = "", **changes: object) -> LogHeader:
    """Return a header of a pipeline with one rank a stage."""
    values: dict[str, object] = {
        "job_toml": toml,
        "job_sha256": "0" * 64,
        "world_size": world_size,
        "mesh": (world_size, 1, 1),
        "rank": rank,
        "coords": (rank, 0, 0),
        "host": "node001",
        "device": "cpu",
        "started_utc": "2026-01-01T00:00:00+00:00",
        "mpi_library": "none",
    }
    return LogHeader(**{**values, **changes})  # type: ignore[arg-type]


def orders(order: str, stage: int, stages: int, microbatches: int) -> list[tuple[Kind, int]]:
    """Return the fixed order of a stage."""
    forwards = [(Kind.F, m) for m in range(microbatches)]
    backwards = [(Kind.B, m) for m in range(microbatches)]
    if order == "gpipe":
        return forwards + backwards
    ahead = min(stages - 1 - stage, microbatches)
    paired = [task for pair in zip(forwards[ahead:], backwards, strict=False) for task in pair]
    return forwards[:ahead] + paired + backwards[microbatches - ahead :]


def write_run(folder: Path, pipeline: Pipeline, *, compression: str = "gzip", close: bool = True) -> list[EventWriter]:
    """Write `folder/events/rank_*.h5` of the pipeline."""
    toml = (
        f'[job]\nname = "synthetic"\n[batch]\nmicrobatches = {pipeline.microbatches}\n'
        f'[schedule]\nhint = "{pipeline.hint}"\ndispatch = "{pipeline.dispatch}"\n'
    )
    events = folder / "events"
    events.mkdir(parents=True)
    writers = [
        EventWriter(
            events / f"rank_{rank:05d}.h5",
            header(rank=rank, world_size=pipeline.stages, toml=toml),
            compression=compression,
        )
        for rank in range(pipeline.stages)
    ]
    stages = [_Stage() for _ in range(pipeline.stages)]
    _sample_clocks(pipeline, writers, 0)
    for step in range(pipeline.steps):
        _run_step(pipeline, step, stages, writers)
    _sample_clocks(pipeline, writers, max(stage.free for stage in stages))
    for writer in writers:
        if close:
            writer.close()
        else:
            writer.flush()
    return writers


def _sample_clocks(pipeline: Pipeline, writers: list[EventWriter], time: int) -> None:
    if not pipeline.clock_samples:
        return
    for rank, writer in enumerate(writers):
        local = pipeline.local(rank, time)
        writer.clock(local, local - pipeline.local(0, time), 0 if rank == 0 else 10)


def _run_step(pipeline: Pipeline, step: int, stages: list[_Stage], writers: list[EventWriter]) -> None:
    begins = [stage.free for stage in stages]
    for stage in stages:
        stage.ends.clear()
    todo = [orders(pipeline.order, s, pipeline.stages, pipeline.microbatches) for s in range(pipeline.stages)]
    while any(todo):
        before = sum(map(len, todo))
        for s in range(pipeline.stages):
            while todo[s] and _run_task(pipeline, step, s, todo[s][0], stages, writers[s]):
                todo[s].pop(0)
        assert sum(map(len, todo)) < before, "the order cannot be executed"
    for s, stage in enumerate(stages):
        end = stage.free
        if pipeline.update:
            stage.free = end + pipeline.update
            local = pipeline.local(s, end)
            writers[s].event(Kind.UPDATE, step, 0, 0, local, local, pipeline.local(s, stage.free))
        writers[s].step(
            step,
            pipeline.local(s, begins[s]),
            pipeline.local(s, stage.free),
            loss=1.0,
            tokens=8,
            hint=pipeline.hint,
            peak_bytes=(s + 1) << 20,
        )


def _run_task(
    pipeline: Pipeline, step: int, s: int, task: tuple[Kind, int], stages: list[_Stage], writer: EventWriter
) -> bool:
    kind, microbatch = task
    stage = stages[s]
    source = s - 1 if kind is Kind.F else s + 1
    arrival = sent = None
    if 0 <= source < pipeline.stages:
        sent = stages[source].ends.get(task)
        if sent is None:
            return False
        arrival = sent + pipeline.latency(kind, s, microbatch)
    start = max(stage.free, arrival if arrival is not None else 0)
    flags = FLAG_BACKWARD if kind is Kind.B else 0
    enqueued = pipeline.local(source, sent) if sent is not None else -1
    if start > stage.free:
        wait_class = TimeClass.DEPENDENCY if stage.ends else TimeClass.WARMUP
        writer.event(
            Kind.WAIT, step, microbatch, 0, enqueued, pipeline.local(s, stage.free), pipeline.local(s, start),
            wait_class=wait_class, peer=source, flags=flags,
        )  # fmt: skip
    if arrival is not None:
        writer.event(
            Kind.RECV, step, microbatch, 0, enqueued, ORIGIN, pipeline.local(s, arrival),
            peer=source, nbytes=64, flags=flags,
        )  # fmt: skip
    duration = pipeline.forward if kind is Kind.F else pipeline.backward
    if pipeline.duration is not None:
        duration = pipeline.duration(kind, step, s, microbatch)
    end = start + duration
    writer.event(
        kind, step, microbatch, 0, pipeline.local(s, start), pipeline.local(s, start), pipeline.local(s, end),
        rank_in_hint=0, ready_count=1,
    )  # fmt: skip
    stage.free = stage.ends[task] = end
    return True
