"""Links, replay and critical path of random pipelines against networkx, which walks them as a graph of its own."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_log import Pipeline, header, write_run

from hpcpipe.analyze import Report, summarize
from hpcpipe.analyze.nodes import Nodes, TaskIndex
from hpcpipe.events import EventWriter, open_run
from hpcpipe.plan import FLAG_BACKWARD, Kind, Placement, TimeClass

Node = tuple[int, int, int, int, int]
"""Rank, kind, step, micro-batch, chunk."""


@dataclass
class Virtual:
    """A pipeline of virtual stages that runs GPipe's order, all forwards and then all backwards, chunk by chunk."""

    placement: Placement
    microbatches: int
    durations: dict[tuple[int, ...], int]
    latencies: dict[tuple[int, ...], int]
    ends: dict[Node, int] = field(default_factory=dict)

    def order(self, stage: int) -> Iterator[tuple[Kind, int, int]]:
        for chunk in range(self.placement.chunks):
            yield from ((Kind.F, microbatch, chunk) for microbatch in range(self.microbatches))
        for chunk in reversed(range(self.placement.chunks)):
            yield from ((Kind.B, microbatch, chunk) for microbatch in range(self.microbatches))

    def needs(self, stage: int, kind: Kind, chunk: int) -> tuple[int, int] | None:
        virtual = self.placement.virtual(stage, chunk) + (-1 if kind is Kind.F else 1)
        return self.placement.owner(virtual) if 0 <= virtual < self.placement.virtual_stages else None


def write_virtual(folder: Path, pipeline: Virtual, hint: str) -> nx.DiGraph:
    """Run the pipeline, write its log and return the graph of its tasks: weights are durations and latencies."""
    stages = pipeline.placement.stages
    toml = f'[schedule]\nhint = "{hint}"\n[parallel]\nchunks = {pipeline.placement.chunks}\n'
    writers = [
        EventWriter(folder / f"rank_{rank:05d}.h5", header(rank=rank, world_size=stages, toml=toml))
        for rank in range(stages)
    ]
    graph = nx.DiGraph()
    free, before = [0] * stages, [None] * stages
    todo = [list(pipeline.order(stage)) for stage in range(stages)]
    while any(todo):
        for stage in range(stages):
            while todo[stage] and run_task(pipeline, stage, *todo[stage][0], writers, graph, free, before):
                todo[stage].pop(0)
    for rank, writer in enumerate(writers):
        writer.clock(0, 0, 1)
        writer.step(0, 0, free[rank])
        writer.close()
    return graph


def run_task(
    pipeline: Virtual, stage: int, kind: Kind, microbatch: int, chunk: int, writers: list[EventWriter],
    graph: nx.DiGraph, free: list[int], before: list[Node | None],
) -> bool:  # fmt: skip
    node = (stage, int(kind), 0, microbatch, chunk)
    source, arrival = pipeline.needs(stage, kind, chunk), 0
    duration = pipeline.durations[stage, kind, microbatch, chunk]
    if source is not None:
        there = (source[0], int(kind), 0, microbatch, source[1])
        if there not in pipeline.ends:
            return False
        remote = source[0] != stage
        arrival = pipeline.ends[there] + (pipeline.latencies[stage, kind, microbatch, chunk] if remote else 0)
        graph.add_edge(there, node, weight=arrival - pipeline.ends[there] + duration)
        flags = FLAG_BACKWARD if kind is Kind.B else 0
        more = {"peer": source[0], "flags": flags}
        if remote:
            writers[stage].event(Kind.RECV, 0, microbatch, chunk, pipeline.ends[there], 0, arrival, **more)
        if remote and arrival > free[stage]:
            writers[stage].event(
                Kind.WAIT, 0, microbatch, chunk, pipeline.ends[there], free[stage], arrival,
                wait_class=TimeClass.DEPENDENCY, **more,
            )  # fmt: skip
    start = max(free[stage], arrival)
    graph.add_edge(before[stage] or "begin", node, weight=duration)
    graph.add_edge(node, "end", weight=0)
    free[stage] = pipeline.ends[node] = start + duration
    before[stage] = node
    writers[stage].event(kind, 0, microbatch, chunk, start, start, free[stage])
    return True


