"""The run as it would have been on a network that takes no time: the recorded durations in the recorded order.

Each window begins with all ranks free. Only what tasks need of each other holds them; runtime and waits are left out.
"""

import numpy as np

from hpcpipe.analyze.graph import TaskGraph
from hpcpipe.analyze.nodes import Ints
from hpcpipe.analyze.windows import Windows


def ideal_lengths(graph: TaskGraph, windows: Windows) -> Ints:
    """Return how long each window would be (ns), never more than it was.

    Where clocks are off so far that a task starts before what it needs, that need is left out.
    """
    nodes = graph.nodes
    source, target, meetings = _needs(graph)
    durations = np.concatenate([nodes.t_end - nodes.t_start, np.zeros(meetings, dtype=np.int64)])
    finish = _finish_times(durations, source, target)[: len(nodes)]
    ideal = np.zeros(len(windows), dtype=np.int64)
    np.maximum.at(ideal, nodes.window, finish)
    return np.minimum(ideal, windows.lengths)


def _needs(graph: TaskGraph) -> tuple[Ints, Ints, int]:
    """Return pairs of nodes of which the second needs the first, each in one window; meetings come behind the tasks."""
    nodes, meetings = graph.nodes, graph.meetings
    following = np.arange(1, len(nodes))
    same = (nodes.rank[1:] == nodes.rank[:-1]) & (nodes.window[1:] == nodes.window[:-1])
    chain = following[same]
    sent, got = graph.messages.source, graph.messages.target
    kept = (nodes.window[sent] == nodes.window[got]) & _precedes(nodes.t_start, sent, got)
    going = meetings.after >= 0
    after, meeting = meetings.after[going], meetings.meeting[going]
    width = len(graph.bounds[0])
    keys, place = np.unique(meeting * width + nodes.window[after], return_inverse=True)
    earliest = np.full(len(keys), np.iinfo(np.int64).max)
    np.minimum.at(earliest, place, nodes.t_start[after])
    coming = np.flatnonzero(meetings.before >= 0)
    before = meetings.before[coming]
    wanted = meetings.meeting[coming] * width + nodes.window[before]
    spot = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    met = (keys[spot] == wanted) & (nodes.t_start[before] < earliest[spot]) if len(keys) else wanted < 0
    source = np.concatenate([chain - 1, sent[kept], before[met], len(nodes) + place])
    target = np.concatenate([chain, got[kept], len(nodes) + spot[met], after])
    return source, target, len(keys)


def _precedes(t_start: Ints, one: Ints, two: Ints) -> np.ndarray:
    return (t_start[one] < t_start[two]) | ((t_start[one] == t_start[two]) & (one < two))


def _finish_times(durations: Ints, source: Ints, target: Ints) -> Ints:
    """Return when each node is done if it starts as soon as its sources are; from the first to the last, in waves."""
    count = len(durations)
    order = np.argsort(source, kind="stable")
    target = target[order]
    first = np.searchsorted(source[order], np.arange(count + 1))
    missing = np.bincount(target, minlength=count)
    ready = np.zeros(count, dtype=np.int64)
    finish = np.zeros(count, dtype=np.int64)
    turn = np.empty(count, dtype=np.int64)
    wave = np.flatnonzero(missing == 0)
    while len(wave):
        finish[wave] = ready[wave] + durations[wave]
        counts = first[wave + 1] - first[wave]
        total = int(counts.sum())
        links = np.repeat(first[wave] + counts - np.cumsum(counts), counts) + np.arange(total)
        reached = target[links]
        np.maximum.at(ready, reached, np.repeat(finish[wave], counts))
        np.subtract.at(missing, reached, 1)
        reached = reached[missing[reached] == 0]
        turn[reached] = np.arange(len(reached))
        wave = reached[turn[reached] == np.arange(len(reached))]  # each once
    return finish
