"""Emulated devices on real ranks: what the log says of drawn times and delays, and messages that nothing holds up."""

import time
from pathlib import Path

import numpy as np
import pytest
from training import on_four

from hpcpipe.analyze import summarize
from hpcpipe.events import open_run
from hpcpipe.job import load_job
from hpcpipe.job.drawn import compute_model, delay_model
from hpcpipe.plan import FLAG_BACKWARD, Kind, Task
from hpcpipe.runtime import World
from hpcpipe.simulate.costs import emulated_costs
from hpcpipe.train import Layout, Origin, train

JOB = """
[job]
name = "emulated"
steps = 3
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 2
backward_ms = 4
weight_ms = 2
message_bytes = 4096
[batch]
microbatches = 6
[variability]
seed = 5
"""


def _run(comm, folder, *overrides, before_step=lambda _step, _rank: None):
    """Run the job on all ranks; return it and, on rank 0, its log."""
    on_four(comm)
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
    return job, open_run(directory) if comm.rank == 0 else None


def _rows(log, kinds):
    """Yield (stage, row) for the rows of some kinds; a row is a dictionary."""
    for rank in log.ranks:
        events = rank.events.take(np.isin(rank.events.kind, kinds))
        names = ("kind", "step", "microbatch", "chunk", "t_ready", "t_start", "t_end", "peer", "nbytes", "flags")
        for values in zip(*(getattr(events, name).tolist() for name in names), strict=True):
            yield rank.header.stage, dict(zip(names, values, strict=True))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("hint", "dispatch", "ahead"),
    [("1f1b", "fixed", 1), ("bfw", "ready", 1), ("zbv", "ready", 1), ("zbv", "fixed", 1), ("bfw", "ready", 2)],
)
def test_no_task_is_shorter_than_it_was_drawn_and_the_accounting_closes(comm, tmp_path, hint, dispatch, ahead):
    variability = 'variability.compute={ model = "lognormal", sigma = 0.5 }'
    schedule = f'schedule.hint="{hint}"', f'schedule.dispatch="{dispatch}"'
    job, log = _run(comm, tmp_path, *schedule, variability, f"device.launch_ahead={ahead}")
    if log is None:
        return
    times = emulated_costs(job).times
    done = []
    for stage, row in _rows(log, (Kind.F, Kind.B, Kind.W)):
        task = Task(Kind(row["kind"]), row["microbatch"], row["chunk"])
        drawn = times.duration(row["step"], stage, task)
        assert row["t_end"] - row["t_start"] >= 0.999 * drawn  # the reader stretches times by the clocks' drift
        done.append((row["step"], stage, task))
    kinds = 3 if job.splits else 2
    assert len(done) == len(set(done)) == kinds * job.run.steps * comm.size * job.chunks * job.batch.microbatches
    assert {rank.header.device for rank in log.ranks} == {"emulated"}
    report = summarize(log)
    assert all(sum(rank.classes.values()) == rank.wall_ns for rank in report.ranks)


@pytest.mark.mpi(min_size=2)
def test_a_fixed_order_is_kept_although_tasks_run_beside_the_loop(comm, tmp_path):
    job, log = _run(comm, tmp_path, 'schedule.hint="interleaved"', 'schedule.dispatch="fixed"', "job.steps=1")
    if log is None:
        return
    schedule = Layout.of(job).schedule
    for rank in log.ranks:
        events = rank.events.take(np.isin(rank.events.kind, (Kind.F, Kind.B)))
        columns = (events.kind.tolist(), events.microbatch.tolist(), events.chunk.tolist())
        ran = tuple(Task(Kind(kind), microbatch, chunk) for kind, microbatch, chunk in zip(*columns, strict=True))
        assert ran == schedule.order(rank.header.stage)


@pytest.mark.mpi(min_size=2)
def test_messages_are_received_while_a_task_runs(comm, tmp_path):
    """The last stage is ten times slower, so what its neighbour sends comes during its tasks."""
    slow = f"device.forward_ms={[*[1.0] * (comm.size - 1), 10.0]}"
    _, log = _run(comm, tmp_path, slow, 'schedule.hint="bf"', 'schedule.in_flight="2x"', "job.steps=1")
    if log is None:
        return
    last = comm.size - 1
    tasks = [(r["t_start"], r["t_end"]) for stage, r in _rows(log, (Kind.F, Kind.B)) if stage == last]
    received = [r["t_end"] for stage, r in _rows(log, (Kind.RECV,)) if stage == last]
    assert any(start < time < end for time in received for start, end in tasks)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("overtaking", [True, False])
