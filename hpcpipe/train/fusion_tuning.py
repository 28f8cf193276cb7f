"""Which bucket size the next steps have, where `[tune] fusion` looks for it: rank 0 decides, all follow at one step.

The times of steps travel in the sums of every step (runtime/ledger.py) and so does the decision: a number of rank 0 and
zeros of the others, so it is the same to the bit everywhere, whatever hosts differ in, and no rank waits for it. What
is tried next is the tuner's affair (collective/tuner.py), how buckets are made anew that of buckets.py.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from hpcpipe.job import Job
from hpcpipe.job.device import Emulated
from hpcpipe.plan import usual_bucket_bytes
from hpcpipe.runtime import StepTimes, World

if TYPE_CHECKING:
    from hpcpipe.checkpoint import Resume
    from hpcpipe.collective.tuner import FusionTuner, Trial
    from hpcpipe.train.buckets import FusionBuckets
    from hpcpipe.train.rank import Rank

WARM_UP = 3
"""Steps of a run that count for nothing: they fill caches, and a log is waited for."""
_SIZES = 256
"""The smallest bucket that is tried is this part of all that a stage could fuse."""

ABOUT = "fusion"
"""What decisions about the size of buckets are called."""

Decide = Callable[[int, str, str], None]
"""(first step that it holds for, about what, what and why)."""


class ConstantFusion:
    """Stands where no size is looked for; before the first step it says `opening`."""

    entries = 0

    def __init__(self, say: Callable[[str], None], opening: str = "") -> None:
        self._say, self._opening = say, opening

    def before_step(self, step: int) -> None:
        """Leave the buckets as they are."""
        del step
        if self._opening:
            self._say(self._opening)
            self._opening = ""

    def row(self, times: StepTimes) -> list[float]:
        """Return nothing to share."""
        del times
        return []

    def take(self, step: int, sums: Sequence[float]) -> None:
        """Take nothing."""

    def numbers(self) -> dict[str, float]:
        """Return nothing to keep."""
        return {}

    def finish(self, step: int) -> None:
        """Do nothing."""


class Search:
    """What rank 0 alone has: the tuner, and the words for what it finds.

    Parameters
    ----------
    first
        The first step of this start of the run.
    opening
        What to say before it.
    """

    def __init__(
        self, tuner: "FusionTuner", *, first: int, decide: Decide, say: Callable[[str], None], opening: str = ""
    ) -> None:
        self.tuner = tuner
        self.told = 0
        """The size that the next row tells all ranks, in bytes; 0 for none."""
        self._first = first + WARM_UP
        self._since: int | None = None
        self._decide, self._say, self._opening = decide, say, opening

    def observe(self, step: int, seconds: float) -> None:
        """Take the mean time of a step over the ranks; choose another size when a trial has ended."""
        tuner = self.tuner
        if tuner.done or self._since is None or step < self._since:
            return
        count, before = len(tuner.trials), tuner.bucket_mb
        changed = tuner.observe(seconds)
        if len(tuner.trials) == count:
            return
        if changed:  # told with the next row, in all hands a step later, switched to before the one that follows
            self.told, self._since = in_bytes(tuner.bucket_mb), None
        self._note(step + 3 if changed else step + 1, before)

    def switched(self, step: int) -> None:
        """Note the first step with the size that was told."""
        self._since = max(step, self._first)
        if self._opening:
            self._say(self._opening)
            self._opening = ""

    def finish(self, step: int) -> None:
        """Say how far the search has come, if the run ends before it."""
        trials = self.tuner.trials
        if self.tuner.done:
            return
        found = f", {in_words(best(trials).bucket_mb)} the best of them" if trials else ""
        tried = f"{len(trials)} trial{'' if len(trials) == 1 else 's'}"
        self._decide(max(0, step - 1), ABOUT, f"not settled: the run ends after {tried}{found}")
        self._say(f"fusion: the run has ended before the search for a bucket size: {tried}{found}")

    def _note(self, step: int, tried_mb: float) -> None:
        tuner, size = self.tuner, in_words(self.tuner.bucket_mb)
        last, count = tuner.trials[-1], len(tuner.trials)
        what = f"trial {count}: {in_words(tried_mb)} took {_ms(last)} a step"
        if not tuner.done:
            gain = "not to be told yet" if tuner.expected_gain == 1.0 else f"{tuner.expected_gain:.1%}"
            self._decide(step, ABOUT, f"try {size}: {what}; expected gain {gain}")
            return
        first = tuner.trials[0]
        found = min((each for each in tuner.trials if each.bucket_mb == tuner.bucket_mb), key=lambda each: each.step_s)
        why = f"a gain of {tuner.expected_gain:.1%} is all that is expected of others"
        against = f"{_ms(found)} a step, {_ms(first)} with {in_words(first.bucket_mb)} at the start"
        self._decide(step, ABOUT, f"keep {size}: {what}; {why}; {against}")
        self._say(f"fusion: buckets of {size} from step {step + 1} on, found in {count} trials: {against}; {why}")


class TunedFusion:
    """Measures, follows and switches on this rank.

    Parameters
    ----------
    size
        What buckets are to have from the first step on, in bytes.
    search
        On rank 0 while it looks for a size.
    about
        What a search depends on, as numbers for a checkpoint.
    """

    entries = 2

    def __init__(
        self, rank: "Rank", *, ranks: int, size: int, search: Search | None, about: Mapping[str, float]
    ) -> None:
        self._rank, self._ranks = rank, ranks
        self._due: int | None = size
        self._search, self._about = search, about

    def before_step(self, step: int) -> None:
        """Make the buckets anew if another size has been told (collective over the replicas of a stage)."""
        if self._due is None:
            return
        self._rank.engine.drain()  # from here to the next step this rank answers nobody but its replicas
        cast("FusionBuckets", self._rank.buckets).rebucket(self._due)
        self._rank.engine.note_progress()
        self._due = None
        if self._search is not None:
            self._search.switched(step)

    def row(self, times: StepTimes) -> list[float]:
        """Return this rank's time of the step, and the size that rank 0 tells."""
        told = 0
        if self._search is not None:
            told, self._search.told = self._search.told, 0
        return [(times.end - times.begin) * 1e-9, float(told)]

    def take(self, step: int, sums: Sequence[float]) -> None:
        """Take the sums of a step's rows."""
        seconds, told = sums
        if told:
            self._due = round(told)
        if self._search is not None:
            self._search.observe(step, seconds / self._ranks)

    def numbers(self) -> dict[str, float]:
        """Return what a checkpoint keeps of the search; on rank 0, which writes it."""
        if self._search is None:
            return {}
        tuner = self._search.tuner
        found = {**self._about, "fusion_done": float(tuner.done), "fusion_mb": tuner.bucket_mb}
        for number, trial in enumerate(tuner.trials):
            found |= {f"fusion_{number}_{name}": value for name, value in trial._asdict().items()}
        return found

    def finish(self, step: int) -> None:
        """Say how far the search has come."""
        if self._search is not None:
            self._search.finish(step)