def check_path(report: Report) -> None:
    path = report.critical_path
    assert sum(entry.length for entry in path) == report.wall_ns
    assert all(one.t_end == two.t_start for one, two in pairwise(path))


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_the_critical_path_is_as_long_as_the_longest_path_of_the_graph_and_lies_in_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    hint, chunks = data.draw(st.sampled_from([("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zbv", 2)]))
    stages, microbatches = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 4))
    placement = Placement(stages, chunks, "v" if hint == "zbv" else "round-robin")
    seed = data.draw(st.integers(0, 2**32 - 1))
    chance = np.random.default_rng(seed)
    keys = [
        (s, kind, m, c) for s in range(stages) for kind in (Kind.F, Kind.B) for m in range(microbatches)
        for c in range(chunks)
    ]  # fmt: skip
    durations = {key: int(chance.integers(1, 1000)) for key in keys}
    latencies = {key: int(chance.integers(0, 500)) for key in keys}
    folder = tmp_path_factory.mktemp("run")
    graph = write_virtual(folder, Virtual(placement, microbatches, durations, latencies), hint)
    report = summarize(open_run(folder))
    check_path(report)
    assert report.wall_ns == nx.dag_longest_path_length(graph)
    tasks = [entry for entry in report.critical_path if entry.kind in ("F", "B")]
    nodes = [(entry.rank, int(Kind[entry.kind]), 0, entry.microbatch, entry.chunk) for entry in tasks]
    assert all(graph.has_edge(one, two) for one, two in pairwise(nodes))
    assert nx.path_weight(graph, ["begin", *nodes, "end"], "weight") == report.wall_ns
    quick = graph.copy()
    for one, two in graph.edges:
        if two != "end":
            quick.edges[one, two]["weight"] = durations[two[0], Kind(two[1]), two[3], two[4]]
    ideal = nx.dag_longest_path_length(quick)
    assert report.efficiency.transfer == pytest.approx(ideal / report.wall_ns, rel=1e-12)


def test_every_step_has_a_path_of_its_own_length(tmp_path: Path) -> None:
    write_run(tmp_path, Pipeline(3, 5, 1_000, 2_000, steps=4, update=70, latency=lambda *_: 40))
    report = summarize(open_run(tmp_path))
    check_path(report)
    begin = report.critical_path[0].t_start
    edges = [begin, *(begin + np.cumsum(report.step_times.wall)).tolist()]
    for low, high in pairwise(edges):
        inside = [entry for entry in report.critical_path if low <= entry.t_start < high]
        assert sum(entry.length for entry in inside) == high - low
        assert inside[0].t_start == low
        assert inside[-1].t_end == high


def test_shares_of_the_path_add_up_and_the_slow_stage_is_the_first_culprit(tmp_path: Path) -> None:
    def duration(kind: Kind, _step: int, stage: int, _microbatch: int) -> int:
        return (1_000 if kind is Kind.F else 2_000) * (3 if stage == 1 else 1)

    write_run(tmp_path, Pipeline(4, 8, 0, 0, duration=duration, latency=lambda *_: 10))
    report = summarize(open_run(tmp_path))
    assert sum(report.path_kinds.values()) == sum(report.path_stages.values()) == report.wall_ns
    worst = report.culprits[0]
    assert (worst.rank, worst.stage, worst.kind) == (1, 1, "B")
    assert worst.ratio == pytest.approx(3 / ((1 + 1 + 1 + 3) / 4))
    assert max(report.path_stages, key=lambda stage: report.path_stages[stage]) == 1
    assert report.path_edges[0, 1] == 10
    assert sum(report.path_edges.values()) == report.path_kinds["transfer"]


@given(st.data())
def test_tasks_are_found_by_name_like_in_a_dictionary_however_far_apart_the_names_lie(data: st.DataObject) -> None:
    most = data.draw(st.sampled_from([3, 10**6]))
    names = st.tuples(
        st.integers(0, 3), st.integers(0, 3), st.integers(-1, most), st.integers(-1, most), st.integers(0, 300)
    )
    tasks = data.draw(st.lists(names, max_size=30))
    wanted = data.draw(st.lists(names, max_size=10)) + tasks
    columns = [np.array([task[i] for task in tasks], dtype=np.int64) for i in range(5)]
    count = np.arange(len(tasks))
    rank, kind, step, microbatch, chunk = columns
    nodes = Nodes(rank, count, kind, step, microbatch, chunk, count, count, np.ones(len(tasks), dtype=bool), count)
    found = TaskIndex(nodes).find(*(np.array([name[i] for name in wanted], dtype=np.int64) for i in range(5)))
    known = {task: i for i, task in enumerate(tasks)}
    assert found.tolist() == [known.get(name, -1) for name in wanted]
