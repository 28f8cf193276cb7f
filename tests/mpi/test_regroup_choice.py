"""Runs that choose their grouping while they go on: a delayed edge makes k rise, and its end makes k fall again.

What tasks and messages take is told to the meters by a script, and a step takes what the simulator says it would take
then: so the choice is certain on any machine, while ranks, messages and changes are real. Real delays come last.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from training import on_two

from hpcpipe.analyze import summarize
from hpcpipe.events import open_run
from hpcpipe.job import load_job
from hpcpipe.plan import Kind
from hpcpipe.runtime import World
from hpcpipe.simulate.compiled import CompiledSchedule
from hpcpipe.train import Origin, train

JOB = """
[job]
name = "regrouped"
steps = 60
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[batch]
microbatches = 12
[schedule]
hint = "kfkb"
[device]
kind = "emulated"
forward_ms = 0.05
backward_ms = 0.1
message_bytes = 4096
[tune]
grouping = "on"
interval = 4
trial = 2
memory_limit = "1 MiB"
[variability]
network = { model = "constant", base_ms = 0.01 }
"""
FORWARD, BACKWARD, DELAY = 4_000_000, 8_000_000, 12_000_000
BEGIN, END = 10, 36


def _run(comm, folder, *overrides, before_step):
    """Run the job on all ranks; return its folder and the decisions of every rank's log."""
    path = folder / "job.toml"
    path.write_text(JOB)
    job = load_job(path, (f"parallel.pipeline={comm.size}", *overrides))
    world = World(comm)
    directory = Path(world.share(str(folder / "run")))
    directory.mkdir(exist_ok=True)
    world.barrier()
    outcome = train(job, world=world, run_directory=directory, origin=Origin(), before_step=before_step)
    assert (outcome.exit_code, outcome.steps) == (0, job.run.steps)
    world.barrier()
    return directory


class Scripted:
    """A rank's measurements of a machine on which nothing varies but the delay of the messages of the last edge."""

    def __init__(self, rank, stages):
        self._source, self._meter, self._stages = rank.source, rank.source._meter, stages
        self._shifts, self._known = self._meter._shifts, {}
        self._feed, self._row = self._meter.measure, self._meter.row
        self._record = self._source.recorder._record
        self._source.recorder.event, self._source.row = self.event, self.row

    def delay(self, step, source, target):
        return DELAY if BEGIN <= step < END and self._stages - 1 in (source, target) else 0

    def event(self, kind, step, *more, peer=-1, nbytes=0, flags=0, **others):
        if kind in (Kind.F, Kind.B):
            self._feed(kind, 0, -1, 0, FORWARD if kind == Kind.F else BACKWARD, -1, 0, flags)
        elif kind == Kind.RECV:
            took = self._shifts[peer] + self.delay(step, peer, self._meter._stage)
            self._feed(kind, 0, 0, 0, took, peer, nbytes, flags)
        self._record(kind, step, *more, peer=peer, nbytes=nbytes, flags=flags, **others)

    def row(self, step, _times):
        return self._row(self.length(step))

    def length(self, step):
        """Return what a step takes under its grouping: the simulator's word."""
        return self.would_take(step, self._source.of(step))

    def would_take(self, step, schedule):
        key = schedule, self.delay(step, self._stages - 2, self._stages - 1)
        if key not in self._known:
            times = np.array([(FORWARD, BACKWARD)] * self._stages)
            arrival = lambda source, target, _task, now: now + self.delay(step, source, target)  # noqa: E731
            self._known[key] = CompiledSchedule(schedule).run(times, arrival=arrival).step_ns
        return self._known[key]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("dispatch", ["fixed", "ready"])
def test_what_is_in_flight_rises_when_an_edge_is_delayed_and_falls_when_the_delay_ends(comm, tmp_path, dispatch):
    on_two(comm)
    had, scripts = [], []

    def look(step, rank):
        if step == 0:
            scripts.append(Scripted(rank, comm.size))
        had.append(rank.source.of(step))

    directory = _run(comm, tmp_path, f'schedule.dispatch="{dispatch}"', before_step=look)
    (script,) = scripts
    first = had[0]
    assert all(schedule == first for schedule in had[:BEGIN]), "nothing is tried where nothing can be gained"
    during, after = had[END - 1], had[-1]
    usual, best = script.would_take(BEGIN, first), script.would_take(BEGIN, during)
    assert best < 0.75 * usual
    assert after == first
    if dispatch == "fixed":
        assert (first.k, after.k) == (1, 1)
        assert during.k > 1
        from dataclasses import replace

        in_hindsight = min(script.would_take(BEGIN, replace(first, k=k)) for k in (1, 2, 3, 4, 6, 12))
        assert best <= 1.05 * in_hindsight
    else:
        assert during.limits[0].in_flight > first.limits[0].in_flight
    if comm.rank == 0:
        run = open_run(directory)
        decided = [(rank.decisions.step.tolist(), rank.decisions.why.tolist()) for rank in run.ranks]
        assert all(each == decided[0] for each in decided), "all ranks decide the same"
        assert all(rank.steps.k.tolist() == [schedule.k for schedule in had] for rank in run.ranks)
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        assert [line["k"] for line in lines] == [schedule.k for schedule in had]
        report = summarize(run)
        words = [each.why.partition(":")[0] for each in report.decisions if each.changes]
        assert words.count("try") >= 2
        assert {each.what for each in report.decisions} == {"grouping"}
        assert list(report.step_k) == [schedule.k for schedule in had]
        assert all(sum(rank.classes.values()) == rank.wall_ns for rank in report.ranks)


@pytest.mark.long
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("dispatch", ["fixed", "ready"])
def test_messages_that_are_really_late_make_it_rise_and_in_time_ones_make_it_fall(comm, tmp_path, dispatch):
    """The delay stays until all have changed, and is away until all have changed back; then steps take no time."""
    phases, first = ["quiet"], []

    def look(step, rank):
        mailbox, schedule = rank.mailbox, rank.source.of(step)
        if step == 0:
            usual = mailbox._when
            first.append((schedule, rank.stage._duration))
            late = lambda neighbour, header: usual(neighbour, header) + (20_000_000 if phases[-1] == "late" else 0)  # noqa: E731
            mailbox._when = late
        changed = schedule != first[0][0]
        if step == 8:
            phases.append("late")
        elif phases[-1] == "late" and changed:
            phases.append("in time")
        elif phases[-1] == "in time" and not changed:
            phases.append("done")
            rank.stage._duration = lambda _step, _task: 0

    overrides = ("batch.microbatches=6", "device.forward_ms=0.5", "device.backward_ms=1", "tune.margin=0.3")
    _run(comm, tmp_path, f'schedule.dispatch="{dispatch}"', "job.steps=600", *overrides, before_step=look)
    assert phases == ["quiet", "late", "in time", "done"]
