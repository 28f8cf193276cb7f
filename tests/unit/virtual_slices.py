"""A pipeline in virtual time whose stages are cut into tensor slices: each slice gets its messages at its own time.

For tests of plan/ only. A round of the agreement takes no time, a task ends on all slices of its stage together.
"""

import random
from heapq import heappop, heappush

from hpcpipe.plan import Kind, Schedule
from hpcpipe.plan.agreement import MOST_BYTES, Proposals


class _Group:
    """The slices of one stage."""

    def __init__(self, schedule, stage, slices, rule, most_bytes, fresh):
        self.fresh = fresh
        self.plans = [schedule.stage_plan(stage) for _ in range(slices)]
        self.proposals = [Proposals(plan, rule, early=not fresh, most_bytes=most_bytes) for plan in self.plans]
        self.posted = [0] * slices
        self.running = None
        self.order = []
        self.wait = 0
        self.looked = 0

    def post(self):
        for index, each in enumerate(self.proposals):
            self.posted[index] = self.posted[index] or each.bits(self.running)

    def decide(self):
        """Return what all slices run now, None if they wait."""
        self.post()
        if not all(self.posted):
            return None
        common = ~0
        for bits in self.posted:
            common &= bits
        self.posted = [0] * len(self.posted)
        counts = self.proposals[0].counts
        choices = [each.choose(common) for each in self.proposals]
        assert len(set(choices)) == 1, f"the slices chose {choices}"
        if self.proposals[0].counts.confirmed > counts.confirmed:
            return self.decide()
        return None if choices[0] is None else choices[0].task

    def start(self, task, now):
        self.running = task
        self.order.append(task)
        for plan, each in zip(self.plans, self.proposals, strict=True):
            plan.start(task)
            each.start(task)
        if not self.fresh:
            self.post()

    @property
    def counts(self):
        return self.proposals[0].counts

    def pass_time(self, now):
        """Count the time in which slices could run something but not the same."""
        if self.running is None:
            self.wait += (now - self.looked) * sum(bool(plan.offers()) for plan in self.plans)
        self.looked = now

    def finish(self, now):
        self.post()
        task, self.running = self.running, None
        for plan in self.plans:
            plan.finish(task, now)
        return task


class VirtualSlices:
    """Runs one step.

    Parameters
    ----------
    latency
        (random generator, slice) -> how long a message takes there.
    duration
        (random generator, task) -> how long a task takes.
    fresh
        Whether a round begins just before the running task ends, where its end is known, or as soon as it begins.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        slices,
        rule="common",
        seed=0,
        latency,
        duration,
        most_bytes=MOST_BYTES,
        fresh=False,
    ):
        stages = schedule.placement.stages
        self.groups = [_Group(schedule, stage, slices, rule, most_bytes, fresh) for stage in range(stages)]
        self.slices = slices
        self._seed = seed
        self._latency, self._duration = latency, duration
        self.makespan = 0

    def run(self):
        events, serial = [], 0

        def post(time, stage, what):
            nonlocal serial
            serial += 1
            heappush(events, (time, serial, stage, what))

        def look(stage, now):
            group = self.groups[stage]
            while group.running is None and group.plans[0].undecided:
                before = group.counts.rounds
                task = group.decide()
                if task is not None:
                    group.start(task, now)
                    post(now + self._duration(random.Random(f"{self._seed}/{stage}/{task}"), task), stage, None)
                elif group.counts.rounds == before or not self._may_change(group):
                    return

        for stage, group in enumerate(self.groups):
            for plan in group.plans:
                plan.begin(0)
            look(stage, 0)
        while events:
            now, _, stage, what = heappop(events)
            self.makespan = now
            for each in self.groups:
                each.pass_time(now)
            group = self.groups[stage]
            if what is None:
                task = group.finish(now)
                follower = group.plans[0].follower(task) if task.kind in (Kind.F, Kind.B) else None
                if follower is not None and follower[0] != stage:
                    for index in range(self.slices):
                        draws = random.Random(f"{self._seed}/{stage}/{index}/{task}")
                        post(now + self._latency(draws, index), follower[0], (index, follower[1]))
            else:
                index, task = what
                group.plans[index].deliver(task, now)
            look(stage, now)
        return self

    @staticmethod
    def _may_change(group):
        """Whether another round, begun at once, could end otherwise: proposals were made before something came."""
        fresh = [each.bits() for each in group.proposals]
        common = ~0
        for bits in fresh:
            common &= bits
        return all(fresh) and common != 0

    @property
    def done(self):
        return all(plan.done for group in self.groups for plan in group.plans)

    @property
    def rounds(self):
        return sum(group.counts.rounds for group in self.groups)

    @property
    def deferred(self):
        return sum(group.counts.deferred for group in self.groups)

    @property
    def wait(self):
        """Slices' time with something to run but nothing in common."""
        return sum(group.wait for group in self.groups)
