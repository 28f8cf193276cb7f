"""Training over real ranks: the same losses as one process, the same bits under every schedule, whatever the timing."""

from pathlib import Path

import pytest
import torch
from layers import disturb
from training import load, needs, on_four, reference, rest, train_on

from hpcpipe.plan import Kind

LAYOUTS = [
    (1, "fixed", "1f1b"),
    (1, "ready", "bf"),
    (2, "fixed", "1f1b"),
    (2, "fixed", "gpipe"),
    (2, "ready", "bf"),
    (4, "fixed", "1f1b"),
    (4, "ready", "bf"),
    (4, "ready", "1f1b"),
]


def _overrides(pipeline, dispatch, hint):
    return f"parallel.pipeline={pipeline}", f'schedule.dispatch="{dispatch}"', f'schedule.hint="{hint}"'


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        return reference(load(tmp_path_factory.mktemp("reference")))[0]
    return None


@pytest.mark.mpi
@pytest.mark.parametrize(("pipeline", "dispatch", "hint"), LAYOUTS)
def test_every_loss_equals_that_of_one_process(comm, tmp_path, expected, pipeline, dispatch, hint):
    needs(comm, pipeline)
    result = train_on(comm, tmp_path, *_overrides(pipeline, dispatch, hint))
    if comm.rank == 0:
        assert result[0] == pytest.approx(expected, rel=1e-6)
        assert result[0][-1] < result[0][0] - 0.5


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("pipeline", "dispatch", "hint"), [(1, "ready", "bf"), (2, "ready", "bf"), (2, "fixed", "1f1b")]
)
def test_two_replicas_train_like_one_process_with_the_whole_batch(comm, tmp_path, pipeline, dispatch, hint):
    needs(comm, 2 * pipeline)
    overrides = ("parallel.data=2", "batch.microbatches=3", "comm.bucket_mb=0.02")
    losses = reference(load(tmp_path, *overrides))[0] if comm.rank == 0 else None
    result = train_on(comm, tmp_path, *overrides, *_overrides(pipeline, dispatch, hint))
    if comm.rank == 0:
        assert len(result[2].buckets) > 2
        assert result[0] == pytest.approx(losses, rel=1e-6)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("replicas", [1, 2])
def test_ready_has_the_bits_of_fixed_under_any_timing(comm, tmp_path, replicas):
    on_four(comm)
    pipeline = comm.size // replicas
    if pipeline < 2 or pipeline > 4:
        pytest.skip("needs two to four stages")
    sizes = (f"parallel.data={replicas}", "batch.microbatches=8", "job.steps=6")
    fixed = train_on(comm, tmp_path, *sizes, *_overrides(pipeline, "fixed", "1f1b"))
    for seed, hint in enumerate(["bf", "1f1b", "gpipe", "bf"]):
        settings = ('schedule.in_flight="2x"',) if seed else ()
        ready = train_on(
            comm,
            tmp_path,
            *sizes,
            *settings,
            *_overrides(pipeline, "ready", hint),
            before_step=disturb(seed, share=0.3, longest_s=0.01),
        )
        if fixed is not None:
            assert all(torch.equal(a, b) for a, b in zip(fixed[1], ready[1], strict=True))
            assert comm.rank or fixed[0] == ready[0]


class _EvenGradientsLate:
    """A mailbox's poll that shows an even micro-batch's gradient one poll after the next odd one's."""

    def __init__(self, poll):
        self._poll = poll
        self._kept = []
        self._due = False

    def __call__(self):
        arrivals, sent = self._poll()
        late, self._kept = (self._kept, []) if self._due else ([], self._kept)
        even = [a for a in arrivals if a[0].feeds is Kind.B and a[1].header.microbatch % 2 == 0]
        self._kept += even
        now = [a for a in arrivals if a not in even]
        self._due = bool(now)
        return late + now, sent


@pytest.mark.mpi(min_size=2)
def test_gradients_that_arrive_out_of_order_are_held_and_leave_the_same_bits(comm, tmp_path):
    """Here backwards really overtake each other: stage 0 is given the later gradient first."""
    needs(comm, 2)
    overrides = _overrides(2, "ready", "bf")
    plain = train_on(comm, tmp_path, *overrides)

    def swap(step, rank):
        if step == 0 and comm.rank == 0:
            rank.mailbox.poll = _EvenGradientsLate(rank.mailbox.poll)

    swapped = train_on(comm, tmp_path, *overrides, before_step=swap)
    if comm.rank == 0:
        assert swapped[2].accumulators[0].peak_held > 0
    if plain is not None:
        assert all(torch.equal(a, b) for a, b in zip(plain[1], swapped[1], strict=True))


@pytest.mark.mpi(min_size=2)
def test_dropout_does_not_depend_on_the_pipeline(comm, tmp_path):
    needs(comm, 2)
    one = train_on(comm, tmp_path, "model.dropout=0.2", "job.steps=5", *_overrides(1, "ready", "bf"))
    two = train_on(comm, tmp_path, "model.dropout=0.2", "job.steps=5", *_overrides(2, "ready", "bf"))
    none = train_on(comm, tmp_path, "job.steps=5", *_overrides(2, "ready", "bf"))
    if comm.rank == 0:
        assert one[0] == pytest.approx(two[0], rel=1e-6)
        assert two[0] != pytest.approx(none[0], rel=1e-4)


@pytest.mark.mpi(min_size=2)
def test_fewer_microbatches_than_stages_and_few_slots_train_too(comm, tmp_path):
    pipeline = min(comm.size, 4)
    for overrides in (("batch.microbatches=1",), ("batch.microbatches=2", "comm.slots=1", 'comm.poll="yield"')):
        whole = reference(load(tmp_path, "job.steps=8", *overrides))[0] if comm.rank == 0 else None
        result = train_on(comm, tmp_path, "job.steps=8", *overrides, *_overrides(pipeline, "ready", "bf"))
        if comm.rank == 0:
            assert result[0] == pytest.approx(whole, rel=1e-6)


@pytest.mark.mpi(min_size=2)
def test_a_loss_that_is_not_a_number_stops_all_ranks_at_the_same_step(comm, tmp_path):
    from hpcpipe.exit_code import ExitCode
    from hpcpipe.runtime import World
    from hpcpipe.train import Origin, train

    job = load(tmp_path, f"parallel.pipeline={min(comm.size, 4)}", "job.steps=10")
    part = comm.Split(comm.rank >= job.parallel.ranks, comm.rank)
    if comm.rank < job.parallel.ranks:
        world = World(part)
        directory = world.share(str(tmp_path / "diverged"))
        Path(directory).mkdir(exist_ok=True)

        def poison(step, rank):
            if step == 3 and world.rank == world.size - 1:
                rank.stage.parameters[-1].data.fill_(float("nan"))

        outcome = train(job, world=world, run_directory=Path(directory), origin=Origin(), before_step=poison)
        assert outcome.exit_code == ExitCode.DIVERGED
        assert world.collect(outcome.steps) == [outcome.steps] * world.size
        assert outcome.steps <= 5
    part.Free()
    rest(comm)
