"""An admission order found by simulating the step before it runs, from the predicted durations of its micro-batches.

It is a pure function of them: no clock, no chance, integers only, so every rank that has the same predictions finds the
same order. What it may spend is counted in evaluated orders.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from hpcpipe.plan import ORDERS, Kind, Order, Schedule, Task, make_hint
from hpcpipe.plan.admission import peaked_order
from hpcpipe.plan.hints import SPLIT, placement_of
from hpcpipe.simulate.links import Link, Network
from hpcpipe.simulate.orders import OrderedStep
from hpcpipe.simulate.step import Duration, SimulatedStep, simulate_step

Evaluate = Callable[[Sequence[Sequence[int]]], Sequence[int]]
"""Admission orders -> what each costs, less is better."""

Simulate = Callable[[Sequence[int]], SimulatedStep]
"""An admission order -> the step under it, with its rows."""

SLOPES = tuple(share / 16 for share in range(17))
"""Shares of the micro-batches before the dearest one with which a search may start."""

OVER = 1 << 60
"""What an order costs at least that stashes more than it may."""


@dataclass(frozen=True, slots=True)
class Admission:
    """An order of admission, and the step as predicted under it and as given (in the unit of the durations).

    `stash` is the most that a stage stashes under it, where that is limited: above it if no order found keeps it.
    """

    order: tuple[int, ...]
    step: int
    step_as_given: int
    stash: int | None = None


@dataclass(frozen=True, slots=True)
class StashLimit:
    """The most that a stage may stash, where micro-batches differ in size.

    `weights` are the bytes of each micro-batch's activations in one chunk, by its index in the global batch; `most` are
    those of a stage.
    """

    weights: tuple[int, ...]
    most: int


def search_order(
    evaluate: Evaluate, start: Sequence[int], *, costs: Sequence[float], evaluations: int
) -> tuple[tuple[int, ...], int]:
    """Return a better order than `start` and what it costs, by moving one micro-batch at a time.

    As in NEH and iterated greedy search (Nawaz, Enscore and Ham, 1983; Ruiz and Stützle, 2007) the dearest micro-batch
    moves first; each is inserted at every other place and swapped with every other one, and the best of these orders
    is kept if it is better. It ends when no micro-batch has a better place or after about `evaluations` orders.
    """
    best, least = tuple(start), evaluate([start])[0]
    spent = stale = 0
    dearest_first = sorted(range(len(start)), key=lambda index: (-costs[index], index))
    while stale < len(start):
        for index in dearest_first:
            orders = _moves(best, index)
            if not orders or spent + len(orders) > evaluations:
                return best, least
            spent += len(orders)
            found = evaluate(orders)
            at = min(range(len(orders)), key=found.__getitem__)
            stale += 1
            if found[at] < least:
                best, least, stale = orders[at], found[at], 0
            if stale == len(start):
                break
    return best, least


def auto_admission(
    schedule: Schedule,
    *,
    duration: Duration,
    latency: int = 0,
    evaluations: int = 1500,
    rounds: int = 2,
    least_gain: float = 0.01,
    limit: StashLimit | None = None,
    simulate: Simulate | None = None,
) -> Admission:
    """Return the best order found for a step of the schedule.

    Under `fixed` the step time of an order is a longest path, so many orders are tried quickly. Readiness-first takes
    another order of tasks for each admission order: the one that it takes under the best so far stands in for it, the
    search runs on that one, and the step is simulated anew, `rounds` times.

    Parameters
    ----------
    duration
        Predicted, of a task of the global batch (`task.microbatch` is its index there), a whole number in any unit.
    latency
        Of a message, in that unit.
    evaluations
        How many orders may be tried in all.
    least_gain
        The order as given is kept unless the prediction is faster by this share.
    limit
        Refuses orders that stash more than a stage may; if all do, the one that stashes least.
    simulate
        Simulates the step of an admission order; None: by `simulate_step`.
    """
    step = _Predicted(schedule, cache(duration), latency, limit)
    given = tuple(range(schedule.microbatches))
    simulate = cache(simulate or step.simulate)
    ordered = step.under(step.usual_order() or _order_of(simulate(given)))
    durations = ordered.durations(step.duration, len(given))
    if (durations == durations[:, :1]).all():
        return step.admission(given, given, simulate)
    costs = durations.sum(axis=0).tolist()
    starts = list(dict.fromkeys([given, *(peaked_order(costs, early=share) for share in SLOPES)]))
    if schedule.dispatch == "fixed":
        times = _search(step.evaluate(ordered), starts, costs, evaluations)
    else:
        pyramid = peaked_order(costs, early=0.5)
        times = {order: step.rank(order, simulate(order)) for order in (given, pyramid)}
        most = None if limit is None else limit.most
        for _ in range(rounds):
            found = _search(step.evaluate(ordered, most), [*starts, *times], costs, evaluations // rounds)
            order = _least(found)
            times[order] = step.rank(order, simulate(order))
            if most is not None and times[order] > OVER:  # what stands in stashes less than the step: allow it less
                most = most * most // (times[order] - OVER)
            ordered = step.under(_order_of(simulate(_least(times))))
    best = _least(times)
    if times[given] < OVER and times[best] > (1.0 - least_gain) * times[given]:
        best = given
    return step.admission(best, given, simulate)


@dataclass(frozen=True, slots=True)
class _Predicted:
    """A step whose durations are predicted."""

    schedule: Schedule
    duration: Duration
    latency: int
    limit: StashLimit | None

    def usual_order(self) -> Sequence[tuple[Task, ...]] | None:
        """Return the schedule's own order, or the usual one of its shape where that is but a rule; None if none is."""
        schedule, placement = self.schedule, self.schedule.placement
        if schedule.orders is not None:
            return schedule.orders
        name, k = schedule.hint, schedule.k
        if name not in ORDERS or (name in SPLIT) is not schedule.split:
            usual = {(1, False): "1f1b", (1, True): "zb-h1", (2, True): "zbv"}
            name, k = usual.get((placement.chunks, schedule.split), ""), None
        if name not in ORDERS or placement_of(name, stages=placement.stages, chunks=placement.chunks) != placement:
            return None
        orders = []
        for stage in range(placement.stages):
            hint = make_hint(
                name,
                stage=stage,
                stages=placement.stages,
                microbatches=schedule.microbatches,
                k=k,
                chunks=placement.chunks,
            )
            assert isinstance(hint, Order)
            orders.append(hint.tasks)
        return orders

    def under(self, orders: Sequence[Sequence[Task]]) -> OrderedStep:
        """Return the step under these orders of tasks."""
        return OrderedStep(orders, placement=self.schedule.placement, latency=self.latency)

    def evaluate(self, ordered: OrderedStep, tightened: int | None = None) -> Evaluate:
        """Return what gives the step times under these orders of tasks; to stash too much is worse than all."""
        durations = ordered.durations(self.duration, self.schedule.microbatches)

        def evaluate(orders: Sequence[Sequence[int]]) -> list[int]:
            times = ordered.times(durations, orders)
            if self.limit is not None:
                stash = ordered.peak_stash(self.limit.weights, orders)
                most = self.limit.most if tightened is None else tightened
                times = np.where(stash > most, OVER + stash, times)
            return list(times.tolist())

        return evaluate

    def simulate(self, order: Sequence[int]) -> SimulatedStep:
        """Run the step by events."""

        def duration(stage: int, task: Task) -> int:
            return self.duration(stage, task._replace(microbatch=order[task.microbatch]))

        return simulate_step(self.schedule, duration=duration, arrival=Network(Link(self.latency)).arrival)

    def stash(self, order: Sequence[int], step: SimulatedStep) -> int | None:
        """Return the most that a stage stashed, if that is limited."""
        if self.limit is None:
            return None
        return max(weighted_peaks(step, [self.limit.weights[index] for index in order]))

    def rank(self, order: Sequence[int], step: SimulatedStep) -> int:
        """Return the step's time, or more than any if it stashed too much."""
        stash = self.stash(order, step)
        return step.step_ns if self.limit is None or stash is None or stash <= self.limit.most else OVER + stash

    def admission(self, order: tuple[int, ...], given: tuple[int, ...], simulate: Simulate) -> Admission:
        """Return the order with what it promises."""
        step = simulate(order)
        as_given = step if order == given else simulate(given)
        return Admission(order, step.step_ns, as_given.step_ns, self.stash(order, step))