def test_every_message_is_handed_out_after_its_drawn_delay_and_in_order_where_links_are(comm, tmp_path, overtaking):
    network = f'{{ model = "lognormal", base_ms = 2.0, sigma = 1.5, overtaking = {str(overtaking).lower()} }}'
    job, log = _run(comm, tmp_path, f"variability.network={network}", 'schedule.hint="bf"', 'schedule.in_flight="2x"')
    if log is None:
        return
    delay = delay_model(job.variability)
    uncertain = {rank.rank: rank.clock.uncertainty for rank in log.ranks}
    links = {}
    for stage, row in _rows(log, (Kind.RECV,)):
        kind = Kind.B if row["flags"] & FLAG_BACKWARD else Kind.F
        where = {"seed": job.variability.seed, "step": row["step"], "source": row["peer"], "target": stage}
        drawn = delay.of(row["t_ready"], task=Task(kind, row["microbatch"], row["chunk"]), **where)
        assert row["t_end"] - row["t_ready"] >= drawn - uncertain[stage] - uncertain[row["peer"]]
        links.setdefault((row["peer"], stage), []).append((row["t_ready"], row["t_end"]))
    in_order = [[end for _, end in sorted(link)] == sorted(end for _, end in link) for link in links.values()]
    assert all(in_order) != overtaking


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("hint", "dispatch"), [("interleaved", "fixed"), ("interleaved", "ready"), ("zbv", "ready")])
def test_chunks_exchange_messages_of_a_mebibyte_both_ways_without_a_hang(comm, tmp_path, hint, dispatch):
    """Sends of that size end only when they are received (pytorch 127332)."""
    fast = ("device.forward_ms=0.2", "device.backward_ms=0.4", "device.weight_ms=0.2", "device.message_bytes=1048576")
    _, log = _run(comm, tmp_path, f'schedule.hint="{hint}"', f'schedule.dispatch="{dispatch}"', *fast)
    if log is not None:
        sizes = {row["nbytes"] for _, row in _rows(log, (Kind.RECV, Kind.SEND))}
        assert sizes == {1 << 20}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hint", ["1f1b", "interleaved", "zbv"])
def test_an_activation_and_its_gradient_have_the_size_that_the_sending_stage_lists(comm, tmp_path, hint):
    sizes = [1024 * (stage + 1) for stage in range(comm.size)]
    job, log = _run(comm, tmp_path, f'schedule.hint="{hint}"', f"device.message_bytes={sizes}", "job.steps=1")
    if log is None:
        return
    placement = Layout.of(job).schedule.placement
    for stage, row in _rows(log, (Kind.RECV,)):
        virtual = placement.virtual(stage, row["chunk"])
        feeds = Kind.B if row["flags"] & FLAG_BACKWARD else Kind.F
        producer = stage if feeds is Kind.B else placement.owner(virtual - 1)[0]
        assert row["nbytes"] == sizes[producer]


class _HeldBack:
    """A mailbox's poll that keeps the first that comes for chunk 1 until a task of chunk 0 has been started."""

    def __init__(self, rank, *, patience):
        self._poll, self._start, self._patience = rank.mailbox.poll, rank.stage.start, patience
        self._kept, self._give_up = [], None
        self.passed = None
        rank.mailbox.poll, rank.stage.start = self.poll, self.start

    def start(self, step, task, received):
        if self._kept and self.passed is None and task.chunk == 0:
            self.passed = task
        return self._start(step, task, received)

    def poll(self):
        arrivals, sent = self._poll()
        if self._give_up is None or self._kept:
            late = [pair for pair in arrivals if pair[0].chunk == 1]
            arrivals = [pair for pair in arrivals if pair not in late]
            if late and self._give_up is None:
                self._give_up = time.monotonic() + self._patience
            self._kept += late
            if self._kept and (self.passed is not None or time.monotonic() > self._give_up):
                arrivals, self._kept = arrivals + self._kept, []
        return arrivals, sent


@pytest.mark.mpi(min_size=2)
def test_a_late_message_of_one_chunk_delays_no_ready_task_of_another(comm, tmp_path):
    """The last stage is slow, so other forwards wait there when the first message for its chunk 1 comes."""
    held = []

    def hold(step, rank):
        if step == 0 and comm.rank == comm.size - 1:
            held.append(_HeldBack(rank, patience=10.0))

    slow = f"device.forward_ms={[*[0.2] * (comm.size - 1), 10.0]}"
    _run(comm, tmp_path, slow, 'schedule.hint="interleaved"', "batch.microbatches=12", "job.steps=1", before_step=hold)
    if held:
        assert held[0].passed is not None


@pytest.mark.mpi(min_size=2)
def test_micro_batches_of_known_cost_enter_in_the_order_of_the_rule(comm, tmp_path):
    settings = ('variability.compute={ model = "microbatch", sigma = 1.0 }', 'schedule.admission="ascending"')
    job, log = _run(comm, tmp_path, *settings, 'schedule.hint="gpipe"', 'schedule.dispatch="fixed"', "job.steps=2")
    if log is None:
        return
    cost = compute_model(job.variability)
    for step in range(2):
        factors = sorted(cost.factor(seed=5, step=step, microbatch=m) for m in range(6))
        rows = [row for stage, row in _rows(log, (Kind.F,)) if stage == 0 and row["step"] == step]
        assert [row["microbatch"] for row in rows] == list(range(6))
        for factor, row in zip(factors, rows, strict=True):
            assert row["t_end"] - row["t_start"] >= 0.999 * factor * 2e6
