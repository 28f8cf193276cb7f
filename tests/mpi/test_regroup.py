"""Other groupings between two steps: no message is lost, no bit changes that need not, nothing grows, nobody waits.

Groupings are changed here by hand, on all ranks before the same step, as a run does that chooses them.
"""

import random
import time

import pytest
import torch
from layers import disturb
from training import load, needs, on_four, on_two, train_job, train_on

from hpcpipe.device.cpu import Cpu
from hpcpipe.plan import Kind, Task
from hpcpipe.runtime import Inlet, Mailbox, Mesh
from hpcpipe.tune import Grouping

BATCH = 12


class _End:
    """One end of an edge between two ranks that exchange messages both ways, step by step, and tell what came."""

    def __init__(self, comm, mesh, *, slots, size):
        other = 1 - comm.rank
        self.kind, theirs = (Kind.F, Kind.B) if comm.rank == 0 else (Kind.B, Kind.F)
        self.inlet = Inlet(theirs, 0, other, slots)
        self.mailbox = Mailbox(mesh, inlets=[self.inlet], payload_bytes=4 * size, memory=Cpu(sharing_ranks=2))
        self.other, self.early = other, []

    def step(self, step, *, count, size, draws):
        """Send and receive `count` messages in any order; slots are given back late."""
        self.mailbox.begin(step)
        unsent, held, seen = list(range(count)), [], []
        arrived, self.early = self.early, []
        while unsent or held or len(seen) < count or arrived:
            if unsent and draws.random() < 0.5:
                m = unsent.pop(draws.randrange(len(unsent)))
                value = torch.full((size,), float(100 * step + m))
                self.mailbox.send(self.other, Task(self.kind, m), value, step=step)
            arrived += [arrival for _, arrival in self.mailbox.poll()[0]]
            for arrival in arrived:
                if arrival.header.step > step:
                    assert arrival.header.step == step + 1
                    self.early.append(arrival)
                else:
                    seen.append(arrival.header.microbatch)
                    held.append(arrival)
            arrived = []
            if held and draws.random() < 0.3:
                arrival = held.pop(draws.randrange(len(held)))
                assert torch.equal(arrival.value, torch.full((size,), float(100 * step + arrival.header.microbatch)))
                self.mailbox.release(Task(self.inlet.feeds, arrival.header.microbatch), arrival.slot)
            if draws.random() < 0.02:
                time.sleep(draws.random() * 1e-3)
        assert sorted(seen) == list(range(count))