def _search(
    evaluate: Evaluate, starts: Iterable[tuple[int, ...]], costs: Sequence[float], evaluations: int
) -> dict[tuple[int, ...], int]:
    """Return the starts and the best order found from the best of them, with what they cost."""
    candidates = list(dict.fromkeys(starts))
    found = dict(zip(candidates, evaluate(candidates), strict=True))
    order, least = search_order(evaluate, _least(found), costs=costs, evaluations=evaluations)
    return found | {order: least}


def _least(costs: Mapping[tuple[int, ...], int]) -> tuple[int, ...]:
    """Return the order that costs least, the first of equals."""
    return min(costs, key=lambda order: costs[order])


def weighted_peaks(step: SimulatedStep, weights: Sequence[int]) -> list[int]:
    """Return the most that each stage stashed, where the micro-batch of each place weighs that much a chunk."""
    peaks = []
    for rows in step.rows:
        tasks = [row.task for row in rows if row.task is not None]
        last = Kind.W if any(task.kind is Kind.W for task in tasks) else Kind.B
        held = peak = 0
        for task in tasks:
            held += weights[task.microbatch] * ((task.kind is Kind.F) - (task.kind is last))
            peak = max(peak, held)
        peaks.append(peak)
    return peaks


def _moves(order: tuple[int, ...], index: int) -> list[tuple[int, ...]]:
    """Return the orders in which one micro-batch is inserted elsewhere or swapped with another."""
    at = order.index(index)
    rest = order[:at] + order[at + 1 :]
    moved = [(*rest[:place], index, *rest[place:]) for place in range(len(order)) if place != at]
    for place, other in enumerate(order):
        if abs(place - at) > 1:  # neighbours change places by an insertion too
            swapped = list(order)
            swapped[at], swapped[place] = other, index
            moved.append(tuple(swapped))
    return moved


def _order_of(step: SimulatedStep) -> list[list[Task]]:
    """Return in which order the stages ran their tasks."""
    return [[row.task for row in rows if row.task and row.task.kind in (Kind.F, Kind.B, Kind.W)] for rows in step.rows]
