"""The log that a simulated run would have written, so that reports and pictures of real runs serve for it too.

What is left empty in it is said in memory_log.py.
"""

from pathlib import Path

from hpcpipe.analyze.memory_log import Row, memory_log
from hpcpipe.events import LogHeader, RankLog, RunLog
from hpcpipe.job import Job
from hpcpipe.plan import FLAG_BACKWARD, Kind, TimeClass
from hpcpipe.simulate import Message, SimulatedRun

SIMULATED = "simulated"
"""Stands as the device in the header of such a log."""


def as_log(run: SimulatedRun, job: Job) -> RunLog:
    """Return the log, one rank a stage; times in ns from the begin of the first step."""
    stages = len(run.steps[0].rows)
    rows: list[list[Row]] = [[] for _ in range(stages)]
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


def _wait(step: int, cause: TimeClass, start: int, end: int, message: Message | None) -> Row:
    if message is None:
        return step, -1, Kind.WAIT, 0, -1, start, end, cause, -1, 0
    task, backward = message.task, FLAG_BACKWARD * (message.task.kind is Kind.B)
    return (
        step, task.microbatch, Kind.WAIT, task.chunk, message.sent, start, end, cause, message.source, backward,
    )  # fmt: skip


def _rank(stage: int, stages: int, rows: list[Row], run: SimulatedRun, job_toml: str, job_sha256: str) -> RankLog:
    header = LogHeader(
        job_toml=job_toml,
        job_sha256=job_sha256,
        world_size=stages,
        mesh=(stages, 1, 1),
        rank=stage,
        coords=(stage, 0, 0),
        host="",
        device=SIMULATED,
        started_utc="",
    )
    begins, ends = [each.begin[stage] for each in run.steps], [each.end[stage] for each in run.steps]
    return memory_log(header, rows, steps=run.numbers, begins=begins, ends=ends)
