"""How many received messages a stage may have to hold for each kind and chunk, so that none ever waits for a slot.

Let P(v) and Q(v) be the most forwards of virtual stage v without their backward, and without the task that frees what
they hold (the weight gradient where the backward is split). A gradient for v comes after v's forward and is held until
that task is done: Q(v). An activation for v comes after the forward of v - 1. Gradients flow backwards, so as many of
those as v - 1 has in flight may lie there whose backward v has not done, P(v - 1), and besides them those that v has
done the backward of but not the weight gradient, at most Q(v). No more than M can come in a step.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpcpipe.plan.flight import chunk_profile
from hpcpipe.plan.hints import FAMILIES
from hpcpipe.plan.schedule import Schedule
from hpcpipe.plan.task import Kind


class Held(NamedTuple):
    """The most forwards of one chunk without their backward, and without the task that frees what they hold."""

    in_flight: int
    stash: int


class Source(NamedTuple):
    """Where a kind of message for one chunk comes from, and how many may have to be held at a time."""

    feeds: Kind
    chunk: int
    stage: int
    slots: int


def most_held(schedule: Schedule, stage: int) -> tuple[Held, ...]:
    """Return what each chunk of a stage holds at most: under a fixed order its peaks, else what the caps allow."""
    placement, microbatches = schedule.placement, schedule.microbatches
    if schedule.dispatch == "fixed" and schedule.hint in FAMILIES and FAMILIES[schedule.hint].profiled:
        return _of_any_profile(schedule, stage)
    if schedule.dispatch == "fixed":
        return tuple(_peaks(schedule, stage, chunk) for chunk in range(placement.chunks))
    limits = schedule.limits[stage]
    beyond = placement.chunks if placement.chunks > 1 else 0  # a cap for all chunks together may be passed by that
    held = []
    for chunk in range(placement.chunks):
        stash = min([microbatches, *_caps(limits.stash, limits.stash_by_chunk, chunk, beyond)])
        in_flight = min([stash, *_caps(limits.in_flight, limits.in_flight_by_chunk, chunk, beyond)])
        held.append(Held(in_flight, stash if schedule.split else in_flight))
    return tuple(held)


def _caps(together: int | None, by_chunk: Sequence[int] | None, chunk: int, beyond: int) -> Iterator[int]:
    if together is not None:
        yield together + beyond
    if by_chunk is not None:
        yield by_chunk[chunk]


def sources(schedule: Schedule, stage: int) -> tuple[Source, ...]:
    """Return where a stage's messages come from, but not what is handed over on the stage itself."""
    placement, microbatches = schedule.placement, schedule.microbatches
    mine = most_held(schedule, stage)
    found = []
    for chunk in range(placement.chunks):
        virtual = placement.virtual(stage, chunk)
        if virtual > 0:
            before, there = placement.owner(virtual - 1)
            slots = most_held(schedule, before)[there].in_flight + (mine[chunk].stash if schedule.split else 0)
            found.append(Source(Kind.F, chunk, before, min(microbatches, slots)))
        if virtual < placement.virtual_stages - 1:
            after, _ = placement.owner(virtual + 1)
            found.append(Source(Kind.B, chunk, after, mine[chunk].stash))
    return tuple(source for source in found if source.stage != stage)


def _of_any_profile(schedule: Schedule, stage: int) -> tuple[Held, ...]:
    """Return what an order holds at most that is made anew as times are measured: all keep to 1F1B's memory."""
    stages, chunks = schedule.placement.stages, schedule.placement.chunks
    rooms = (stages,) if chunks == 1 else (chunk_profile(stage=stage, stages=stages)[0], 2 * stages)
    return tuple(Held(room, room) for room in (min(schedule.microbatches, room) for room in rooms))


def _peaks(schedule: Schedule, stage: int, chunk: int) -> Held:
    last = Kind.W if schedule.split else Kind.B
    in_flight = stash = most_flying = most_stashed = 0
    for task in schedule.order(stage):
        if task.chunk == chunk:
            in_flight += (task.kind is Kind.F) - (task.kind is Kind.B)
            stash += (task.kind is Kind.F) - (task.kind is last)
            most_flying, most_stashed = max(most_flying, in_flight), max(most_stashed, stash)
    return Held(most_flying, most_stashed)
