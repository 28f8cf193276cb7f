"""Traces of torch.distributed.pipelining as runs: what the modules' own clocks saw, torch's own names, what is missing.

The traces in `traces/` were made by the script beside them; `*.truth.json` is when each module's forwards ran.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hpcpipe.analyze import summarize
from hpcpipe.analyze.export import write_trace
from hpcpipe.analyze.traces import import_traces, open_log
from hpcpipe.analyze.traces.names import Meaning, Role, meaning
from hpcpipe.cli.analyze import analyze
from hpcpipe.events import LogError
from hpcpipe.plan import USEFUL, Kind, TimeClass

TRACES = Path(__file__).parent / "traces"
MICROBATCHES, STEPS = 4, 2
RUNS = {"gpipe": (4, 1), "interleaved": (2, 2)}
"""Name -> ranks and chunks."""


def folder_of(name: str, target: Path) -> Path:
    for path in TRACES.glob(f"{name}_rank*.json.gz"):
        (target / path.name).write_bytes(path.read_bytes())
    return target


@pytest.fixture(params=RUNS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_forwards_are_what_the_modules_own_clocks_saw(name: str, tmp_path: Path) -> None:
    ranks, chunks = RUNS[name]
    run = import_traces(folder_of(name, tmp_path))
    assert [rank.rank for rank in run.ranks] == list(range(ranks))
    excess = spent = 0
    for rank in run.ranks:
        truth = json.loads((TRACES / f"{name}_rank{rank.rank}.truth.json").read_text())
        for chunk in range(chunks):
            events = rank.events
            rows = events.take((events.kind == Kind.F) & (events.chunk == chunk))
            assert sorted(zip(rows.step.tolist(), rows.microbatch.tolist(), strict=True)) == [
                (step, microbatch) for step in (1, 2) for microbatch in range(MICROBATCHES)
            ]
            order = np.argsort(rows.t_start)
            seen = np.array(truth[chunk])
            # microseconds: the trace's clock and the module's are not the same, but both count from 1970
            assert (rows.t_start[order] <= seen[:, 0] + 50_000).all()
            assert (rows.t_end[order] >= seen[:, 1] - 50_000).all()
            spent += int((seen[:, 1] - seen[:, 0]).sum())
            excess += int((rows.t_end - rows.t_start).sum()) - int((seen[:, 1] - seen[:, 0]).sum())
    assert excess < 0.12 * spent


def test_the_accounting_of_a_trace_closes_to_the_nanosecond(name: str, tmp_path: Path) -> None:
    ranks, _ = RUNS[name]
    report = summarize(import_traces(folder_of(name, tmp_path)))
    assert report.steps == (1, 2)
    assert report.mesh == (ranks, 1, 1)
    assert report.description.microbatches == MICROBATCHES
    for rank in report.ranks:
        assert sum(rank.classes.values()) == rank.wall_ns == report.wall_ns
        assert all(rank.classes[each] > 0 for each in USEFUL[:2])
    # stage 0 never waits for its first forward, and GPipe holds every micro-batch
    assert report.ranks[0].classes[TimeClass.WARMUP] == 0
    if name == "gpipe":
        assert {rank.peak_in_flight for rank in report.ranks} == {MICROBATCHES}


def test_every_message_links_the_task_that_made_it_to_the_task_it_feeds(name: str, tmp_path: Path) -> None:
    ranks, chunks = RUNS[name]
    write_trace(import_traces(folder_of(name, tmp_path)), tmp_path / "out.json")
    flows = [each for each in json.loads((tmp_path / "out.json").read_text())["traceEvents"] if each["ph"] == "s"]
    # what crosses between virtual stages, forward and backward; the last steps' messages all lie in the windows
    assert len(flows) == 2 * (ranks * chunks - 1) * MICROBATCHES * STEPS


def test_the_command_reads_a_folder_of_traces_as_a_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(analyze, [str(folder_of("gpipe", tmp_path)), "--html", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "4 ranks (pipeline 4), steps 1 to 2" in said
    assert "made from Chrome traces" in said
    assert "the tasks name no stage" in said


def test_what_is_missing_is_said_and_the_rest_analysed(tmp_path: Path) -> None:
    folder_of("interleaved", tmp_path)
    (tmp_path / "interleaved_rank1.json.gz").write_bytes(b"{")
    with pytest.raises(LogError, match="are traces missing"):
        import_traces(tmp_path)
    one = folder_of("gpipe", tmp_path) / "gpipe_rank2.json.gz"
    run = import_traces(one)
    assert any("0, 1, 3: no trace" in gap for gap in run.gaps)
    assert summarize(run).num_steps == STEPS


def test_names_mean_what_torch_means_by_them() -> None:
    from torch.distributed.pipelining import schedules as torch

    for letter, kind in (("F", Kind.F), ("B", Kind.B), ("I", Kind.B), ("W", Kind.W)):
        action = torch._Action.from_str(f"3{letter}12")
        assert meaning(torch._get_profiler_function_name(action)) == Meaning(Role.TASK, kind, 3, 12)
    receiving = torch._Action.from_str("2RECV_B5")
    assert meaning(torch._get_profiler_function_name(receiving)) == Meaning(Role.RECV, Kind.B, 2, 5)
    for other in ("2SEND_F5", "1UNSHARD", "0REDUCE_GRAD"):
        assert meaning(torch._get_profiler_function_name(torch._Action.from_str(other))) is None
    assert meaning("Forwarding 3") is None
    assert meaning("ProfilerStep#7") == Meaning(Role.STEP, step=7)


def write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document))


def trace(rank: int, *names: str) -> dict[str, object]:
    """Return a trace whose spans follow each other, 10 µs each."""
    events = [{"ph": "X", "name": name, "ts": 10.0 * i, "dur": 10.0} for i, name in enumerate(names)]
    return {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: (folder / "a.json").write_text("{"), "cannot be read as JSON"),
        (lambda folder: write(folder / "a.json", {"rows": []}), "no list of traceEvents"),
        (lambda folder: write(folder / "a.json", {"traceEvents": []}), "nothing tells its rank"),
        (lambda folder: write(folder / "a0.json", trace(0, "aten::mm")), "looked for spans named PP:0F1"),
        (lambda folder: [write(folder / f"{n}.json", trace(0, "PP:0F0")) for n in "ab"], "2 traces of rank 0"),
        (lambda folder: (folder / "a.json.gz").write_bytes(gzip.compress(b"[]")[:-9]), "cannot be read as JSON"),
    ],
)
def test_a_folder_that_holds_no_pipeline_is_refused(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    make(tmp_path)
    result = CliRunner().invoke(analyze, [str(tmp_path)])
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_a_v_of_stages_is_seen_and_updates_count(tmp_path: Path) -> None:
    write(tmp_path / "r0.json", trace(0, "PP:0F0", "idle", "idle", "PP:3F0", "PP:3B0", "x", "x", "PP:0I0", "PP:0W0"))
    second = trace(1, "idle", "PP:1F0", "PP:2F0", "idle", "idle", "PP:2B0", "PP:1B0", "Optimizer.step#SGD.step")
    write(tmp_path / "r1.json", second)
    report = summarize(import_traces(tmp_path))
    assert report.wall_ns == 90_000
    by_name = {each.name: ns for each, ns in report.classes.items() if ns}
    assert by_name["FORWARD"] == 40_000
    assert by_name["BACKWARD"] == 40_000
    assert by_name["WEIGHT"] == by_name["UPDATE"] == 10_000


def test_a_run_without_a_log_is_not_taken_for_traces(tmp_path: Path) -> None:
    for name in ("job.toml", "environment.json", "ranks.json"):
        (tmp_path / name).write_text("")
    with pytest.raises(LogError, match="no event log here"):
        open_log(tmp_path)