def fusion_tuning(
    job: Job,
    rank: "Rank",
    *,
    world: World,
    hosts: Sequence[str],
    resume: "Resume | None",
    decide: Decide,
    say: Callable[[str], None],
) -> ConstantFusion | TunedFusion:
    """Return what a job wants (collective over the world).

    Parameters
    ----------
    hosts
        The host of every rank; read on rank 0 alone.
    decide, say
        Log a decision and show a sentence; called on rank 0 alone.
    """
    first = 0 if resume is None else resume.step
    if job.tune.fusion == "off":
        if not (taken := _taken(job, rank, world)):
            return ConstantFusion(say)
        decide(first, ABOUT, f"take {taken}")
        return ConstantFusion(say, f"fusion: buckets of {taken}")
    fused = world.gather(cast("FusionBuckets", rank.buckets).fused_bytes)  # on rank 0
    search, about = None, dict[str, float]()
    if world.rank == 0 and max(fused):
        kept = {} if resume is None else resume.manifest.numbers
        about = _about(job, hosts)
        search = _search(job, max(fused) / 1e6, kept, about, first=first, decide=decide, say=say)
    size = world.share(0 if search is None else in_bytes(search.tuner.bucket_mb))
    if not size:  # every trained parameter is tied, and has a bucket for itself
        return ConstantFusion(say)
    return TunedFusion(rank, ranks=world.size, size=size, search=search, about=about)


def in_bytes(bucket_mb: float) -> int:
    """Return a size in bytes, at least one."""
    return max(1, int(bucket_mb * 1e6))


def in_words(bucket_mb: float) -> str:
    """Return a size for people."""
    return f"{bucket_mb:.3g} MB"


