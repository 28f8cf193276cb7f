"""The log that a simulated run would have written, so that reports and pictures of real runs serve for it too.

It invents nothing: what the simulation did not have (losses, memory of the process) is left empty.
"""

from pathlib import Path

import numpy as np

from hpcpipe.events import Events, LogHeader, MemoryRows, RankLog, RunLog, Steps
from hpcpipe.events.clock import fit_clock
from hpcpipe.events.tables import Decisions
from hpcpipe.job import Job
from hpcpipe.plan import FLAG_BACKWARD, Kind, TimeClass
from hpcpipe.simulate import Message, SimulatedRun

SIMULATED = "simulated"
"""Stands as the device in the header of such a log."""

_NONE = np.empty(0, dtype=np.int64)
_Fields = tuple[int, int, int, int, int, int, int, int, int, int]


def as_log(run: SimulatedRun, job: Job) -> RunLog:
    """Return the log, one rank a stage; times in ns from the begin of the first step."""
    stages = len(run.steps[0].rows)
    rows: list[list[_Fields]] = [[] for _ in range(stages)]
    for number, step in zip(run.numbers, run.steps, strict=True):
        ended: list[dict[int, Message]] = [{} for _ in range(stages)]
        for message in step.messages:
            target, task = message.target, message.task
            ended[target][max(message.arrived, step.begin[target])] = message
            backward = FLAG_BACKWARD * (task.kind is Kind.B)
            rows[target].append(
                (number, task.microbatch, Kind.RECV, task.chunk, message.sent, message.sent, message.arrived, 0,
                 message.source, backward)
            )  # fmt: skip
        for stage in range(stages):
            for row in (*step.rows[stage], *step.beside[stage]):
                if row.task is not None:
                    kind, microbatch, chunk = row.task
                    rows[stage].append((number, microbatch, kind, chunk, row.start, row.start, row.end, 0, -1, 0))
                elif row.cause is not TimeClass.DRAIN:
                    rows[stage].append(_wait(number, row.cause, row.start, row.end, ended[stage].get(row.end)))
    text, digest = job.to_toml(), job.sha256
    ranks = tuple(_rank(stage, stages, rows[stage], run, text, digest) for stage in range(stages))
    return RunLog(Path(job.run.name), ranks, ())


def _wait(step: int, cause: TimeClass, start: int, end: int, message: Message | None) -> _Fields:
    if message is None:
        return step, -1, Kind.WAIT, 0, -1, start, end, cause, -1, 0
    task, backward = message.task, FLAG_BACKWARD * (message.task.kind is Kind.B)
    return (
        step, task.microbatch, Kind.WAIT, task.chunk, message.sent, start, end, cause, message.source, backward,
    )  # fmt: skip


def _rank(stage: int, stages: int, rows: list[_Fields], run: SimulatedRun, job_toml: str, job_sha256: str) -> RankLog:
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 10)
    table = table[np.argsort(table[:, 6], kind="stable")]
    step, microbatch, kind, chunk, ready, start, end, wait_class, peer, flags = table.T
    zeros = np.zeros(len(table), dtype=np.int64)
    count = len(run.numbers)
    return RankLog(
        header=LogHeader(
            job_toml=job_toml,
            job_sha256=job_sha256,
            world_size=stages,
            mesh=(stages, 1, 1),
            rank=stage,
            coords=(stage, 0, 0),
            host="",
            device=SIMULATED,
            started_utc="",
        ),
        rows=MemoryRows(
            Events(
                step=step,
                microbatch=microbatch,
                kind=kind,
                chunk=chunk,
                t_ready=ready,
                t_start=start,
                t_end=end,
                wait_class=wait_class,
                peer=peer,
                nbytes=zeros,
                rank_in_hint=zeros - 1,
                ready_count=zeros,
                flags=flags,
            )
        ),
        steps=Steps(
            step=np.array(run.numbers, dtype=np.int64),
            t_begin=np.array([each.begin[stage] for each in run.steps], dtype=np.int64),
            t_end=np.array([each.end[stage] for each in run.steps], dtype=np.int64),
            loss=np.full(count, np.nan),
            grad_norm=np.full(count, np.nan),
            tokens=np.zeros(count, dtype=np.int64),
            hint=np.full(count, "", dtype=object),
            k=np.zeros(count, dtype=np.int64),
            bucket_bytes=np.zeros(count, dtype=np.int64),
            peak_bytes=np.zeros(count, dtype=np.int64),
        ),
        decisions=Decisions(_NONE, _NONE, _NONE),
        clock=fit_clock(_NONE, _NONE, _NONE),
        complete=True,
    )