@pytest.mark.mpi(min_size=2)
def test_slots_change_in_number_and_size_between_any_two_steps_and_no_message_comes_apart_or_is_lost(comm):
    """A rank may be a whole step ahead: its first message of another size finds the slots ready for it."""
    needs(comm, 2)
    pair = comm.Split(comm.rank // 2)
    if pair.size == 2:
        mesh = Mesh(pair, pipeline=2, data=1, tensor=1)
        plan, mine = random.Random(7), random.Random(f"8/{pair.rank}")
        steps = [(plan.randint(1, 6), plan.randint(1, 9), plan.choice((3, 50, 4000, 70_000))) for _ in range(150)]
        end = _End(pair, mesh, slots=steps[0][0], size=steps[0][2])
        for step, (_, count, size) in enumerate(steps):
            if 0 < step < len(steps) - 1:
                slots, _, after = steps[step + 1]
                end.mailbox.plan(step + 1, [end.inlet._replace(slots=slots)], payload_bytes=4 * after)
            end.step(step, count=count, size=size, draws=mine)
        while end.mailbox.sending:
            end.mailbox.poll()
        pair.Barrier()
        assert end.mailbox._outbox._sent_apart == 0
        end.mailbox.begin(len(steps))
        end.mailbox.begin(len(steps) + 1)
        pending = end.mailbox.pending()["receives"]
        assert [(each["slots"], each["posted"]) for each in pending] == [(steps[-1][0],) * 2]
        end.mailbox.free()
        mesh.free()
    pair.Free()


def _settings(stages, dispatch, *more):
    return (
        f"parallel.pipeline={stages}",
        f"batch.microbatches={BATCH}",
        "batch.microbatch_size=1",
        'schedule.hint="kfkb"',
        f'schedule.dispatch="{dispatch}"',
        "job.steps=8",
        *more,
    )


def _caps(dispatch, stages, size, draws):
    """Draw caps where they matter: 1F1B's own or more."""
    if dispatch == "fixed":
        return ()
    return tuple(min(BATCH // size, stages - stage + draws.randrange(3)) for stage in range(stages))


def _changing(stages, dispatch, sizes, seed):
    """Return what changes the grouping before every step, for the step after it, and what each step then had."""
    draws, had = random.Random(seed), []

    def change(step, rank):
        disturb(f"{seed}")(step, rank)
        had.append((rank.source.of(step).k, rank.groupings.at(step).job.batch.microbatch_size))
        size = draws.choice(sizes)
        k = draws.choice([k for k in range(1, BATCH // size + 1) if BATCH // size % k == 0])
        rank.groupings.change(step + 1, Grouping(k, size, _caps(dispatch, stages, size, draws)))

    return change, had


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("dispatch", "slices"), [("fixed", 1), ("ready", 1), ("ready", 2)])
def test_another_k_in_every_step_changes_no_bit_of_losses_and_parameters(comm, tmp_path, dispatch, slices):
    (on_two if dispatch == "fixed" else on_four)(comm)
    stages = comm.size // slices
    settings = _settings(stages, dispatch, f"parallel.tensor={slices}", f"model.dropout={0.1 if slices == 1 else 0}")
    usual = train_on(comm, tmp_path, *settings)
    change, had = _changing(stages, dispatch, (1,), seed=comm.size)
    losses, parameters, _ = train_on(comm, tmp_path, *settings, before_step=change)
    assert len(set(had)) > 2
    assert losses == usual[0]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(parameters, usual[1], strict=True))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("dispatch", "replicas"), [("fixed", 1), ("ready", 1), ("ready", 2)])
def test_other_micro_batches_in_every_step_see_the_same_samples(comm, tmp_path, dispatch, replicas):
    (on_two if dispatch == "fixed" else on_four)(comm)
    stages = comm.size // replicas
    settings = _settings(stages, dispatch, f"parallel.data={replicas}", 'optimizer.name="sgd"', "optimizer.lr=0.05")
    usual = train_on(comm, tmp_path, *settings)
    change, had = _changing(stages, dispatch, (1, 2, 3, 4, 6, 12), seed=3)
    losses, parameters, _ = train_on(comm, tmp_path, *settings, before_step=change)
    assert len({size for _, size in had}) > 3
    assert losses == pytest.approx(usual[0], rel=1e-6)
    for mine, theirs in zip(parameters, usual[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


EMULATED = """
[job]
name = "stressed"
steps = 60
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 0.1
backward_ms = 0.2
message_bytes = 3000
[variability]
seed = 3
compute = { model = "lognormal", sigma = 0.8 }
network = { model = "lognormal", base_ms = 0.05, sigma = 1.5, overtaking = true }
"""
SAME = (range(8, 13), range(54, 60))
"""Steps of one grouping, at the begin and at the end, to be compared."""


def _held(mailbox):
    """Return what a mailbox holds when messages of a step have all come: slots, requests and bytes, by edge."""
    channels = [channel for _, channel, _ in mailbox._channels.values()]
    outbox = mailbox._outbox
    return (
        [(len(channel.requests), channel.num_posted, channel._sizes) for channel in channels],
        len(mailbox._receive_requests),
        sorted(outbox._idle),
    )


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("dispatch", "replicas"), [("fixed", 1), ("ready", 1), ("ready", 2)])
def test_random_groupings_in_every_step_under_late_messages_end_and_leave_nothing_behind(
    comm, tmp_path, dispatch, replicas
):
    (on_two if dispatch == "fixed" else on_four)(comm)
    stages, draws, held, sent = comm.size // replicas, random.Random(f"{dispatch}/{replicas}"), [], []

    def change(step, rank):
        size = draws.choice((1, 2, 3, 4, 6, 12))
        k = draws.choice([k for k in range(1, BATCH // size + 1) if BATCH // size % k == 0])
        grouping = Grouping(k, size, _caps(dispatch, stages, size, draws))
        if any(step + 1 in same for same in SAME):
            grouping = Grouping(1, 1, () if dispatch == "fixed" else tuple(stages - stage for stage in range(stages)))
        rank.groupings.change(step + 1, grouping)
        if any(step == same[-1] for same in SAME):
            held.append(_held(rank.mailbox))
        sent.append(rank.mailbox._outbox._sent_apart)

    settings = _settings(stages, dispatch, f"parallel.data={replicas}", "job.steps=60")
    train_job(comm, tmp_path, load(tmp_path, *settings, text=EMULATED), before_step=change)
    assert held[0][1:] == held[1][1:]
    assert [slots for slots, _, _ in held[0][0]] == [slots for slots, _, _ in held[1][0]]
    assert [sizes for _, _, sizes in held[0][0]] == [sizes for _, _, sizes in held[1][0]]
    assert sent[-1] == 0