def best(trials: "Sequence[Trial]") -> "Trial":
    """Return the trial with the shortest steps."""
    return min(trials, key=lambda trial: trial.step_s)


def _taken(job: Job, rank: "Rank", world: World) -> str:
    """Return on rank 0 how large the buckets of every stage are, where their stage decides (collective)."""
    if job.comm.bucket_bytes is not None or job.parallel.data == 1 or isinstance(job.device, Emulated):
        return ""
    found = world.gather([rank.place.stage, cast("FusionBuckets", rank.buckets).bucket_bytes])
    sizes = [in_words(num_bytes / 1e6) for _, num_bytes in sorted(dict(found).items())]
    by_stage = f"{', '.join(sizes)} by stage" if len(set(sizes)) > 1 else sizes[0] if sizes else ""
    return by_stage and f'{by_stage} ([comm] bucket_mb = "auto": a 16th of the stage\'s gradients, within limits)'


def _search(
    job: Job,
    largest_mb: float,
    kept: Mapping[str, float],
    about: Mapping[str, float],
    *,
    first: int,
    decide: Decide,
    say: Callable[[str], None],
) -> Search:
    from hpcpipe.collective.tuner import FusionTuner

    usual = usual_bucket_bytes(round(largest_mb * 1e6), job.parallel.data)
    trials, changed = _trials(kept), _changed(kept, about)
    done = bool(kept.get("fusion_done")) and not changed
    tuner = FusionTuner(
        start_mb=min((job.comm.bucket_bytes or usual) / 1e6, largest_mb),
        smallest_mb=largest_mb / _SIZES,
        largest_mb=largest_mb,
        trials=() if changed else trials,
        settled_mb=kept["fusion_mb"] if done else None,
    )
    size, count = in_words(tuner.bucket_mb), f"{len(trials)} trial{'' if len(trials) == 1 else 's'}"
    opening = ""
    if changed and trials:
        why = f"the {count} of the checkpoint are of {changed}: the search begins anew"
        opening = f"fusion: {why}"
    elif done:
        why = f"found in {count} before the run was resumed"
        opening = f"fusion: buckets of {size}, {why}"
    elif trials:
        why = f"the search goes on after the {count} of the checkpoint"
    else:
        why = f"the search begins: sizes from {in_words(largest_mb / _SIZES)} to {in_words(largest_mb)}"
    decide(first, ABOUT, f"{'keep' if done else 'try'} {size}: {why}")
    return Search(tuner, first=first, decide=decide, say=say, opening=opening)


def _trials(kept: Mapping[str, float]) -> "list[Trial]":
    from hpcpipe.collective.tuner import Trial

    trials: list[Trial] = []
    while f"fusion_{len(trials)}_{Trial._fields[0]}" in kept:
        trials.append(Trial(*(kept[f"fusion_{len(trials)}_{name}"] for name in Trial._fields)))
    return trials


def _about(job: Job, hosts: Sequence[str]) -> dict[str, float]:
    """Return what times of steps depend on, as numbers that a checkpoint can keep."""
    sizes, batch = job.parallel, job.batch
    work: list[object] = [sizes.pipeline, sizes.tensor, job.chunks, batch.microbatches, batch.microbatch_size]
    work += [job.precision.reduce, job.comm.split_allreduce, job.schedule.hint, job.schedule.dispatch]
    return {
        "fusion_of_replicas": float(sizes.data),
        "fusion_of_hosts": _digest(hosts),
        "fusion_of_work": _digest(work),
    }


def _changed(kept: Mapping[str, float], about: Mapping[str, float]) -> str:
    """Return what is other than when the trials were made, nothing if they still hold."""
    replicas = "fusion_of_replicas"
    if kept.get(replicas) != about[replicas]:
        return f"{kept.get(replicas, 0):.0f} replicas, not {about[replicas]:.0f}"
    if kept.get("fusion_of_hosts") != about["fusion_of_hosts"]:
        return "other hosts"
    return "" if kept.get("fusion_of_work") == about["fusion_of_work"] else "another layout, batch or schedule"


def _digest(value: Sequence[object]) -> float:
    """Return a number of 48 bits, which a float holds, that is another for another value."""
    return float(int(sha256(json.dumps(list(value)).encode()).hexdigest()[:12], 16))


def _ms(trial: "Trial") -> str:
    return f"{trial.step_s * 1e3:.2f} ms"
