"""The search for a bucket size over the sums of steps: all ranks switch together, a checkpoint takes it up again."""

from math import sqrt
from types import SimpleNamespace

import numpy as np
import pytest
from job_text import VALID, write_job

from hpcpipe.job import load_job
from hpcpipe.runtime import StepTimes
from hpcpipe.train.fusion_tuning import ConstantFusion, fusion_tuning, in_bytes

pytest.importorskip("sklearn")

ON = ("parallel.data=2", 'tune.fusion="on"')
RANKS = 4
FUSED_BYTES = (60_000_000, 60_000_000, 100_000_000, 100_000_000)
LATENCY, COST = 1e-3, 1e-3


def step_time(size_mb):
    """Start-up costs of all buckets and a last bucket that nothing hides; least at sqrt(latency * total / cost)."""
    return 0.1 + LATENCY * 100 / size_mb + COST * size_mb


BEST = step_time(sqrt(LATENCY * 100 / COST))


class Together:
    """Some ranks that run steps of given times and share their rows one step late, as the trainer does."""

    def __init__(self, job, *, first=0, numbers=None, hosts=("a", "a", "b", "b"), noise=0.0, seed=0):
        self.job, self.first = job, first
        self.decisions, self.said, self.switches = [], [], [[] for _ in range(RANKS)]
        resume = None
        if numbers is not None:
            resume = SimpleNamespace(step=first, manifest=SimpleNamespace(numbers=numbers))
        told = []
        self.sizes = [job.comm.bucket_mb] * RANKS
        self.tuned = [
            fusion_tuning(
                job,
                self._rank(rank),
                world=_World(rank, told),
                hosts=hosts,
                resume=resume,
                decide=lambda *row: self.decisions.append(row),
                say=self.said.append,
            )
            for rank in range(RANKS)
        ]
        self._noise, self._rng = noise, np.random.default_rng(seed)

    def _rank(self, rank):
        def rebucket(num_bytes):
            self.switches[rank].append((self.step, num_bytes))
            self.sizes[rank] = num_bytes / 1e6

        buckets = SimpleNamespace(fused_bytes=FUSED_BYTES[rank], rebucket=rebucket)
        engine = SimpleNamespace(drain=lambda: None, note_progress=lambda: None)
        return SimpleNamespace(buckets=buckets, engine=engine)

    def run(self, steps):
        """Run some steps; return the numbers that a checkpoint after the last would keep."""
        posted = None
        for step in range(self.first, self.first + steps):
            self.step = step
            for tuned in self.tuned:
                tuned.before_step(self.step)
            assert len(set(self.sizes)) == 1, "ranks have buckets of different sizes in one step"
            factors = 1 + self._noise * self._rng.standard_normal(RANKS)
            spent = [round(1e9 * step_time(self.sizes[0]) * factor) for factor in factors]
            if posted is not None:
                for tuned in self.tuned:
                    tuned.take(self.step - 1, posted)
            rows = [tuned.row(StepTimes(5, 5 + ns)) for tuned, ns in zip(self.tuned, spent, strict=True)]
            posted = [sum(column) for column in zip(*rows, strict=True)]
        return self.tuned[0].numbers()


class _World:
    size = RANKS

    def __init__(self, rank, told):
        self.rank, self._told = rank, told

    def gather(self, value):
        return list(FUSED_BYTES) if self.rank == 0 else []

    def share(self, value):
        if self.rank == 0:
            self._told.append(value)
        return self._told[0]


@pytest.fixture
def job(tmp_path):
    return load_job(write_job(tmp_path, VALID), [*ON, "comm.bucket_mb=25"])


@pytest.mark.parametrize("seed", range(3))
def test_all_ranks_switch_at_the_same_steps_and_end_with_a_size_within_two_percent_of_the_best(job, seed):
    together = Together(job, noise=0.01, seed=seed)
    numbers = together.run(200)
    assert numbers["fusion_done"] == 1
    assert all(switches == together.switches[0] for switches in together.switches)
    assert step_time(together.sizes[0]) < 1.02 * BEST
    _, about, why = together.decisions[-1]
    assert about == "fusion"
    assert why.startswith(f"keep {together.sizes[0]:.3g} MB: trial ")
    assert "expected of others" in why
    assert [sentence.split(" MB")[0] for sentence in together.said] == [f"fusion: buckets of {together.sizes[0]:.3g}"]


def test_every_trial_is_a_decision_that_holds_from_the_step_of_its_switch_on(job):
    together = Together(job)
    numbers = together.run(200)
    trials = sum(name.endswith("_step_s") for name in numbers)
    assert len(together.decisions) == trials + 1
    assert together.decisions[0] == (0, "fusion", "try 25 MB: the search begins: sizes from 0.391 MB to 100 MB")
    switched = dict(together.switches[0])
    assert len(switched) >= trials - 1
    for step, _, why in together.decisions[1:-1]:
        assert why.startswith(f"try {switched[step] / 1e6:.3g} MB: trial ")


def test_the_sizes_tried_lie_between_a_256th_of_the_largest_stage_and_all_of_it(job):
    together = Together(job)
    together.run(200)
    sizes = [num_bytes for _, num_bytes in together.switches[0]]
    assert min(sizes) >= 100_000_000 // 256
    assert max(sizes) <= 100_000_000
    assert sizes[:3] == pytest.approx([25_000_000, 6_250_000, 1_562_500], abs=1)


def test_where_the_stage_decides_the_search_begins_with_the_usual_size_of_the_largest_one(tmp_path):
    together = Together(load_job(write_job(tmp_path, VALID), ON))
    together.run(200)
    assert [num_bytes for _, num_bytes in together.switches[0]][:3] == pytest.approx(
        [6_250_000, 25_000_000, 1_562_500], abs=1
    )
    assert together.decisions[0][2].startswith("try 6.25 MB: the search begins")


def test_a_bucket_larger_than_a_stage_is_where_no_search_begins(tmp_path):
    job = load_job(write_job(tmp_path, VALID), [*ON, "comm.bucket_mb=5000"])
    together = Together(job)
    together.run(1)
    assert together.switches[0] == [(0, 100_000_000)]


@pytest.mark.parametrize("stopped_after", [17, 40])
def test_a_resumed_search_goes_on_with_the_trials_that_were_made(job, stopped_after):
    whole = Together(job).run(200)
    kept = Together(job).run(stopped_after)
    assert not kept["fusion_done"]
    resumed = Together(job, first=stopped_after, numbers=kept)
    again = resumed.run(200)
    assert again == whole
    assert "goes on after the" in resumed.decisions[0][2]


def test_a_resumed_run_whose_search_had_ended_has_the_best_size_from_its_first_step_on_and_looks_for_no_other(job):
    kept = Together(job).run(200)
    resumed = Together(job, first=200, numbers=kept)
    assert resumed.run(50) == kept
    assert resumed.switches == [[(200, in_bytes(kept["fusion_mb"]))]] * RANKS
    assert len(resumed.decisions) == 1
    assert resumed.decisions[0][2].startswith("keep ")
    assert len(resumed.said) == 1


@pytest.mark.parametrize(
    ("overrides", "hosts", "words"),
    [
        (["parallel.data=4", "parallel.pipeline=1"], ("a", "a", "b", "b"), "2 replicas, not 4"),
        ([], ("a", "a", "b", "c"), "other hosts"),
        (["batch.microbatches=16"], ("a", "a", "b", "b"), "another layout, batch or schedule"),
    ],
)
def test_a_resume_with_other_replicas_hosts_or_work_begins_anew_and_says_why(tmp_path, job, overrides, hosts, words):
    kept = Together(job).run(60)
    other = load_job(write_job(tmp_path, VALID), [*ON, "comm.bucket_mb=25", *overrides])
    resumed = Together(other, first=60, numbers=kept, hosts=hosts)
    numbers = resumed.run(1)
    assert not any(name.endswith("_step_s") for name in numbers)
    assert words in resumed.decisions[0][2]
    assert words in resumed.said[0]
    assert resumed.switches[0] == [(60, 25_000_000)]


def test_a_run_that_ends_before_its_search_says_so(job):
    together = Together(job)
    together.run(16)  # 3 to warm up, one that is not counted, 5 of the first trial, and too few for another
    together.tuned[0].finish(16)
    step, _, why = together.decisions[-1]
    assert step == 15
    assert why == "not settled: the run ends after 1 trial, 25 MB the best of them"


@pytest.mark.parametrize(
    ("of_stages", "words"),
    [([1_600_000, 1_600_000], "1.6 MB"), ([1_600_000, 1_250_000], "1.6 MB, 1.25 MB by stage")],
)
def test_the_sizes_that_stages_decide_are_logged_and_said_once(tmp_path, of_stages, words):
    job = load_job(write_job(tmp_path, VALID), ["parallel.data=2"])
    decided, said = [], []
    rank = SimpleNamespace(place=SimpleNamespace(stage=0), buckets=SimpleNamespace(bucket_bytes=of_stages[0]))
    world = SimpleNamespace(gather=lambda _: [[1, of_stages[1]], [0, of_stages[0]], [1, of_stages[1]]])
    constant = fusion_tuning(
        job,
        rank,
        world=world,
        hosts=(),
        resume=SimpleNamespace(step=7),
        decide=lambda *row: decided.append(row),
        say=said.append,
    )
    for step in (7, 8):
        constant.before_step(step)
    ((step, what, why),) = decided
    assert (step, what) == (7, "fusion")
    assert why.startswith(f"take {words} ([comm] bucket_mb = ")
    assert len(said) == 1
    assert said[0].startswith(f"fusion: buckets of {words} (")


@pytest.mark.parametrize("setting", ["comm.bucket_mb=4", "parallel.data=1"])
def test_without_a_search_nothing_is_shared_or_kept(tmp_path, setting):
    job = load_job(write_job(tmp_path, VALID), ["parallel.data=2", setting])
    constant = fusion_tuning(job, None, world=None, hosts=(), resume=None, decide=None, say=None)
    assert isinstance(constant, ConstantFusion)
    assert constant.entries == len(constant.row(StepTimes(0, 1))) == 0
    assert constant.numbers() == {}
